"""Rows of offers: what each says, which are taken, and the reason of each."""

from __future__ import annotations

import json

import pytest

from runtime.plan.costs import costs_of_payloads, costs_of_statistics
from runtime.plan.offers import EGRESS_USD_PER_GB, seal_of
from runtime.plan.predict import START_S, goodput
from runtime.plan.priced import plan_offers
from runtime.plan.spot_rates import load_spot_rates
from runtime.spec import CapacityError, SpecError, load_catalogue

MIB = 1 << 20
ON = {"resources__accelerators": ["Example:1"], "compile__targets": ["cuda-sm90"]}


@pytest.fixture
def costs(payload):
    """A job for cuda-sm90 that is arithmetic: 8 shards of 1e12 operations."""
    return costs_of_payloads({"cuda-sm90": payload("cuda-sm90", flops=1e12)})


def said(*zones: str, **fields):
    return {"region": "us-east-1", "date": "2026-11-30", "zones": list(zones), **fields}


def spot(zone: str, price: float):
    return {"zone": zone, "usd_per_hour": price, "since": "2026-11-30T10:00:00+00:00"}


def by_name(plan):
    rows = plan.to_json()["offers"]
    return {(row["instance"], row["purchase"], row["zone"]): row for row in rows}


def test_without_a_spot_price_the_on_demand_price_is_its_bound(job, rows, row, costs) -> None:
    plan = plan_offers(job(**ON), costs, rows(row("a.large")))
    found = by_name(plan)
    on_demand, bound = found["a.large", "on-demand", None], found["a.large", "spot", None]
    assert on_demand["chosen"]
    assert (bound["usd_per_hour"], bound["price_is_limit"]) == (1.0, True)
    assert "its spot price is not known" in bound["reason"]
    assert bound["interruptions_per_hour"] == load_spot_rates().median
    assert "not on this type" in bound["interruptions_from"]
    assert (on_demand["availability"], on_demand["price_date"]) == ("offered", "2026-07-20")


def test_each_zone_with_a_spot_price_is_an_offer_and_the_cheapest_is_taken(
    job, rows, row, costs
) -> None:
    offers = [
        said("us-east-1a", "us-east-1b", spot=[spot("us-east-1a", 0.4), spot("us-east-1b", 0.3)])
    ]
    plan = plan_offers(job(**ON), costs, rows(row("a.large", offers=offers)))
    found = by_name(plan)
    assert set(found) == {
        ("a.large", "on-demand", None),
        ("a.large", "spot", "us-east-1a"),
        ("a.large", "spot", "us-east-1b"),
    }
    assert found["a.large", "spot", "us-east-1b"]["chosen"]
    assert found["a.large", "spot", "us-east-1a"]["reason"].startswith("dominated: ")
    assert found["a.large", "on-demand", None]["availability"] == "2 zones"


def test_time_and_price_follow_from_the_programs(job, rows, row, costs) -> None:
    spec = job(**{**ON, "resources__accelerators": ["H100:1"]}, train__steps=1000)
    plan = plan_offers(spec, costs, rows(row("a.large", chip="H100")))
    choice = plan.to_json()["choice"]
    # 8 shards of 1e12 operations at 0.4 of 66.9e12 a second, and `apply`: 1e9 bytes at 0.8 TB/s.
    step = 8 * 1e12 / (0.4 * 66.9e12) + 1e9 / 0.8e12
    assert choice["step_s"] == pytest.approx(step)
    assert choice["hours"] == pytest.approx((1000 * step + START_S) / 3600)
    assert choice["cost_usd"] == pytest.approx(choice["hours"] * 1.0)


def test_interruptions_make_a_token_dearer(job, rows, row, costs) -> None:
    offers = [said("us-east-1a", spot=[spot("us-east-1a", 1.0)])]
    plan = plan_offers(
        job(**{**ON, "resources__accelerators": ["H100:1"]}),
        costs,
        rows(row("a.large", chip="H100", offers=offers)),
    )
    found = by_name(plan)
    steady, spotty = found["a.large", "on-demand", None], found["a.large", "spot", "us-east-1a"]
    assert steady["chosen"]
    assert spotty["usd_per_mtok"] == pytest.approx(
        steady["usd_per_mtok"] / goodput(load_spot_rates().median)
    )


