"""The service as a process of its own: kills in the middle of a compile, memory, signals.

A compile is held in its middle by stopping (SIGSTOP) its process, so no test depends on how long
it takes. Where the process has ended before it could be stopped, the test asks for another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from enclave_image.service.address import Address, connect
from enclave_image.service.client import compile_in_service, compile_over, read_metrics
from enclave_image.service.errors import PeerGoneError
from runtime.artifact import verify_artifact
from runtime.spec import CompileError
from tests.support.compile_service import (
    DATA_KEY,
    PATIENCE_S,
    in_thread,
    order,
    patient,
    running,
    short_folder,
)

ROOT = Path(__file__).parents[3]
_ATTEMPTS = 20


class Process:
    """`python -m enclave_image.service` on a unix socket."""

    def __init__(self, folder: Path) -> None:
        self.address = Address.parse(f"unix:{folder}/s")
        self._folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "enclave_image.service", "--listen", str(self.address)],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(folder)},
            stderr=(folder / "log").open("wb"),
        )
        self.wait_for_line("started")

    def lines(self) -> list[dict]:
        """Give the log so far."""
        text = (self._folder / "log").read_text()
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait_for_line(self, event: str) -> dict:
        """Wait for a line of the log."""
        return wait_for(lambda: next((x for x in self.lines() if x["event"] == event), None))

    def ended(self) -> int:
        """Give how many requests are over."""
        return sum(line["event"] in {"done", "refused"} for line in self.lines())

    def end(self) -> int:
        """Ask it to end; give its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


def wait_for(look):
    """Wait until a look finds something."""
    limit = time.monotonic() + PATIENCE_S
    while time.monotonic() < limit:
        found = look()
        if found:
            return found
        threading.Event().wait(0.005)
    raise AssertionError("it did not come")


@pytest.fixture
def process():
    with short_folder() as folder:
        made = Process(folder)
        yield made
        if made.process.poll() is None:
            assert made.end() == 0
        left = [path.name for path in folder.iterdir() if path.name.startswith("luma-job-")]
        assert left == [] or made.process.returncode == -signal.SIGKILL


def compiler_of(process: Process) -> psutil.Process | None:
    """Give the compiling process of a service, if it has one."""
    for child in psutil.Process(process.process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "runtime.compiler.worker" in child.cmdline():
                return child
    return None


def freeze_a_compile(process: Process, start):
    """Start compiles until one was stopped in its middle; give (its process, what was started)."""
    for _ in range(_ATTEMPTS):
        before = process.ended()
        started = start()
        worker = wait_for(partial(seen, process, before))
        with contextlib.suppress(psutil.NoSuchProcess):
            if worker is not True:  # else it was over before it was seen
                worker.suspend()
                if wait_for(partial(halted, worker)) == psutil.STATUS_STOPPED:
                    return worker, started
        started()
    raise AssertionError("every compile ended before it could be stopped")


def seen(process: Process, before: int) -> psutil.Process | bool:
    """Give the compiling process, or whether a request more than before is over."""
    return compiler_of(process) or process.ended() > before


def halted(worker: psutil.Process) -> str | None:
    """Give the state of a process that was stopped, or has ended."""
    status = worker.status()
    return status if status in {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE} else None


def test_it_compiles_and_ends_when_it_is_told_to(process, package, tmp_path):
    made = compile_in_service(process.address, order(package), output=tmp_path / "a.luma")
    found = verify_artifact(made.artifact.path, trusted_signer=made.signer, key=DATA_KEY)
    assert found.level == "L1"
    wait_for(lambda: "luma_service_requests_total 1" in read_metrics(process.address))
    assert process.end() == 0
    assert not Path(process.address.path).exists()
    assert [line["event"] for line in process.lines()] == [
        "listening",
        "started",
        "request",
        "done",
        "stopped",
    ]
    assert process.lines()[1]["level"] == "L1 (local service)"


@pytest.mark.slow
def test_a_client_that_leaves_takes_its_compile_with_it(process, package, tmp_path):
    path = tmp_path / "a.luma"

    def start():
        peer = connect(process.address, timeout_s=PATIENCE_S)
        join = in_thread(lambda: compile_over(peer, order(package), output=path))
        start.peer = peer
        return join

    worker, join = freeze_a_compile(process, start)
    start.peer.shutdown(2)
    with pytest.raises(PeerGoneError):
        join()
    worker.wait(PATIENCE_S)
    wait_for(lambda: 'reason="gone"} 1' in read_metrics(process.address))
    compile_in_service(process.address, order(package), output=path)


def test_control_c_ends_the_remote_job(process, package, tmp_path):
    (tmp_path / "package").write_bytes(package.to_bytes())
    script = (
        "import sys; from pathlib import Path; from enclave_image.service.address import Address\n"
        "from enclave_image.service.client import CompileOrder, compile_in_service\n"
        "order = CompileOrder(package=Path(sys.argv[2]).read_bytes(), targets=('cpu',),"
        " micro_shards=4, level='L0')\n"
        "compile_in_service(Address.parse(sys.argv[1]), order, output=Path(sys.argv[3]))"
    )

    def start():
        start.client = subprocess.Popen(
            [
                sys.executable,
                "-c",
                script,
                str(process.address),
                str(tmp_path / "package"),
                str(tmp_path / "a.luma"),
            ],
            cwd=ROOT,
            stderr=subprocess.PIPE,
        )
        return lambda: start.client.communicate(timeout=PATIENCE_S)

    worker, _ = freeze_a_compile(process, start)
    start.client.send_signal(signal.SIGINT)
    _, error = start.client.communicate(timeout=PATIENCE_S)
    assert b"KeyboardInterrupt" in error
    worker.wait(PATIENCE_S)
    wait_for(lambda: 'reason="gone"} 1' in read_metrics(process.address))
    assert not (tmp_path / "a.luma").exists()


@pytest.mark.slow
def test_a_killed_compile_is_an_error_of_its_own(process, package, tmp_path):
    path = tmp_path / "a.luma"
    said = []
    worker, join = freeze_a_compile(
        process,
        lambda: in_thread(
            lambda: compile_in_service(
                process.address, order(package), output=path, said=said.append
            )
        ),
    )
    worker.kill()
    with pytest.raises(CompileError, match="no target compiled"):
        join()
    assert "was killed by signal 9" in said[-1].error.message
    compile_in_service(process.address, order(package), output=path)
    assert process.process.poll() is None


def test_a_killed_service_takes_its_compile_with_it(process, package, tmp_path):
    worker, join = freeze_a_compile(
        process,
        lambda: in_thread(
            lambda: compile_in_service(process.address, order(package), output=tmp_path / "a.luma")
        ),
    )
    process.process.kill()
    process.process.wait(PATIENCE_S)
    with pytest.raises(PeerGoneError, match="closed the connection") as caught:
        join()
    assert caught.value.remedy
    worker.resume()  # it then sees that its parent is gone
    wait_for(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(PeerGoneError, match="cannot be reached"):
        read_metrics(process.address)


def test_a_compile_that_wants_too_much_memory_fails_alone(rsa_key, package, tmp_path):
    said = []
    with running(rsa_key, limits=patient(child_bytes=100 << 20)) as service:
        for _ in range(2):
            with pytest.raises(CompileError, match="no target compiled"):
                compile_in_service(
                    service.address, order(package), output=tmp_path / "a.luma", said=said.append
                )
        assert 'compiles_total{result="failed"} 2' in read_metrics(service.address)
    assert len(said) == 2
    assert all("the compiling process" in result.error.message for result in said)
