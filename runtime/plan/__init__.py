"""The plan: what a job will run on, whether it fits, how fast it will be and what it costs."""

from runtime.plan.local import LocalPlan, check_fit, make_local_plan
from runtime.plan.machine import Machine, measure_machine

__all__ = ["LocalPlan", "Machine", "check_fit", "make_local_plan", "measure_machine"]
