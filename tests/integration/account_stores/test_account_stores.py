"""Real processes over an emulated table and bucket: nothing that is needed lies on a node."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

from runtime.agent.checkpoint import load_checkpoint
from runtime.agent.exit_codes import ExitCode
from runtime.coordinator.__main__ import NO_STORE, SUPERSEDED
from runtime.coordinator.client import ADDRESS_FILE
from runtime.coordinator.events import read_events
from runtime.coordinator.log import LOG_FILE
from runtime.coordinator.tls import make_identity
from runtime.run.history import History
from tests.emulator.faults import Fault
from tests.integration.account_stores.conftest import TABLE, TIMEOUT_S

pytestmark = pytest.mark.timeout(900)


def test_a_run_survives_the_loss_of_every_node(make_run, same_bits, template, tmp_path) -> None:
    """An island; the coordinator at its worst moment; all that is left, and every disk."""
    run = make_run(islands=2, checkpoint_every=2)
    first, second = run.island(0), run.island(1, hold=7)  # before there is a coordinator to find
    coordinator = run.coordinator(killed_after=4)
    run.wait_for_step(2)
    first.lose()
    third = run.island(2, hold=7)
    assert coordinator.process.wait(TIMEOUT_S) == -signal.SIGKILL, run.report()
    coordinator.lose()
    assert run.log().last_step() == 4
    coordinator = run.coordinator(restart=True)
    run.wait_for_step(6)
    run.wait(lambda: 6 in [row[0] for row in run.log().checkpoints()], "the checkpoint of step 6")
    for node in (second, third, coordinator):
        node.lose()
    assert run.log().last_step() == 6

    islands = [run.island(3), run.island(4)]
    coordinator = run.coordinator()
    assert coordinator.process.wait(TIMEOUT_S) == 0, run.report()
    assert [island.process.wait(TIMEOUT_S) for island in islands] == [ExitCode.DONE] * 2
    same_bits(run)
    newest = run.remote().pull_newest(tmp_path / "brought-home")
    assert load_checkpoint(newest).hash() == template.state_hash
    assert run.log().recommit_count() == 1, "step 6, which only the lost nodes had applied"


def test_a_coordinator_that_was_cut_off_gives_way(make_run, same_bits) -> None:
    """A second one is started while the first lives: the islands follow the one that may commit."""
    run = make_run(islands=2, tls=False)
    islands = [run.island(number, hold=3, gate="go") for number in range(2)]
    old = run.coordinator()
    run.wait_for_step(2)
    before = run.log().address()
    new = run.coordinator(restart=True)
    run.wait(lambda: run.log().address() != before, "the second coordinator's address")
    run.open("go")
    assert old.process.wait(TIMEOUT_S) == SUPERSEDED, run.report()
    assert "another coordinator has taken over" in old.log()
    assert new.process.wait(TIMEOUT_S) == 0, run.report()
    assert [island.process.wait(TIMEOUT_S) for island in islands] == [ExitCode.DONE] * 2
    same_bits(run)
    told = [event["kind"] for event in read_events(old.folder)]
    assert not {"done", "failed", "stopped"} & set(told)


def test_an_island_with_another_certificate_stays_out(make_run, same_bits, tmp_path) -> None:
    """It knows the coordinator's address and the run's token, and is not heard."""
    run = make_run(islands=1)
    make_identity(tmp_path / "forged")
    coordinator = run.coordinator()
    run.wait(run.log().address, "the coordinator's address")
    stranger = run.island(0, tls=tmp_path / "forged", patience_s=3)
    assert (stranger.folder / ADDRESS_FILE).exists(), "it knows whom to ask"
    assert stranger.process.wait(TIMEOUT_S) == ExitCode.LOST_COORDINATOR, run.report()
    assert "CERTIFICATE_VERIFY_FAILED" in stranger.log()
    kinds = [event["kind"] for event in read_events(coordinator.folder)]
    assert kinds == ["coordinator_started"]
    island = run.island(1)
    assert coordinator.process.wait(TIMEOUT_S) == 0, run.report()
    assert island.process.wait(TIMEOUT_S) == ExitCode.DONE
    same_bits(run)
    joined = [e["island"] for e in read_events(coordinator.folder) if e["kind"] == "joined"]
    assert joined == ["island-1"]

    home = tmp_path / "home"
    home.mkdir()
    words = ["--log", f"dynamodb:{TABLE}/{run.name}", "--run", str(home)]
    for _ in range(2):  # a second copy replaces the first
        subprocess.run(
            [sys.executable, "-m", "runtime.coordinator.copy_log", *words],
            check=True,
            timeout=TIMEOUT_S,
        )
    assert [path.name for path in home.iterdir()] == [LOG_FILE]
    assert list(History.read(home).commits) == run.log().commits()


@pytest.mark.slow
def test_a_table_that_does_not_answer_ends_the_coordinator_and_no_island(
    make_run, same_bits, account
) -> None:
    run = make_run(islands=2)
    islands = [run.island(0, hold=3, gate="go"), run.island(1, hold=3, gate="go")]
    coordinator = run.coordinator()
    run.wait_for_step(2)
    account.fault(
        Fault(service="dynamodb", operation="TransactWriteItems", code="ThrottlingException")
    )
    try:
        run.open("go")
        assert coordinator.process.wait(TIMEOUT_S) == NO_STORE, run.report()
        assert [island.process.poll() for island in islands] == [None, None]
    finally:
        account.lift_faults()
    coordinator = run.coordinator(restart=True)
    assert coordinator.process.wait(TIMEOUT_S) == 0, run.report()
    assert [island.process.wait(TIMEOUT_S) for island in islands] == [ExitCode.DONE] * 2
    same_bits(run)


@pytest.mark.slow
def test_an_island_that_cannot_reach_the_bucket_ends_alone(make_run, same_bits) -> None:
    """Another one may reach it: the run must not fail for it."""
    run = make_run(islands=1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    coordinator = run.coordinator()
    lonely = run.island(0, environment={"AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}"})
    assert lonely.process.wait(TIMEOUT_S) == ExitCode.CRASHED, run.report()
    assert "s3 ListObjectsV2" in lonely.log()
    island = run.island(1)
    assert coordinator.process.wait(TIMEOUT_S) == 0, run.report()
    assert island.process.wait(TIMEOUT_S) == ExitCode.DONE
    same_bits(run)
