"""Load programs in PJRT's form on a node and run them: CPU, NVIDIA and TPU by one code path.

A program arrives as raw serialized executable bytes with our own signature; nothing is traced,
compiled or unpickled. The names used here (`deserialize_executable`, `DeviceList`,
`execute_sharded`) are private to jaxlib 0.10.2, so only this module and `island_arrays` touch them,
and a test holds the whole round trip. It ran on CPU only: no NVIDIA or TPU chip was at hand.

Loading machine code runs it: only bytes out of a verified artifact may reach `load_program`.

A program of several chips runs on as many devices of this process: for CPU, host devices that it
was started with. Its arrays lie on them as `Program.partitions` says.

Memory: `device_array` copies into memory that PJRT owns, so a program may take it over (donation)
and the caller may overwrite the source. `host_view` copies only what lies in parts on several
chips; without a copy it is valid while its array lives, that is until a program takes that over.

Threads: fixed when the process starts; see `runtime.agent.threads.island_environment`.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import jax
import jaxlib
import numpy as np
from jaxlib import _jax

from runtime.agent import island_arrays
from runtime.agent.arguments import check_arguments, check_form
from runtime.agent.island_arrays import Devices
from runtime.artifact.cpu_class import CpuClass, cpu_class, missing_features
from runtime.artifact.program import Program, TargetPayload
from runtime.spec import ArtifactError
from runtime.spec.target_name import TargetName

__all__ = [
    "LoadedProgram",
    "PjrtLoader",
    "chip_class",
    "device_array",
    "host_view",
    "lent_array",
    "load_program",
    "open_loader",
]

Flat: TypeAlias = Sequence["jax.Array | np.ndarray"]
Shardings: TypeAlias = tuple[jax.sharding.Sharding, ...]

_PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "tpu": "tpu"}
"""By a target's family, what jax calls a device that runs its programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedProgram:
    """A program that is ready to run on this process's device, or on several of them.

    Attributes:
        program: its signature; inputs and outputs are bound by its order.
    """

    program: Program
    _executable: _jax.LoadedExecutable
    _inputs: Shardings
    _outputs: Shardings

    def run(self, flat: Flat) -> list[jax.Array]:
        """Run once and wait until the results are there.

        Args:
            flat: one array per `program.inputs`, in order, of exactly its shape and dtype; numpy
                arrays are copied to the device, or spread over the chips of an island. Inputs in
                `program.donated` are gone afterwards.

        Returns:
            One array per `program.outputs`, in order.

        Raises:
            ArtifactError: the number, a shape or a dtype differs from the signature, or an array
                does not lie on the chips as the program needs it.
        """
        results = self.start(flat)
        for array in results:
            array.block_until_ready()
        return results

    def start(self, flat: Flat) -> list[jax.Array]:
        """Run once without waiting; otherwise as `run`."""
        check_arguments(self.program, flat)
        arrays = [
            self.device_array(index, item)
            if isinstance(item, np.ndarray)
            else self._in_place(index, item)
            for index, item in enumerate(flat)
        ]
        results = self._executable.execute_sharded(arrays).disassemble_into_single_device_arrays()
        if self.program.partitions is None:
            return [parts[0] for parts in results]
        outputs = zip(results, self.program.outputs, self._outputs, strict=True)
        return [island_arrays.joined(parts, spec.shape, place) for parts, spec, place in outputs]

    def device_array(self, index: int, array: np.ndarray) -> jax.Array:
        """Copy a host array into memory of the device or chips, as an input lies there.

        Args:
            index: the input that it is for.
            array: of the input's shape and dtype.
        """
        return island_arrays.put(array, self._inputs[index], copy=True)

    def lent_array(self, index: int, array: np.ndarray) -> jax.Array:
        """Let the program read host memory where it lies; see `lent_array` of this module.

        Args:
            index: the input that it is for, not one that is taken over.
            array: of the input's shape and dtype.
        """
        return island_arrays.put(array, self._inputs[index], copy=False)

    def _in_place(self, index: int, item: jax.Array) -> jax.Array:
        """Give an array that is on the chips already, if it lies there as the program needs it."""
        wanted = self._inputs[index]
        there = self.program.partitions is None or item.sharding == wanted
        if not there and not item.sharding.is_equivalent_to(wanted, item.ndim):
            message = (
                f"program '{self.program.name}': argument {index} lies on "
                f"{len(item.sharding.device_set)} chips as {item.sharding}; expected {wanted}"
            )
            raise ArtifactError(message, remedy="give it as a numpy array")
        return item


class PjrtLoader:
    """Loads a target's programs onto this process's devices.

    Args:
        target: the target's name.

    Raises:
        ArtifactError: this process has no device of the target's kind, or too few.
    """

    def __init__(self, target: str) -> None:
        name = TargetName.parse(target)
        wanted = _PLATFORMS.get(name.family)
        try:
            devices = jax.local_devices()
        except RuntimeError as error:  # jax was told to take a platform that does not start
            raise _no_device(name, str(error).splitlines()[0][:200]) from error
        if devices[0].platform != wanted:
            raise _no_device(name, f"this process has {len(devices)} x '{devices[0].platform}'")
        if len(devices) < name.chips:
            message = f"it runs on {name.chips} chips, this process has {len(devices)}"
            remedy = "start the island where that many chips are, or compile for fewer"
            raise ArtifactError(message, remedy=remedy)

    def load(self, program: Program) -> LoadedProgram:
        """Load a program; see `load_program`."""
        return load_program(program)

    def host_view(self, array: jax.Array) -> np.ndarray:
        """Give an array's values; see `host_view` of this module."""
        return host_view(array)

    def chip_class(self, payload: TargetPayload) -> str:
        """Name what must be equal on two islands for equal bits."""
        return chip_class(payload.target, payload.cpu_name)


