"""The way to neuronx-cc, with a program of that name in its place: arguments, results, failures.

The stand-in takes the documented arguments, writes down how it was called, and does what a variable
tells it: a NEFF, a documented error line with exit code 70, an end without a result, or no end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from jax import lax

from runtime.artifact.program import TensorSpec
from runtime.compiler.graph import GraphPackage
from runtime.compiler.neuron import hlo
from runtime.compiler.neuron.codes import CODES, codes_in, compiler_error
from runtime.compiler.neuron.neuronx_cc import compile_module, compiler_version
from runtime.compiler.programs import FlatProgram, build_programs
from runtime.compiler.targets import back_end, find_target
from runtime.compiler.targets.neuron import NeuronBackEnd
from runtime.spec import CompileError
from tests.unit.artifact.test_neff import neff

STUB = """#!{python}
import json, os, subprocess, sys, time
from pathlib import Path
words = sys.argv[1:]
with open({log!r}, "a") as file:
    file.write(json.dumps(words) + chr(10))
if words == ["--version"]:
    print("NeuronX Compiler version 2.27.5334.0")
    sys.exit(0)
if words == ["compile", "--help"]:
    print(os.environ.get("STUB_HELP", "--native-int64 --implicit-integer-downcast inf2 trn1 trn2"))
    sys.exit(0)
what = os.environ.get("STUB_NEURONX", "neff")
flags = dict(zip(words[2::2], words[3::2]))
Path({log!r} + ".module").write_bytes(Path(words[1]).read_bytes())
if what == "neff":
    Path(flags["--output"]).write_bytes(Path({neff!r}).read_bytes())
elif what == "cut":
    Path(flags["--output"]).write_bytes(Path({neff!r}).read_bytes()[:-1])
elif what == "hang":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path({log!r} + ".child").write_text(str(child.pid))
    time.sleep(600)
elif what == "killed":
    os.kill(os.getpid(), 9)
elif what.startswith("NCC"):
    Path(flags["--logfile"]).write_text("INFO: fine so far" + chr(10) + "ERROR: [" + what + "] the compiler's own words" + chr(10))
    print("Compiler status ERROR")
    sys.exit(70)
elif what == "silent":
    sys.exit(1)
