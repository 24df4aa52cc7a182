"""The plan of a run on deployed fleets: order, slots, price, and why a fleet is not used."""

from __future__ import annotations

import dataclasses
import json

import pytest

from runtime.plan.account import plan_account_run
from runtime.plan.costs import costs_of_payloads
from runtime.spec import CapacityError, SpecError
from runtime.spec.account import Fleet

MIB = 1 << 20


def fleet(name: str, *types: str, **fields) -> Fleet:
    plain = {
        "name": name, "target": "cuda-sm90", "chips": 1, "queue": "https://sqs/queue", "asg": name,
        "purchase": "on-demand", "instance_types": types, "order": 0,
    }  # fmt: skip
    return Fleet(**{**plain, **fields})


HOST = fleet("coordinator", "host.large", target="coordinator")


@pytest.fixture
def catalogue(rows, row):
    """Hosts of one H100 at 1 and 2 $/h, of one L4 at 0.5, and the coordinator's at 0.1."""
    return rows(
        row("a.large", chip="H100", memory_gib_per_chip=80),
        row("b.large", chip="H100", memory_gib_per_chip=40, usd_per_hour_on_demand=2.0),
        row("l.large", chip="L4", compile_target="cuda-sm89", usd_per_hour_on_demand=0.5),
        row("host.large", chip="CPU", compile_target="cpu", usd_per_hour_on_demand=0.1),
        row("mi300x", chip="MI300X", compile_target="rocm-gfx942", where="external",
            usd_per_hour_on_demand=None),
    )  # fmt: skip


@pytest.fixture
def plan(job, payload, catalogue):
    """Give the function that plans a long job on fleets."""

    def make(*fleets: Fleet, compiled: bool = True, **fields):
        fields = {
            "resources__accelerators": ["H100:1", "L4:1", "rocm-gfx942:1"],
            "compile__targets": ["cuda-sm90", "cuda-sm89", "rocm-gfx942"],
            "train__steps": 10**6,
            **fields,
        }
        spec = job(**fields)
        targets = spec.compile.targets if compiled else ()
        costs = costs_of_payloads({name: payload(name, flops=1e12) for name in targets})
        return plan_account_run(spec, costs, fleets, region="us-east-1", catalogue=catalogue)

    return make


def rows_of(found):
    return {row.fleet: row for row in found.rows}


def test_a_fleet_counts_at_its_dearest_slowest_and_smallest_type(plan) -> None:
    found = plan(HOST, fleet("both", "a.large", "b.large"))
    row = rows_of(found)["both"]
    assert row.offer.usd_per_hour == 2.0
    assert row.offer.fit.memory_bytes == 40 << 30
    assert found.usd_per_hour == pytest.approx(2.1)
    assert found.coordinator_usd_per_hour == 0.1
    assert found.fleets == ("both",)


def test_spot_comes_before_on_demand_where_only_the_bound_is_known(plan) -> None:
    found = plan(HOST, fleet("od", "a.large"), fleet("spot", "a.large", purchase="spot"))
    assert found.fleets == ("spot", "od")
    assert found.slot_fleets == ("spot",)
    assert found.usd_per_hour == pytest.approx(1.1)  # the bound, not a guess
    assert any("spot prices are not known" in note for note in found.notes)


def test_fleets_of_the_same_target_come_before_cheaper_ones_of_another(plan) -> None:
    found = plan(
        HOST, fleet("l", "l.large", target="cuda-sm89"), fleet("a", "a.large"),
        fleet("b", "b.large"),
    )  # fmt: skip
    assert found.slot_fleets == ("a",)
    assert found.fleets == ("a", "b", "l")
    first = plan(
        HOST, fleet("l", "l.large", target="cuda-sm89"), fleet("a", "a.large"), compiled=False
    )
    assert first.fleets == ("a", "l")  # the job's order, for no speed is known


def test_neither_the_coordinators_nor_the_compilers_host_runs_islands(plan) -> None:
    compiler = fleet("compiler", "a.large", target="compiler")
    assert plan(HOST, compiler, fleet("od", "a.large")).fleets == ("od",)
    with pytest.raises(CapacityError, match="has no fleet for islands"):
        plan(HOST, compiler)


def test_named_islands_become_slots_of_one_target(plan) -> None:
    found = plan(
        HOST, fleet("h", "a.large"), fleet("l", "l.large", target="cuda-sm89"), resources__islands=3
    )
    assert found.slots == len(found.slot_fleets) == 3
    assert len({rows_of(found)[name].offer.target for name in found.slot_fleets}) == 1
    assert sum(found.slots_by_fleet.values()) == 3
    assert set(found.fleets) == {"h", "l"}


