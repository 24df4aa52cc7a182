"""`SpotInterruptionRules`: EC2's events about instances that go, brought to whoever deals with them.

    rules = SpotInterruptionRules(self, "Rules")
    rules.add_target(failover.target)
    rules.on_interruption("Page", target=targets.SnsTopic(pager))

Four events can announce or report the end of an instance, and which one comes depends on the reason:

- a rebalance recommendation, often minutes before a reclaim, and never for sure;
- the interruption warning, two minutes before a spot instance is reclaimed;
- the state change to `stopping` or `terminated`, after everything else: also failed hardware and
  people, who give no warning;
- the expiry of a capacity block, 40 minutes before its end.

None of them can be limited to a fleet: EC2 puts instance ids into events, and no tags. Targets tell
foreign instances apart themselves, as the failover machine does.
"""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_events as events
from aws_cdk import aws_kms as kms
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from luma_constructs._event_targets import dead_letters, start_machine

__all__ = ["SpotInterruptionRules"]

_SOURCE = "aws.ec2"
_INTERRUPTION = ("EC2 Spot Instance Interruption Warning",)
_REBALANCE = ("EC2 Instance Rebalance Recommendation",)
_STATE_CHANGE = ("EC2 Instance State-change Notification",)
# The user guide's editions name the event differently.
_BLOCK_EXPIRY = (
    "Capacity Block Expiration Warning",
    "Capacity Block Reservation Expiration Warning",
)


class SpotInterruptionRules(Construct):
    """Rules for the events that say that an instance goes.

    Args:
        encryption_key: of the dead-letter queue. Default: - a key of SQS's.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        encryption_key: kms.IKey | None = None,
    ) -> None:
        super().__init__(scope, id)
        self.dead_letter_queue = dead_letters(self, encryption_key)
        """Events that no machine took."""
        self.interruption = _rule(
            self, "Interruption", _INTERRUPTION, "A spot instance is reclaimed in two minutes"
        )
        """Two minutes before a spot instance is reclaimed."""
        self.rebalance = _rule(
            self, "Rebalance", _REBALANCE, "A spot instance is at risk of being reclaimed"
        )
        """When a spot instance is at risk."""
        self.state_change = _rule(
            self,
            "StateChange",
            _STATE_CHANGE,
            "An instance stops or was terminated",
            {"state": ["stopping", "terminated"]},
        )
        """When an instance stops, or is gone."""
        self.capacity_block_expiry = _rule(
            self, "CapacityBlockExpiry", _BLOCK_EXPIRY, "A capacity block ends in 40 minutes"
        )
        """40 minutes before a capacity block ends."""

    @property
    def rules(self) -> Sequence[events.Rule]:
        """All four rules."""
        return (self.interruption, self.rebalance, self.state_change, self.capacity_block_expiry)

    def add_target(self, target: events.IRuleTarget) -> None:
        """Send all four events to a target."""
        for rule in self.rules:
            rule.add_target(target)

    def start(self, machine: sfn.IStateMachine) -> None:
        """Start a machine with each event; it is tried again for an hour, then kept."""
        self.add_target(start_machine(machine, self.dead_letter_queue))

    def on_interruption(self, id: str, *, target: events.IRuleTarget) -> events.Rule:
        """Send interruption warnings to a target of their own."""
        return self._on(id, target, _INTERRUPTION)

    def on_rebalance(self, id: str, *, target: events.IRuleTarget) -> events.Rule:
        """Send rebalance recommendations to a target of their own."""
        return self._on(id, target, _REBALANCE)

    def on_state_change(
        self,
        id: str,
        *,
        target: events.IRuleTarget,
        states: Sequence[str] = ("stopping", "terminated"),
    ) -> events.Rule:
        """Send state changes to a target of their own.

        Args:
            id: of the rule.
            target: who gets them.
            states: new states of interest. Default: - "stopping" and "terminated".
        """
        return self._on(id, target, _STATE_CHANGE, {"state": list(states)})

    def on_capacity_block_expiry(self, id: str, *, target: events.IRuleTarget) -> events.Rule:
        """Send expiries of capacity blocks to a target of their own."""
        return self._on(id, target, _BLOCK_EXPIRY)

    def _on(
        self,
        id: str,
        target: events.IRuleTarget,
        kinds: Sequence[str],
        detail: dict[str, list[str]] | None = None,
    ) -> events.Rule:
        """Make a rule of its own for a target."""
        rule = _rule(self, id, kinds, f"{kinds[0]}, for {id}", detail)
        rule.add_target(target)
        return rule


def _rule(
    scope: Construct,
    id: str,
    kinds: Sequence[str],
    description: str,
    detail: dict[str, list[str]] | None = None,
) -> events.Rule:
    """Make a rule on the default bus, where EC2's events arrive."""
    return events.Rule(
        scope,
        id,
        description=description,
        event_pattern=events.EventPattern(source=[_SOURCE], detail_type=list(kinds), detail=detail),
    )
