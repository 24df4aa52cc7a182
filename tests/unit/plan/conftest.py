"""Payloads, jobs and catalogues whose figures are known by construction."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from runtime.artifact.program import BlockTable, Partitions, Program, TargetPayload, TensorSpec
from runtime.spec import Catalogue, JobSpec, commented_job_yaml

ELEMENTS = 1 << 20


def _tensor(role: str, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(role=role, name="w", shape=(ELEMENTS,), dtype=dtype)


def _payload(
    target: str = "cuda-sm90",
    *,
    chips: int = 1,
    activations: int = 0,
    flops: float = 1e12,
    bytes_moved: float = 1e9,
) -> TargetPayload:
    """Give a job of one parameter of 4 MiB whose `grad` needs `activations` bytes beside arrays."""
    moments = (_tensor("moment1"), _tensor("moment2"))
    param, sums = _tensor("param"), _tensor("grad_sum", "int32")
    size = 4 * ELEMENTS // chips

    def program(name, inputs, outputs, donated, peak, cost) -> Program:
        cuts = ((0,),) * len(inputs), ((0,),) * len(outputs)
        mesh = (("fsdp", chips),)
        split = None if chips == 1 else Partitions(mesh=mesh, inputs=cuts[0], outputs=cuts[1])
        return Program(
            name=name, inputs=inputs, outputs=outputs, donated=donated, executable=b"x",
            peak_memory_bytes=peak, flops=cost, bytes_moved=bytes_moved, partitions=split,
        )  # fmt: skip

    state = (param, *moments)
    return TargetPayload(
        target=target,
        programs={
            "grad": program("grad", (param, sums), (sums,), (), 3 * size + activations, flops),
            "apply": program("apply", (*state, sums), state, (0, 1, 2), 4 * size, 0.0),
        },
        blocks=BlockTable(block_size=4096, rows=(("w", 0, ELEMENTS // 4096),)),
        cpu_name="",
        cpu_features=(),
        scrubbed=False,
    )


@pytest.fixture(scope="session")
def payload() -> Callable[..., TargetPayload]:
    """Give the function that makes such payloads."""
    return _payload


@pytest.fixture
def job(tmp_path) -> Callable[..., JobSpec]:
    """Give the function that makes the commented job with some fields replaced, in AWS."""

    def make(**fields: object) -> JobSpec:
        path = tmp_path / "job.yaml"
        path.write_text(commented_job_yaml())
        spec = JobSpec.from_yaml(path)
        # A field that the template spells out counts as asked for, so what is not given goes.
        plain = spec.model_dump(by_alias=True, exclude_unset=True)
        plain["resources"] = {"infra": "aws/us-east-1"}
        for name, value in fields.items():
            section, _, field = name.partition("__")
            plain[section][field] = value
        path.write_text(json.dumps(plain))
        return JobSpec.from_yaml(path)

    return make


def make_row(name: str, **fields: object) -> dict[str, object]:
    """Give a row of a catalogue: one chip "Example" for cuda-sm90, 1 $/h in us-east-1."""
    return {
        "name": name, "chip": "Example", "vendor": "nvidia", "count": 1, "memory_gib_per_chip": 24,
        "vcpus": 8, "host_memory_gib": 32, "network_gbps": 10, "efa_interfaces": 0,
        "bf16_tflops_per_chip": 100, "memory_bandwidth_tb_s": 1, "usd_per_hour_on_demand": 1.0,
        "price_region": "us-east-1", "price_date": "2026-07-20", "compile_target": "cuda-sm90",
        "where": "ec2", "checked": "doc", **fields,
    }  # fmt: skip


@pytest.fixture(scope="session")
def rows() -> Callable[..., Catalogue]:
    """Give the function that makes a catalogue of rows."""

    def make(*found: dict[str, object], **fields: object) -> Catalogue:
        whole = {"about": "", "sources": [], "rules": [], "accelerators": found, **fields}
        return Catalogue.model_validate_json(json.dumps(whole))

    return make


@pytest.fixture(scope="session")
def row() -> Callable[..., dict[str, object]]:
    """Give the function that makes a row of a catalogue."""
    return make_row
