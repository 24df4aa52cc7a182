"""Work given by a state machine and done by real daemons: every kind, and every way of losing them."""

from __future__ import annotations

import json

import pytest

from runtime.run.account.start import start_again
from runtime.spec.account import RUN_ITEM, checkpoint_item, commit_item, run_key
from runtime.spec.errors import RunError
from tests.integration.account.support import LONG, STEPS, wait_until

# Several real processes; the first test of a session also prepares the job.
pytestmark = pytest.mark.timeout(900)


def test_a_killed_and_a_reclaimed_node_change_no_bit(account, template):
    run = account.put(template.folder)
    account.node("coordinator")
    killed, reclaimed = account.node("cpu-a"), account.node("cpu-b")
    coordinate = account.give("coordinator", "coordinate", run)
    lost = account.give("cpu-a", "island", run, 0)
    left = account.give("cpu-b", "island", run, 1)
    account.wait_for_commit(run, 1)

    killed.kill()
    # The last island that has the state stays while it may: 15 s before the end it has to be gone.
    reclaimed.metadata.notice_interruption(seconds=17)
    answer = account.ending(left)
    assert answer["error"] == "Luma.Interrupted", account.logs()
    assert reclaimed.wait() == 0
    item = account.node_item(reclaimed)
    assert (item["state"], item["fleet"]) == ("left", "cpu-b")
    account.stop_giving(lost)  # as the missed heartbeats of a dead node do, sooner

    before = len(account.sums(run))
    assert before < LONG - STEPS
    account.node("cpu-b")
    account.node("cpu-a")
    islands = [account.give("cpu-b", "island", run, 0), account.give("cpu-a", "island", run, 1)]
    account.wait_for_commit(run, max(before, STEPS))
    account.cancel(run)
    stopped = account.ending(coordinate)
    assert stopped["phase"] == "stopped", account.logs()
    assert [account.ending(island) for island in islands] == [{"ended": "stopped"}] * 2
    assert account.sums(run)[:STEPS] == template.sums
    assert stopped["cost_usd"] > 0
    told = [event["how"] for event in account.events(run) if event["kind"] == "interruption"]
    assert {"spot", "lost"} <= set(told)


@pytest.mark.slow
def test_a_coordinator_that_is_killed_is_replaced_and_nobody_stops(account, template):
    run = account.put(template.folder)
    killed = account.node("coordinator")
    account.node("cpu-a")
    account.node("cpu-b")
    lost = account.give("coordinator", "coordinate", run)
    islands = [account.give("cpu-a", "island", run, 0), account.give("cpu-b", "island", run, 1)]
    account.wait_for_commit(run, 1)
    killed.kill()
    account.stop_giving(lost)
    before = len(account.sums(run))
    account.node("coordinator")
    coordinate = account.give("coordinator", "coordinate", run)
    account.wait_for_commit(run, max(before, STEPS))
    account.cancel(run)
    assert account.ending(coordinate)["phase"] == "stopped", account.logs()
    assert [account.ending(island) for island in islands] == [{"ended": "stopped"}] * 2
    assert account.sums(run)[:STEPS] == template.sums
    names = {event["island"] for event in account.events(run) if event["kind"] == "joined"}
    assert len(names) == 2, "an island was started anew"


def test_a_cancelled_run_stops_and_goes_on_where_it_was(account, template):
    run = account.put(template.folder)
    account.node("coordinator")
    account.node("cpu-a")
    account.node("cpu-b")

    def give_all() -> list[str]:
        return [
            account.give("coordinator", "coordinate", run),
            account.give("cpu-a", "island", run, 0),
            account.give("cpu-b", "island", run, 1),
        ]

    works = give_all()
    account.wait_for_commit(run)
    account.cancel(run)
    answers = [account.ending(work) for work in works]
    assert answers[0]["phase"] == "stopped", account.logs()
    assert answers[0]["reason"] == "cancelled"
    assert answers[1:] == [{"ended": "stopped"}] * 2
    first = answers[0]["steps"]
    assert 0 < first < LONG
    assert account.ending(account.give("cpu-a", "island", run, 0)) == {"ended": "stopped"}

    account.stack().table.update(run_key(run), RUN_ITEM, {"cancel": False})
    works = give_all()
    account.wait_for_commit(run, max(first, STEPS))
    account.cancel(run)
    answers = [account.ending(work) for work in works]
    assert answers[0]["steps"] > first
    assert account.sums(run)[:STEPS] == template.sums
    recomputed = account.items(run, "RECOMMIT#")
    assert recomputed == [], "it did not go on from its last step"


