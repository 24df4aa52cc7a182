"""Names that instances, engineers' machines and the constructs share.

They are a contract with the runtime, which holds the same in `runtime/spec/account.py`: a test
compares both. Nothing here is a resource's physical name; those stay CloudFormation's choice and are
found through the parameters below.
"""

from __future__ import annotations

import re

__all__ = [
    "ACCOUNT_SCHEMA",
    "COMPILER_FLEET",
    "COORDINATOR_FLEET",
    "COORDINATOR_TARGET",
    "DEPLOYMENT_NAME",
    "DEPLOYMENT_TAG",
    "DRAIN_HOOK",
    "EXPIRES_AT",
    "FLEET_NAME",
    "FLEET_TAG",
    "METRIC_NAMESPACE",
    "PARTITION_KEY",
    "RUNS_PREFIX",
    "SORT_KEY",
    "WORK_SCHEMA",
    "config_parameter",
    "fleet_parameter",
    "parameter_root",
    "run_keys_root",
]

ACCOUNT_SCHEMA = "luma/account/1"
"""Schema of the deployment's parameter."""

WORK_SCHEMA = "luma/work/1"
"""Schema of the messages that give work to nodes."""

PARTITION_KEY = "pk"
"""Partition key of the table of run state, a string."""

SORT_KEY = "sk"
"""Sort key of the table of run state, a string."""

EXPIRES_AT = "expires_at"
"""Attribute by which DynamoDB deletes an item: seconds since 1970."""

RUNS_PREFIX = "runs/"
"""Prefix of all runs in the bucket; `runs/<run>/` mirrors a run folder."""

COORDINATOR_FLEET = "coordinator"
"""Name of the fleet of the coordinator's host."""

COORDINATOR_TARGET = "coordinator"
"""What stands in place of a target there."""

COMPILER_FLEET = "compiler"
"""Name of the fleet of the sealed compiler's host."""

DRAIN_HOOK = "luma-drain"
"""Name of the lifecycle hook that holds a leaving instance until its island has left."""

DEPLOYMENT_TAG = "luma:deployment"
"""Tag of every resource: the deployment's name."""

FLEET_TAG = "luma:fleet"
"""Tag of a fleet's resources and instances: the fleet's name."""

METRIC_NAMESPACE = "Luma"
"""CloudWatch namespace of what nodes report."""

FLEET_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)
"""A fleet's name."""

DEPLOYMENT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,127}", re.ASCII)
"""A deployment's name: what CloudFormation allows for a stack."""


def parameter_root(deployment: str) -> str:
    """Give the path below which a deployment's parameters lie, such as `/luma/Luma/`."""
    return f"/luma/{deployment}/"


def config_parameter(deployment: str) -> str:
    """Give the name of the parameter that describes the deployment."""
    return f"{parameter_root(deployment)}config"


def fleet_parameter(deployment: str, fleet: str) -> str:
    """Give the name of the parameter that describes one fleet."""
    return f"{parameter_root(deployment)}fleets/{fleet}"


def run_keys_root(deployment: str) -> str:
    """Give the path of the data keys of runs that are sealed with a key file.

    It is no part of `parameter_root`: who may read a path may read everything below it.
    """
    return f"/luma-keys/{deployment}/"
