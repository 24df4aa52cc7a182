"""The local plan: memory fit and step time follow what the compiler stated and the machine has."""

from __future__ import annotations

import pytest

from runtime.artifact import BlockTable, Program, TargetPayload, TensorSpec
from runtime.plan import Machine, check_fit, make_local_plan, measure_machine
from runtime.spec import CapacityError

GIB = 1 << 30
SIZE = (1 << 28) // 4  # elements of a parameter of 256 MiB


def tensor(role: str, name: str = "") -> TensorSpec:
    return TensorSpec(role=role, name=name, shape=(SIZE,), dtype="float32")


def payload(flops: float = 1e12) -> TargetPayload:
    """Give programs of one parameter of 256 MiB; `grad` peaks at 1 GiB."""
    grad = Program(
        name="grad", inputs=(tensor("param", "w"),), outputs=(), donated=(), executable=b"x",
        peak_memory_bytes=GIB, flops=flops, bytes_moved=0.0,
    )  # fmt: skip
    update = Program(
        name="apply",
        inputs=(tensor("param", "w"), tensor("moment1", "w"), tensor("moment2", "w")),
        outputs=(), donated=(), executable=b"x", peak_memory_bytes=GIB, flops=0.0, bytes_moved=0.0,
    )  # fmt: skip
    return TargetPayload(
        target="cpu", programs={"grad": grad, "apply": update},
        blocks=BlockTable(block_size=4096, rows=(("w", 0, SIZE // 4096),)),
        cpu_name="any", cpu_features=(), scrubbed=True,
    )  # fmt: skip


def machine(*, cores: int = 2, memory: int = 16 * GIB) -> Machine:
    return Machine(
        cpu="Example",
        cores=cores,
        memory_available_bytes=memory,
        flops_per_core=1e12 / 0.6,
        bytes_per_second=1e12,
    )


def plan(islands: int = 2, *, flops: float = 1e12, shards: int = 8, **kwargs):
    return make_local_plan(
        payload(flops), machine(**kwargs), islands=islands, threads_per_island=1,
        micro_shards=shards, tokens_per_step=1024, steps=10,
    )  # fmt: skip


def test_memory_is_each_islands_peak_and_one_writers_buffers():
    one, two = plan(1), plan(2)
    assert two.total_bytes - one.total_bytes == one.island_bytes
    assert one.island_bytes >= GIB + 2 * SIZE * 4  # grad's peak beside both moments
    assert one.writer_bytes == 3 * SIZE * 4
    assert one.parameters == SIZE


def test_a_plan_that_does_not_fit_is_refused_with_how_many_would():
    tight = plan(3, memory=8 * GIB)
    assert not tight.fits
    with pytest.raises(CapacityError, match="3 islands need") as caught:
        check_fit(tight)
    assert "--islands 2" in caught.value.diagnostics()
    check_fit(plan(2, memory=8 * GIB))


def test_a_machine_too_small_for_one_island_gets_another_remedy():
    with pytest.raises(CapacityError) as caught:
        check_fit(plan(1, memory=GIB))
    assert "micro_batch" in caught.value.diagnostics()


@pytest.mark.parametrize(("islands", "rounds"), [(1, 8), (2, 4), (3, 4)])
def test_step_time_counts_rounds_over_the_cores_that_are_there(islands, rounds):
    # A shard takes 1 s on a core; a third island on two cores brings nothing.
    assert plan(islands).step_seconds == pytest.approx(rounds, rel=0.02)


def test_the_rows_name_price_and_fit():
    rows = dict(plan(2).lines())
    assert "0 $/h" in rows["price"]
    assert rows["memory"].endswith("fits")
    assert "10 steps of 1,024 tokens" in rows["work"]


def test_this_machine_is_measured_within_reason():
    found = measure_machine()
    assert found.cores >= 1
    assert found.memory_available_bytes > 1 << 26
    assert 1e8 < found.flops_per_core < 1e13
    assert 1e7 < found.bytes_per_second < 1e13
