"""NVIDIA: jax's CUDA plug-in compiles from a written description of the chip, without a GPU."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.compiler.targets.target import (
    COMMON_ENVIRONMENT,
    Report,
    Requirement,
    Target,
    missing_module,
    no_island,
    versions_of,
)

if TYPE_CHECKING:
    from runtime.artifact.program import Program
    from runtime.compiler.programs import FlatProgram

_PLUGIN = "jax_cuda13_plugin"
_MAX_CHIPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    """An NVIDIA chip as public specifications give it."""

    name: str
    compute: tuple[int, int]
    cores: int
    shared_per_core: int
    shared_optin: int
    l2_bytes: int
    bytes_per_s: float
    clock_ghz: float
    threads_per_core: int
    fpus_per_core: int
    memory_bytes: int

    def description(self) -> str:
        """Give the text-form GpuTargetConfigProto."""
        major, minor = self.compute
        fields = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "shared_memory_per_block": 49152,
            "shared_memory_per_core": self.shared_per_core,
            "threads_per_core_limit": self.threads_per_core,
            "core_count": self.cores,
            "fpus_per_core": self.fpus_per_core,
            "block_dim_limit_x": 2147483647,
            "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535,
            "memory_bandwidth": int(self.bytes_per_s),
            "l2_cache_size": self.l2_bytes,
            "clock_rate_ghz": self.clock_ghz,
            "device_memory_size": self.memory_bytes,
            "shared_memory_per_block_optin": self.shared_optin,
            "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536,
        }
        info = " ".join(f"{name}: {value}" for name, value in fields.items())
        capability = f"cuda_compute_capability {{ major: {major} minor: {minor} }}"
        return (
            f'gpu_device_info {{ {info} {capability} }} platform_name: "CUDA" '
            f'dnn_version_info {{ major: 9 minor: 8 }} device_description_str: "{self.name}"'
        )


_GPUS = {
    "cuda-sm80": _Gpu(
        name="NVIDIA A100-SXM4-80GB", compute=(8, 0), cores=108, shared_per_core=167936,
        shared_optin=166912, l2_bytes=41943040, bytes_per_s=2039e9, clock_ghz=1.41,
        threads_per_core=2048, fpus_per_core=64, memory_bytes=85_000_000_000,
    ),
    "cuda-sm89": _Gpu(
        name="NVIDIA L40S", compute=(8, 9), cores=142, shared_per_core=102400,
        shared_optin=101376, l2_bytes=100663296, bytes_per_s=864e9, clock_ghz=2.52,
        threads_per_core=1536, fpus_per_core=128, memory_bytes=48_000_000_000,
    ),
    "cuda-sm90": _Gpu(
        name="NVIDIA H100 80GB HBM3", compute=(9, 0), cores=132, shared_per_core=233472,
        shared_optin=232448, l2_bytes=52428800, bytes_per_s=3352.32e9, clock_ghz=1.98,
        threads_per_core=2048, fpus_per_core=128, memory_bytes=85_000_000_000,
    ),
    "cuda-sm100": _Gpu(
        name="NVIDIA B200", compute=(10, 0), cores=148, shared_per_core=233472,
        shared_optin=232448, l2_bytes=132644864, bytes_per_s=8000e9, clock_ghz=1.96,
        threads_per_core=2048, fpus_per_core=128, memory_bytes=190_000_000_000,
    ),
}  # fmt: skip


class CudaBackEnd:
    """Compiles for NVIDIA chips, or for the chips of one host joined by NVLink."""

    family = "cuda"

    def targets(self) -> tuple[Target, ...]:
        """Give a target for each chip that is described here."""
        environment = {**COMMON_ENVIRONMENT, "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
        return tuple(
            Target(
                name=name,
                family=self.family,
                chip=name,
                environment=environment,
                topology="1x1x1",
                description=gpu.description(),
            )
            for name, gpu in _GPUS.items()
        )

    def island(self, target: Target, chips: int) -> Target:
        """Give the target of several chips of one host.

        Raises:
            CompileError: more than a host has.
        """
        if chips > _MAX_CHIPS:
            raise no_island(target, chips, f"2 to {_MAX_CHIPS}")
        # Partitions x hosts x devices: one process drives all chips of the host.
        return dataclasses.replace(
            target, name=f"{target.name}x{chips}", chips=chips, topology=f"1x1x{chips}"
        )

    def missing(self, target: Target) -> Requirement | None:  # noqa: ARG002 (the protocol's)
        """Give the plug-in where it is not installed."""
        return missing_module(_PLUGIN, _PLUGIN, "cuda")

    def versions(self) -> dict[str, str]:
        """Give the versions that decide the bytes."""
        return versions_of(
            "jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda13-pjrt", "nvidia-cuda-nvcc"
        )

    def compile(self, flat: FlatProgram, target: Target, report: Report) -> Program:
        """Compile without a GPU; see `BackEnd.compile`."""
        from runtime.compiler.targets.pjrt import compile_pjrt
        from runtime.compiler.targets.topology import described_devices

        devices = described_devices(
            "cuda", "", topology=target.topology, target_config=target.description
        )
        return compile_pjrt(
            flat,
            devices[: target.chips],
            report,
            tensor_parallel=target.tensor_parallel,
        )

    def scrub(self, program: Program) -> tuple[Program, bool]:
        """Rewrite the executable without names and paths; see `runtime.compiler.scrub`."""
        from runtime.compiler.scrub import scrub_program

        return scrub_program(program, self.family)
