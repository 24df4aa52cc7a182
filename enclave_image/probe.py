"""What a compile really loads: run the compiling worker for a small graph, and list its files.

The list holds the files of all modules that were imported, and all files that were mapped into the
process (`/proc/self/maps`), which is where a compiler's libraries show that no import names.
Programs that a compiler starts (ptxas, iree-compile) are processes of their own and do not show:
`contents.json` names them.

    python -m enclave_image.probe cpu

prints the list. The contents of an image are a reviewed choice (`contents.json`) of whole
distributions, since a compiler imports some modules only for some graphs; a test holds that choice
against this list.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from runtime.compiler.graph import DType, Graph, GraphPackage, Input, Node, Ref, TensorType
from runtime.compiler.targets import find_target
from runtime.spec.errors import CompileError

__all__ = ["loaded_files", "probe_package"]

_MICRO_SHARDS = 2
_TIMEOUT_S = 600
_MAPS = Path("/proc/self/maps")


def probe_package(*, batch: int = 2, width: int = 8, rank: int = 4) -> GraphPackage:
    """Give a small package: the loss |x A B|^2 with its gradients.

    Args:
        batch: rows of x, int64 [batch, width].
        width: columns of x.
        rank: A is fp32 [width, rank], B is fp32 [rank, width].
    """
    whole, small = TensorType((batch, width), "float32"), TensorType((batch, rank), "float32")
    a, b = TensorType((width, rank), "float32"), TensorType((rank, width), "float32")
    ids = TensorType((batch, width), "int64")
    inputs = (
        Input("a", "param", "a.weight", a),
        Input("b", "param", "b.weight", b),
        *(Input(key, "batch", key, ids) for key in ("input_ids", "labels", "position_ids")),
        Input("key", "key", "key", TensorType((2,), "int32")),
    )
    steps = (
        ("x", "aten._to_copy.default", (Ref("input_ids"),), whole),
        ("h", "aten.mm.default", (Ref("x"), Ref("a")), small),
        ("o", "aten.mm.default", (Ref("h"), Ref("b")), whole),
        ("squares", "aten.mul.Tensor", (Ref("o"), Ref("o")), whole),
        ("loss", "aten.sum.default", (Ref("squares"),), TensorType((), "float32")),
        ("tokens", "aten.sum.default", (Ref("labels"),), TensorType((), "int64")),
        ("go", "aten.mul.Tensor", (Ref("o"), 2.0), whole),
        ("ht", "aten.t.default", (Ref("h"),), TensorType((rank, batch), "float32")),
        ("gb", "aten.mm.default", (Ref("ht"), Ref("go")), b),
        ("bt", "aten.t.default", (Ref("b"),), TensorType((width, rank), "float32")),
        ("gh", "aten.mm.default", (Ref("go"), Ref("bt")), small),
        ("xt", "aten.t.default", (Ref("x"),), TensorType((width, batch), "float32")),
        ("ga", "aten.mm.default", (Ref("xt"), Ref("gh")), a),
    )
    nodes = tuple(
        Node(name, op, args, {"dtype": DType("float32")} if name == "x" else {}, out)
        for name, op, args, out in steps
    )
    outputs = (
        ("loss_sum", Ref("loss")),
        ("tokens", Ref("tokens")),
        ("grad:a.weight", Ref("ga")),
        ("grad:b.weight", Ref("gb")),
    )
    graph = Graph(inputs=inputs, nodes=nodes, outputs=outputs)
    return GraphPackage(
        graphs={"grad": graph},
        config_digest="0" * 64,
        versions={},
        packing=False,
        micro_batch=batch,
        seq_len=width,
    )


def loaded_files(target: str) -> tuple[Path, ...]:
    """Compile the probe for a target in a process of its own; give the files that it loaded.

    Raises:
        CompileError: the compile failed, or took too long.
    """
    chosen = find_target(target)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "enclave_image.probe", "--inside", target],
            env={**os.environ, **chosen.environment},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            cwd=Path(__file__).parents[1],
        )
    except subprocess.TimeoutExpired as error:
        raise CompileError(
            f"probe of target '{target}': no end after {_TIMEOUT_S} s; its process was killed",
            remedy="run it again on a machine with less to do",
        ) from error
    if done.returncode != 0:
        tail = " | ".join(done.stderr.splitlines()[-5:])
        raise CompileError(f"probe of target '{target}': exit code {done.returncode}: {tail}")
    return tuple(Path(line) for line in json.loads(done.stdout.splitlines()[-1]))


def _compile_here(target: str) -> None:
    """Compile in this process, and write what it has loaded as one line of JSON."""
    from runtime.compiler.worker import compile_payload

    payload = compile_payload(
        probe_package(), target=target, micro_shards=_MICRO_SHARDS, emit=lambda _event: None
    )
    payload.to_bytes()
    imported = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    lines = _MAPS.read_text(encoding="utf-8").splitlines()
    mapped = {line.split(maxsplit=5)[5] for line in lines if line.count("/")}
    files = sorted(path for path in imported | mapped if path and path.startswith("/"))
    sys.stdout.write(json.dumps(files) + "\n")


def main(arguments: list[str]) -> int:
    """Print the files that a compile for each target loads."""
    if arguments[:1] == ["--inside"]:
        _compile_here(arguments[1])
        return 0
    for target in arguments or ["cpu"]:
        for path in loaded_files(target):
            sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
