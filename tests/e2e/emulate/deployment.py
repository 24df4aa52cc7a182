"""What the story looks at in the account: runs, commits, executions, groups."""

import json
from collections.abc import Callable
from typing import Any

from tests.emulator.account import EmulatedAccount, plain
from tests.emulator.instance import PlayedInstance
from tests.emulator.waiting import until

FLEETS = [
    {"name": "c7i", "target": "cpu", "max": 2, "instance_types": ["c7i.large"]},
    {"name": "m7i", "target": "cpu", "max": 4, "instance_types": ["m7i.large"]},
    {"name": "floor", "target": "cpu", "max": 2, "purchase": "on-demand"},
]
CONTEXT = {
    "fleets": json.dumps(FLEETS),
    "level": "L1",
    "heartbeat": "6",
    "patience": "20",
    "network": "public",
}
_ENDED = ("done", "failed", "terminated")


class Deployment:
    """One deployed stack, read."""

    def __init__(self, account: EmulatedAccount):
        self.account = account
        self._machines = account.server.client("stepfunctions")
        self._groups = account.server.client("autoscaling")
        self.config = account.config()
        self.alive: Callable[[], object] = bool

    def run(self, name: str) -> dict[str, Any]:
        """The run's item; empty where there is none."""
        return self.account.item(f"RUN#{name}", "RUN") or {}

    def slots(self, name: str) -> dict[str, dict[str, Any]]:
        """The run's places of islands by sort key."""
        return {item["sk"]: item for item in self.account.items(f"RUN#{name}", "SLOT#")}

    def place(self, name: str, slot: str, fleet: str) -> None:
        """Have a slot begin in another fleet of the run, as the plan may also decide."""
        self.account.server.client("dynamodb").update_item(
            TableName=self.config["table"],
            Key={"pk": {"S": f"RUN#{name}"}, "sk": {"S": slot}},
            UpdateExpression="SET fleet = :fleet, queue = :queue",
            ConditionExpression="attribute_exists(pk)",
            ExpressionAttributeValues={
                ":fleet": {"S": fleet},
                ":queue": {"S": self.account.fleet(fleet)["queue"]},
            },
        )

    def commits(self, name: str) -> list[dict[str, Any]]:
        """The committed steps, in order."""
        return self.account.items(f"RUN#{name}", "COMMIT#")

    def wait_for_commits(self, name: str, count: int) -> list[dict[str, Any]]:
        """Wait until so many steps are committed, unless the run ends before."""

        def enough() -> list[dict[str, Any]] | None:
            found = self.commits(name)
            return found if len(found) >= count else None

        return until(enough, f"{count} commits", seconds=600, also=self._not_over(name))

    def wait_for_end(self, name: str, execution: str) -> dict[str, Any]:
        """Wait until an execution has ended, and give the run's item."""
        self.wait_for_execution(execution)
        return self.run(name)

    def wait_for_execution(self, arn: str) -> dict[str, Any]:
        """Wait for an execution's end and give its description."""

        def over() -> dict[str, Any] | None:
            found = self._machines.describe_execution(executionArn=arn)
            return found if found["status"] != "RUNNING" else None

        return until(over, f"the end of {arn}", seconds=900, also=self.alive)

    def _not_over(self, name: str) -> Callable[[], None]:
        def look() -> None:
            self.alive()
            run = self.run(name)
            if run.get("state") in _ENDED:
                raise AssertionError(f"run {name} is {run['state']}: {run.get('reason')}")

        return look

    def start(self, name: str) -> str:
        """Start a job as a person in the console would; returns the execution's ARN."""
        answer = self._machines.start_execution(
            stateMachineArn=self.config["jobs_machine"], input=json.dumps({"run": name})
        )
        return answer["executionArn"]

    def _failovers(self, matches: Callable[[dict[str, Any]], bool]) -> list[str]:
        """The executions of the failover machine whose event matches."""
        machine = self.config["failover_machine"]
        pages = self._machines.get_paginator("list_executions").paginate(stateMachineArn=machine)
        found = []
        for execution in (e for page in pages for e in page["executions"]):
            arn = execution["executionArn"]
            text = self._machines.describe_execution(executionArn=arn)["input"]
            if matches(json.loads(text)):
                found.append(arn)
        return found

    def _wait_for(
        self, matches: Callable[[dict[str, Any]], bool], count: int, what: str
    ) -> list[dict[str, Any]]:
        def begun() -> list[str] | None:
            found = self._failovers(matches)
            return found if len(found) >= count else None

        arns = until(begun, f"{count} failovers of {what}", seconds=300, also=self.alive)
        return [self.wait_for_execution(arn) for arn in arns]

    def wait_for_failovers(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many failovers of an event have begun and ended."""
        return self._wait_for(lambda sent: sent.get("id") == event, count, event)

    def wait_for_failovers_of_instance(self, instance: str, count: int) -> list[dict[str, Any]]:
        """Wait until so many failovers of an instance have begun and ended."""

        def matches(sent: dict[str, Any]) -> bool:
            return sent.get("detail", {}).get("instance-id") == instance

        return self._wait_for(matches, count, instance)

    def paths_of_instance(self, instance: str) -> list[str]:
        """How each recorded event of an instance ended."""
        pages = (
            self.account.server.client("dynamodb")
            .get_paginator("scan")
            .paginate(TableName=self.config["table"], ConsistentRead=True)
        )
        items = [plain(item) for page in pages for item in page["Items"]]
        return sorted(
            item.get("path", "")
            for item in items
            if item["sk"] == "EVENT" and item.get("instance") == instance
        )

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Desired capacity and number of instances of each group of the stack."""
        pages = self._groups.get_paginator("describe_auto_scaling_groups").paginate()
        groups = [g for page in pages for g in page["AutoScalingGroups"]]
        return {
            g["AutoScalingGroupName"]: (g["DesiredCapacity"], len(g["Instances"])) for g in groups
        }

    def state(self, name: str) -> dict[str, Any]:
        """Everything that a duplicate event must leave as it is."""
        run = {k: v for k, v in self.run(name).items() if k not in ("updated_at", "cost_usd")}
        claims = {f["name"]: self.account.items(f"FLEET#{f['name']}") for f in FLEETS}
        slots = {
            sk: {k: slot.get(k) for k in ("fleet", "queue", "asg", "claimed", "moved")}
            for sk, slot in self.slots(name).items()
        }
        desired = {group: size[0] for group, size in self.sizes().items()}
        return {"run": run, "slots": slots, "claims": claims, "desired": desired}

    def instance_of(self, name: str, fleet: str) -> PlayedInstance:
        """A played instance of a fleet that works on an island of the run."""

        def working() -> PlayedInstance | None:
            for instance in self.account.players.alive(fleet):
                node = self.account.item(f"NODE#{instance.id}", "NODE") or {}
                if node.get("run") == name and node.get("state") == "working":
                    return instance
            return None

        return until(working, f"a working island on fleet {fleet}", also=self._not_over(name))
