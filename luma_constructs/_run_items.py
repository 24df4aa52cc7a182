"""Items of the table that state machines read and write, and the paths of their keys.

    RUN#<run>      RUN                what is asked, and how it stands
    RUN#<run>      SLOT#<2 digits>    where an island's work is: fleet, queue, group, claim
    RUN#<run>      HOST#coordinator   the same for the coordinator, and HOST#compiler for the compiler
    NODE#<id>      NODE               one instance
    EVENT#<id>     EVENT              one event, and how its failover ended
    FLEET#<fleet>  FLEET              `desired`: the sum of all claims
    FLEET#<fleet>  RUN#<run>          `count`: one run's claim

The keys of a place (a slot or a host) are picked from a list by number, since intrinsic functions
cannot pad a number: 0 is the compiler, 1 the coordinator, and slot n has number n + 2.
"""

from __future__ import annotations

from luma_constructs import _names

__all__ = [
    "COMPILER_PLACE",
    "COORDINATOR_PLACE",
    "EVENT",
    "FLEET",
    "FLEET_KEY",
    "MOST_SLOTS",
    "NODE",
    "PLACES",
    "RUN",
    "RUN_KEY",
    "place_key",
]

MOST_SLOTS = 98
"""Islands of one run at most: slots have two digits, and a Map state works on 100 places."""

COORDINATOR_PLACE = f"HOST#{_names.COORDINATOR_FLEET}"
"""Sort key of the coordinator's place."""

COMPILER_PLACE = f"HOST#{_names.COMPILER_FLEET}"
"""Sort key of the compiler's place."""

PLACES = (COMPILER_PLACE, COORDINATOR_PLACE, *(f"SLOT#{n:02d}" for n in range(MOST_SLOTS)))
"""Sort keys of a run's places, by number."""

RUN = {"S": "RUN"}
"""Sort key of a run's item."""

NODE = {"S": "NODE"}
"""Sort key of a node's item."""

EVENT = {"S": "EVENT"}
"""Sort key of an event's item."""

FLEET = {"S": "FLEET"}
"""Sort key of a fleet's sum of claims."""

RUN_KEY = {"S.$": "States.Format('RUN#{}', $.run)"}
"""Key of the run that the data names: partition key of its items, sort key of its claims."""

FLEET_KEY = {"S.$": "States.Format('FLEET#{}', $.fleet)"}
"""Partition key of the items of the fleet that the data names."""


def place_key(number: str) -> str:
    """Give the intrinsic for the sort key of a place, from the path of its number."""
    return f"States.ArrayGetItem(States.StringSplit('{','.join(PLACES)}', ','), {number})"