def test_a_run_that_was_done_when_its_nodes_were_lost_is_answered_at_once(account, template):
    run = account.put(template.folder)
    table = account.stack().table
    table.put({"pk": run_key(run), "sk": commit_item(LONG - 1), "step": LONG - 1})
    checkpoint = {"step": LONG, "state_hash": "feed", "path": "checkpoints/step-002000"}
    table.put({"pk": run_key(run), "sk": checkpoint_item(LONG), **checkpoint})
    account.node("coordinator")
    account.node("cpu-a")
    answer = account.ending(account.give("coordinator", "coordinate", run))
    assert (answer["phase"], answer["state_hash"], answer["steps"]) == ("done", "feed", LONG)
    assert account.ending(account.give("cpu-a", "island", run, 0)) == {"ended": "done"}


def test_a_message_that_is_delivered_twice_is_answered_once(account, template):
    run = account.put(template.folder)
    account.cancel(run)
    given = account.give("cpu-a", "island", run, 0)
    sqs, queue = account.server.client("sqs"), account.queues["cpu-a"]
    received = wait_until(
        lambda: sqs.receive_message(QueueUrl=queue).get("Messages"), "the message"
    )
    for _ in range(2):
        sqs.send_message(QueueUrl=queue, MessageBody=received[0]["Body"])
    node = account.node("cpu-a")
    assert account.ending(given) == {"ended": "stopped"}
    wait_until(lambda: "nobody waits for it; dropped" in node.log.read_text(), "the second one")


def test_a_run_without_money_is_stopped_before_it_spends_any(account, template):
    run = account.put(template.folder)
    # The coordinator's own 3.6 $/h: two minutes of it, which an orderly stop may take, are 0.12 $.
    account.stack().table.update(run_key(run), RUN_ITEM, {"max_cost_usd": 0.1})
    account.node("coordinator")
    answer = account.ending(account.give("coordinator", "coordinate", run))
    assert answer["phase"] == "stopped", account.logs()
    assert answer["reason"].startswith("budget: ")
    assert answer["cost_usd"] < 0.1
    assert account.run_item(run)["cancel"] is True


def test_stale_work_is_dropped_before_and_while_it_is_done(account, template):
    run = account.put(template.folder)
    stale = account.give("cpu-a", "island", run, 0)
    account.stop_giving(stale)
    node = account.node("cpu-a", "--once")
    assert node.wait() == 0
    assert "nobody waits for it; dropped" in node.log.read_text()

    node = account.node("cpu-b")
    given = account.give("cpu-b", "island", run, 1, heartbeat_s=1)
    wait_until(lambda: account.items(run, "SLOT#01")[0].get("node"), "the island's slot")
    account.stop_giving(given)
    wait_until(lambda: account.node_item(node).get("state") == "idle", "the node's freedom")
    assert "island-1" in {key.split("/")[-1][:8] for key in _log_keys(account, run)}
    assert "node" not in account.items(run, "SLOT#01")[0]
    assert node.process.poll() is None


def _log_keys(account, run: str) -> list[str]:
    return [item.key for item in account.stack().bucket.list(f"runs/{run}/logs/")]


def test_work_that_cannot_be_done_is_answered(account, template):
    account.node("cpu-a")
    answer = account.ending(account.give("cpu-a", "island", "no-such-run", 0))
    assert answer["error"] == "Luma.JobFailed"
    assert "is not in table" in answer["cause"]

    run = account.put(template.folder)
    record = {"digest": "d", "seal": "L0", "bytes": 1, "targets": ["trn2"]}
    account.stack().bucket.write(f"runs/{run}/artifact.json", json.dumps(record).encode())
    answer = account.ending(account.give("cpu-a", "island", run, 0))
    assert answer["error"] == "Luma.Refused"
    assert "fleet 'cpu-a' runs cpu" in answer["cause"]


def test_a_run_that_is_done_is_not_started_again(account, template):
    run = account.put(template.folder)
    account.stack().table.update(run_key(run), RUN_ITEM, {"state": "done"})
    with pytest.raises(RunError, match="is done already"):
        start_again(account.stack(), run)
