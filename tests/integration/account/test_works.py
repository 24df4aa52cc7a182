"""Work given by a state machine and done by real daemons: every kind, and every way of losing them."""

from __future__ import annotations

import json

from runtime.coordinator.log_dynamodb import DynamoCommitLog
from runtime.run.account.start import start_again
from runtime.spec.account import RUN_ITEM, run_key
from tests.integration.account.machines import TABLE
from tests.integration.account.support import STEPS, wait_until


def test_a_killed_and_a_reclaimed_node_cost_nothing_but_time(account, template):
    run = account.put(template.folder)
    account.node("coordinator")
    killed, reclaimed = account.node("cpu-a"), account.node("cpu-b")
    coordinate = account.give("coordinator", "coordinate", run)
    lost = account.give("cpu-a", "island", run, 0, heartbeat_s=4)
    left = account.give("cpu-b", "island", run, 1, heartbeat_s=4)
    account.wait_for_commit(run)

    killed.kill()
    reclaimed.metadata.notice_interruption()
    answer = account.ending(left)
    assert answer["error"] == "Luma.Interrupted", account.logs()
    assert reclaimed.wait() == 0
    item = account.node_item(reclaimed)
    assert (item["state"], item["fleet"]) == ("left", "cpu-b")
    assert account.ending(lost)["error"] in {"States.Timeout", "States.HeartbeatTimeout"}

    assert DynamoCommitLog(TABLE, run, read_only=True).last_step() < STEPS - 1, "it ended too soon"
    account.node("cpu-b")
    account.node("cpu-a")
    islands = [account.give("cpu-b", "island", run, 0), account.give("cpu-a", "island", run, 1)]
    done = account.ending(coordinate)
    assert (done["phase"], done["state_hash"]) == ("done", template.state_hash), account.logs()
    assert [account.ending(island) for island in islands] == [{"ended": "done"}] * 2
    assert done["cost_usd"] > 0

    exported = account.ending(account.give("coordinator", "export", run))
    assert exported["state_hash"] == template.state_hash, account.logs()
    certificate = json.loads(account.stack().bucket.read(exported["certificate"]))
    assert (certificate["level"], certificate["steps_lost"]) == ("exact", 0)
    assert {"spot", "lost"} <= {item["kind"] for item in certificate["interruptions"]}

    # Given once more, as after a lost answer: both say so at once, and nothing is computed.
    again = account.ending(account.give("coordinator", "coordinate", run))
    assert (again["phase"], again["state_hash"]) == ("done", template.state_hash)
    assert account.ending(account.give("cpu-a", "island", run, 0)) == {"ended": "done"}


def test_a_cancelled_run_stops_resumably_and_goes_on_to_the_same_hash(account, template):
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
    values = {"cancel": True, "reason": "cancelled"}
    account.stack().table.update(run_key(run), RUN_ITEM, values)
    answers = [account.ending(work) for work in works]
    assert answers[0]["phase"] == "stopped", account.logs()
    assert answers[0]["reason"] == "cancelled"
    assert answers[0]["steps"] < STEPS
    assert answers[1:] == [{"ended": "stopped"}] * 2
    assert account.ending(account.give("cpu-a", "island", run, 0)) == {"ended": "stopped"}

    account.stack().table.update(run_key(run), RUN_ITEM, {"cancel": False})
    answers = [account.ending(work) for work in give_all()]
    assert (answers[0]["phase"], answers[0]["state_hash"]) == ("done", template.state_hash)
    assert answers[1:] == [{"ended": "done"}] * 2


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
    given = account.give("cpu-b", "island", run, 1, heartbeat_s=2)
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
    try:
        start_again(account.stack(), run)
    except Exception as error:
        assert "is done already" in str(error)
    else:
        raise AssertionError("it was started")
