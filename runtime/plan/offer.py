"""One offer: a place, an instance type and a way of buying it, with what is known of it.

A row says what is known and what is not: a price has a day, a spot price that is not known is told as
"at most the on-demand price", interruptions carry where their rate was recorded, and availability is
"not known" unless AWS was asked. A row that cannot be taken says why in `refused`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from runtime.plan.fit import Fit
from runtime.plan.predict import IslandTimes

__all__ = ["Offer", "Purchase"]

Purchase = Literal["spot", "on-demand", "capacity-block", "external", "owned"]
"""How an offer is bought: of EC2 in three ways, joined from elsewhere, or this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One row.

    Attributes:
        infra: "aws/REGION", "external" or "local".
        zone: availability zone; None for any of the region.
        instance: instance type, chip outside EC2, fleet's name, or processor of this machine.
        accelerator: chip and how many of it the instance has, such as "H100:8".
        target: what an island there runs; None where Luma cannot compile for it.
        memory_gib: device memory of the island.
        purchase: how it is bought.
        rank: place of the request that it answers, 0 for the job's best.
        usd_per_hour: price of one instance; None where it is not known.
        price_date: day of that price.
        price_is_limit: whether it is only the most that it can be.
        interruptions_per_hour: rate that the plan counts with; None where none is known.
        interruptions: where that rate is from.
        availability: what is known of it.
        seal: the highest seal level that can be reached there.
        fit: whether it fits; None where that is not known.
        step_s: seconds of a step where one island does all of it; None where not known.
        tokens_per_s: useful tokens a second that one island adds at least.
        egress_usd_per_hour: price of data that leaves AWS to reach it; 0 within AWS.
        most: instances that there can be; None for any number.
        unfit: why the instance type cannot run an island of the job, whatever its price.
        refused: why it cannot be taken: that, or its place, purchase or price; None where it can.
        times: what an island takes, for the step of the chosen fleet.
    """

    infra: str
    zone: str | None
    instance: str
    accelerator: str
    target: str | None
    memory_gib: float
    purchase: Purchase
    rank: int
    usd_per_hour: float | None
    price_date: str | None
    price_is_limit: bool = False
    interruptions_per_hour: float | None = None
    interruptions: str | None = None
    availability: str = "not known"
    seal: str = ""
    fit: Fit | None = None
    step_s: float | None = None
    tokens_per_s: float | None = None
    egress_usd_per_hour: float | None = 0.0
    most: int | None = None
    unfit: str | None = None
    refused: str | None = None
    times: IslandTimes | None = field(default=None, repr=False)

    @property
    def total_usd_per_hour(self) -> float | None:
        """Price of the instance and of what is sent to it."""
        if self.usd_per_hour is None:
            return None
        return self.usd_per_hour + (self.egress_usd_per_hour or 0.0)

    @property
    def usd_per_mtok(self) -> float | None:
        """Price of a million tokens on islands of this offer alone."""
        price = self.total_usd_per_hour
        if price is None or not self.tokens_per_s:
            return None
        return price / (self.tokens_per_s * 3600) * 1e6

    def to_json(self) -> dict[str, Any]:
        """Give the row as plain values."""
        fit = self.fit
        return {
            "infra": self.infra,
            "zone": self.zone,
            "instance": self.instance,
            "accelerators": self.accelerator,
            "target": self.target,
            "memory_gib": self.memory_gib,
            "purchase": self.purchase,
            "usd_per_hour": self.usd_per_hour,
            "price_date": self.price_date,
            "price_is_limit": self.price_is_limit,
            "usd_per_mtok": self.usd_per_mtok,
            "interruptions_per_hour": self.interruptions_per_hour,
            "interruptions_from": self.interruptions,
            "availability": self.availability,
            "seal": self.seal,
            "fits": None if fit is None else fit.fits,
            "fit": None if fit is None else fit.text(),
            "ways": [] if fit is None else list(fit.ways),
            "step_s": self.step_s,
            "tokens_per_s": self.tokens_per_s,
            "egress_usd_per_hour": self.egress_usd_per_hour,
        }