def test_islands_that_a_fleet_has_no_room_for_start_in_the_next(plan) -> None:
    found = plan(
        HOST, fleet("one", "a.large", most=1), fleet("two", "b.large", most=2), fleet("l", "l.large",
        target="cuda-sm89", most=1), resources__islands=3,
    )  # fmt: skip
    assert found.slots_by_fleet == {"one": 1, "two": 2}
    assert rows_of(found)["two"].offer.availability == "deployed, at most 2"
    mixed = plan(
        HOST, fleet("one", "a.large", most=1), fleet("l", "l.large", target="cuda-sm89", most=1),
        resources__islands=2,
    )  # fmt: skip
    assert mixed.slots_by_fleet == {"one": 1, "l": 1}
    assert any("'equivalent' at most" in note for note in mixed.notes)


def test_too_few_instances_in_all_fleets_are_the_binding_limit(plan) -> None:
    with pytest.raises(CapacityError) as caught:
        plan(HOST, fleet("one", "a.large", most=1), resources__min_workers=2)
    assert "resources.min_workers: no choice of fleets keeps it" in caught.value.message
    assert caught.value.remedy == "resources.min_workers: 1"


def test_an_external_fleet_may_have_types_of_ec2(plan) -> None:
    found = plan(HOST, fleet("ours", "a.large", asg=None, usd_per_hour=0.7))
    assert rows_of(found)["ours"].offer.infra == "external"
    assert found.usd_per_hour_by_fleet["ours"] > 0.7


def test_a_fleet_that_would_pass_the_price_is_no_fall_back(plan) -> None:
    found = plan(
        HOST, fleet("cheap", "a.large"), fleet("dear", "b.large"), resources__islands=2,
        resources__max_price="3/h",
    )  # fmt: skip
    assert found.fleets == ("cheap",)
    assert rows_of(found)["dear"].reason == (
        "with all islands there (2) the run would cost 4.1 $/h, above resources.max_price 3/h"
    )
    assert found.usd_per_hour <= 3


@pytest.mark.parametrize(
    ("one", "fields", "reason"),
    [
        (fleet("x", "a.large", purchase="spot"), {"resources__spot": "never"}, "the fleet is spot"),
        (fleet("x", "a.large"), {"resources__spot": "only"}, "the fleet is on-demand"),
        (fleet("x", "a.large", purchase="mixed"), {"resources__spot": "only"}, "of both kinds"),
        (fleet("x", "l.large", target="cuda-sm89", chips=4), {}, "and not this"),
        (
            fleet("x", "l.large", target="cuda-sm89"),
            {"compile__targets": ["cuda-sm90"]},
            "target cuda-sm89 is not compiled; add it to compile.targets",
        ),
        (fleet("x", "new.large"), {"resources__max_price": "9/h",
                                   "resources__accelerators": ["cuda-sm90"]},
         "its price is not known, and resources limits the money"),
    ],
)  # fmt: skip
def test_a_fleet_that_the_job_cannot_use_says_why(plan, one, fields, reason) -> None:
    with pytest.raises(CapacityError) as caught:
        plan(HOST, one, **fields)
    assert reason in caught.value.message


def test_a_job_that_does_not_fit_the_smallest_type_is_kept_off_the_fleet(
    job, payload, rows, row
) -> None:
    catalogue = rows(
        row("a.large", chip="H100", memory_gib_per_chip=80),
        row("tiny.large", chip="H100", memory_gib_per_chip=0.5),
    )
    spec = job(resources__accelerators=["H100:1"], compile__targets=["cuda-sm90"])
    costs = costs_of_payloads({"cuda-sm90": payload("cuda-sm90", activations=900 * MIB)})
    both, large = fleet("both", "a.large", "tiny.large"), fleet("large", "a.large")
    found = plan_account_run(spec, costs, [both, large], region="us-east-1", catalogue=catalogue)
    assert found.fleets == ("large",)
    assert rows_of(found)["both"].reason.startswith("tiny.large: does not fit, needs 0.9 GiB")


def test_prices_are_awss_own_then_the_fleets_then_the_packages(job, rows, row) -> None:
    spec = job(resources__accelerators=["H100:1"], compile__targets=["cuda-sm90"])
    asked = {
        "region": "us-east-1", "date": "2026-11-30", "zones": ["us-east-1a"],
        "usd_per_hour_on_demand": 5.0,
    }  # fmt: skip
    plain, live = row("a.large", chip="H100"), row("a.large", chip="H100", offers=[asked])
    named = fleet("f", "a.large", usd_per_hour=3.0)
    cases = [(plain, fleet("f", "a.large"), 1.0), (plain, named, 3.0), (live, named, 5.0)]
    for one, entry, price in cases:
        found = plan_account_run(spec, {}, [entry], region="us-east-1", catalogue=rows(one))
        assert found.usd_per_hour_by_fleet == {"f": price}


