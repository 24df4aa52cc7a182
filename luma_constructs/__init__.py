"""CDK building blocks of Luma, usable alone in other CDK apps.

    from luma_constructs import AcceleratorFleet, LumaStack, Purchase, RunStore

Names are loaded when they are first used. `luma_constructs.key_policy`, which needs neither `aws_cdk`
nor Node, stays usable without them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from luma_constructs._validation import PropError
    from luma_constructs.accelerator_fleet import AcceleratorFleet, FleetNetwork
    from luma_constructs.acknowledgements import acknowledge
    from luma_constructs.agent_bootstrap import WheelSource
    from luma_constructs.coordinator_host import CoordinatorHost
    from luma_constructs.deployment_props import (
        BudgetProps,
        CompilerProps,
        FleetProps,
        LumaRoles,
    )
    from luma_constructs.drain_document import DrainDocument
    from luma_constructs.enclave_image_file import EnclaveImage, EnclaveImageError
    from luma_constructs.external_fleet import ExternalFleet
    from luma_constructs.external_identity import ExternalIdentity, TrustAnchorSource
    from luma_constructs.failover import FailoverGrants, FailoverStateMachine
    from luma_constructs.fleet_budget import FleetBudget
    from luma_constructs.fleet_grants import FleetGrants
    from luma_constructs.fleet_interface import IAcceleratorFleet
    from luma_constructs.fleet_purchase import Purchase
    from luma_constructs.host_settings import HostSettings
    from luma_constructs.inference_front import InferenceFront
    from luma_constructs.inference_service import InferenceService
    from luma_constructs.key_policy import (
        AcceptedAmis,
        AcceptedImages,
        KeyPolicyError,
        Measurements,
    )
    from luma_constructs.luma_dashboard import LumaAlarms, LumaDashboard
    from luma_constructs.luma_deployment import LumaDeployment
    from luma_constructs.luma_stack import LumaStack, StackWithoutLookups
    from luma_constructs.run_store import RunStore
    from luma_constructs.run_store_grants import RunStoreGrants
    from luma_constructs.runtime_asset import RuntimeAsset, RuntimeSourceError
    from luma_constructs.sealed_compiler import SealedCompiler
    from luma_constructs.spot_interruption_rules import SpotInterruptionRules
    from luma_constructs.training_jobs import TrainingJobs, TrainingJobsGrants

__all__ = [
    "AcceleratorFleet",
    "AcceptedAmis",
    "AcceptedImages",
    "BudgetProps",
    "CompilerProps",
    "CoordinatorHost",
    "DrainDocument",
    "EnclaveImage",
    "EnclaveImageError",
    "ExternalFleet",
    "ExternalIdentity",
    "FailoverGrants",
    "FailoverStateMachine",
    "FleetBudget",
    "FleetGrants",
    "FleetNetwork",
    "FleetProps",
    "HostSettings",
    "IAcceleratorFleet",
    "InferenceFront",
    "InferenceService",
    "KeyPolicyError",
    "LumaAlarms",
    "LumaDashboard",
    "LumaDeployment",
    "LumaRoles",
    "LumaStack",
    "Measurements",
    "PropError",
    "Purchase",
    "RunStore",
    "RunStoreGrants",
    "RuntimeAsset",
    "RuntimeSourceError",
    "SealedCompiler",
    "SpotInterruptionRules",
    "StackWithoutLookups",
    "TrainingJobs",
    "TrainingJobsGrants",
    "TrustAnchorSource",
    "WheelSource",
    "acknowledge",
]

_MODULES = {
    "_validation": ("PropError",),
    "accelerator_fleet": ("AcceleratorFleet", "FleetNetwork"),
    "acknowledgements": ("acknowledge",),
    "agent_bootstrap": ("WheelSource",),
    "coordinator_host": ("CoordinatorHost",),
    "deployment_props": ("BudgetProps", "CompilerProps", "FleetProps", "LumaRoles"),
    "drain_document": ("DrainDocument",),
    "enclave_image_file": ("EnclaveImage", "EnclaveImageError"),
    "external_fleet": ("ExternalFleet",),
    "external_identity": ("ExternalIdentity", "TrustAnchorSource"),
    "failover": ("FailoverGrants", "FailoverStateMachine"),
    "fleet_budget": ("FleetBudget",),
    "fleet_grants": ("FleetGrants",),
    "fleet_interface": ("IAcceleratorFleet",),
    "fleet_purchase": ("Purchase",),
    "host_settings": ("HostSettings",),
    "inference_front": ("InferenceFront",),
    "inference_service": ("InferenceService",),
    "key_policy": ("AcceptedAmis", "AcceptedImages", "KeyPolicyError", "Measurements"),
    "luma_dashboard": ("LumaAlarms", "LumaDashboard"),
    "luma_deployment": ("LumaDeployment",),
    "luma_stack": ("LumaStack", "StackWithoutLookups"),
    "run_store": ("RunStore",),
    "run_store_grants": ("RunStoreGrants",),
    "runtime_asset": ("RuntimeAsset", "RuntimeSourceError"),
    "sealed_compiler": ("SealedCompiler",),
    "spot_interruption_rules": ("SpotInterruptionRules",),
    "training_jobs": ("TrainingJobs", "TrainingJobsGrants"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Load the module of a public name."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Give the public names, loaded or not."""
    return sorted({*globals(), *__all__})
