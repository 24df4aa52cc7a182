"""The deployed machines of one emulated account, and the test in the roles of its nodes."""

import json
import threading
import uuid
from collections.abc import Mapping
from typing import Any, Self

from botocore.exceptions import ClientError

from tests.emulator.account import plain
from tests.emulator.faults import Fault
from tests.emulator.server import EmulatedServer
from tests.emulator.waiting import until
from tests.unit.constructs.orchestration.stacks import DEPLOYMENT, OTHER_REGION

FLEETS = ("l4", "a10", "floor", "block", "coordinator", "compiler")
"""Fleets with a group."""

_CLOSED = ("TaskTimedOut", "InvalidToken")


def typed(value: Any) -> dict[str, Any]:
    """A plain value as DynamoDB's JSON."""
    match value:
        case bool():
            return {"BOOL": value}
        case int() | float():
            return {"N": str(value)}
        case list():
            return {"L": [typed(part) for part in value]}
        case _:
            return {"S": value}


class World:
    """Table, queues, groups and machines of the deployed stack.

    Args:
        server: the account that the stack was deployed to.
    """

    def __init__(self, server: EmulatedServer):
        self.server = server
        described = server.client("cloudformation").describe_stacks(StackName=DEPLOYMENT)
        outputs = described["Stacks"][0]["Outputs"]
        self.out = {o["OutputKey"].removeprefix("Out"): o["OutputValue"] for o in outputs}
        self._states = server.client("stepfunctions")
        self._table = server.client("dynamodb")
        self._queues = server.client("sqs")
        self._groups = server.client("autoscaling")
        self._ec2 = server.client("ec2")
        self._before: set[str] = set()
        self._elsewhere = self._listen_elsewhere()

    def clear(self) -> None:
        """Stop everything and forget everything, so that tests do not meet.

        Messages of stopped executions stay in their queues, as on AWS: `take` drops them.
        """
        self.server.lift_faults()
        self.server.commands("Success")
        self._stop_everything()
        while self._take_requests():
            pass
        for fleet in FLEETS:
            self.server.capacity(self.group_name(fleet), None)
            self.resize(fleet, 0)
        self._stop_everything()  # what the ends of those instances have started
        self._before = {
            execution["executionArn"]
            for machine in self._states.list_state_machines()["stateMachines"]
            for execution in self._states.list_executions(
                stateMachineArn=machine["stateMachineArn"]
            )["executions"]
        }
        for item in self._table.scan(TableName=self.out["Table"])["Items"]:
            self._table.delete_item(
                TableName=self.out["Table"], Key={"pk": item["pk"], "sk": item["sk"]}
            )

    def _stop_everything(self) -> None:
        for execution in self._running():
            self._states.stop_execution(executionArn=execution["executionArn"])
        # Those that clean up behind the stopped ones come to their own end.
        until(lambda: not self._running(), "the end of all executions")

    def _running(self) -> list[Any]:
        return [
            execution
            for machine in self._states.list_state_machines()["stateMachines"]
            for execution in self._states.list_executions(
                stateMachineArn=machine["stateMachineArn"], statusFilter="RUNNING"
            )["executions"]
        ]

    # The table.

    def put(self, pk: str, sk: str, **values: Any) -> None:
        """Write an item."""
        item = {name: typed(value) for name, value in values.items()}
        key = {"pk": {"S": pk}, "sk": {"S": sk}}
        self._table.put_item(TableName=self.out["Table"], Item=key | item)

    def item(self, pk: str, sk: str) -> dict[str, Any]:
        """Read an item; nothing where there is none."""
        answer = self._table.get_item(
            TableName=self.out["Table"], Key={"pk": {"S": pk}, "sk": {"S": sk}}, ConsistentRead=True
        )
        return plain(answer.get("Item", {}))

    def change(self, pk: str, sk: str, **values: Any) -> None:
        """Change attributes of an item."""
        names = {f"#{name}": name for name in values}
        self._table.update_item(
            TableName=self.out["Table"],
            Key={"pk": {"S": pk}, "sk": {"S": sk}},
            UpdateExpression="SET " + ", ".join(f"#{name} = :{name}" for name in values),
            ExpressionAttributeNames=names,
            ExpressionAttributeValues={f":{name}": typed(v) for name, v in values.items()},
        )

    def prepare(self, run: str, **values: Any) -> str:
        """Write a run as `luma launch` does: two islands, compiled."""
        given = {
            "state": "pending",
            "slots": 2,
            "fleets": ["l4", "a10"],
            "execution": "",
            "cancel": False,
            "reason": "",
            "state_hash": "",
            "cost_usd": 0,
            "artifact": f"runs/{run}/artifact.luma",
        }
        given |= values
        self.put(f"RUN#{run}", "RUN", **{k: v for k, v in given.items() if v is not None})
        return run

    def run(self, run: str) -> dict[str, Any]:
        """A run's item."""
        return self.item(f"RUN#{run}", "RUN")

    def claims(self, run: str) -> dict[str, tuple[int, int]]:
        """By fleet: the run's claim, and the sum of all."""
        found = {}
        for fleet in (*FLEETS, "lab"):
            mine = self.item(f"FLEET#{fleet}", f"RUN#{run}").get("count", 0)
            total = self.item(f"FLEET#{fleet}", "FLEET").get("desired", 0)
            if mine or total:
                found[fleet] = (mine, total)
        return found

    # Groups and instances.

    def group_name(self, fleet: str) -> str:
        """The name of a fleet's group."""
        return f"group-{fleet}"

    def resize(self, fleet: str, size: int) -> None:
        """Set a group's size by hand."""
        self._groups.set_desired_capacity(
            AutoScalingGroupName=self.group_name(fleet), DesiredCapacity=size
        )

    def size(self, fleet: str) -> int:
        """A group's size as it should be."""
        found = self._groups.describe_auto_scaling_groups(
            AutoScalingGroupNames=[self.group_name(fleet)]
        )
        return found["AutoScalingGroups"][0]["DesiredCapacity"]

    def instances(self, fleet: str) -> list[str]:
        """The instances of a group."""
        found = self._groups.describe_auto_scaling_groups(
            AutoScalingGroupNames=[self.group_name(fleet)]
        )
        return [one["InstanceId"] for one in found["AutoScalingGroups"][0]["Instances"]]

    def detach(self, fleet: str, instance: str) -> None:
        """Take an instance out of its group by hand; another one starts."""
        self._groups.detach_instances(
            AutoScalingGroupName=self.group_name(fleet),
            InstanceIds=[instance],
            ShouldDecrementDesiredCapacity=False,
        )

    def instance_state(self, instance: str) -> str:
        """What EC2 says of an instance."""
        found = self._ec2.describe_instances(InstanceIds=[instance])
        return found["Reservations"][0]["Instances"][0]["State"]["Name"]

    def none_left(self, *fleets: str) -> None:
        """Let EC2 have no capacity for some fleets."""
        for fleet in fleets:
            self.server.capacity(self.group_name(fleet), 0)

    def held(self, service: str, operation: str) -> None:
        """Wait until a machine's call of an operation is held."""
        until(lambda: [service, operation] in self.server.held(), f"a held {operation}")

    def fault(self, service: str, operation: str, code: str, **options: Any) -> None:
        """Order an error for the machines' calls."""
        self.server.fault(Fault(service=service, operation=operation, code=code, **options))

    # Events.

    def emit(self, event: str, kind: str, detail: Mapping[str, Any]) -> None:
        """Let EC2 send an event to the default bus."""
        self.server.control(
            "emit", source="aws.ec2", id=event, detail=dict(detail), **{"detail-type": kind}
        )

    def requests(self) -> list[dict[str, Any]]:
        """The requests that have come to the other region's bus in this test, at least one."""
        return until(self._take_requests, f"a request in {OTHER_REGION}")

    def _take_requests(self) -> list[dict[str, Any]]:
        """Take what has arrived in the other region, at most ten."""
        sqs = self.server.client("sqs", OTHER_REGION)
        found = sqs.receive_message(QueueUrl=self._elsewhere, MaxNumberOfMessages=10)
        for message in found.get("Messages", ()):
            sqs.delete_message(QueueUrl=self._elsewhere, ReceiptHandle=message["ReceiptHandle"])
        return [json.loads(message["Body"]) for message in found.get("Messages", ())]

    def _listen_elsewhere(self) -> str:
        """Bring what arrives on the other region's bus into a queue."""
        sqs = self.server.client("sqs", OTHER_REGION)
        events = self.server.client("events", OTHER_REGION)
        queue = sqs.create_queue(QueueName="arrived")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])
        events.put_rule(Name="all", EventPattern=json.dumps({"source": ["luma"]}))
        events.put_targets(
            Rule="all", Targets=[{"Id": "queue", "Arn": arn["Attributes"]["QueueArn"]}]
        )
        return queue

    # Executions.

    def start(self, machine: str, given: Mapping[str, Any]) -> str:
        """Start a machine by its output's name."""
        answer = self._states.start_execution(
            stateMachineArn=self.out[machine], name=str(uuid.uuid4()), input=json.dumps(given)
        )
        return answer["executionArn"]

    def stop(self, arn: str) -> None:
        """Stop an execution as a person does in the console."""
        self._states.stop_execution(executionArn=arn)

    def end(self, arn: str) -> dict[str, Any]:
        """Wait for an execution's end."""

        def over() -> dict[str, Any] | None:
            found = self._states.describe_execution(executionArn=arn)
            return found if found["status"] != "RUNNING" else None

        return until(over, f"the end of {arn}")

    def path(self, arn: str) -> list[str]:
        """The states that an execution entered, in their order."""
        history = self._states.get_execution_history(executionArn=arn)["events"]
        return [
            e["stateEnteredEventDetails"]["name"]
            for e in history
            if "stateEnteredEventDetails" in e
        ]

    def open_states(self) -> set[str]:
        """The states that running executions have entered and not left."""
        found: set[str] = set()
        for execution in self._running():
            history = self._states.get_execution_history(executionArn=execution["executionArn"])
            for event in history["events"]:
                if "stateEnteredEventDetails" in event:
                    found.add(event["stateEnteredEventDetails"]["name"])
                elif "stateExitedEventDetails" in event:
                    found.discard(event["stateExitedEventDetails"]["name"])
        return found

    def reached(self, arn: str, state: str) -> None:
        """Wait until an execution has entered a state."""
        until(lambda: state in self.path(arn), f"{state} in {arn}")

    def executions(self, machine: str) -> list[str]:
        """The executions of a machine in this test."""
        found = self._states.list_executions(stateMachineArn=self.out[machine])["executions"]
        return [e["executionArn"] for e in found if e["executionArn"] not in self._before]

    def awaited(self, machine: str, count: int) -> list[str]:
        """Wait for so many executions of a machine, which something else starts."""

        def enough() -> list[str] | None:
            found = self.executions(machine)
            return found if len(found) >= count else None

        return until(enough, f"{count} executions of {machine}")

    # The nodes' side.

    def take(self, fleet: str, kind: str | None = None) -> dict[str, Any]:
        """Take a message of work, as a node does: one whose token still counts."""

        work = until(lambda: self.next_work(fleet), f"work for {fleet}")
        assert kind in (None, work["kind"])
        return work

    def next_work(self, *fleets: str) -> dict[str, Any] | None:
        """The next message of some fleets whose token counts; none where there is none now."""
        for fleet in fleets:
            queue = self.out[f"Queue{fleet}"]
            answer = self._queues.receive_message(QueueUrl=queue, MaxNumberOfMessages=1)
            for found in answer.get("Messages", ()):
                self._queues.delete_message(QueueUrl=queue, ReceiptHandle=found["ReceiptHandle"])
                work = json.loads(found["Body"])
                if self.counts(work["token"]):
                    return work
        return None

    def answer(self, *fleets: str, **output: Any) -> None:
        """Take work from one of some fleets and answer that it is done, however often it takes.

        For machines whose heartbeat is short: a slow computer misses it and gets the next message.
        """

        def answered() -> bool:
            work = self.next_work(*fleets)
            if work is None:
                return False
            try:
                self.succeed(work, **output)
            except ClientError as error:
                if error.response["Error"]["Code"] in _CLOSED:
                    return False
                raise
            return True

        until(answered, f"an answer for {fleets}")

    def counts(self, token: str) -> bool:
        """Send a heartbeat, and tell whether the token still counts."""
        try:
            self._states.send_task_heartbeat(taskToken=token)
        except ClientError as error:
            if error.response["Error"]["Code"] in _CLOSED:
                return False
            raise
        return True

    def succeed(self, work: Mapping[str, Any], **output: Any) -> None:
        """Answer that work is done."""
        self._states.send_task_success(taskToken=work["token"], output=json.dumps(output))

    def fail(self, work: Mapping[str, Any], error: str, cause: str = "played by the test") -> None:
        """Answer that work failed."""
        self._states.send_task_failure(taskToken=work["token"], error=error, cause=cause)

    def move(self, run: str, place: str, old: str, new: str) -> None:
        """Move a place and its claim as a failover does."""
        self.change(
            f"RUN#{run}",
            place,
            fleet=new,
            queue=self.out[f"Queue{new}"],
            asg=self.group_name(new),
        )
        for fleet, by in ((old, -1), (new, 1)):
            for key, field in ((f"RUN#{run}", "count"), ("FLEET", "desired")):
                known = self.item(f"FLEET#{fleet}", key).get(field, 0)
                self.change(f"FLEET#{fleet}", key, **{field: known + by})
            self.resize(fleet, self.item(f"FLEET#{fleet}", "FLEET")["desired"])


