"""CDK building blocks of Luma, usable alone in other CDK apps.

    from luma_constructs import AcceleratorFleet, CoordinatorHost, Purchase, RunStore

Names are loaded when they are first used. `luma_constructs.key_policy`, which needs neither `aws_cdk`
nor Node, stays usable without them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from luma_constructs._validation import PropError
    from luma_constructs.accelerator_fleet import AcceleratorFleet, FleetNetwork
    from luma_constructs.agent_bootstrap import WheelSource
    from luma_constructs.coordinator_host import CoordinatorHost
    from luma_constructs.drain_document import DrainDocument
    from luma_constructs.enclave_image_file import EnclaveImage
    from luma_constructs.external_fleet import ExternalFleet
    from luma_constructs.external_identity import ExternalIdentity, TrustAnchorSource
    from luma_constructs.fleet_grants import FleetGrants
    from luma_constructs.fleet_interface import IAcceleratorFleet
    from luma_constructs.fleet_purchase import Purchase
    from luma_constructs.host_settings import HostSettings
    from luma_constructs.inference_service import InferenceService
    from luma_constructs.key_policy import AcceptedAmis, AcceptedImages, Measurements
    from luma_constructs.run_store import RunStore
    from luma_constructs.run_store_grants import RunStoreGrants
    from luma_constructs.runtime_asset import RuntimeAsset
    from luma_constructs.sealed_compiler import SealedCompiler

__all__ = [
    "AcceleratorFleet",
    "AcceptedAmis",
    "AcceptedImages",
    "CoordinatorHost",
    "DrainDocument",
    "EnclaveImage",
    "ExternalFleet",
    "ExternalIdentity",
    "FleetGrants",
    "FleetNetwork",
    "HostSettings",
    "IAcceleratorFleet",
    "InferenceService",
    "Measurements",
    "PropError",
    "Purchase",
    "RunStore",
    "RunStoreGrants",
    "RuntimeAsset",
    "SealedCompiler",
    "TrustAnchorSource",
    "WheelSource",
]

_MODULES = {
    "_validation": ("PropError",),
    "accelerator_fleet": ("AcceleratorFleet", "FleetNetwork"),
    "agent_bootstrap": ("WheelSource",),
    "coordinator_host": ("CoordinatorHost",),
    "drain_document": ("DrainDocument",),
    "enclave_image_file": ("EnclaveImage",),
    "external_fleet": ("ExternalFleet",),
    "external_identity": ("ExternalIdentity", "TrustAnchorSource"),
    "fleet_grants": ("FleetGrants",),
    "fleet_interface": ("IAcceleratorFleet",),
    "fleet_purchase": ("Purchase",),
    "host_settings": ("HostSettings",),
    "inference_service": ("InferenceService",),
    "key_policy": ("AcceptedAmis", "AcceptedImages", "Measurements"),
    "run_store": ("RunStore",),
    "run_store_grants": ("RunStoreGrants",),
    "runtime_asset": ("RuntimeAsset",),
    "sealed_compiler": ("SealedCompiler",),
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
