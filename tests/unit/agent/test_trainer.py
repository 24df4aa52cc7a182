"""The trainer over real programs: against torch, handed over, on two chips, and in IREE's form."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
import torch

from runtime.agent.iree_executable import CPU_DRIVER, IreeLoader
from runtime.agent.sampler import sample_indices
from runtime.artifact.program import Program, ProgramName, TargetPayload
from runtime.compiler import GraphPackage, compile_package
from runtime.compiler.programs import block_table, build_programs
from runtime.compiler.targets import find_target
from runtime.compiler.targets.pjrt import compile_pjrt
from runtime.compiler.targets.rocm import RocmBackEnd
from tests.unit.agent.training_support import (
    SHARDS,
    STEPS,
    check_equal,
    drive,
    drive_elsewhere,
    make_trainer,
    step,
)
from tests.unit.iree_support import cpu_flags, needs_iree
from tests.unit.packages import linear_graph

ISLANDS = ("cpux2", *(pytest.param(n, marks=pytest.mark.slow) for n in ("cpux2-tp2", "cpux4-tp2")))
PACKAGE = GraphPackage({"grad": linear_graph()}, config_digest="0" * 64, micro_batch=4, seq_len=512)


@pytest.fixture(scope="module")
def payload() -> TargetPayload:
    """Two matrix products, compiled for one host device."""
    return payload_of(PACKAGE, "cpu", compiled_by_xla(PACKAGE))


@pytest.fixture(scope="module")
def island_payload(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TargetPayload]:
    """Give the same for an island, compiled once."""
    folder = tmp_path_factory.mktemp("cache")

    def compiled(target: str) -> TargetPayload:
        options = {"target": target, "micro_shards": SHARDS, "cache_dir": folder}
        return compile_package(PACKAGE, **options).payload

    return compiled


def test_steps_are_those_of_torch(payload: TargetPayload) -> None:
    """The same batches through torch's autograd and AdamW, by the schedule's first rates."""
    trainer = make_trainer(payload)
    plan, samples = trainer._plan, trainer._samples
    state = trainer.state()
    weights = {n: torch.from_numpy(a.copy()).requires_grad_() for n, a in state.params.items()}
    optimizer = torch.optim.AdamW(
        weights.values(),
        lr=plan.optimizer.lr,
        betas=plan.optimizer.betas,
        eps=plan.optimizer.eps,
        weight_decay=plan.optimizer.weight_decay,
    )
    for number in range(STEPS):
        tokens, loss = 0, torch.zeros(())
        for shard in range(SHARDS):
            indices = sample_indices(
                seed=plan.seed, count=samples.count, step=number, shard=shard,
                micro_shards=SHARDS, micro_batch=plan.micro_batch,
            )  # fmt: skip
            batch = samples.batch(indices)
            x = torch.from_numpy(batch["input_ids"].astype(np.float32))
            loss = loss + (x @ weights["a.weight"] @ weights["b.weight"]).square().sum()
            tokens += int(batch["labels"].sum())
        optimizer.zero_grad()
        (loss / tokens).backward()
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), plan.optimizer.grad_clip)
        optimizer.step()
        found = step(trainer)
        assert found["tokens"] == tokens
        assert found["norm"] == pytest.approx(float(norm), rel=1e-5)
        assert (found["overflow"], found["nonfinite"]) == (0, 0)
    state = trainer.state()
    for name, weight in weights.items():
        held = optimizer.state[weight]
        for ours, key in ((state.moment1, "exp_avg"), (state.moment2, "exp_avg_sq")):
            wanted = held[key].numpy()
            np.testing.assert_allclose(
                ours[name], wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max()
            )


def test_a_state_that_is_handed_over_gives_the_donors_bits(
    payload: TargetPayload,
) -> None:
    donor, joiner = make_trainer(payload), make_trainer(payload, seed=4)
    step(donor)
    joiner.set_state(donor.handed_state(0))
    joiner._samples = donor._samples
    assert joiner.state().hash() == donor.state().hash()
    ours, theirs = step(joiner), step(donor)
    np.testing.assert_array_equal(ours["sums"], theirs["sums"])
    assert joiner.state().hash() == donor.state().hash()


def test_a_shard_can_be_discarded_or_taken_out_again(payload: TargetPayload) -> None:
    trainer = make_trainer(payload)
    empty = trainer.hash_totals(trainer.own_totals())
    trainer.run_shard(0, 1)
    trainer.discard()
    assert trainer.hash_totals(trainer.own_totals()) == empty
    trainer.run_shard(0, 0)
    trainer.fold()
    one = trainer.hash_totals(trainer.own_totals())
    trainer.run_shard(0, 1)
    trainer.fold()
    assert trainer.hash_totals(trainer.own_totals()) not in {empty, one}
    trainer.drop_last()
    assert trainer.hash_totals(trainer.own_totals()) == one


@pytest.mark.parametrize("target", ISLANDS)
def test_an_island_of_several_chips_trains_as_one_chip_does(
    payload: TargetPayload,
    island_payload: Callable[[str], TargetPayload],
    target: str,
    tmp_path: Path,
) -> None:
    alone = drive(payload)
    together = drive_elsewhere(island_payload(target), tmp_path / "island")
    check_equal(together, alone, rtol=1e-5)


@pytest.mark.slow
def test_two_processes_of_one_island_size_have_the_same_bits(
    island_payload: Callable[[str], TargetPayload], tmp_path: Path
) -> None:
    payload = island_payload("cpux2")
    one, two = (drive_elsewhere(payload, tmp_path / name) for name in ("one", "two"))
    for name, array in one.items():
        np.testing.assert_array_equal(array, two[name], err_msg=name)


@needs_iree
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_irees_form_trains_a_model_as_pjrts_does() -> None:
    """The programs of a packed Qwen3 as for an AMD chip, their code generated for this CPU."""
    from tests.unit.compile.test_rocm_target import trained

    package = trained("qwen3").captured.package
    ours = payload_of(package, "rocm-gfx942", compiled_by_iree(package))
    theirs = payload_of(package, "cpu", compiled_by_xla(package))
    check_equal(drive(ours, IreeLoader(CPU_DRIVER)), drive(theirs), rtol=2e-5)


def compiled_by_xla(package: GraphPackage) -> dict[ProgramName, Program]:
    """Compile in this process, for one host device."""
    devices = jax.local_devices()[:1]
    return {
        flat.name: compile_pjrt(flat, devices, lambda stage, seconds: None)
        for flat in build_programs(package, target="cpu", micro_shards=SHARDS)
        if flat.name != "forward"
    }


def compiled_by_iree(package: GraphPackage) -> dict[ProgramName, Program]:
    """Compile as for an AMD chip, but to code for this CPU."""
    chosen, back = find_target("rocm-gfx942"), RocmBackEnd(cpu_flags)
    return {
        flat.name: back.compile(flat, chosen, lambda stage, seconds: None)
        for flat in build_programs(package, target=chosen.lowering, micro_shards=SHARDS)
        if flat.name != "forward"
    }


def payload_of(
    package: GraphPackage, target: str, programs: dict[ProgramName, Program]
) -> TargetPayload:
    """Wrap programs as the compiler does."""
    return TargetPayload(
        target=target,
        programs={**programs},
        blocks=block_table(package),
        cpu_name="",
        cpu_features=(),
        scrubbed=False,
    )
