"""Load programs in IREE's form ("vmfb") on a node and run them: AMD's half of `executable.py`.

A program arrives as the module that `iree-compile` wrote, with our own signature. Its code for the
chip lies in it as machine code; nothing is traced or compiled here. The driver is `hip` on a node
with an AMD chip. The same module compiled for IREE's CPU code generator runs on the driver
`local-task`, which is how this file is tested on a host that has no such chip.

Loading machine code runs it: only bytes out of a verified artifact may reach `IreeLoader.load`.

Memory: a numpy argument is copied to the device. A result stays there, as IREE's `DeviceArray`, and
can be an argument of the next call without a copy; `host_view` brings it to the host. The memory of
an argument in `program.donated` holds a result afterwards: its old values are gone, and an array
given there must not be read again.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from runtime.agent.arguments import check_arguments, check_form
from runtime.artifact.program import Program, TargetPayload
from runtime.spec import ArtifactError

__all__ = [
    "CPU_DRIVER",
    "HIP_DRIVER",
    "IreeLoader",
    "LoadedIreeProgram",
    "host_view",
    "load",
    "open_loader",
]

HIP_DRIVER = "hip"
"""IREE's driver of AMD chips, over ROCm's HIP library."""

CPU_DRIVER = "local-task"
"""IREE's driver of the host's own cores."""

_ENTRY = "main"  # jax gives the traced function this name, and iree-compile keeps it

Flat: TypeAlias = Sequence["np.ndarray | Any"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedIreeProgram:
    """A program that is ready to run on one of IREE's devices.

    Attributes:
        program: its signature; inputs and outputs are bound by its order.
    """

    program: Program
    _runtime: Any
    _device: Any
    _invoke: Callable[..., Any]

    def run(self, flat: Flat) -> list[Any]:
        """Run once and wait until the results are there.

        Args:
            flat: one array per `program.inputs`, in order, of exactly its shape and dtype: numpy
                arrays, which are copied to the device, or results of earlier calls.

        Returns:
            One `iree.runtime.DeviceArray` per `program.outputs`, in order.

        Raises:
            ArtifactError: the number, a shape or a dtype differs from the signature, or the
                program failed on the device.
        """
        check_arguments(self.program, flat)
        arrays = [self._runtime.asdevicearray(self._device, item) for item in flat]
        try:
            results = self._invoke(*arrays)
        except (RuntimeError, ValueError) as error:
            message = f"program '{self.program.name}': it failed on the device: {_first(error)}"
            raise ArtifactError(message) from error
        # IREE gives one result bare, several as a tuple.
        several = results if isinstance(results, tuple) else (results,)
        if len(several) != len(self.program.outputs):
            message = (
                f"program '{self.program.name}' gave {len(several)} results; "
                f"its signature has {len(self.program.outputs)}"
            )
            raise ArtifactError(message)
        return list(several)

    def device_array(self, index: int, array: np.ndarray) -> Any:
        """Copy a host array to the device; all inputs lie there alike."""
        del index
        return self._runtime.asdevicearray(self._device, array)

    def lent_array(self, index: int, array: np.ndarray) -> Any:
        """Copy a host array to the device: IREE's device memory is its own."""
        return self.device_array(index, array)


class IreeLoader:
    """Loads programs onto the default device of one of IREE's drivers.

    Args:
        driver: IREE's name of the driver.

    Raises:
        ArtifactError: IREE's runtime is not installed, or the driver does not start here.
    """

    def __init__(self, driver: str = HIP_DRIVER) -> None:
        self._runtime = _import_runtime()
        self._device = _start_driver(self._runtime, driver)
        self._driver = driver

    def load(self, program: Program) -> LoadedIreeProgram:
        """Load a program.

        Args:
            program: of the form "vmfb", from a payload of a verified artifact.

        Raises:
            ArtifactError: it has another form, or its module does not load on the device.
        """
        check_form(program, "vmfb")
        runtime = self._runtime
        try:
            config = runtime.Config(device=self._device)
            module = runtime.VmModule.copy_buffer(config.vm_instance, program.executable)
            invoke = runtime.load_vm_module(module, config)[_ENTRY]
        except (RuntimeError, ValueError, KeyError) as error:
            message = (
                f"program '{program.name}': its module does not load on driver "
                f"'{self._driver}': {_first(error)}"
            )
            remedy = "compile the job for this node's chip, with its runtime's iree-base-compiler"
            raise ArtifactError(message, remedy=remedy) from error
        return LoadedIreeProgram(
            program=program, _runtime=runtime, _device=self._device, _invoke=invoke
        )

    def host_view(self, array: Any) -> np.ndarray:
        """Give an array's values; see `host_view` of this module."""
        return host_view(array)

    def chip_class(self, payload: TargetPayload) -> str:
        """Name what must be equal on two islands for equal bits: the module holds all of its code.

        The driver is named beside it, since a module may hold code for several kinds of device.
        """
        version = importlib.metadata.version("iree-base-runtime")
        return f"{payload.target}/vmfb/{self._driver}/iree-{version}"


def open_loader(target: str) -> IreeLoader:
    """Give the loader of this form; see `runtime.agent.loaders`."""
    del target  # one driver runs all AMD chips
    return IreeLoader()


def load(program: Program, *, driver: str = HIP_DRIVER) -> LoadedIreeProgram:
    """Load one program into this process.

    Args:
        program: of the form "vmfb", from a payload of a verified artifact.
        driver: IREE's name of the driver to run it on.

    Raises:
        ArtifactError: the program has another form, IREE's runtime is not installed, the driver
            does not start here, or the module does not load on its device.
    """
    check_form(program, "vmfb")
    return IreeLoader(driver).load(program)


def host_view(array: Any) -> np.ndarray:
    """Give a result's values as numpy sees them, without a copy where the host can read them.

    Args:
        array: a result of `run`; the view is valid while it lives and no program takes it over.
    """
    return array.to_host()


def _import_runtime() -> Any:
    """Import IREE's runtime, which only nodes that run this form need."""
    try:
        return importlib.import_module("iree.runtime")
    except ImportError as error:
        message = f"it needs IREE's runtime, which does not import: {error}"
        raise ArtifactError(message, remedy="install the extra 'amd' on this node") from error


def _start_driver(runtime: Any, driver: str) -> Any:
    """Give the driver's default device."""
    known = sorted(runtime.query_available_drivers())
    if driver not in known:
        message = f"this IREE runtime has no driver '{driver}'; it has {', '.join(known)}"
        raise ArtifactError(message)
    try:
        return runtime.get_device(driver)
    except (RuntimeError, ValueError) as error:
        message = f"IREE's driver '{driver}' does not start on this node: {_first(error)}"
        remedy = "run it on a node with an AMD chip and ROCm's libamdhip64.so"
        raise ArtifactError(message, remedy=remedy if driver == HIP_DRIVER else None) from error


def _first(error: Exception) -> str:
    """Give the first line of an error of IREE, whose texts go on with the call's history."""
    lines = str(error).splitlines()
    return lines[0][:300] if lines else type(error).__name__
