"""The service inside its client's own process: its key, its cache, its end."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

import pytest

from enclave_image.service import jobs
from enclave_image.service.client import compile_in_service
from enclave_image.service.local import OwnMachine, local_service
from runtime.artifact import load_or_create_keys, open_artifact
from runtime.compiler import CompileResult
from runtime.spec import CompileError
from tests.support.compile_service import order


@pytest.fixture
def machine(tmp_path):
    keys = load_or_create_keys(tmp_path / "home")
    return OwnMachine(
        signing_key=keys.signing_key,
        cache_dir=tmp_path / "cache",
        cache_key=keys.data_key,
        statistics=lambda payloads: {f"{name}.found": 1 for name in payloads},
    )


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("luma")}


def test_it_signs_with_the_machines_key_and_adds_its_figures(
    machine, package, compiled, tmp_path, monkeypatch
):
    monkeypatch.setattr(jobs, "compile_package", lambda *_args, **_options: compiled)
    output = tmp_path / "m.luma"
    asked = order(package)
    with local_service(machine) as address:
        made = compile_in_service(address, asked, output=output)
    own = machine.signing_key.public_key()
    opened = open_artifact(output, trusted_signer=own, key=asked.data_key)
    assert opened.digest == made.artifact.digest
    assert opened.manifest.statistics["cpu.found"] == 1
    assert threads() == set()
    assert not Path(address.path).parent.exists()


def test_what_it_compiled_is_found_again_by_the_next_one(machine, package, tmp_path):
    asked, results = order(package), []
    for name in ("one.luma", "two.luma"):
        with local_service(machine) as address:
            compile_in_service(address, asked, output=tmp_path / name, said=results.append)
    assert [result.cached for result in results] == [False, True]


def test_it_ends_with_a_client_that_leaves(machine, package, tmp_path, monkeypatch):
    started = threading.Event()

    def never(*_args, children, **_options) -> CompileResult:
        started.set()
        while not children.ended():
            started.wait(0.01)
        raise CompileError("ended")

    def leave(result) -> None:
        del result
        raise KeyboardInterrupt

    monkeypatch.setattr(jobs, "compile_package", never)
    monkeypatch.setattr(
        "enclave_image.service.client._follow", lambda *_: started.wait() and leave(None)
    )
    with pytest.raises(KeyboardInterrupt), local_service(machine) as address:
        compile_in_service(address, order(package), output=tmp_path / "m.luma")
    assert threads() == set()
    assert not (tmp_path / "m.luma").exists()


def test_its_socket_is_for_this_user_alone_and_has_room(machine, tmp_path, monkeypatch):
    long = tmp_path / ("d" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with local_service(machine) as address:
        status = Path(address.path).parent.stat()
        assert status.st_mode & 0o077 == 0
        assert status.st_uid == os.getuid()
