"""The compile service: a compile through its socket against the same one in this process.

Both sides compile the same captured package for the CPU with an empty cache, seal the payload at
L1, and have the artifact on disk at the end. The service is a process of its own, as it is in an
enclave; the socket is a unix one, so nothing is said of vsock, of the parent's hops, or of the
enclave's own speed.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks.build_program import MICRO_SHARDS, shape_model
from benchmarks.children import ChildError, serve
from benchmarks.context import Context
from benchmarks.result import Goal, Result
from benchmarks.shapes import SHAPES
from enclave_image.service.address import Address
from enclave_image.service.client import CompileOrder, compile_in_service, read_metrics
from enclave_image.service.errors import PeerGoneError
from runtime.artifact import generate_signing_key, write_artifact
from runtime.compiler.graph import GraphPackage
from runtime.compiler.service import compile_package

_GOAL = 1.03
_START_S = 120.0
_KEY = bytes(range(32))


def measure(context: Context) -> list[Result]:
    """Compile in turns, so that what else the machine does meets both sides."""
    shape = context.pick("qwen3-512x6", "qwen3-128x4")
    folder = context.work / "service"
    folder.mkdir(exist_ok=True)
    with context.child("benchmarks.service") as child:
        child.ask("capture_package", shape_name=shape, path=str(folder / "package"))
    package = (folder / "package").read_bytes()
    signing_key = generate_signing_key(_new(folder / "signing.pem"))
    there: list[float] = []
    here: list[float] = []
    size = 0
    with _service(context) as address:
        for turn in range(context.pick(7, 3)):
            output = folder / f"{turn}.luma"
            started = time.perf_counter()
            compile_in_service(address, _order(package), output=output)
            there.append(time.perf_counter() - started)
            size = output.stat().st_size
            started = time.perf_counter()
            _compile_here(package, signing_key, output)
            here.append(time.perf_counter() - started)
            output.unlink()
    return [
        Result(
            name=f"service/{shape}",
            unit="s",
            luma=there,
            baselines={"in_process": here},
            goal=Goal(limit=_GOAL),
            notes={"package_bytes": len(package), "artifact_bytes": size, "socket": "unix"},
        )
    ]


def capture_package(shape_name: str, path: str) -> int:
    """Write a shape's captured package; give its size in bytes."""
    from runtime.compiler.capture import capture

    shape = SHAPES[shape_name]
    captured = capture(
        shape_model(shape_name), micro_batch=shape.micro_batch, seq_len=shape.seq_len
    )
    return Path(path).write_bytes(captured.package.to_bytes())


def _order(package: bytes) -> CompileOrder:
    return CompileOrder(
        package=package, targets=("cpu",), micro_shards=MICRO_SHARDS, level="L1", data_key=_KEY
    )


def _compile_here(data: bytes, signing_key: ec.EllipticCurvePrivateKey, output: Path) -> None:
    """Do what the service does, without it."""
    package = GraphPackage.from_bytes(data)
    with tempfile.TemporaryDirectory() as cache:
        result = compile_package(
            package, target="cpu", micro_shards=MICRO_SHARDS, cache_dir=Path(cache), data_key=_KEY
        )
    write_artifact(
        output,
        {"cpu": result.payload},
        level="L1",
        signing_key=signing_key,
        data_key=_KEY,
        graph_digest=package.digest(),
        statistics={},
        versions={},
    )


@contextlib.contextmanager
def _service(context: Context) -> Generator[Address]:
    """Run the service's process while the block runs."""
    with tempfile.TemporaryDirectory(prefix="ls-") as folder:
        address = Address.parse(f"unix:{folder}/s")
        with (context.work / "service.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "enclave_image.service", "--listen", str(address)],
                stderr=log,
            )
        try:
            _wait(address, process)
            yield address
        finally:
            process.terminate()
            process.wait()


def _wait(address: Address, process: subprocess.Popen[bytes]) -> None:
    """Wait until the service answers."""
    limit = time.monotonic() + _START_S
    while time.monotonic() < limit and process.poll() is None:
        with contextlib.suppress(PeerGoneError):
            read_metrics(address)
            return
        time.sleep(0.05)
    raise ChildError("the compile service did not start; see service.log in the work folder")


def _new(path: Path) -> Path:
    path.unlink(missing_ok=True)
    return path


if __name__ == "__main__":
    serve({"capture_package": capture_package})
