"""Payloads whose memory and costs are known by construction."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runtime.artifact.program import BlockTable, Partitions, Program, TargetPayload, TensorSpec

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
