"""Plays the instances of an emulated account: watches them, starts, drains and kills processes.

A thread looks at the account some times a second:

- a running instance that an Auto Scaling group launched gets a process (`instance.PlayedInstance`);
- one in `Terminating:Wait` reads `Terminated` at `autoscaling/target-lifecycle-state`;
- commands that SSM holds for it are run on it;
- one that is no longer running gets SIGKILL.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.emulator import events, user_data
from tests.emulator.imds import Metadata
from tests.emulator.instance import PlayedInstance, unpacked
from tests.emulator.server import EmulatedServer

_LOOK_S = 0.25
_GROUP_TAG = "aws:autoscaling:groupName"


class PlayersFailedError(RuntimeError):
    """The watching thread ended with an error."""


class Players:
    """All instances of one account.

    Args:
        server: the account.
        folder: where the instances' disks are; logs stay there.
        environment: variables of every node that replace hardware which is not here.
    """

    def __init__(
        self, server: EmulatedServer, folder: Path, environment: dict[str, str] | None = None
    ):
        self._server = server
        self._folder = folder
        self._environment = dict(environment or {})
        self._ec2: Any = None
        self._groups: Any = None
        self._played: dict[str, PlayedInstance] = {}
        self._gone: dict[str, PlayedInstance] = {}
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, name="players", daemon=True)

    def __enter__(self) -> Self:
        self._ec2 = self._server.client("ec2")
        self._groups = self._server.client("autoscaling")
        self._server.commands("played")
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()
        for instance in list(self._played.values()):
            instance.kill()

    def alive(self, fleet: str | None = None) -> list[PlayedInstance]:
        """The instances that are there now, of one fleet or of all.

        Raises:
            PlayersFailedError: the watching thread is dead, so this would never change again.
        """
        if self._problem is not None:
            raise PlayersFailedError(f"the players ended: {self._problem!r}") from self._problem
        with self._lock:
            everything = list(self._played.values())
        return [i for i in everything if fleet in (None, i.fleet)]

    def interrupt(
        self,
        instance: PlayedInstance,
        *,
        notice_s: float = 2.0,
        event_id: str | None = None,
        before_kill: Callable[[], Any] | None = None,
    ) -> str:
        """Reclaim a spot instance: notice in its metadata, event, then the end without mercy.

        Args:
            instance: whose end it is.
            notice_s: seconds between notice and SIGKILL (AWS: 120, or none).
            event_id: of the event. Default: a new one.
            before_kill: called when the notice is over, to hold the end up.

        Returns:
            The event's id.
        """
        instance.metadata.notice_interruption(notice_s)
        sent = events.interruption(self._server, instance.id, event_id)
        time.sleep(notice_s)
        if before_kill is not None:
            before_kill()
        self.reclaim(instance)
        return sent

    def reclaim(self, instance: PlayedInstance) -> None:
        """AWS takes an instance, with or without a notice before."""
        with self._lock:
            self._played.pop(instance.id, None)
            self._gone[instance.id] = instance
        instance.kill()
        self._server.control("end-instance", instance=instance.id)

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            try:
                self._look()
            except Exception as problem:  # reported by `alive`
                self._problem = problem
                return

    def _look(self) -> None:
        running = self._running()
        for instance_id, described in running.items():
            with self._lock:
                known = instance_id in self._played or instance_id in self._gone
            if not known and _GROUP_TAG in described["Tags"]:
                self._begin(instance_id, described)
        states = self._lifecycle_states()
        for instance in self.alive():
            if instance.id not in running:
                with self._lock:
                    self._gone[instance.id] = self._played.pop(instance.id, instance)
                instance.kill()
                continue
            leaving = states.get(instance.id, "").startswith("Terminating")
            target = "Terminated" if leaving else "InService"
            instance.metadata.values["autoscaling/target-lifecycle-state"] = target
            for command in self._server.control("take-commands", instance=instance.id):
                instance.run_command(command)
            instance.look()

    def _running(self) -> dict[str, dict[str, Any]]:
        pages = self._ec2.get_paginator("describe_instances").paginate(
            Filters=[{"Name": "instance-state-name", "Values": ["running"]}]
        )
        found = [i for page in pages for r in page["Reservations"] for i in r["Instances"]]
        for instance in found:
            instance["Tags"] = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
        return {instance["InstanceId"]: instance for instance in found}

    def _lifecycle_states(self) -> dict[str, str]:
        pages = self._groups.get_paginator("describe_auto_scaling_instances").paginate()
        found = [i for page in pages for i in page["AutoScalingInstances"]]
        return {i["InstanceId"]: i["LifecycleState"] for i in found}

    def _begin(self, instance_id: str, described: dict[str, Any]) -> None:
        answer = self._ec2.describe_instance_attribute(InstanceId=instance_id, Attribute="userData")
        settings = user_data.read(answer["UserData"]["Value"])
        source = unpacked(self._server, settings, self._folder / "runtime")
        folder = self._folder / f"{settings.environment['LUMA_FLEET']}-{instance_id}"
        folder.mkdir(parents=True)
        metadata = Metadata(
            instance_id=instance_id,
            instance_type=described["InstanceType"],
            region=self._server.region,
            zone=described["Placement"]["AvailabilityZone"],
            lifecycle=described.get("InstanceLifecycle", "on-demand"),
            tags=described["Tags"],
        )
        played = PlayedInstance(
            self._server,
            metadata,
            settings,
            source=source,
            folder=folder,
            environment=self._environment,
        )
        with self._lock:
            self._played[instance_id] = played
