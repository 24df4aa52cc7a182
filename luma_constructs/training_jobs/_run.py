"""The run itself: compile if need be, get instances, train, export.

    Place the hosts and the slots, compile sealed if there is no artifact yet, claim capacity,
    coordinate beside one loop for each island, export.

All of it is one branch of a Parallel state, so that whatever goes wrong inside has one way out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aws_cdk import aws_stepfunctions as sfn

from luma_constructs._asl import CONDITION_FAILED, NOW, Items, execution, number, text
from luma_constructs._claims import claim, over_places, release_host
from luma_constructs._run_items import COMPILER_PLACE, COORDINATOR_PLACE, RUN, RUN_KEY
from luma_constructs.training_jobs._islands import islands
from luma_constructs.training_jobs._places import count_places, place_hosts, place_slots
from luma_constructs.training_jobs._work import RUN_ITEM, WorkLimits, Works, counters

if TYPE_CHECKING:
    from luma_constructs.fleet_interface import IAcceleratorFleet

__all__ = ["RunParts", "run_states"]

_STOPPED = {"state": "terminated", "reason": "cancelled before it started", "state_hash": ""}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunParts:
    """What the run's states refer to.

    Attributes:
        items: the table.
        fleets_path: start of the names of the fleets' parameters.
        coordinator: host of coordinators and exports.
        compiler: host of the sealed compiler; None where artifacts come compiled.
        limits: how long and how often work is tried.
    """

    items: Items
    fleets_path: str
    coordinator: IAcceleratorFleet
    compiler: IAcceleratorFleet | None
    limits: WorkLimits


def run_states(parts: RunParts) -> sfn.Chain:
    """Give the states of a run; the last one's output is {state, reason, state_hash}."""
    items = parts.items
    ready = _cancelled_check(parts, _train(parts))
    compiled = sfn.Condition.is_present("$.read.Item.artifact.S")
    artifact = (
        sfn.Choice(items.scope, "Is it compiled?")
        .when(compiled, ready)
        .otherwise(_compile(parts, ready))
    )
    hosts = place_hosts(items, parts.coordinator, parts.compiler)
    hosts.next(place_slots(items, parts.fleets_path)).next(artifact)
    budget = items.update(
        "Set the budget",
        RUN_KEY,
        RUN,
        "SET max_cost_usd = :most",
        {":most": number("$.given.max_cost_usd")},
    ).next(hosts)
    first = count_places(items)
    return first.next(
        sfn.Choice(items.scope, "A budget of its own?")
        .when(sfn.Condition.is_numeric("$.given.max_cost_usd"), budget)
        .otherwise(hosts)
    )


def _place(items: Items, name: str, key: str) -> sfn.Pass:
    """Give the Pass that turns to one host's place, and keeps what later states need."""
    return sfn.Pass(
        items.scope,
        name,
        parameters={
            "run.$": "$.run",
            "given.$": "$.given",
            "plan.$": "$.plan",
            "numbers.$": "$.numbers",
            "key": key,
            "slot": 0,
            **counters(),
        },
    )


def _compile(parts: RunParts, then: sfn.IChainable) -> sfn.IChainable:
    """Compile in the enclave, on a host that exists for as long."""
    items, where = parts.items, " (compile)"
    if parts.compiler is None:
        return sfn.Fail(
            items.scope,
            "No compiler here",
            error="Luma.NoCompiler",
            cause="the run has no artifact and this deployment no compiler; compile it with "
            "`luma compile` first, or deploy a SealedCompiler",
        )
    cancelled = sfn.Condition.boolean_equals(f"{RUN_ITEM}.cancel.BOOL", value=True)
    works = Works.of(
        items,
        where,
        name="Compile sealed",
        kind="compile",
        limits=parts.limits,
        unwanted=cancelled,
        answer_unwanted={"artifact": ""},
    )
    works.again_on_silence()
    up = over_places(
        items,
        "Scale up the compiler",
        "$.numbers.compiler",
        claim(items, " (compiler up)", host=True),
    )
    down = over_places(
        items,
        "Scale the compiler down",
        "$.numbers.compiler",
        release_host(items, " (compiler down)"),
    )
    keep = items.update(
        "Keep the artifact",
        RUN_KEY,
        RUN,
        "SET artifact = :artifact, updated_at = :now",
        {":artifact": text("$.answer.artifact"), ":now": text(NOW)},
    )
    is_there = sfn.Condition.not_(sfn.Condition.string_equals("$.answer.artifact", ""))
    works.done.next(
        sfn.Choice(items.scope, "Is there an artifact?").when(is_there, keep).otherwise(down)
    )
    keep.next(down).next(then)
    turn = _place(items, "Turn to the compiler", COMPILER_PLACE)
    turn.next(up).next(works.look)
    return turn


