"""The log's rows as items of the account's table, and back.

The keys are in `runtime.spec.account`: all items of a run have the partition key `RUN#<run>`, and
numbers are padded in the sort key, so that its order is theirs. Each row carries `write`, an id of
the write that made it: a writer that lost the answer to a write knows its own by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.coordinator.client import CoordinatorAddress
from runtime.coordinator.commit_log import Commit

COMMIT, RECOMMIT, EPOCH, CHECKPOINT = "COMMIT#", "RECOMMIT#", "EPOCH#", "CHECKPOINT#"


def commit_fields(commit: Commit) -> dict[str, Any]:
    """Give a commit's attributes."""
    return {
        "step": commit.step,
        "epoch": commit.epoch,
        "attempt": commit.attempt,
        "members": list(commit.members),
        "shards": commit.shards,
        "sum_hash": commit.sum_hash,
        "loss": commit.loss,
        "tokens": commit.tokens,
    }


def commit_of(fields: Mapping[str, Any]) -> Commit:
    """Give the commit of an item's attributes."""
    return Commit(
        step=fields["step"],
        epoch=fields["epoch"],
        attempt=fields["attempt"],
        members=tuple(fields["members"]),
        shards=dict(fields["shards"]),
        sum_hash=fields["sum_hash"],
        loss=float(fields["loss"]),  # a whole one comes back as an int
        tokens=fields["tokens"],
    )


def address_of(fields: Mapping[str, Any]) -> CoordinatorAddress | None:
    """Give the address that the COORDINATOR item's attributes publish, None where they hold none."""
    if "host" not in fields:
        return None
    return CoordinatorAddress(
        host=fields["host"], port=fields["port"], pid=fields["pid"], token=fields["token"]
    )
