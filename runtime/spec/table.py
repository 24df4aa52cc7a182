"""The table of runs: items as plain Python values, and the conditions that its writers rely on.

Numbers are exact both ways: a float travels as its shortest decimal form, and a whole one comes back
as an int of the same value. Reads are consistent: a reader sees every write that ended before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from runtime.spec.aws import aws_client, aws_errors, error_code

__all__ = ["ConditionFailed", "Item", "Table", "from_item", "to_item"]

Item = dict[str, Any]

_CANCELLED: Final = "TransactionCanceledException"
_FAILED: Final = "ConditionalCheckFailedException"
_MAX_TRANSACTION: Final = 100


class ConditionFailed(Exception):
    """The item is not in the state that the write asked for; nothing was written."""


class Table:
    """One table with the keys `pk` and `sk`.

    Args:
        name: the table's name.
        region: its region.
    """

    def __init__(self, name: str, *, region: str | None = None) -> None:
        self.name = name
        self.region = region
        self._client: Any = aws_client("dynamodb", region=region)

    @property
    def client(self) -> Any:
        """The client of DynamoDB, for requests that this class has no method for."""
        return self._client

    def get(self, pk: str, sk: str) -> Item | None:
        """Read an item, None where there is none.

        Raises:
            AwsError: the table cannot be read.
        """
        with aws_errors(f"read {pk} {sk} of table '{self.name}'"):
            answer = self._client.get_item(
                TableName=self.name, Key=to_item({"pk": pk, "sk": sk}), ConsistentRead=True
            )
        return from_item(answer["Item"]) if "Item" in answer else None

    def put(self, item: Mapping[str, Any], *, new: bool = False) -> None:
        """Write a whole item.

        Args:
            item: with `pk` and `sk`.
            new: only where there is none of these keys.

        Raises:
            ConditionFailed: there is one.
            AwsError: the table cannot be written.
        """
        condition = {"ConditionExpression": "attribute_not_exists(pk)"} if new else {}
        with aws_errors(f"write {item['pk']} {item['sk']} of table '{self.name}'"):
            try:
                self._client.put_item(TableName=self.name, Item=to_item(item), **condition)
            except Exception as error:
                _raise_if_failed(error)
                raise

    def put_together(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Write several new items, all or none; at most 100.

        Raises:
            ConditionFailed: one of them exists, or somebody writes one at this moment.
            AwsError: the table cannot be written.
        """
        puts = [
            {
                "Put": {
                    "TableName": self.name,
                    "Item": to_item(item),
                    "ConditionExpression": "attribute_not_exists(pk)",
                }
            }
            for item in items[:_MAX_TRANSACTION]
        ]
        with aws_errors(f"write {len(puts)} items of table '{self.name}'"):
            try:
                self._client.transact_write_items(TransactItems=puts)
            except Exception as error:
                _raise_if_failed(error)
                raise

    def update(
        self,
        pk: str,
        sk: str,
        values: Mapping[str, Any],
        *,
        add: Mapping[str, float] | None = None,
        remove: Sequence[str] = (),
        exists: bool = True,
        where: Mapping[str, Sequence[Any]] | None = None,
    ) -> Item:
        """Change attributes of an item.

        Args:
            pk: its partition key.
            sk: its sort key.
            values: attributes to set.
            add: numbers to add to attributes; a missing one counts as 0.
            remove: attributes to take away.
            exists: whether the item must be there already.
            where: attributes that must have one of some values.

        Returns:
            The item after the change.

        Raises:
            ConditionFailed: it is not there, or not as `where` says.
            AwsError: the table cannot be written.
        """
        request = _Update()
        for name, value in values.items():
            request.set(name, value)
        for name, value in (add or {}).items():
            request.add(name, value)
        for name in remove:
            request.remove(name)
        if exists:
            request.conditions.append("attribute_exists(pk)")
        for name, allowed in (where or {}).items():
            request.one_of(name, allowed)
        with aws_errors(f"change {pk} {sk} of table '{self.name}'"):
            try:
                answer = self._client.update_item(
                    TableName=self.name,
                    Key=to_item({"pk": pk, "sk": sk}),
                    ReturnValues="ALL_NEW",
                    **request.arguments(),
                )
            except Exception as error:
                _raise_if_failed(error)
                raise
        return from_item(answer["Attributes"])

    def newest(self, pk: str, begins: str) -> Item | None:
        """Give the item of a partition with the highest sort key that begins so.

        Args:
            pk: the partition key.
            begins: how the sort key begins.

        Returns:
            The item; None where there is none. Nothing else is read, and paid for.

        Raises:
            AwsError: the table cannot be read.
        """
        with aws_errors(f"read {pk} of table '{self.name}'"):
            answer = self._client.query(
                TableName=self.name,
                KeyConditionExpression="pk = :pk AND begins_with(sk, :begins)",
                ExpressionAttributeValues=to_item({":pk": pk, ":begins": begins}),
                ConsistentRead=True,
                ScanIndexForward=False,
                Limit=1,
            )
        return from_item(answer["Items"][0]) if answer["Items"] else None

    def query(self, pk: str, begins: str = "", *, after: str | None = None) -> Iterator[Item]:
        """Give the items of a partition in the order of their sort keys, page by page.

        Args:
            pk: the partition key.
            begins: how their sort keys begin.
            after: only items whose sort key comes after this one, which begins likewise.

        Raises:
            AwsError: the table cannot be read.
        """
        values: Item = {":pk": pk}
        condition = "pk = :pk"
        if after is not None:
            # The next character after every one that a key may have.
            values |= {":low": after + "\x00", ":high": begins + "\uffff"}
            condition += " AND sk BETWEEN :low AND :high"
        elif begins:
            values[":begins"] = begins
            condition += " AND begins_with(sk, :begins)"
        request: dict[str, Any] = {
            "TableName": self.name,
            "KeyConditionExpression": condition,
            "ExpressionAttributeValues": to_item(values),
            "ConsistentRead": True,
        }
        while True:
            with aws_errors(f"read {pk} of table '{self.name}'"):
                answer = self._client.query(**request)
            yield from map(from_item, answer["Items"])
            if "LastEvaluatedKey" not in answer:
                return
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]

    def scan(self, sk: str) -> Iterator[Item]:
        """Give all items with one sort key, such as every run; reads the whole table.

        Raises:
            AwsError: the table cannot be read.
        """
        request: dict[str, Any] = {
            "TableName": self.name,
            "FilterExpression": "sk = :sk",
            "ExpressionAttributeValues": to_item({":sk": sk}),
            "ConsistentRead": True,
        }
        while True:
            with aws_errors(f"read table '{self.name}'"):
                answer = self._client.scan(**request)
            yield from map(from_item, answer["Items"])
            if "LastEvaluatedKey" not in answer:
                return
            request["ExclusiveStartKey"] = answer["LastEvaluatedKey"]


