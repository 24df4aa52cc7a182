"""The plan: what a job will run on, whether it fits, how fast it will be and what it costs."""

from runtime.plan.chips import Chip, chips_of, machine_chip
from runtime.plan.estimate import Estimate, estimate
from runtime.plan.fit import Fit, Shape, check_chip, judge
from runtime.plan.local import LocalPlan, check_fit, make_local_plan
from runtime.plan.machine import Machine, measure_machine

__all__ = [
    "Chip",
    "Estimate",
    "Fit",
    "LocalPlan",
    "Machine",
    "Shape",
    "check_chip",
    "check_fit",
    "chips_of",
    "estimate",
    "judge",
    "machine_chip",
    "make_local_plan",
    "measure_machine",
]