def test_prices_of_another_region_are_told_as_such(job, rows, row) -> None:
    spec = job(
        resources__accelerators=["H100:1"], compile__targets=["cuda-sm90"],
        resources__infra="aws/eu-west-1",
    )  # fmt: skip
    entry, catalogue = fleet("f", "a.large", usd_per_hour=3.0), rows(row("a.large", chip="H100"))
    there = plan_account_run(spec, {}, [entry], region="eu-west-1", catalogue=catalogue)
    assert any("prices are those of another region" in note for note in there.notes)
    asked = catalogue.model_copy(update={"updated_regions": ("eu-west-1",)})
    known = plan_account_run(spec, {}, [entry], region="eu-west-1", catalogue=asked)
    assert not any("another region" in note for note in known.notes)


def test_a_type_that_the_catalogue_lacks_runs_last_and_is_not_priced(plan) -> None:
    accelerators = ["cuda-sm90"]
    found = plan(
        HOST, fleet("new", "new.large"), fleet("od", "a.large"), compiled=False,
        resources__accelerators=accelerators,
    )  # fmt: skip
    assert found.fleets == ("od", "new")
    assert rows_of(found)["new"].reason == "its price is not known"
    alone = plan(HOST, fleet("new", "new.large"), resources__accelerators=accelerators)
    assert (alone.slots, alone.usd_per_hour, alone.cost_usd) == (1, None, None)
    assert any("a fleet's price is not known" in note for note in alone.notes)


def test_an_external_fleet_costs_its_price_and_the_egress(plan) -> None:
    external = fleet("amd", target="rocm-gfx942", asg=None, usd_per_hour=2.5)
    found = plan(HOST, external)
    row = rows_of(found)["amd"]
    assert (row.purchase, row.offer.infra, row.offer.seal) == ("external", "external", "L2")
    assert row.offer.egress_usd_per_hour > 0
    assert found.usd_per_hour == pytest.approx(0.1 + 2.5 + row.offer.egress_usd_per_hour)
    free = plan(HOST, dataclasses.replace(external, usd_per_hour=None))
    assert rows_of(free)["amd"].offer.usd_per_hour == 0.0


@pytest.mark.parametrize(
    ("infra", "fits"),
    [("aws/us-east-1", True), ("aws/us-*", True), ("aws/*", True), ("aws/eu-*", False),
     ("aws/us-east-2", False), ("local", False)],
)  # fmt: skip
def test_a_job_runs_in_a_stack_whose_region_it_names(plan, infra, fits) -> None:
    if fits:
        assert plan(fleet("od", "a.large"), resources__infra=infra).fleets == ("od",)
        return
    with pytest.raises(SpecError, match="is not the stack's region us-east-1"):
        plan(fleet("od", "a.large"), resources__infra=infra)


def test_the_plan_is_shown_and_is_plain_json(plan) -> None:
    found = plan(
        HOST, fleet("od", "a.large"), fleet("far", "l.large", target="cuda-sm89", chips=2),
        resources__max_cost=1e6,
    )  # fmt: skip
    lines = found.lines()
    shown = dict(lines)
    assert shown["islands"] == "1 x cuda-sm90 in fleet od (on-demand)"
    assert shown["work"].startswith("1000000 steps of ")
    assert "fits, needs" in shown["memory"]
    assert " s a step, " in shown["predicted"]
    assert "at most 1.1 $/h with the coordinator" in shown["price"]
    assert shown["not used"].startswith("far: the job accepts H100:1")
    document = json.loads(json.dumps(found.to_json()))
    assert document["slots_by_fleet"] == {"od": 1}
    assert document["cost_usd"] == pytest.approx(
        document["usd_per_hour"] * document["total_seconds"] / 3600
    )
    assert [one["fleet"] for one in document["rows"]] == ["od", "far"]


def test_before_the_job_is_compiled_nothing_is_predicted(plan) -> None:
    found = plan(HOST, fleet("od", "a.large"), compiled=False)
    assert (found.step_seconds, found.total_seconds, found.cost_usd) == (None, None, None)
    assert dict(found.lines())["predicted"] == "not known before the job is compiled"
    assert found.slots == 1