class _Update:
    """The clauses of an UpdateItem request."""

    def __init__(self) -> None:
        self.sets: list[str] = []
        self.adds: list[str] = []
        self.removes: list[str] = []
        self.conditions: list[str] = []
        self._names: dict[str, str] = {}
        self._values: Item = {}

    def _name(self, name: str) -> str:
        self._names[f"#{name}"] = name
        return f"#{name}"

    def _value(self, value: Any) -> str:
        key = f":v{len(self._values)}"
        self._values[key] = value
        return key

    def set(self, name: str, value: Any) -> None:
        self.sets.append(f"{self._name(name)} = {self._value(value)}")

    def add(self, name: str, value: float) -> None:
        self.adds.append(f"{self._name(name)} {self._value(value)}")

    def remove(self, name: str) -> None:
        self.removes.append(self._name(name))

    def one_of(self, name: str, allowed: Sequence[Any]) -> None:
        choices = ", ".join(self._value(value) for value in allowed)
        self.conditions.append(f"{self._name(name)} IN ({choices})")

    def arguments(self) -> dict[str, Any]:
        clauses = (("SET", self.sets), ("ADD", self.adds), ("REMOVE", self.removes))
        expression = " ".join(f"{word} {', '.join(items)}" for word, items in clauses if items)
        arguments: dict[str, Any] = {"UpdateExpression": expression}
        if self.conditions:
            arguments["ConditionExpression"] = " AND ".join(self.conditions)
        if self._names:
            arguments["ExpressionAttributeNames"] = self._names
        if self._values:
            arguments["ExpressionAttributeValues"] = to_item(self._values)
        return arguments


def to_item(values: Mapping[str, Any]) -> dict[str, Any]:
    """Give plain values as a request has them."""
    return {name: _encode(value) for name, value in values.items()}


def from_item(item: Mapping[str, Any]) -> Item:
    """Give the plain values of an answer."""
    return {name: _decode(value) for name, value in item.items()}


def _encode(value: Any) -> dict[str, Any]:
    match value:
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case str():
            return {"S": value}
        case int():
            return {"N": str(value)}
        case float():
            return {"N": str(Decimal(repr(value)))}
        case bytes():
            return {"B": value}
        case Mapping():
            return {"M": to_item(value)}
        case list() | tuple():
            return {"L": [_encode(item) for item in value]}
    msg = f"a {type(value).__name__} cannot be put into the table"
    raise TypeError(msg)


def _decode(value: Mapping[str, Any]) -> Any:
    ((kind, content),) = value.items()
    match kind:
        case "NULL":
            return None
        case "N":
            number = Decimal(content)
            whole = number == number.to_integral_value() and not set(content) & set(".eE")
            return int(number) if whole else float(number)
        case "M":
            return from_item(content)
        case "L":
            return [_decode(item) for item in content]
        case "SS":
            return list(content)
    return content


def _raise_if_failed(error: Exception) -> None:
    """Turn AWS's word for a condition that does not hold into ours.

    Raises:
        ConditionFailed: it is that.
    """
    response: Any = getattr(error, "response", None)
    if response is None:
        return
    if error_code(error) == _FAILED:
        raise ConditionFailed from error
    if error_code(error) == _CANCELLED:
        reasons = [reason.get("Code") for reason in response.get("CancellationReasons", ())]
        if {"ConditionalCheckFailed", "TransactionConflict"} & set(reasons):
            raise ConditionFailed from error
