"""An island of two host devices computes what one does, with half of the state on each.

The collectives and the results are looked at in a process of its own, started as the compiler and
a node start theirs: the number of devices is a flag of the whole process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import runtime
from runtime.artifact.program import Program, TensorSpec
from runtime.compiler import GraphPackage, TargetOutcome, compile_targets
from runtime.compiler.targets import find_target
from runtime.compiler.targets.mesh import cut_of, mesh_axes
from runtime.plan.estimate import memory_of

UNIT = -20
SHARDS = 4
ISLAND = "cpux2"

RUN = """
import json, sys
from pathlib import Path
import jax
import numpy as np
from runtime.agent.executable import load_program
from runtime.artifact.program import TargetPayload
from runtime.spec import ArtifactError
payload = TargetPayload.from_bytes(Path(sys.argv[1]).read_bytes())
arrays = np.load(sys.argv[2])
out = {}
for name, program in payload.programs.items():
    given = [arrays[f"{name}.{i}"] for i in range(len(program.inputs))]
    loaded = load_program(program)
    for i, array in enumerate(loaded.run(given)):
        out[f"{name}.{i}"] = np.asarray(array)
        if program.partitions is not None:
            parts = {shard.data.shape for shard in array.addressable_shards}
            cut = program.partitions.outputs[i]
            held = program.partitions.part(program.outputs[i].shape, cut)
            assert parts == {held}, (name, i, parts, held)
    if program.partitions is not None:
        # The same shape in other places would be computed with wrongly, so it is refused.
        mesh = jax.sharding.Mesh(np.array(jax.devices()), ("other",))
        for place in (jax.devices()[0], jax.NamedSharding(mesh, jax.P())):
            try:
                loaded.run([jax.device_put(given[0], place), *given[1:]])
            except ArtifactError as error:
                assert "argument 0 lies on" in error.message, error
            else:
                raise AssertionError(f"{name} took an array that lies elsewhere")
np.savez(sys.argv[3], **out)
"""

COUNT = """
import dataclasses, json, math, re, sys
from pathlib import Path
import jax
from runtime.compiler.graph import GraphPackage
from runtime.compiler.programs import build_programs
from runtime.compiler.targets.mesh import place
from runtime.compiler.targets.trace import traced
package = GraphPackage.from_bytes(Path(sys.argv[1]).read_bytes())
KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")
counts = {}
for flat in build_programs(package, target="cpu", micro_shards=4):
    if sys.argv[3:] == ["alike"]:
        weights = [i.name for i in flat.inputs if i.role == "param" and len(i.shape) == 2]
        flat = dataclasses.replace(flat, tensor_cuts=dict.fromkeys(weights, 0))
    placed = place(flat, jax.devices(), tensor_parallel=int(sys.argv[2]))
    text = traced(flat, placed.inputs, placed.outputs).compile().as_text()
    counts[flat.name] = {
        kind: text.count(f" {kind}(") + text.count(f" {kind}-start(") for kind in KINDS
    }
    results = re.findall(rf"= (.*?) (?:{'|'.join(KINDS)})(?:-start)?\\(", text)
    counts[flat.name]["elements"] = sum(
        math.prod(int(n) for n in shape.split(",") if n)
        for result in results
        for shape in re.findall(r"[a-z]\\d+\\[([\\d,]*)\\]", result)
    )