def open_loader(target: str) -> PjrtLoader:
    """Give the loader of this form; see `runtime.agent.loaders`."""
    return PjrtLoader(target)


def _no_device(name: TargetName, found: str) -> ArtifactError:
    """Give the error for a node without the target's kind of device."""
    extra = "" if name.family == "cpu" else f", with luma's extra '{name.family}' installed there"
    return ArtifactError(
        f"it needs a device of the kind '{_PLATFORMS.get(name.family, name.family)}': {found}",
        remedy=f"run it on a node with the chip '{name.chip}'{extra}",
    )


def load_program(program: Program, *, host: CpuClass | None = None) -> LoadedProgram:
    """Load a program's executable into this process.

    Args:
        program: from a payload of a verified artifact.
        host: the host's CPU; Default: found out.

    Raises:
        ArtifactError: the program has another form than PJRT's, this process has too few devices,
            the host lacks a CPU feature that the code uses, or the bytes do not load.
    """
    devices = _devices_for(program)
    if device().platform == "cpu":
        _check_host(program, host or host_class())
    try:
        executable = device().client.deserialize_executable(
            program.executable, executable_devices=_jax.DeviceList(devices)
        )
    except (RuntimeError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0][:200]
        message = f"program '{program.name}': its executable does not load here: {reason}"
        raise ArtifactError(
            message, remedy=f"compile it with jaxlib {jaxlib.__version__}"
        ) from error
    inputs, outputs = _places(program, devices)
    return LoadedProgram(program=program, _executable=executable, _inputs=inputs, _outputs=outputs)


def _places(program: Program, devices: Devices) -> tuple[Shardings, Shardings]:
    """Give where a program's inputs and outputs lie on its devices."""
    split = program.partitions
    if split is None:
        here = _here()
        return (here,) * len(program.inputs), (here,) * len(program.outputs)
    return (
        island_arrays.shardings(program.inputs, split.inputs, split, devices),
        island_arrays.shardings(program.outputs, split.outputs, split, devices),
    )


def _devices_for(program: Program) -> Devices:
    """Give the devices that a program runs on.

    Raises:
        ArtifactError: it is no PJRT program, or this process has too few devices.
    """
    check_form(program, "pjrt")
    devices = tuple(jax.local_devices())
    if len(devices) < program.chips:
        message = (
            f"program '{program.name}' runs on {program.chips} chips, "
            f"this process has {len(devices)}"
        )
        raise ArtifactError(message, remedy="give it an island of that size, or compile for fewer")
    return devices[: program.chips]


def device() -> jax.Device:
    """Give the first device of this process: the one that programs of one chip run on."""
    return jax.local_devices()[0]


@functools.cache
def _here() -> jax.sharding.Sharding:
    """Give jax's word for "on that device"."""
    return jax.sharding.SingleDeviceSharding(device())


def device_array(array: np.ndarray) -> jax.Array:
    """Copy a host array into memory that the device owns (see the module's text).

    Args:
        array: any shape; its dtype must be one that programs take (no 64-bit types).
    """
    return island_arrays.put(array, _here(), copy=True)


def lent_array(array: np.ndarray) -> jax.Array:
    """Let a program read host memory where it lies, without a copy on CPU.

    The caller may not write to `array` while a program that reads it runs, and may not pass the
    result where a program takes its memory over.

    Args:
        array: contiguous, from `aligned_zeros` or a view of it; other memory is copied.
    """
    return island_arrays.put(array, _here(), copy=False)


def host_view(array: jax.Array) -> np.ndarray:
    """Give a read-only numpy view of an array after waiting for it.

    On a CPU an array that is whole in one place is not copied; one in parts is gathered.
    """
    return np.asarray(array)


@functools.cache
def host_class() -> CpuClass:
    """Find out this host's CPU in the compiler's own words, from a tiny program compiled here."""
    compiled = jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((), np.int32)).compile()
    executable = compiled.runtime_executable()
    if executable is None:
        raise ArtifactError("this host's CPU cannot be found out: its compiler gives no executable")
    return cpu_class(executable.serialize())


def chip_class(target: str, cpu_name: str) -> str:
    """Name what must be equal on two islands for equal bits: target, ISA, compiler, vector units.

    The last part is there because XLA's matrix products choose their code by the host's vector
    units at run time, below the ISA that the program itself was pinned to.
    """
    parts = (target, cpu_name or "any", f"jaxlib-{jaxlib.__version__}", _vector_units())
    return "/".join(parts)


@functools.cache
def _vector_units() -> str:
    """Give the widest vector instruction set that the host offers, as libraries detect it."""
    info = Path("/proc/cpuinfo")
    flags = set(info.read_text().split()) if info.exists() else set()
    for name in ("avx512f", "avx2", "avx", "sve", "asimd"):
        if name in flags:
            return name
    return platform.machine() or "unknown"


def _check_host(program: Program, host: CpuClass) -> None:
    """Refuse a host that lacks what the code uses."""
    needed = cpu_class(program.executable)
    missing = missing_features(needed.features, host.features)
    if missing:
        message = (
            f"program '{program.name}' was compiled for CPU '{needed.name}' and this host "
            f"({host.name}) lacks {', '.join(missing)}"
        )
        raise ArtifactError(message, remedy="compile the job again on a host of this class")
