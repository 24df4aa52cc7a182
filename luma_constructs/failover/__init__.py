"""Failover as a state machine."""

from luma_constructs.failover.construct import FailoverStateMachine
from luma_constructs.failover.grants import FailoverGrants

__all__ = ["FailoverGrants", "FailoverStateMachine"]
