"""A whole emulated account: server, bootstrap, a deployed Luma stack, played instances.

with EmulatedAccount(work=tmp, context={"fleets": "c7i:cpu:2"}) as account:
    account.deploy()
    config = account.config()
"""

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.emulator.cdk import Cdk, CdkRun
from tests.emulator.node import ROOT
from tests.emulator.players import Players
from tests.emulator.server import EmulatedServer

PLAYED = {
    "LUMA_COMPILER": "local",  # no enclave here: the compile service runs in the node (level L1)
    "LUMA_NOTICE_EVERY_S": "0.2",  # 5 s on AWS, where a notice comes 120 s before the end
    # The fake metadata service shares this machine's cores with all the instances.
    "AWS_METADATA_SERVICE_TIMEOUT": "20",
    "AWS_METADATA_SERVICE_NUM_ATTEMPTS": "10",
    "JAX_PLATFORMS": "cpu",
    "HF_HUB_OFFLINE": "1",
}


class EmulatedAccount:
    """Everything that a test of a deployed stack needs, and its end.

    Args:
        work: folder for assemblies, logs and the instances' disks.
        context: context parameters of `app.py`.
        stack: the stack's name.
        played: variables of nodes that replace hardware which is not here.
    """

    def __init__(
        self,
        work: Path,
        *,
        context: Mapping[str, str],
        stack: str = "Luma",
        played: Mapping[str, str] | None = None,
    ):
        self.work = work
        self.stack = stack
        work.mkdir(parents=True, exist_ok=True)
        self.server = EmulatedServer(log=work / "server.log")
        self.cdk = Cdk(
            self.server,
            app=f"{sys.executable} app.py",
            folder=ROOT,
            work=work / "cdk",
            context={"stack": stack, **context},
        )
        self.players = Players(self.server, work / "instances", {**PLAYED, **(played or {})})
        self._open = ExitStack()
        self._config: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._open.enter_context(self.server)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def play(self) -> None:
        """Play the account's instances from now on, until it is left."""
        self._open.enter_context(self.players)

    def deploy(self, **context: str) -> CdkRun:
        """Deploy the stack, or update it with other context parameters."""
        done = (self.cdk.with_context(**context) if context else self.cdk).deploy(self.stack)
        self._config = self._parameter(f"/luma/{self.stack}/config")
        return done

    def config(self) -> dict[str, Any]:
        """The deployment's parameter, as the last deploy wrote it: it is gone with the stack."""
        return self._config

    def fleet(self, name: str) -> dict[str, Any]:
        """A fleet's parameter."""
        return self._parameter(f"/luma/{self.stack}/fleets/{name}")

    def _parameter(self, name: str) -> dict[str, Any]:
        found = self.server.client("ssm").get_parameter(Name=name)
        return json.loads(found["Parameter"]["Value"])

    def item(self, pk: str, sk: str) -> dict[str, Any] | None:
        """An item of the table of run state, as plain values; None where there is none."""
        answer = self.server.client("dynamodb").get_item(
            TableName=self.config()["table"],
            Key={"pk": {"S": pk}, "sk": {"S": sk}},
            ConsistentRead=True,
        )
        return plain(answer["Item"]) if "Item" in answer else None

    def items(self, pk: str, begins: str = "") -> list[dict[str, Any]]:
        """The items of a partition whose sort key begins so, in its order."""
        condition, values = "pk = :pk", {":pk": {"S": pk}}
        if begins:
            condition += " AND begins_with(sk, :sk)"
            values[":sk"] = {"S": begins}
        pages = (
            self.server.client("dynamodb")
            .get_paginator("query")
            .paginate(
                TableName=self.config()["table"],
                KeyConditionExpression=condition,
                ExpressionAttributeValues=values,
                ConsistentRead=True,
            )
        )
        return [plain(item) for page in pages for item in page["Items"]]


def plain(item: Mapping[str, Any]) -> dict[str, Any]:
    """A DynamoDB item as plain values: numbers as int or float, sets as sorted lists."""
    return {name: _plain(value) for name, value in item.items()}


def _plain(value: Mapping[str, Any]) -> Any:
    [(kind, content)] = value.items()
    match kind:
        case "N":
            number = float(content)
            return int(number) if number.is_integer() else number
        case "L":
            return [_plain(part) for part in content]
        case "M":
            return plain(content)
        case "SS":
            return sorted(content)
        case "NULL":
            return None
        case _:
            return content