print(json.dumps(counts))
"""


def child(script: str, target: str, *arguments: str) -> str:
    """Run a script in a process that a target's programs can run in; give what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={
            **os.environ,
            **find_target(target).environment,
            "PYTHONPATH": str(Path(runtime.__file__).parents[1]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def both(
    linear_package: GraphPackage, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TargetOutcome, TargetOutcome]:
    """The package compiled for one host device and for two."""
    one, two = compile_targets(
        linear_package,
        ("cpu", ISLAND),
        micro_shards=SHARDS,
        cache_dir=tmp_path_factory.mktemp("cache"),
    )
    return one, two


def arguments(program: Program, seed: int = 5) -> list[np.ndarray]:
    """Give arguments as a training step would."""
    rng, arrays = np.random.default_rng(seed), []
    for spec in program.inputs:
        if spec.role == "exponents":
            array = np.full(spec.shape, UNIT)
        elif spec.role == "batch":
            array = rng.integers(0, 3, spec.shape)
        elif spec.role == "scalars":
            array = np.array([1e-2, 0.9, 0.95, 1e-8, 0.0, 0.1, 1 - 0.9, 1 - 0.95])
        elif spec.role in {"param", "moment1"}:
            array = rng.standard_normal(spec.shape) * 0.02
        elif spec.role == "moment2":
            array = rng.random(spec.shape) * 0.01
        elif spec.role == "grad_sum":
            array = rng.integers(-1000, 1000, spec.shape)
        elif spec.role == "tokens":
            array = np.array(7)
        else:
            array = np.zeros(spec.shape)
        arrays.append(array.astype(spec.dtype))
    return arrays


def run(outcome: TargetOutcome, folder: Path) -> dict[str, np.ndarray]:
    """Run all programs of a payload; give the results by "program.index"."""
    assert outcome.result is not None, outcome.error
    payload = outcome.result.payload
    (folder / "payload").write_bytes(payload.to_bytes())
    given = {
        f"{name}.{i}": array
        for name, program in payload.programs.items()
        for i, array in enumerate(arguments(program))
    }
    np.savez(folder / "in.npz", **given)
    child(RUN, outcome.target, *(str(folder / n) for n in ("payload", "in.npz", "out.npz")))
    with np.load(folder / "out.npz") as stored:
        return dict(stored)


def check_same(
    one: TargetOutcome, two: TargetOutcome, folder: Path, *, sums_rtol: float, rtol: float
) -> None:
    """Run both and compare every result.

    Args:
        one: compiled for one chip.
        two: compiled for two.
        folder: a folder for each is made in it.
        sums_rtol: of the integer gradient sums, relative to a tensor's largest; two units are
            always allowed, since sums in another order differ before they are rounded.
        rtol: of everything else that is a float.
    """
    for name in ("one", "two"):
        (folder / name).mkdir()
    alone, together = run(one, folder / "one"), run(two, folder / "two")
    assert one.result is not None
    for name, program in one.result.payload.programs.items():
        for i, spec in enumerate(program.outputs):
            ours, theirs = together[f"{name}.{i}"], alone[f"{name}.{i}"]
            assert ours.shape == spec.shape
            if spec.role in {"tokens", "overflow", "nonfinite"}:
                np.testing.assert_array_equal(ours, theirs)
            elif spec.role == "grad_sum":
                apart = np.abs(ours.astype(np.int64) - theirs.astype(np.int64)).max()
                assert apart <= max(2, sums_rtol * np.abs(theirs).max()), spec
            elif spec.role == "maxima":
                assert np.abs(ours - theirs).max() <= 1  # a value at a power of two can tip over
            elif spec.role != "vanished":
                np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol * 1e-2, err_msg=name)


def test_two_chips_give_the_loss_and_the_sums_of_one(both, tmp_path: Path) -> None:
    check_same(*both, tmp_path, sums_rtol=2e-6, rtol=1e-4)


