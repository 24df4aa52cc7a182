"""The targets: what a program is compiled for, and how that is done without the device.

| target | by |
|---|---|
| cpu | this host's XLA, pinned to AVX2 |
| cuda-sm80, -sm89, -sm90, -sm100 | the CUDA plug-in, from a written device description |
| tpu-v4, tpu-v5e, tpu-v5p, tpu-v6e | libtpu, from a topology's name |

Flags and platform choice are process-wide in XLA, so each target is compiled in a process of its
own, started with `Target.environment` (see `runtime.compiler.service`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runtime.spec import CompileError

if TYPE_CHECKING:
    import jax

CPU_MAX_ISA = "AVX2"
"""What CPU programs may use: every x86 server of the last ten years has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One thing to compile for.

    Attributes:
        name: as written in `compile.targets`.
        platform: XLA's name of the platform.
        environment: variables that the compiling process must be started with.
        plugin: the Python package that holds the compiler, or None where jaxlib does.
        topology: the platform's name of one chip's topology; "" for cpu.
        description: text-form GpuTargetConfigProto of the chip; "" where there is none.
    """

    name: str
    platform: str
    environment: Mapping[str, str] = field(default_factory=dict)
    plugin: str | None = None
    topology: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    """An NVIDIA chip as public specifications give it (facts/compile.md has the table)."""

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

_TPU_TOPOLOGIES = {
    "tpu-v4": "v4:2x2x1",
    "tpu-v5e": "v5e:2x2",
    "tpu-v5p": "v5p:2x2x1",
    "tpu-v6e": "v6e:2x2",
}

_COMMON = {
    "JAX_PLATFORMS": "cpu",  # no target needs its device; nothing may look for one
    "JAX_ENABLE_COMPILATION_CACHE": "0",  # jax's own cache would hold unsealed programs
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


def find_target(name: str) -> Target:
    """Give a target by name.

    Raises:
        CompileError: no such target.
    """
    targets = _targets()
    if name not in targets:
        message = f"compile.targets: '{name}' is unknown; expected one of {', '.join(targets)}"
        raise CompileError(message)
    return targets[name]


def missing_plugin(target: Target) -> str | None:
    """Give the name of the package that a target's compiler needs and this host lacks."""
    if target.plugin is None or importlib.util.find_spec(target.plugin) is not None:
        return None
    return target.plugin


def compile_device(target: Target) -> jax.Device:
    """Give the (possibly absent) device that programs are compiled for, in the compiling process.

    Raises:
        CompileError: the target's compiler is not installed here.
    """
    import jax
    from jax.experimental import topologies

    if target.platform == "cpu":
        return jax.devices("cpu")[0]
    lacking = missing_plugin(target)
    if lacking is not None:
        message = f"target '{target.name}': its compiler '{lacking}' is not installed"
        raise CompileError(message, remedy="install the extra named after the platform")
    options = {"topology": "1x1x1", "target_config": target.description}
    topology = topologies.get_topology_desc(
        platform=target.platform,
        topology_name=target.topology,
        **(options if target.description else {}),
    )
    return topology.devices[0]


def _targets() -> dict[str, Target]:
    """Give all targets by name."""
    cpu = Target(
        name="cpu",
        platform="cpu",
        environment={**_COMMON, "XLA_FLAGS": f"--xla_cpu_max_isa={CPU_MAX_ISA}"},
    )
    cuda = [
        Target(
            name=name,
            platform="cuda",
            environment={**_COMMON, "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"},
            plugin="jax_cuda13_plugin",
            description=gpu.description(),
        )
        for name, gpu in _GPUS.items()
    ]
    tpu = [
        Target(
            name=name,
            platform="tpu",
            # A lock file left by a killed process would stop this one.
            environment={**_COMMON, "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"},
            plugin="libtpu",
            topology=topology,
        )
        for name, topology in _TPU_TOPOLOGIES.items()
    ]
    return {target.name: target for target in (cpu, *cuda, *tpu)}
