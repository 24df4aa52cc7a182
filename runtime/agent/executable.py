"""Load compiled programs on a node and run them: the one module that knows PJRT's private names.

A program arrives as raw serialized executable bytes with our own signature; nothing is traced,
compiled or unpickled. The names used here (`deserialize_executable`, `DeviceList`,
`execute_sharded`, `batched_device_put`) are private to jaxlib 0.10.2, so no other module touches
them, and a test holds the whole round trip.

Loading machine code runs it: only bytes out of a verified artifact may reach `load_program`.

A program of several chips runs on as many devices of this process: for CPU, host devices that it
was started with. Its arrays lie on them as `Program.partitions` says.

Memory: `device_array` copies into memory that PJRT owns, so a program may take it over (donation)
and the caller may overwrite the source. `host_view` does not copy: it is valid while its array
lives, that is until a program takes that over.

Threads: fixed when the process starts; see `runtime.agent.threads.island_environment`.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

import jax
import jaxlib
import numpy as np
from jaxlib import _jax, xla_client

from runtime.agent.arguments import check_arguments
from runtime.agent.island_arrays import joined, spread
from runtime.artifact.cpu_class import CpuClass, cpu_class, missing_features
from runtime.artifact.program import Partitions, Program
from runtime.spec import ArtifactError

__all__ = [
    "LoadedProgram",
    "aligned_zeros",
    "chip_class",
    "device_array",
    "host_class",
    "host_view",
    "lent_array",
    "load_program",
]

_ALIGNMENT = 64
"""Bytes; PJRT copies host memory that is aligned to less."""

Flat: TypeAlias = Sequence["jax.Array | np.ndarray"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedProgram:
    """A program that is ready to run on this process's device, or on several of them.

    Attributes:
        program: its signature; inputs and outputs are bound by its order.
    """

    program: Program
    _executable: _jax.LoadedExecutable
    _devices: tuple[jax.Device, ...]

    def run(self, flat: Flat) -> list[jax.Array]:
        """Run once and wait until the results are there.

        Args:
            flat: one array per `program.inputs`, in order, of exactly its shape and dtype; numpy
                arrays are copied to the device, or spread over the chips of an island. Inputs in
                `program.donated` are gone afterwards.

        Returns:
            One array per `program.outputs`, in order.

        Raises:
            ArtifactError: the number, a shape or a dtype differs from the signature.
        """
        results = self.start(flat)
        for array in results:
            array.block_until_ready()
        return results

    def start(self, flat: Flat) -> list[jax.Array]:
        """Run once without waiting; otherwise as `run`."""
        check_arguments(self.program, flat)
        if self.program.partitions is not None:
            return self._start_on_chips(flat, self.program.partitions)
        arrays = [device_array(item) if isinstance(item, np.ndarray) else item for item in flat]
        results = self._executable.execute_sharded(arrays)
        return [parts[0] for parts in results.disassemble_into_single_device_arrays()]

    def _on_chips(self, index: int, item: jax.Array | np.ndarray, axis: int | None) -> jax.Array:
        """Give an argument on the chips; an array that is there already lies as a result does."""
        if isinstance(item, np.ndarray):
            return spread(item, axis, self._devices)
        if len(item.sharding.device_set) != len(self._devices):
            message = (
                f"program '{self.program.name}': argument {index} lies on "
                f"{len(item.sharding.device_set)} chips; expected {len(self._devices)}"
            )
            raise ArtifactError(message, remedy="give it as a numpy array")
        return item

    def _start_on_chips(self, flat: Flat, partitions: Partitions) -> list[jax.Array]:
        """Run once on all chips of the island, without waiting."""
        arrays = [
            self._on_chips(index, item, axis)
            for index, (item, axis) in enumerate(zip(flat, partitions.inputs, strict=True))
        ]
        results = self._executable.execute_sharded(arrays).disassemble_into_single_device_arrays()
        return [
            joined(parts, spec.shape, axis, self._devices)
            for parts, spec, axis in zip(
                results, self.program.outputs, partitions.outputs, strict=True
            )
        ]


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
    return LoadedProgram(program=program, _executable=executable, _devices=devices)


def _devices_for(program: Program) -> tuple[jax.Device, ...]:
    """Give the devices that a program runs on.

    Raises:
        ArtifactError: it is no PJRT program, or this process has too few devices.
    """
    if program.form != "pjrt":
        message = f"program '{program.name}': its form is '{program.form}'; expected 'pjrt'"
        raise ArtifactError(message, remedy="load it with the loader of its form")
    devices = tuple(jax.local_devices())
    if len(devices) < program.chips:
        message = (
            f"program '{program.name}' runs on {program.chips} chips, "
            f"this process has {len(devices)}"
        )
        raise ArtifactError(message, remedy="give it an island of that size, or compile for fewer")
    return devices[: program.chips]


def device() -> jax.Device:
    """Give the one device of this process."""
    return jax.local_devices()[0]


def device_array(array: np.ndarray) -> jax.Array:
    """Copy a host array into memory that the device owns (see the module's text).

    Args:
        array: any shape; its dtype must be one that programs take (no 64-bit types).
    """
    # jax.device_put would alias 64-byte aligned numpy memory, even with may_alias=False
    # (jax 0.10.2): a later write by the host would change the array, and donation would copy.
    return _put(array, copy=True)


def lent_array(array: np.ndarray) -> jax.Array:
    """Let a program read host memory where it lies, without a copy on CPU.

    The caller may not write to `array` while a program that reads it runs, and may not pass the
    result where a program takes its memory over.

    Args:
        array: contiguous, from `aligned_zeros` or a view of it; other memory is copied.
    """
    return _put(array, copy=False)


def aligned_zeros(count: int, dtype: type[np.generic]) -> np.ndarray:
    """Give `count` zeros in one axis that `lent_array` need not copy; untouched, they take no room.

    Args:
        count: elements.
        dtype: their type.
    """
    size = count * np.dtype(dtype).itemsize
    raw = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype)


def _put(array: np.ndarray, *, copy: bool) -> jax.Array:
    source = np.ascontiguousarray(array).reshape(array.shape)
    aval = jax.core.ShapedArray(source.shape, source.dtype)
    sharding = jax.sharding.SingleDeviceSharding(device())
    put = xla_client.batched_device_put(
        aval, sharding, [source], [device()], committed=True, force_copy=copy
    )
    return cast("jax.Array", put)


def host_view(array: jax.Array) -> np.ndarray:
    """Give a read-only numpy view of an array, without a copy on CPU, after waiting for it."""
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
