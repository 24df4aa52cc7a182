"""The plan: what a job will run on, whether it fits, how fast it will be and what it costs."""

from runtime.plan.account import plan_account_run
from runtime.plan.account_plan import AccountPlan
from runtime.plan.chips import Chip, chip_of_row, chips_of, hosts_of, machine_chip
from runtime.plan.costs import TargetCosts, costs_of_payloads, costs_of_statistics
from runtime.plan.estimate import Estimate, estimate
from runtime.plan.fit import Fit, Shape, check_chip, judge
from runtime.plan.local import LocalPlan, check_fit, make_local_plan
from runtime.plan.machine import Machine, measure_machine
from runtime.plan.offer import Offer
from runtime.plan.priced import OfferPlan, plan_offers

__all__ = [
    "AccountPlan",
    "Chip",
    "Estimate",
    "Fit",
    "LocalPlan",
    "Machine",
    "Offer",
    "OfferPlan",
    "Shape",
    "TargetCosts",
    "check_chip",
    "check_fit",
    "chip_of_row",
    "chips_of",
    "costs_of_payloads",
    "costs_of_statistics",
    "estimate",
    "hosts_of",
    "judge",
    "machine_chip",
    "make_local_plan",
    "measure_machine",
    "plan_account_run",
    "plan_offers",
]
