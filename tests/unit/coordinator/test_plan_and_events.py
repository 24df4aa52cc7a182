"""`plan.json`, `coordinator.json` and `events.jsonl` on disk: whole, or a clear refusal."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import socket
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.coordinator.client import CoordinatorAddress, read_status, request_stop
from runtime.coordinator.events import EventWriter, read_events
from runtime.coordinator.plan import OptimizerPlan, RunPlan, SchedulePlan
from runtime.spec.errors import CoordinationError, RunError

PLAN = RunPlan(
    run_id="r",
    total_steps=20,
    micro_shards=8,
    micro_batch=2,
    seed=7,
    islands=3,
    min_islands=1,
    threads_per_island=1,
    heartbeat_timeout_s=2.5,
    checkpoint_every=5,
    keep=2,
    target="cpu",
    artifact="artifact.luma",
    key_file="/keys/data.key",
    signer_file="signer.pem",
    job_digest="ab" * 32,
    headroom=3,
    optimizer=OptimizerPlan(lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, grad_clip=1.0),
    schedule=SchedulePlan(kind="cosine", warmup_steps=2, min_lr_ratio=0.1),
    sample_count=100,
    data_digest="cd" * 32,
)


REQUIRED = [f.name for f in dataclasses.fields(RunPlan) if f.default is dataclasses.MISSING]


def test_a_plan_comes_back_as_it_was_written(tmp_path: Path) -> None:
    PLAN.write(tmp_path)
    assert RunPlan.read(tmp_path) == PLAN
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_a_folder_without_a_plan_is_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run folder") as caught:
        RunPlan.read(tmp_path)
    assert "luma launch --run" in caught.value.diagnostics()


def _document(tmp_path: Path) -> dict[str, Any]:
    PLAN.write(tmp_path)
    return json.loads((tmp_path / "plan.json").read_text())


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_plan_of_another_format_is_refused(tmp_path: Path, version: object) -> None:
    document = _document(tmp_path) | {"format": version}
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(RunError, match="this version of luma reads 1"):
        RunPlan.read(tmp_path)


@pytest.mark.parametrize("field", REQUIRED)
def test_a_missing_field_is_named(tmp_path: Path, field: str) -> None:
    document = _document(tmp_path)
    del document[field]
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(RunError, match=field):
        RunPlan.read(tmp_path)


@pytest.mark.parametrize("group", ["optimizer", "schedule"])
@pytest.mark.parametrize("value", [None, [], 3, {}, {"lr": 1.0, "kind": "x"}])
def test_a_broken_group_is_refused(tmp_path: Path, group: str, value: object) -> None:
    document = _document(tmp_path) | {group: value}
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(RunError, match=r"plan\.json"):
        RunPlan.read(tmp_path)


def test_an_unknown_field_is_refused(tmp_path: Path) -> None:
    """A plan of a newer luma that forgot to raise the format is not run as something else."""
    document = _document(tmp_path) | {"dropout_seed": 3}
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(RunError, match="dropout_seed"):
        RunPlan.read(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"plan"', "\ufeff{}"])
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(RunError, match=r"plan\.json"):
        RunPlan.read(tmp_path)


@given(st.integers(0, 700))
@settings(max_examples=30, deadline=None)
def test_a_cut_plan_is_refused(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    folder = tmp_path_factory.mktemp("plan")
    PLAN.write(folder)
    (folder / "plan.json").write_bytes((folder / "plan.json").read_bytes()[:length])
    with pytest.raises(RunError):
        RunPlan.read(folder)


# ---------------------------------------------------------------------------------------- events


def _kinds(run_dir: Path) -> list[str]:
    return [event["kind"] for event in read_events(run_dir)]


def test_events_come_back_in_order_with_their_time(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path)
    writer.write("joined", island="island-0", pid=3)
    writer.write("commit", step=0, shards={"island-0": [0, 1]})
    events = list(read_events(tmp_path))
    assert [{k: v for k, v in e.items() if k != "time"} for e in events] == [
        {"kind": "joined", "island": "island-0", "pid": 3},
        {"kind": "commit", "step": 0, "shards": {"island-0": [0, 1]}},
    ]
    assert events[0]["time"] <= events[1]["time"]


def test_no_file_means_no_events(tmp_path: Path) -> None:
    assert list(read_events(tmp_path)) == []


@given(cut=st.integers(1, 60))
@settings(max_examples=30, deadline=None)
def test_a_line_that_a_crash_cut_is_left_out_and_later_ones_stay_whole(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    run_dir = tmp_path_factory.mktemp("events")
    writer = EventWriter(run_dir)
    writer.write("first")
    writer.write("second", text="line\nbreaks and \u20ac stay inside")
    writer.close()
    path = run_dir / "events.jsonl"
    data = path.read_bytes()
    first_ends = data.index(b"\n") + 1
    path.write_bytes(data[: max(first_ends, len(data) - cut)])
    assert _kinds(run_dir) in (["first"], ["first", "second"])
    before = _kinds(run_dir)
    again = EventWriter(run_dir)
    again.write("third")
    again.write("fourth")
    again.close()
    assert _kinds(run_dir) == [*before, "third", "fourth"]


def test_lines_that_are_no_events_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(
        b'\xff\xfe\n[]\n3\n{"time": 1}\n\n{"time": 1, "kind": "done"}\n'
    )
    assert _kinds(tmp_path) == ["done"]


def _append_many(run_dir: Path, name: str, count: int) -> None:
    writer = EventWriter(run_dir)
    for number in range(count):
        writer.write(name, number=number, padding="x" * (number % 3000))


def test_two_processes_append_without_mixing_their_lines(tmp_path: Path) -> None:
    """The coordinator and the launcher write to one file."""
    context = multiprocessing.get_context("fork")
    writers = [
        context.Process(target=_append_many, args=(tmp_path, name, 500)) for name in ("a", "b")
    ]
    for process in writers:
        process.start()
    for process in writers:
        process.join(60)
        assert process.exitcode == 0
    lines = (tmp_path / "events.jsonl").read_bytes().splitlines()
    assert len(lines) == 1000
    events = list(read_events(tmp_path))
    for name in ("a", "b"):
        assert [e["number"] for e in events if e["kind"] == name] == list(range(500))


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    with pytest.raises(RunError, match=r"events\.jsonl: cannot be written \(No space left"):
        EventWriter(tmp_path).write("commit", step=1)


# ------------------------------------------------------------------------- address, status, stop


def test_the_address_is_for_its_owner_only(tmp_path: Path) -> None:
    """It holds the run's token."""
    address = CoordinatorAddress(host="127.0.0.1", port=5, pid=1, token="t")
    address.write(tmp_path)
    assert stat.S_IMODE((tmp_path / "coordinator.json").stat().st_mode) == 0o600
    assert CoordinatorAddress.read(tmp_path) == address
    assert "t" not in [p.name for p in tmp_path.iterdir()]


