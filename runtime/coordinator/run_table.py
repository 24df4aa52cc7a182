"""The items of one run in the account's table: read them, and write them in a coordinator's term.

Every write of a row is one TransactWriteItems whose first part is a ConditionCheck on the term in
COORDINATOR: of two coordinators only the newer one's writes are done, however late a request of the
older one arrives.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from runtime.coordinator.commit_log import SupersededError
from runtime.spec.account import COORDINATOR_ITEM, run_key
from runtime.spec.aws import AwsError, aws_errors, error_code
from runtime.spec.errors import CoordinationError
from runtime.spec.table import Item, Table, to_item

ABSENT = "attribute_not_exists(pk)"
PRESENT = "attribute_exists(pk)"
_REFUSED = "ConditionalCheckFailed"
# Reasons for which DynamoDB cancels a transaction that nothing is wrong with. botocore repeats a
# throttled request, but not a transaction that was cancelled for it.
_PASSING = frozenset({"TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"})
# The same of a write that is no transaction, and of ours that is still being done.
_ALONE = {
    "ConditionalCheckFailedException": _REFUSED,
    "TransactionConflictException": "TransactionConflict",
    "TransactionInProgressException": "TransactionConflict",
}
_ATTEMPTS = 8
_FIRST_WAIT_S = 0.05


class RunTable:
    """One run's items.

    Args:
        table: the table's name.
        run: the run's name.
    """

    def __init__(self, table: str, run: str) -> None:
        self._table = Table(table)
        self._run = run

    def close(self) -> None:
        """Close the connections."""
        self._table.client.close()

    def get(self, sort_key: str) -> Item | None:
        """Read one item as it is now, None where it is missing.

        Raises:
            AwsError: AWS refuses.
        """
        return self._table.get(run_key(self._run), sort_key)

    def query(self, prefix: str) -> Iterator[Item]:
        """Read the items whose sort keys begin with a prefix, in their order.

        Raises:
            AwsError: AWS refuses.
        """
        return self._table.query(run_key(self._run), prefix)

    def newest(self, prefix: str) -> Item | None:
        """Read the item with the highest sort key of a prefix, None where there is none.

        Raises:
            AwsError: AWS refuses.
        """
        return self._table.newest(run_key(self._run), prefix)

    def take_term(self) -> int:
        """Become the run's coordinator: take the term after the present one.

        Raises:
            SupersededError: another coordinator took it in this moment.
            AwsError: AWS refuses.
        """
        holder = secrets.token_hex(16)
        before = (self.get(COORDINATOR_ITEM) or {}).get("term", 0)
        fields = {"term": before + 1, "holder": holder, "taken": time.time()}
        try:
            self.update_coordinator(fields, term=before)
        except SupersededError:
            # Ours, if it was done and the answer to it was lost.
            if (self.get(COORDINATOR_ITEM) or {}).get("holder") != holder:
                raise
        return before + 1

    def update_coordinator(self, fields: Mapping[str, Any], *, term: int) -> None:
        """Change attributes of the COORDINATOR item while it has a term; 0 for none yet.

        Raises:
            SupersededError: it has another.
            AwsError: AWS refuses.
        """
        values = {f":{index}": value for index, value in enumerate(fields.values())}
        if term:
            values[":expected"] = term
        changes = ", ".join(f"#{index} = :{index}" for index in range(len(fields)))
        request = {
            "TableName": self._table.name,
            "Key": self._key(COORDINATOR_ITEM),
            "UpdateExpression": f"SET {changes}",
            "ConditionExpression": "#term = :expected" if term else "attribute_not_exists(#term)",
            "ExpressionAttributeNames": {
                "#term": "term",
                **{f"#{index}": name for index, name in enumerate(fields)},
            },
            "ExpressionAttributeValues": to_item(values),
        }
        if not self._repeat("UpdateItem", lambda: self._table.client.update_item(**request)):
            return
        raise self.superseded(term)

    def put(
        self,
        sort_key: str,
        fields: Mapping[str, Any],
        *,
        term: int,
        condition: str = ABSENT,
        values: Mapping[str, Any] | None = None,
        after: str | None = None,
    ) -> Item | None:
        """Put a row while COORDINATOR has our term.

        Args:
            sort_key: the row's sort key.
            fields: its attributes; the time and the id of this write are added.
            term: our term.
            condition: what must hold of the item that is there.
            values: of the condition's expression.
            after: sort key of an item that must be there too.

        Returns:
            None when the row is written, or what is there and forbids it.

        Raises:
            SupersededError: another coordinator has taken over.
            CoordinationError: `after` is missing.
            AwsError: AWS refuses.
        """
        write = secrets.token_hex(16)
        body = {**fields, "time": time.time(), "write": write}
        put = {
            "TableName": self._table.name,
            "Item": {**self._key(sort_key), **to_item(body)},
            "ConditionExpression": condition,
            **({"ExpressionAttributeValues": to_item(values)} if values else {}),
        }
        writes = [self._check_term(term), {"Put": put}]
        if after is not None:
            writes.append(self._check(after, PRESENT))
        refused = self._transact(writes, write)
        if not any(refused):
            return None
        if refused[0]:
            raise self.superseded(term)
        there = self.get(sort_key)
        if there is not None and there.get("write") == write:
            return None  # it was done, and the answer to it was lost
        if refused[1] and there is not None:
            return there
        raise CoordinationError(
            f"{self._name()}: {sort_key} cannot be written, {after} is missing",
            remedy="the table was changed from outside; start the job again under a new name",
        )

    def superseded(self, term: int) -> SupersededError:
        """Give the error for a term that has passed."""
        return SupersededError(
            f"another coordinator has taken over {self._name()}; this one had term {term}",
            remedy="nothing: the newer one goes on with the run",
        )

    def _transact(self, writes: Sequence[Item], token: str) -> list[bool]:
        """Do all writes or none; say of each whether its condition forbade it."""
        reasons = self._repeat(
            "TransactWriteItems",
            lambda: self._table.client.transact_write_items(
                TransactItems=list(writes), ClientRequestToken=token
            ),
        )
        return [reason == _REFUSED for reason in reasons or [""] * len(writes)]

    def _repeat(self, operation: str, send: Callable[[], object]) -> list[str]:
        """Send a conditional write until it is done, or refused; give why, part by part.

        Raises:
            AwsError: it was cancelled for something that passes, again and again, or AWS refuses.
        """
        from botocore.exceptions import ClientError

        what, wait_s = self._what(operation), _FIRST_WAIT_S
        for _ in range(_ATTEMPTS):
            with aws_errors(what):
                try:
                    send()
                    return []
                except ClientError as error:
                    reasons = _reasons(error)
                    if _REFUSED in reasons:
                        return reasons
                    if not _PASSING.intersection(reasons):
                        raise
            time.sleep(wait_s)
            wait_s *= 2
        raise AwsError(f"{what}: cancelled {_ATTEMPTS} times", reason="throttled")

    def _check_term(self, term: int) -> Item:
        check = self._check(COORDINATOR_ITEM, "#term = :term")
        check["ConditionCheck"]["ExpressionAttributeNames"] = {"#term": "term"}
        check["ConditionCheck"]["ExpressionAttributeValues"] = to_item({":term": term})
        return check

    def _check(self, sort_key: str, condition: str) -> Item:
        key = self._key(sort_key)
        check = {"TableName": self._table.name, "Key": key, "ConditionExpression": condition}
        return {"ConditionCheck": check}

    def _key(self, sort_key: str) -> Item:
        return to_item({"pk": run_key(self._run), "sk": sort_key})

    def _name(self) -> str:
        return f"run '{self._run}' in table '{self._table.name}'"

    def _what(self, operation: str) -> str:
        return f"dynamodb {operation} of {self._name()}"


def _reasons(error: Any) -> list[str]:
    """Give why a write was cancelled, for each part of a transaction; empty for another error."""
    code = error_code(error)
    if code in _ALONE:
        return [_ALONE[code]]
    reasons = error.response.get("CancellationReasons") or []
    return [str(reason.get("Code")) for reason in reasons]
