"""The priced plan: all offers of a job, those that are taken, and why.

What `luma offers` shows. Nothing is asked of AWS here: prices are the catalogue's, with their days.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.artifact import Level
from runtime.plan.choose import Choice, choose, job_tokens, limits_of
from runtime.plan.costs import TargetCosts
from runtime.plan.offer import Offer
from runtime.plan.offers import make_offers
from runtime.plan.requests import check_requests, regions_of, requests_of
from runtime.spec import CapacityError, Catalogue, JobSpec

__all__ = ["OfferPlan", "catalogue_words", "plan_offers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferPlan:
    """All offers and the choice.

    Attributes:
        offers: those that can be taken first, the cheapest a token before others.
        choice: what is taken; None where nothing can be.
        error: why nothing can be taken.
        catalogue: where prices are from, in words.
    """

    offers: tuple[Offer, ...]
    choice: Choice | None
    error: CapacityError | None
    catalogue: str

    def to_json(self) -> dict[str, Any]:
        """Give the plan as plain values: rows, each with its count and reason, and the totals."""
        choice = self.choice
        counts = choice.counts if choice else (0,) * len(self.offers)
        reasons = choice.reasons if choice else [o.refused or "" for o in self.offers]
        rows = [
            {**offer.to_json(), "islands": count, "chosen": count > 0, "reason": reason}
            for offer, count, reason in zip(self.offers, counts, reasons, strict=True)
        ]
        return {
            "catalogue": self.catalogue,
            "offers": rows,
            "choice": None if choice is None else _totals(choice),
            "error": None if self.error is None else self.error.diagnostics(),
        }


def plan_offers(
    spec: JobSpec,
    costs: Mapping[str, TargetCosts],
    catalogue: Catalogue,
    *,
    steps: int | None = None,
    fixed_usd_per_hour: float = 0.0,
    require: Level | None = None,
) -> OfferPlan:
    """Price a job in AWS and choose.

    Args:
        spec: the job.
        costs: what it costs on each compiled target; empty where nothing is compiled.
        catalogue: instance types and prices.
        steps: optimizer steps; None for what the job file says, where it does.
        fixed_usd_per_hour: what the job costs an hour beside its islands.
        require: seal level that every node must be able to reach; None for no demand.

    Raises:
        SpecError: an accelerator or a place of the job is not in the catalogue.
    """
    requests = requests_of(spec)
    check_requests(requests, catalogue)
    regions = regions_of(spec.resources.places, catalogue)
    offers = make_offers(spec, costs, catalogue, requests, regions, require=require)
    limits = limits_of(spec, tokens=job_tokens(spec, steps), fixed_usd_per_hour=fixed_usd_per_hour)
    choice = error = None
    try:
        choice = choose(spec, offers, limits, known_speeds=bool(costs))
    except CapacityError as caught:
        error = caught
    return OfferPlan(
        offers=offers, choice=choice, error=error, catalogue=catalogue_words(catalogue)
    )


def catalogue_words(catalogue: Catalogue) -> str:
    """Say where prices are from and of which day."""
    if catalogue.updated is not None:
        return f"AWS, asked {catalogue.updated} for {', '.join(catalogue.updated_regions)}"
    days = sorted({row.price_date for row in catalogue.accelerators if row.price_date})
    regions = sorted({row.price_region for row in catalogue.accelerators if row.price_region})
    return f"the catalogue that comes with Luma: {', '.join(regions)}, of {days[-1]}"


def _totals(choice: Choice) -> dict[str, Any]:
    solution = choice.solution
    return {
        "islands": solution.islands,
        "usd_per_hour": solution.usd_per_hour,
        "tokens_per_s": solution.speed if solution.hours is not None else None,
        "step_s": choice.step_seconds,
        "hours": None if choice.total_seconds is None else choice.total_seconds / 3600,
        "cost_usd": choice.cost_usd,
        "notes": list(choice.notes),
    }