def test_what_cannot_run_the_job_says_why(job, rows, row, payload) -> None:
    large = costs_of_payloads({"cuda-sm90": payload("cuda-sm90", activations=900 * MIB)})
    catalogue = rows(
        row("small.large", memory_gib_per_chip=0.5),
        row("part.large", count=0),
        row("unknown.large", count=None),
        row("foreign.large", compile_target=None),
        row("other.large", compile_target="cuda-sm89"),
        row("priceless.large", usd_per_hour_on_demand=None, price_region=None),
        row("gone.large", offers=[said()]),
        row("elsewhere", where="external", usd_per_hour_on_demand=None),
        row("not-an-instance"),
        row("good.large"),
    )
    reasons = {
        name: found["reason"]
        for (name, purchase, _), found in by_name(plan_offers(job(**ON), large, catalogue)).items()
        if purchase in {"on-demand", "external"}
    }
    assert "does not fit, needs 0.9 GiB of 0.5 GiB; train.micro_batch" not in reasons["small.large"]
    assert reasons["small.large"].startswith("does not fit, needs 0.9 GiB of 0.5 GiB")
    assert "train.checkpointing: layer" in reasons["small.large"]
    assert reasons["part.large"] == "it has a fraction of one Example, which no island runs on"
    assert "number of its chips is not known" in reasons["unknown.large"]
    assert reasons["foreign.large"] == "Luma cannot compile for Example"
    assert "target cuda-sm89 is not compiled; add it" in reasons["other.large"]
    assert reasons["priceless.large"].startswith("no price known")
    assert reasons["gone.large"] == "gone.large is not offered in us-east-1"
    assert "provider's price is not known" in reasons["elsewhere"]
    assert reasons["good.large"].startswith("chosen: 1 of 1 islands")
    assert "not-an-instance" not in reasons


def test_a_target_that_the_artifact_lacks_is_told_from_one_that_the_job_lacks(
    job, rows, row, costs
) -> None:
    spec = job(**{**ON, "compile__targets": ["cuda-sm90", "cuda-sm89"]})
    plan = plan_offers(spec, costs, rows(row("a.large", compile_target="cuda-sm89")))
    assert "the artifact holds no cuda-sm89" in plan.offers[0].refused


@pytest.mark.parametrize(("wish", "purchase"), [("never", "spot"), ("only", "on-demand")])
def test_the_jobs_wish_for_spot_is_a_reason(job, rows, row, costs, wish, purchase) -> None:
    found = by_name(plan_offers(job(**ON, resources__spot=wish), costs, rows(row("a.large"))))
    assert found["a.large", purchase, None]["reason"] == f"resources.spot is {wish}"


def test_a_capacity_block_is_shown_and_never_taken(job, rows, row, costs) -> None:
    block = {
        "zone": "us-east-1a", "start": "2026-12-01T11:30:00+00:00", "hours": 24, "instances": 1,
        "usd": 2.4,
    }  # fmt: skip
    plan = plan_offers(
        job(**ON), costs, rows(row("a.large", offers=[said("us-east-1a", capacity_blocks=[block])]))
    )
    found = by_name(plan)["a.large", "capacity-block", "us-east-1a"]
    assert found["usd_per_hour"] == pytest.approx(0.1)
    assert not found["chosen"]
    assert "reserved and paid beforehand" in found["reason"]


def test_a_demanded_level_keeps_to_types_that_can_reach_it(job, rows, row, costs) -> None:
    catalogue = rows(
        row("a.large", nitro_tpm=False), row("b.large", nitro_tpm=True, usd_per_hour_on_demand=2.0)
    )
    found = by_name(plan_offers(job(**ON), costs, catalogue, require="L3"))
    assert (
        found["a.large", "on-demand", None]["reason"]
        == "L3 cannot be reached there, it has no NitroTPM"
    )
    assert found["b.large", "on-demand", None]["chosen"]
    assert by_name(plan_offers(job(**ON), costs, catalogue, require="L2"))[
        "a.large", "on-demand", None
    ]["chosen"]


def test_nothing_attests_a_host_outside_of_ec2() -> None:
    catalogue = load_catalogue()
    levels = {
        name: seal_of(catalogue.by_name(name)) for name in ("mi300x", "p5.48xlarge", "p4d.24xlarge")
    }
    assert levels == {"mi300x": "L2", "p5.48xlarge": "L3", "p4d.24xlarge": "L2"}
    assert seal_of(catalogue.by_name("p6e-gb200.36xlarge")) == "L2 or L3"


def test_external_nodes_cost_what_leaves_aws(job, rows, row, costs) -> None:
    external = row("ours", chip="H100", where="external", usd_per_hour_on_demand=None)
    spec = job(**{**ON, "resources__accelerators": ["H100:1"]})
    (offer,) = plan_offers(spec, costs, rows(external)).offers
    steps_per_h = 3600 / offer.step_s
    sums = 4 * (1 << 20)
    assert offer.egress_usd_per_hour == pytest.approx(
        2 * sums * steps_per_h / 1e9 * EGRESS_USD_PER_GB
    )
    assert plan_offers(spec, costs, rows(external)).error is not None


def test_an_impossible_price_names_the_limit_each_offer_and_what_would_be_enough(
    job, rows, row, costs
) -> None:
    plan = plan_offers(job(**ON, resources__max_price="0.5/h"), costs, rows(row("a.large")))
    assert isinstance(plan.error, CapacityError)
    text = plan.error.diagnostics()
    assert "resources.max_price: no choice of offers keeps it" in text
    assert (
        "a.large on-demand in aws/us-east-1, 1 $/h: can run it, but not within the limits" in text
    )
    assert "remedy: resources.max_price: 1/h" in text
    assert plan.to_json()["choice"] is None
    assert (
        plan_offers(job(**ON, resources__max_price="1/h"), costs, rows(row("a.large"))).error
        is None
    )