class Keeper:
    """A node that has taken work and sends heartbeats until it answers.

    Args:
        world: where.
        fleet: whose work; a missed heartbeat costs the work, and the next message is taken.
    """

    def __init__(self, world: World, fleet: str):
        self._world, self._fleet = world, fleet
        self._work = world.take(fleet)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def succeed(self, **output: Any) -> None:
        """Answer that the work is done."""
        self.__exit__()
        try:
            self._world.succeed(self._work, **output)
        except ClientError:
            self._world.answer(self._fleet, **output)

    def _beat(self) -> None:
        while not self._over.wait(0.2):
            if not self._world.counts(self._work["token"]):
                self._work = self._world.next_work(self._fleet) or self._work


class Contender:
    """Other runs: whenever a machine is about to set a size, the claims have changed once more.

    Each state that sets a size is met once; after that its calls pass.

    Args:
        world: where.
        fleets: whose sums of claims grow by one.
    """

    def __init__(self, world: World, *fleets: str):
        self._world, self._fleets = world, fleets
        self._met = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._contend, daemon=True)
        self.states: set[str] = set()

    def __enter__(self) -> Self:
        self._world.server.hold("autoscaling", "SetDesiredCapacity")
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()
        self._world.server.release("autoscaling", "SetDesiredCapacity", everything=True)

    def _contend(self) -> None:
        while not self._over.wait(0.05):
            if not self._world.server.held():
                continue
            setting = {name for name in self._world.open_states() if name.startswith("Set the ")}
            if setting - self.states:
                for fleet in self._fleets:
                    key = (f"FLEET#{fleet}", "FLEET")
                    self._world.change(*key, desired=self._world.item(*key).get("desired", 0) + 1)
            self.states |= setting
            self._world.server.release("autoscaling", "SetDesiredCapacity")
