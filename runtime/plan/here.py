"""The offer of this machine, for a job whose `resources.infra` is local: free, and already there."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.plan.chips import machine_chip
from runtime.plan.choose import Choice, choose, job_tokens, limits_of
from runtime.plan.costs import TargetCosts
from runtime.plan.fit import Fit, Shape
from runtime.plan.machine import Machine, measure_machine
from runtime.plan.offer import Offer
from runtime.plan.predict import island_speed, island_times
from runtime.plan.priced import OfferPlan
from runtime.spec import CapacityError, JobSpec
from runtime.spec.target_name import TargetName

__all__ = ["plan_here"]


def plan_here(
    spec: JobSpec, costs: Mapping[str, TargetCosts], machine: Machine | None = None
) -> OfferPlan:
    """Give the plan of a job on this machine: one offer, whose islands share its cores.

    Args:
        spec: the job.
        costs: what it costs on each compiled target; empty where nothing is compiled.
        machine: this machine; None measures it.
    """
    offer = _offer(spec, costs, measure_machine() if machine is None else machine)
    limits = limits_of(spec, tokens=job_tokens(spec, None), fixed_usd_per_hour=0.0, start_s=0.0)
    choice: Choice | None = None
    error = None
    try:
        choice = choose(spec, [offer], limits, known_speeds=offer.tokens_per_s is not None)
    except CapacityError as caught:
        error = caught
    return OfferPlan(offers=(offer,), choice=choice, error=error, catalogue="this machine is yours")


def _offer(spec: JobSpec, costs: Mapping[str, TargetCosts], machine: Machine) -> Offer:
    """Give this machine's offer; an island's part of it is what its fit is judged by."""
    target = next(
        (name for name in spec.compile.targets if TargetName.parse(name).family == "cpu"), None
    )
    islands = spec.resources.islands
    chip = machine_chip(machine, islands)
    found = None if target is None else costs.get(target)
    fit = None if found is None else found.fit(chip, Shape.of(spec))
    times = None if found is None else island_times(found, chip, spec.model.dtype, None)
    speed = None
    if times is not None:
        train = spec.train
        speed = island_speed(
            times,
            shards=train.micro_shards,
            islands=range(islands, islands + 1),
            tokens_per_step=train.samples_per_step * train.seq_len,
        )
    return Offer(
        infra="local",
        zone=None,
        instance=machine.cpu,
        accelerator=f"CPU:{machine.cores} cores",
        target=target,
        memory_gib=machine.memory_available_bytes / 2**30,
        purchase="owned",
        rank=0,
        usd_per_hour=0.0,
        price_date=None,
        interruptions_per_hour=0.0,
        availability="here",
        seal="L1",
        fit=fit,
        step_s=None if times is None else spec.train.micro_shards * times.shard_s + times.update_s,
        tokens_per_s=speed,
        refused=_refusal(target, fit),
        times=times,
    )


def _refusal(target: str | None, fit: Fit | None) -> str | None:
    if target is None:
        return "compile.targets has no target of this machine; add cpu"
    return fit.text() if fit is not None and not fit.fits else None