def test_several_limits_that_only_together_are_too_much_are_all_named(
    job, rows, row, costs
) -> None:
    spec = job(
        **{**ON, "resources__accelerators": ["H100:1"]}, resources__max_price="0.5/h",
        resources__deadline="1s",
    )  # fmt: skip
    plan = plan_offers(spec, costs, rows(row("a.large", chip="H100")))
    assert "resources.max_price 0.5/h" in plan.error.message
    assert "resources.deadline" in plan.error.message


def test_without_a_compiled_job_its_best_request_is_taken_at_the_lowest_price(
    job, rows, row
) -> None:
    spec = job(
        compile__targets=["cuda-sm90"], resources__accelerators=["big.large", "small.large"],
        resources__deadline="1h",
    )  # fmt: skip
    catalogue = rows(row("big.large", usd_per_hour_on_demand=9.0), row("small.large"))
    plan = plan_offers(spec, {}, catalogue)
    assert by_name(plan)["big.large", "on-demand", None]["chosen"]
    notes = plan.to_json()["choice"]["notes"]
    assert "neither fit nor time nor cost is predicted: the job is not compiled" in notes
    assert "resources.deadline is not judged without a prediction" in notes
    assert plan.to_json()["choice"]["cost_usd"] is None


def test_named_islands_are_kept_where_they_can_be(job, rows, row, costs) -> None:
    catalogue = rows(row("a.large", chip="H100"))
    base = {**ON, "resources__accelerators": ["H100:1"]}
    named = plan_offers(
        job(**base, resources__islands=3, resources__max_workers=8), costs, catalogue
    )
    assert named.to_json()["choice"]["islands"] == 3
    limited = plan_offers(
        job(**base, resources__islands=3, resources__max_price="2/h"), costs, catalogue
    ).to_json()["choice"]
    assert limited["islands"] <= 2
    assert "resources.islands: 3 do not keep the limits" in limited["notes"]


def test_spot_islands_are_spread_and_the_dearer_pool_says_why(job, rows, row, costs) -> None:
    prices = [spot("us-east-1a", 0.3), spot("us-east-1b", 0.31), spot("us-east-1c", 0.32)]
    zones = ("us-east-1a", "us-east-1b", "us-east-1c")
    catalogue = rows(row("a.large", chip="H100", offers=[said(*zones, spot=prices)]))
    spec = job(
        **{**ON, "resources__accelerators": ["H100:1"]}, resources__islands=4, train__steps=10**6
    )
    found = by_name(plan_offers(spec, costs, catalogue))
    counts = [found["a.large", "spot", zone]["islands"] for zone in zones]
    assert counts == [2, 2, 0]


def test_statistics_give_the_same_fit_and_a_time_without_the_exchange(
    job, rows, row, payload
) -> None:
    spec = job(**{**ON, "resources__accelerators": ["H100:1"]})
    program = payload("cuda-sm90", flops=1e12)
    grad, update = program.programs["grad"], program.programs["apply"]
    figures = {
        "cuda-sm90.peak_memory_bytes": 20 * MIB,
        "cuda-sm90.flops": 8 * grad.flops + update.flops,
        "cuda-sm90.bytes_moved": 8 * grad.bytes_moved + update.bytes_moved,
        "cuda-sm90.predicted_step_s": 1.0,
        "strange.flops": 1.0,
        "cpu.flops": "many",
    }
    found = costs_of_statistics(figures, spec)
    assert set(found) == {"cuda-sm90"}
    catalogue = rows(row("a.large", chip="H100"))
    public = plan_offers(spec, found, catalogue).offers[0]
    opened = plan_offers(spec, costs_of_payloads({"cuda-sm90": program}), catalogue).offers[0]
    assert public.fit.fits
    assert public.fit.needed_bytes == opened.fit.needed_bytes
    assert public.step_s == pytest.approx(opened.step_s, rel=0.02)


def test_json_holds_every_row_with_its_reason_and_is_plain(job, rows, row, costs) -> None:
    plan = plan_offers(job(**ON), costs, rows(row("a.large"), row("b.large", count=0)))
    document = json.loads(json.dumps(plan.to_json()))
    assert len(document["offers"]) == 4
    for found in document["offers"]:
        assert found["reason"]
        assert found["chosen"] == (found["islands"] > 0)
    assert document["catalogue"] == "the catalogue that comes with Luma: us-east-1, of 2026-07-20"


def test_a_place_that_nothing_is_known_of_gives_rows_without_prices(job, rows, row, costs) -> None:
    plan = plan_offers(job(**ON, resources__infra="aws/eu-west-1"), costs, rows(row("a.large")))
    assert {offer.availability for offer in plan.offers} == {"not known"}
    assert all("no price known" in offer.refused for offer in plan.offers)
    with pytest.raises(SpecError, match="matches no region"):
        plan_offers(job(**ON, resources__infra="aws/eu-*"), costs, rows(row("a.large")))


def test_the_packages_catalogue_gives_offers_for_every_family(job) -> None:
    for name in ("cpu:1", "H100:8", "trn1:16", "inf2:1", "L4:1", "24GB..:1"):
        plan = plan_offers(job(resources__accelerators=[name]), {}, load_catalogue())
        assert plan.offers, name
