"""AMD targets: what is asked of IREE, how its refusals read, and the whole path run on its CPU code.

Tests that need IREE's compiler or runtime are slow and skip where the extra `amd` is not installed.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from runtime.agent.iree_executable import CPU_DRIVER, host_view, load
from runtime.artifact.program import BlockTable, Program, TensorSpec
from runtime.compiler import compile_package
from runtime.compiler.capture import CapturedModel, capture, eager_loss
from runtime.compiler.capture._batches import random_batch
from runtime.compiler.capture._dropout import keyed_dropout
from runtime.compiler.graph import GraphPackage
from runtime.compiler.programs import FlatProgram, block_table, build_programs
from runtime.compiler.targets import back_end, find_target
from runtime.compiler.targets.iree_compile import command_line, refusal
from runtime.compiler.targets.rocm import RocmBackEnd, hip_flags
from runtime.spec import CompileError
from tests.unit.iree_support import cpu_flags, needs_compiler, needs_iree
from tests.unit.lower.support import run_array

MICRO_SHARDS = 2
EXPONENT = -24
SEQ_LEN = 16
KEY = torch.tensor([99, -1], dtype=torch.int32)


def spec(role: str, name: str, *shape: int, dtype: str = "float32") -> TensorSpec:
    """Describe a tensor."""
    return TensorSpec(role=role, name=name, shape=shape, dtype=dtype)


def flat(function: Any, *inputs: TensorSpec, output: TensorSpec) -> FlatProgram:
    """Make a program of one result."""
    return FlatProgram(
        name="forward", function=lambda *a: (function(*a),), inputs=inputs, outputs=(output,)
    )


# --- what needs no IREE -------------------------------------------------------------------------


def test_the_targets_are_the_two_generations() -> None:
    names = [target.name for target in RocmBackEnd().targets()]
    assert names == ["rocm-gfx942", "rocm-gfx950"]
    for name in names:
        target = find_target(name)
        assert (target.family, target.lowering, target.chips) == ("rocm", name, 1)
        assert isinstance(back_end(target), RocmBackEnd)


def test_an_island_of_several_chips_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(CompileError, match=r"'rocm-gfx942x8': 8 chips cannot be joined"):
        find_target("rocm-gfx942x8")


def test_the_chip_is_named_only_by_the_flags_for_the_device() -> None:
    commands = [
        command_line("iree-compile", hip_flags(find_target(name)), Path("/folder"))
        for name in ("rocm-gfx942", "rocm-gfx950")
    ]
    differing = [(a, b) for a, b in zip(*commands, strict=True) if a != b]
    assert differing == [("--iree-rocm-target=gfx942", "--iree-rocm-target=gfx950")]
    assert commands[0][:4] == ["iree-compile", "-", "-o", "-"]
    assert "--iree-input-type=stablehlo" in commands[0]
    assert "--iree-hal-target-device=hip" in commands[0]


def test_a_missing_compiler_is_an_error_that_says_what_to_install(
    square_package: GraphPackage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "iree", None)
    with pytest.raises(CompileError, match="'iree-base-compiler' is not installed") as caught:
        compile_package(
            square_package, target="rocm-gfx950", micro_shards=2, cache_dir=tmp_path / "cache"
        )
    assert "pip install 'luma[amd]'" in str(caught.value.remedy)
    assert not list((tmp_path / "cache").glob("**/*.luma"))


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (
            "<unknown>:0: error: failed to legalize operation 'stablehlo.custom_call'\n",
            "does not compile op 'stablehlo.custom_call': failed to legalize operation",
        ),
        ("<stdin>:1:1: error: expected operation name in quotes\n", "failed: expected operation"),
        ("", "failed: it ended with exit code 1 and no message"),
    ],
)
def test_a_refusal_names_the_op_where_the_log_does(log: str, words: str) -> None:
    error = refusal("program 'grad' for 'rocm-gfx942'", 1, log)
    assert error.message.startswith("program 'grad' for 'rocm-gfx942': iree-compile ")
    assert words in error.message


def test_a_crash_of_the_code_generator_is_told_from_a_refusal() -> None:
    error = refusal("program 'grad'", -11, "Stack dump:\n0. Program arguments: iree-compile\n")
    assert error.message == "program 'grad': iree-compile was killed by signal 11"


# --- compiled for the chips ---------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """A small model, what was captured of it, and how its batches are drawn."""

    model: Any
    captured: CapturedModel
    packing: bool

    def batch(self, seed: int) -> dict[str, torch.Tensor]:
        """Draw a batch."""
        return random_batch(
            self.model, micro_batch=2, seq_len=SEQ_LEN, packing=self.packing, seed=seed
        )


_SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 96,
    "tie_word_embeddings": True,
}
_GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96}


@functools.cache
def trained(name: str) -> Trained:
    """Capture a packed Qwen3, or a GPT-2 with its dropout."""
    torch.manual_seed(7)
    if name == "qwen3":
        config: Any = transformers.Qwen3Config(**_SMALL)
    else:
        ends = {"bos_token_id": 1, "eos_token_id": 2, "n_positions": 64}
        config = transformers.GPT2Config(**_GPT2, **ends, attn_pdrop=0.0, resid_pdrop=0.1)
    model = transformers.AutoModelForCausalLM.from_config(config)
    packing = name == "qwen3"
    captured = capture(model, micro_batch=2, seq_len=SEQ_LEN, packing=packing)
    return Trained(model=model, captured=captured, packing=packing)


@functools.cache
def compiled(name: str, target: str, *, cpu: bool = False) -> dict[str, Program]:
    """Compile a model's programs for a target, or for IREE's CPU code in its place."""
    package = trained(name).captured.package
    chosen = find_target(target)
    back = RocmBackEnd(cpu_flags) if cpu else back_end(chosen)
    return {
        program.name: back.compile(program, chosen, lambda stage, seconds: None)
        for program in build_programs(package, target=chosen.lowering, micro_shards=MICRO_SHARDS)
    }


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("model", "target"),
    [("qwen3", "rocm-gfx942"), ("qwen3", "rocm-gfx950"), ("gpt2", "rocm-gfx942")],
)
def test_a_train_step_compiles_for_the_chip(model: str, target: str) -> None:
    programs = compiled(model, target)
    assert set(programs) == {"grad", "apply", "forward"}
    for program in programs.values():
        assert program.form == "vmfb"
        assert target.removeprefix("rocm-").encode() in program.executable
        for name in (b"model.layers", b"embed_tokens", b"transformer.h", b"lm_head", b".py"):
            assert name not in program.executable
        held = sum(np.dtype(item.dtype).itemsize * np.prod(item.shape) for item in program.inputs)
        assert program.peak_memory_bytes > held
        assert program.flops > 0
        assert program.bytes_moved > 0


def test_a_call_of_a_library_has_no_portable_form() -> None:
    program = flat(jnp.linalg.cholesky, spec("param", "x", 4, 4), output=spec("logits", "", 4, 4))
    with pytest.raises(CompileError, match=r"portable StableHLO form: .*'stablehlo.custom_call'"):
        RocmBackEnd().compile(program, find_target("rocm-gfx942"), lambda stage, seconds: None)


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_service_compiles_in_a_child_and_finds_the_result_again(
    square_package: GraphPackage, tmp_path: Path
) -> None:
    options = {"target": "rocm-gfx950", "micro_shards": 2, "cache_dir": tmp_path}
    first = compile_package(square_package, **options)
    again = compile_package(square_package, **options)
    assert (first.cached, again.cached) == (False, True)
    assert again.payload == first.payload
    assert {program.form for program in first.payload.programs.values()} == {"vmfb"}
    assert not first.payload.scrubbed


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_op_that_iree_lacks_is_named() -> None:
    program = flat(
        lambda x: jnp.fft.rfft(x).real, spec("param", "x", 6), output=spec("logits", "", 4)
    )
    with pytest.raises(CompileError, match=r"does not compile op 'stablehlo\.fft'"):
        RocmBackEnd().compile(program, find_target("rocm-gfx942"), lambda stage, seconds: None)


# --- executed on IREE's CPU code ----------------------------------------------------------------


def arguments(program: Any, given: Mapping[tuple[str, str], Any]) -> list[np.ndarray]:
    """Fill a program's inputs: what is given, zeros elsewhere."""
    return [
        np.asarray(given.get((s.role, s.name), np.zeros(s.shape))).astype(jnp.dtype(s.dtype))
        for s in program.inputs
    ]