@pytest.fixture(scope="module")
def qwen_package() -> GraphPackage:
    """A captured Qwen3 of two layers."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from runtime.compiler.capture import capture

    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=256,
    )
    return capture(Qwen3ForCausalLM(config), micro_batch=4, seq_len=32, packing=True).package


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("island", "held", "peak"),
    [("cpux2", 0.55, 0.75), ("cpux2-tp2", 0.55, 0.75), ("cpux4-tp2", 0.3, 0.55)],
)
def test_chips_share_a_models_step(
    qwen_package: GraphPackage, island: str, held: float, peak: float, tmp_path: Path
) -> None:
    """Loss, sums and update are those of one chip; each holds at most these parts of its memory."""
    one, several = compile_targets(
        qwen_package, ("cpu", island), micro_shards=SHARDS, cache_dir=tmp_path / "cache"
    )
    check_same(one, several, tmp_path, sums_rtol=1e-5, rtol=1e-4)
    assert one.result is not None
    assert several.result is not None
    small, large = memory_of(several.result.payload), memory_of(one.result.payload)
    assert small.state <= held * large.state
    assert small.peak < peak * large.peak


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rows_after_columns_exchange_less_than_weights_cut_all_alike(
    qwen_package: GraphPackage, tmp_path: Path
) -> None:
    source = tmp_path / "package"
    source.write_bytes(qwen_package.to_bytes())
    chosen, alike = (
        json.loads(child(COUNT, "cpux4-tp2", str(source), "2", *words))["grad"]
        for words in ((), ("alike",))
    )
    assert 1000 < chosen["elements"] < 0.8 * alike["elements"]
    assert chosen["all-gather"] < alike["all-gather"]


def test_each_chip_holds_its_part_of_the_state(both) -> None:
    one, two = (o.result.payload for o in both)
    small, large = memory_of(two), memory_of(one)
    assert small.state == large.state / 2
    assert small.sums == large.sums / 2
    assert small.peak < large.peak
    for name in ("grad", "apply"):
        assert two.programs[name].chips == 2
        assert two.programs[name].peak_memory_bytes < one.programs[name].peak_memory_bytes
        assert two.programs[name].flops <= one.programs[name].flops
        assert one.programs[name].partitions is None


def test_the_partitioner_put_the_exchange_into_the_program(
    linear_package: GraphPackage, tmp_path: Path
) -> None:
    source = tmp_path / "package"
    source.write_bytes(linear_package.to_bytes())
    counts = json.loads(child(COUNT, ISLAND, str(source), "1"))
    # The parameters are gathered, and the chips' gradients are added up.
    assert counts["grad"]["all-gather"] >= 1
    assert counts["grad"]["reduce-scatter"] + counts["grad"]["all-reduce"] >= 2
    assert counts["apply"]["all-reduce"] >= 1  # of the gradient's norm


def test_one_host_device_refuses_a_program_of_two(both) -> None:
    from runtime.agent.executable import load_program
    from runtime.spec import ArtifactError

    assert len(jax.local_devices()) == 1
    with pytest.raises(ArtifactError, match="runs on 2 chips, this process has 1"):
        load_program(both[1].result.payload.programs["grad"])


@pytest.mark.parametrize(
    ("role", "shape", "axis"),
    [
        ("param", (8, 3), 0),
        ("param", (3, 8), 1),
        ("param", (3, 5), None),
        ("param", (), None),
        ("param", (0, 4), 1),
        ("moment1", (5, 6, 4), 2),
        ("grad_sum", (12, 4096), 0),
        ("grad_sum", (7, 4096), 1),
        ("batch", (4, 128), 0),
        ("batch", (3, 128), None),
        ("batch", (), None),
        ("exponents", (8,), None),
        ("loss_sum", (), None),
    ],
)
def test_fsdp_divides_the_first_dimension_that_it_can(role, shape, axis) -> None:
    spec = TensorSpec(role=role, name="", shape=shape, dtype="float32")
    assert cut_of(spec, mesh_axes(4, 1), {}) == (axis,)


@pytest.mark.parametrize(
    ("role", "name", "shape", "cut"),
    [
        ("param", "column", (16, 12), (1, 0)),
        ("moment2", "column", (16, 12), (1, 0)),
        ("frozen", "row", (12, 16), (0, 1)),
        ("param", "column", (16, 3), (0, 0)),  # only one dimension can be divided
        ("param", "column", (6, 12), (0, None)),  # four chips cannot share six columns
        ("param", "norm", (8,), (0, None)),
        ("grad_sum", "column", (24, 4096), (0, 0)),
        ("grad_sum", "column", (4, 4096), (1, 0)),
        ("grad_sum", "norm", (1, 4096), (1, 1)),
        ("batch", "input_ids", (4, 128), (0, None)),
        ("batch", "input_ids", (3, 128), (None, None)),
        ("exponents", "", (8,), (None, None)),
    ],
)
def test_tensor_parallel_takes_the_programs_cut_and_fsdp_the_rest(role, name, shape, cut) -> None:
    spec = TensorSpec(role=role, name=name, shape=shape, dtype="float32")
    mesh = mesh_axes(8, 4)
    assert mesh == (("fsdp", 2), ("tensor", 4))
    assert cut_of(spec, mesh, {"column": 0, "row": 1}) == cut


def test_an_axis_of_one_chip_is_none() -> None:
    assert mesh_axes(8, 1) == (("fsdp", 8),)
    assert mesh_axes(8, 8) == (("tensor", 8),)
