"""Work of every kind, given by a state machine and done by real daemons."""

from __future__ import annotations

import json
from pathlib import Path

from runtime.run.account.start import write_items
from runtime.run.account.upload import upload_run
from tests.integration.account.conftest import STEPS


def put_in(account, prepared) -> str:
    """Upload a prepared run and write its items, as `luma launch` does; nothing is started."""
    stack = account.stack()
    upload_run(prepared.folder, prepared.name, stack, progress=lambda done, total: None)
    record = prepared.folder.record()
    write_items(
        stack, prepared.name, record, total_steps=STEPS, key_file=Path(record["key_file"])
    )
    return prepared.name


def test_a_job_goes_through_every_kind_of_work_to_the_hash_of_a_local_run(
    account, prepared, template
):
    run = put_in(account, prepared)
    account.node("compiler")
    compiled = account.ending(account.give("compiler", "compile", run))
    assert compiled["level"] == "L1 (local service)", account.logs()
    assert compiled["targets"] == ["cpu"]

    for fleet in ("coordinator", "cpu-a", "cpu-b"):
        account.node(fleet)
    coordinate = account.give("coordinator", "coordinate", run)
    islands = [account.give("cpu-a", "island", run, 0), account.give("cpu-b", "island", run, 1)]
    done = account.ending(coordinate)
    assert done["phase"] == "done", account.logs()
    assert done["state_hash"] == template.state_hash
    assert done["steps"] == STEPS
    assert [account.ending(island) for island in islands] == [{"ended": "done"}] * 2

    exported = account.ending(account.give("coordinator", "export", run))
    assert exported["state_hash"] == template.state_hash, account.logs()
    bucket = account.stack().bucket
    certificate = json.loads(bucket.read(exported["certificate"]))
    assert certificate["level"] == "exact"
    assert certificate["state_hash"] == template.state_hash
    names = {item.key.removeprefix(exported["export"]) for item in bucket.list(exported["export"])}
    assert {"model.safetensors", "config.json"} <= names