"""


class Compiler:
    """The stand-in: what it was called with."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "calls"

    def calls(self) -> list[list[str]]:
        """The arguments of each call."""
        text = self._log.read_text() if self._log.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def module(self) -> bytes:
        """The HLO module that it was given."""
        return self._log.with_name("calls.module").read_bytes()

    def child(self) -> int:
        """The process that it started."""
        return int(self._log.with_name("calls.child").read_text())


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """Put the stand-in on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    result = folder / "module.neff"
    result.write_bytes(neff())
    stub = folder / "neuronx-cc"
    log = str(folder / "calls")
    stub.write_text(STUB.format(python=sys.executable, log=log, neff=str(result)))
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return Compiler(folder)


def spec(role: str, *shape: int) -> TensorSpec:
    """A float32 argument."""
    return TensorSpec(role=role, name="", shape=shape, dtype="float32")


def flat(function: Any = lambda x: (jnp.where(x > 0, x, 0.0) * 2,)) -> FlatProgram:
    """A small program with a call in it."""
    return FlatProgram(
        name="forward", function=function, inputs=(spec("batch", 4),), outputs=(spec("logits", 4),)
    )


def compiled(name: str = "trn2", program: FlatProgram | None = None, **options: Any) -> Any:
    """Compile for a target through its back end."""
    stages: list[str] = []
    result = NeuronBackEnd(**options).compile(
        program or flat(), find_target(name), lambda stage, _seconds: stages.append(stage)
    )
    return result, stages


def test_a_program_becomes_a_neff(compiler: Compiler) -> None:
    program, stages = compiled()
    assert (program.form, program.executable) == ("neff", neff())
    assert stages == ["lower", "compile"]
    assert program.inputs == flat().inputs
    assert program.donated == ()
    assert program.flops > 0


@pytest.mark.parametrize(("name", "cores"), [("trn1", "1"), ("inf2", "1"), ("trn2", "2")])
def test_every_flag_that_decides_the_result_is_given(
    compiler: Compiler, name: str, cores: str
) -> None:
    compiled(name)
    words = compiler.calls()[-1]
    assert (words[0], Path(words[1]).name) == ("compile", "module.hlo.pb")
    flags = dict(zip(words[2::2], words[3::2], strict=True))
    assert Path(flags.pop("--output")).name == "module.neff"
    assert Path(flags.pop("--logfile")).name == "log.txt"
    assert flags == {
        "--framework": "XLA",
        "--target": name,
        "--model-type": "generic",
        "--auto-cast": "none",
        "--native-int64": "disabled",
        "--implicit-integer-downcast": "none",
        "-O": "2",
        "-lnc": cores,
    }


def test_an_older_compiler_is_not_given_flags_that_it_does_not_know(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_HELP", "--framework --target trn1 inf2")
    compiled("trn1")
    assert not any("int64" in word or "downcast" in word for word in compiler.calls()[-1])


def test_the_compiler_gets_a_module_without_calls_and_with_small_ids(compiler: Compiler) -> None:
    compiled()
    module = hlo.read(compiler.module())
    assert "call" not in {item.opcode for _, item in module.instructions()}
    assert module.largest_id < 100


def test_trn3_needs_a_compiler_whose_help_names_it(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CompileError, match="'trn3': this neuronx-cc does not know it"):
        compiled("trn3")
    monkeypatch.setenv("STUB_HELP", "--native-int64 trn3")
    assert compiled("trn3")[0].form == "neff"


@pytest.mark.parametrize("code", ["EOOM001", "EVRF001", "EVRF024", "EARG001", "EBVF030"])
def test_a_documented_error_tells_cause_and_remedy(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setenv("STUB_NEURONX", f"NCC_{code}")
    with pytest.raises(CompileError) as caught:
        compiled()
    message = caught.value.message
    assert (
        f"program 'forward', target 'trn2': neuronx-cc failed (exit code 70): NCC_{code}" in message
    )
    assert CODES[code].cause in message
    assert "the compiler's own words" in message
    assert caught.value.remedy == CODES[code].remedy


@pytest.mark.parametrize(
    ("code", "cause"), [("EXYZ999", "a code unknown to Luma"), ("IIIT901", "inside the compiler")]
)
def test_an_unknown_code_keeps_the_compilers_text(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, code: str, cause: str
) -> None:
    monkeypatch.setenv("STUB_NEURONX", f"NCC_{code}")
    with pytest.raises(CompileError, match=cause) as caught:
        compiled()
    assert "the compiler's own words" in caught.value.message


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("silent", r"failed \(exit code 1\) without an error code: it wrote nothing"),
        ("killed", r"failed \(signal 9\)"),
        ("nothing", "ended well and wrote no NEFF"),
        ("cut", "wrote no whole NEFF: NEFF: its header states"),
    ],
)
def test_an_end_without_a_result_is_an_error(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, what: str, message: str
) -> None:
    monkeypatch.setenv("STUB_NEURONX", what)
    with pytest.raises(CompileError, match=message):
        compiled()


def test_a_compiler_that_hangs_is_killed_with_what_it_started(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_NEURONX", "hang")
    started = time.monotonic()
    with pytest.raises(CompileError, match="did not end in 3 s and was killed"):
        compiled(timeout_s=3.0)
    assert time.monotonic() - started < 30
    deadline = time.monotonic() + 5
    while _runs(compiler.child()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(compiler.child())


def _runs(process: int) -> bool:
    """Say whether a process is there and no zombie."""
    done = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False
    )
    return bool(done.stdout.strip()) and not done.stdout.strip().startswith("Z")


def test_what_the_rules_refuse_never_reaches_the_compiler(compiler: Compiler) -> None:
    with pytest.raises(CompileError) as caught:
        compiled(program=flat(lambda x: (lax.erf(x) + jnp.flip(x),)))
    assert "erf: 'Unsupported operator: erf'" in caught.value.message
    assert "reverse: not among the documented operators" in caught.value.message
    assert "luma check JOB --target trn2" in str(caught.value.remedy)
    assert compiler.calls() == []


def test_the_compilers_version_is_part_of_the_cache_key(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = find_target("trn2")
    assert back_end(target).missing(target) is None
    assert back_end(target).versions()["neuronx-cc"] == "NeuronX Compiler version 2.27.5334.0"
    monkeypatch.setenv("PATH", "/nowhere")
    assert compiler_version() == ""
    missing = back_end(target).missing(target)
    assert missing is not None
    assert "requirements/neuron-gen3.txt" in missing.error(target).diagnostics()


def test_without_the_compiler_nothing_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CompileError, match="'neuronx-cc' is not installed"):
        compile_module(b"", program="grad", target="trn2", folder=tmp_path)


def test_all_programs_of_a_package_compile(
    compiler: Compiler, square_package: GraphPackage
) -> None:
    target = find_target("trn1")
    for program in build_programs(square_package, target=target.lowering, micro_shards=4):
        result = NeuronBackEnd().compile(program, target, lambda _stage, _seconds: None)
        assert (result.name, result.form) == (program.name, "neff")


def test_islands_of_several_chips_are_refused() -> None:
    with pytest.raises(CompileError, match="trn2x4"):
        find_target("trn2x4")


def test_codes_are_found_wherever_they_stand() -> None:
    log = "x [NCC_EVRF004] y\nNCC_EOOM001: z\nagain NCC_EVRF004\nNCC_lower NCC_"
    assert codes_in(log) == ("EVRF004", "EOOM001")
    error = compiler_error("grad", "trn1", 70, log)
    assert "NCC_EVRF004" in error.message
    assert "NCC_EOOM001" in error.message
    assert all(CODES[code].remedy in str(error.remedy) for code in codes_in(log))