def _cancelled_check(parts: RunParts, then: sfn.IChainable) -> sfn.CustomState:
    """Go on only where nobody has cancelled the run while it was compiled."""
    items = parts.items
    stopped = sfn.Pass(items.scope, "Stopped before it started", parameters=_STOPPED)
    start = items.update(
        "Start the run",
        RUN_KEY,
        RUN,
        "SET #state = :running, updated_at = :now",
        {
            ":running": {"S": "running"},
            ":now": text(NOW),
            ":me": text(execution),
            ":no": {"BOOL": False},
        },
        condition="execution = :me AND cancel = :no",
        names=["state"],
    )
    start.add_catch(stopped, errors=list(CONDITION_FAILED), result_path="$.error")
    start.next(
        over_places(items, "Claim capacity", "$.numbers.claimed", claim(items, " (claim)"))
    ).next(then)
    return start


def _train(parts: RunParts) -> sfn.IChainable:
    """Coordinate and train until the coordinator says how it ended, then export what is done."""
    items = parts.items
    export = _export(parts)
    stopped = _end(items, "Stopped resumably", "terminated")
    train = sfn.Parallel(
        items.scope,
        "Train",
        result_selector={"answer.$": "$[0]"},
        result_path="$.trained",
    )
    train.branch(_coordinate(parts), islands(items, parts.fleets_path, parts.limits))
    phase = sfn.Condition.string_equals("$.trained.answer.phase", "done")
    train.next(sfn.Choice(items.scope, "Did it finish?").when(phase, export).otherwise(stopped))
    return train


def _coordinate(parts: RunParts) -> sfn.IChainable:
    """Give the branch of the coordinator; its end is what the islands' loops wait for."""
    items = parts.items
    works = Works.of(
        items,
        " (coordinator)",
        name="Coordinate",
        kind="coordinate",
        limits=parts.limits,
        unwanted=sfn.Condition.boolean_equals(f"{RUN_ITEM}.cancel.BOOL", value=True),
        answer_unwanted={"phase": "stopped", "state_hash": "", "reason": "cancelled"},
    )
    works.again_on_silence()
    close = items.update(
        "Tell the islands that it is over",
        RUN_KEY,
        RUN,
        "SET #state = :terminating, updated_at = :now",
        {":terminating": {"S": "terminating"}, ":now": text(NOW)},
        names=["state"],
    )
    answer = sfn.Pass(items.scope, "Hand on its answer", output_path="$.answer")
    works.done.next(close).next(answer)
    turn = _place(items, "Turn to the coordinator", COORDINATOR_PLACE)
    turn.next(works.look)
    return turn


def _export(parts: RunParts) -> sfn.IChainable:
    """Write the model and the certificate, on the coordinator's host: it is there already."""
    items = parts.items
    works = Works.of(items, " (export)", name="Export", kind="export", limits=parts.limits)
    works.again_on_silence()
    works.done.next(_end(items, "Done and exported", "done", "$.answer.state_hash"))
    turn = _place(items, "Turn to the export", COORDINATOR_PLACE)
    turn.next(works.look)
    return turn


def _end(
    items: Items, name: str, state: str, state_hash: str = "$.trained.answer.state_hash"
) -> sfn.Pass:
    """Give the last state of a run."""
    is_done = state == "done"
    reason: dict[str, Any] = {"reason": ""} if is_done else {"reason.$": "$.trained.answer.reason"}
    return sfn.Pass(
        items.scope,
        name,
        parameters={"state": state, "state_hash.$": state_hash, **reason},
    )
