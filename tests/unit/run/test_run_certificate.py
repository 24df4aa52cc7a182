"""The certificate from a run's records: what it says, and that it does not take it on trust."""

from __future__ import annotations

import json
import shutil
import sqlite3

import pytest

from runtime.run.audit import audit_samples
from runtime.run.certificate import certificate_lines, certify, read_certificate
from runtime.run.history import History
from runtime.spec import RunError
from tests.unit.run.conftest import write_final_checkpoint

CONTRACT = {
    "level", "state_hash", "reference_state_hash", "steps", "steps_lost", "samples_seen",
    "interruptions", "artifact_digest", "versions",
}  # fmt: skip


def change_log(folder, statement, *values):
    """Change the commit log behind the coordinator's back."""
    with sqlite3.connect(folder.log_file) as database:
        database.execute(statement, values)
    database.close()


def test_an_interrupted_run_is_certified_as_exact_with_its_interruption(recorded_run):
    folder = recorded_run()
    certificate = certify(folder)
    assert set(certificate) >= CONTRACT
    assert certificate["level"] == "exact"
    assert certificate["problems"] == []
    assert (certificate["steps"], certificate["steps_lost"]) == (20, 0)
    assert certificate["attempts_redone"] == 1
    assert certificate["samples_seen"] == 20 * 8 * 2
    assert certificate["samples_exactly_once"]
    assert certificate["reference_state_hash"] is None
    assert certificate["interruptions"] == [
        {"island": "island-1", "kind": "SIGKILL", "at_step": 12, "seconds_to_next_commit": 1.4}
    ]
    assert certificate["seal"] == "L1 (key file)"
    assert json.loads(folder.certificate_file.read_text()) == certificate
    assert read_certificate(folder) == certificate


def test_the_printed_certificate_names_all_that_a_reader_looks_for(recorded_run):
    text = "\n".join(f"{k}: {v}" for k, v in certificate_lines(certify(recorded_run())))
    for part in ("exact", "12" * 32, "20, 0 lost", "320 used", "SIGKILL in step 12", "1.40 s",
                 "sha384:", "L1 (key file)", "jax 0.10.2", "--reference"):  # fmt: skip
        assert part in text


def test_a_reference_with_another_hash_violates_the_promise(recorded_run):
    folder = recorded_run()
    assert certify(folder, reference_state_hash="12" * 32)["level"] == "exact"
    certificate = certify(folder, reference_state_hash="34" * 32)
    assert certificate["level"] == "violated"
    assert "34343434" in certificate["problems"][0]
    assert ("reference", "3434343434343434… DIFFERENT") in certificate_lines(certificate)


@pytest.mark.parametrize(
    ("statement", "values", "problem"),
    [
        ("UPDATE commits SET shards = ? WHERE step = 4", ('{"a": [0,1,2,3,4,5,6]}',), "step 4: shard 7 is missing"),
        ("UPDATE commits SET shards = ? WHERE step = 4", ('{"a": [0,1,2,3,4,5,6,7], "b": [7]}',), "step 4: shard 7 was summed 2 times"),
        ("UPDATE commits SET shards = ? WHERE step = 4", ('{"a": [0,1,2,3,4,5,6,7,9]}',), "no shard 9"),
        ("DELETE FROM commits WHERE step = 4", (), "gap"),
        ("UPDATE commits SET sum_hash = 'ff' WHERE step = 4", (), "missing from the final history: [4]"),
    ],
)  # fmt: skip
def test_a_log_that_does_not_hold_what_was_promised_is_found(
    recorded_run, statement, values, problem
):
    folder = recorded_run()
    change_log(folder, statement, *values)
    certificate = certify(folder)
    assert certificate["level"] == "violated"
    assert any(problem in text for text in certificate["problems"]), certificate["problems"]


def test_islands_of_two_chip_classes_are_not_certified_as_exact(recorded_run):
    folder = recorded_run()
    text = folder.events_file.read_text()
    folder.events_file.write_text(text.replace("cpu/x", "cpu/y", 1))
    certificate = certify(folder)
    assert certificate["chip_classes"] == ["cpu/x", "cpu/y"]
    assert certificate["level"] == "violated"
    assert any("several chip classes" in text for text in certificate["problems"])


@pytest.mark.parametrize("damage", ["deleted", "changed", "manifest", "another state"])
def test_a_final_checkpoint_that_is_not_what_the_islands_hashed_violates_the_promise(
    recorded_run, damage
):
    folder = recorded_run()
    final = folder.checkpoints_dir / "step-000020"
    weights = final / "model.safetensors"
    if damage == "changed":
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(bytes(data))
    elif damage == "manifest":
        (final / "luma" / "manifest.json").unlink()
    else:
        shutil.rmtree(final)
    if damage == "another state":
        write_final_checkpoint(folder, "34" * 32)
    certificate = certify(folder)
    assert certificate["level"] == "violated"
    (problem,) = certificate["problems"]
    words = {
        "deleted": "step-000020 cannot be used: it is missing",
        "changed": "model.safetensors",
        "manifest": "manifest.json",
        "another state": "34343434",
    }
    assert words[damage] in problem


def test_a_kill_from_outside_is_an_interruption_too(recorded_run):
    folder = recorded_run(kill_step=None)
    events = [json.loads(line) for line in folder.events_file.read_text().splitlines()]
    commits = [event["time"] for event in events if event["kind"] == "commit"]
    exited = {
        "time": commits[6] + 0.1,
        "kind": "exited",
        "island": "island-0",
        "pid": 0,
        "code": -9,
    }
    with folder.events_file.open("a") as file:
        file.write(json.dumps(exited) + "\n")
    (interruption,) = certify(folder)["interruptions"]
    assert interruption == {
        "island": "island-0",
        "kind": "SIGKILL",
        "at_step": 7,
        "seconds_to_next_commit": 0.3,
    }


def test_a_commit_whose_event_a_killed_coordinator_did_not_write_is_still_counted(recorded_run):
    folder = recorded_run()
    lines = folder.events_file.read_text().splitlines(keepends=True)
    kept = [line for line in lines if '"kind": "commit", "step": 7,' not in line]
    assert len(kept) == len(lines) - 1
    folder.events_file.write_text("".join(kept))
    assert certify(folder)["level"] == "exact"


def test_a_torn_line_of_the_events_is_skipped(recorded_run):
    folder = recorded_run()
    with folder.events_file.open("a") as file:
        file.write('{"time": 1.0, "kind": "comm')
    assert certify(folder)["level"] == "exact"


def test_a_run_that_is_not_done_gets_no_certificate(recorded_run):
    folder = recorded_run(done=False)
    with pytest.raises(RunError, match="not done") as caught:
        certify(folder)
    assert "--resume" in caught.value.diagnostics()
    assert read_certificate(folder) is None


def test_the_audit_counts_epochs_over_a_small_data_set(recorded_run):
    from runtime.coordinator.plan import RunPlan

    folder = recorded_run()
    audit = audit_samples(History.read(folder.path).commits, RunPlan.read(folder.path))
    assert (audit.expected, audit.seen, audit.epochs) == (320, 320, 4)  # 100 samples an epoch
    assert audit.exactly_once