def run_iree(program: Program, given: Mapping[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
    """Run a compiled program by a node's loader."""
    results = load(program, driver=CPU_DRIVER).run(arguments(program, given))
    return {
        (s.role, s.name): np.array(host_view(result))
        for s, result in zip(program.outputs, results, strict=True)
    }


def run_xla(program: FlatProgram, given: Mapping[tuple[str, str], Any]) -> dict[Any, Any]:
    """Run the same program by XLA's CPU compiler."""
    results = jax.jit(program.function)(*arguments(program, given))
    return {
        (s.role, s.name): np.asarray(result)
        for s, result in zip(program.outputs, results, strict=True)
    }


def state(captured: CapturedModel, table: BlockTable) -> dict[tuple[str, str], Any]:
    """Give a model's parameters and buffers, and the exponents of the first step."""
    held = {
        (item.role, item.target): captured.arrays[item.target]
        for graph in captured.package.graphs.values()
        for item in graph.inputs
        if item.role in {"param", "buffer"}
    }
    first = {
        **{("exponents", name): np.full(count, EXPONENT) for name, _, count in table.rows},
        ("maxima", ""): np.full(table.n_blocks, -1024),
        ("key", "key"): KEY.numpy(),
    }
    return held | first


@needs_iree
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_a_step_of_two_shards_equals_torch_and_xla(name: str) -> None:
    """Two micro-shards and an update, compiled as for the chip but for CPU code, by the loader.

    Gradient sums are integers in units of 2^-24: fp32 rounding in another order moves them by a
    few units, stated below as a part of the largest gradient. The update is compared on equal
    sums, so that only its own arithmetic can differ.
    """
    case = trained(name)
    package = case.captured.package
    iree = compiled(name, "rocm-gfx942", cpu=True)
    xla = {p.name: p for p in build_programs(package, target="cpu", micro_shards=MICRO_SHARDS)}
    table = block_table(package)
    ours = state(case.captured, table)
    theirs = dict(ours)
    tokens = 0

    model = copy.deepcopy(case.model).train()
    for seed in (5, 6):
        batch = case.batch(seed)
        inputs = {("batch", key): run_array(value) for key, value in batch.items()}
        out = run_iree(iree["grad"], ours | inputs)
        expected = run_xla(xla["grad"], theirs | inputs)
        with keyed_dropout(KEY):
            loss, count = eager_loss(model, batch)
        loss.backward()
        tokens += int(count)
        assert int(out["tokens", ""]) == int(count) > 0
        assert float(out["loss_sum", ""]) == pytest.approx(float(loss.detach()), rel=1e-5)
        assert float(out["loss_sum", ""]) == pytest.approx(float(expected["loss_sum", ""]), 1e-6)
        assert [int(out[role, ""]) for role in ("overflow", "nonfinite")] == [0, 0]
        ours |= {key: value for key, value in out.items() if key[0] in {"grad_sum", "maxima"}}
        theirs |= {
            key: value for key, value in expected.items() if key[0] in {"grad_sum", "maxima"}
        }

    gradients = dict(model.named_parameters())
    largest = max(float(p.grad.abs().max()) for p in gradients.values())
    units = 1 + 2e-6 * largest * 2.0**-EXPONENT
    for path, _, _ in table.rows:
        sums = ours["grad_sum", path]
        assert np.abs(sums.astype(np.int64) - theirs["grad_sum", path]).max() <= units, path
        eager = gradients[path].grad.numpy().reshape(-1) * 2.0**-EXPONENT
        assert np.abs(sums.reshape(-1)[: eager.size] - eager).max() <= 1e-5 * largest * 2.0**24
        assert not sums.reshape(-1)[eager.size :].any()
    assert np.abs(ours["maxima", ""] - theirs["maxima", ""]).max() <= 1

    ours["scalars", ""] = np.array([1e-2, 0.9, 0.95, 1e-8, 0.1, 1.0, 1 - 0.9, 1 - 0.95])
    ours["tokens", ""] = np.array(tokens)
    stepped, expected = run_iree(iree["apply"], ours), run_xla(xla["apply"], ours)
    assert stepped.keys() == expected.keys()
    for key, value in stepped.items():
        # An update is about lr = 0.01, whose float32 neighbours are 1e-9 apart.
        np.testing.assert_allclose(value, expected[key], rtol=2e-6, atol=5e-9, err_msg=str(key))
        if key[0] == "param":
            assert not np.array_equal(value, ours[key]), key
    _compare_with_adamw(model, stepped, tokens)


def _compare_with_adamw(model: Any, stepped: Mapping[tuple[str, str], Any], tokens: int) -> None:
    """Let torch take the step; moments are compared, since parameters differ where g is tiny."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    for parameter in model.parameters():
        parameter.grad /= tokens
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert float(stepped["grad_norm", ""]) == pytest.approx(float(norm), rel=1e-5)
    for path, parameter in model.named_parameters():
        for role, moment in (("moment1", "exp_avg"), ("moment2", "exp_avg_sq")):
            wanted = optimizer.state[parameter][moment].numpy()
            np.testing.assert_allclose(
                stepped[role, path], wanted, rtol=1e-4, atol=2e-5 * np.abs(wanted).max()
            )


@needs_iree
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_logits_equal_eager(name: str) -> None:
    case = trained(name)
    batch = case.batch(9)
    if case.packing:  # one document a row: eager would look across the others
        batch["segment_ids"] = torch.ones_like(batch["segment_ids"])
        batch["position_ids"] = torch.arange(SEQ_LEN).expand(2, SEQ_LEN).contiguous()
    given = state(case.captured, block_table(case.captured.package))
    given |= {("batch", key): run_array(value) for key, value in batch.items()}
    logits = run_iree(compiled(name, "rocm-gfx942", cpu=True)["forward"], given)["logits", ""]
    with torch.no_grad():
        expected = case.model.eval()(input_ids=batch["input_ids"]).logits.numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