@pytest.mark.parametrize("text", ["", "{", "[1]", "{}", '{"host": "h", "port": 1}', "null"])
def test_a_broken_address_is_no_address(tmp_path: Path, text: str) -> None:
    (tmp_path / "coordinator.json").write_text(text)
    assert CoordinatorAddress.read(tmp_path) is None


def test_without_a_coordinator_status_comes_from_the_files(tmp_path: Path) -> None:
    PLAN.write(tmp_path)
    writer = EventWriter(tmp_path)
    assert read_status(tmp_path)["state"] == "terminated"
    writer.write("coordinator_started", pid=1, restart=False)
    writer.write("commit", step=0)
    writer.write("commit", step=1)
    writer.write("checkpoint", step=1)
    status = read_status(tmp_path)
    assert (status["state"], status["step"], status["last_checkpoint"]) == ("terminated", 2, 1)
    writer.write("failed", error="the last checkpoint cannot be written")
    assert read_status(tmp_path)["error"] == "the last checkpoint cannot be written"
    writer.write("coordinator_started", pid=2, restart=False)
    assert read_status(tmp_path)["error"] is None
    writer.write("done", step=20)
    assert read_status(tmp_path)["state"] == "done"
    with pytest.raises(CoordinationError, match="no coordinator runs"):
        request_stop(tmp_path)


def test_a_stranger_on_the_coordinator_s_old_port_is_not_believed(tmp_path: Path) -> None:
    """A stale address file: another program has the port now."""
    PLAN.write(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        CoordinatorAddress(host="127.0.0.1", port=port, pid=1, token="t").write(tmp_path)

        def greet() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                connection.recv(100)
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                connection.close()

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        assert read_status(tmp_path)["state"] == "terminated"
        with pytest.raises(CoordinationError, match="no coordinator runs"):
            request_stop(tmp_path)
        thread.join(5)
