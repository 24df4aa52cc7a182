"""The interpreter in an image: what it must have, and what of its library is left out."""

import socket
import sys
from pathlib import Path

import pytest

from enclave_image.interpreter import PREFIX, Interpreter, find_interpreter, interpreter_entries
from runtime.spec.errors import ArtifactError


def test_the_running_python_will_do():
    found = find_interpreter()
    assert found.program.is_file()
    assert (found.library / "os.py").is_file()
    assert found.version == "{}.{}.{}".format(*sys.version_info)
    assert found.site_packages.startswith(f"{PREFIX}/lib/python3.")


def test_a_python_without_ctypes_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "_ctypes", None)  # as where it was built without libffi
    with pytest.raises(ArtifactError, match="module _ctypes cannot be imported") as caught:
        find_interpreter()
    assert "libffi" in caught.value.remedy


def test_a_python_without_vsock_is_refused(monkeypatch):
    monkeypatch.delattr(socket, "AF_VSOCK")
    with pytest.raises(ArtifactError, match=r"no socket\.AF_VSOCK") as caught:
        find_interpreter()
    assert "vm_sockets" in caught.value.remedy


@pytest.fixture
def python(tmp_path):
    """Give a Python of a few files, among them a distribution's own start-up code."""
    base = tmp_path.resolve()
    library = base / "lib" / "python3.11"
    for name in (
        "os.py",
        "json/decoder.py",
        "json/__pycache__/decoder.cpython-311.pyc",
        "lib-dynload/_ctypes.cpython-311-x86_64-linux-gnu.so",
        "lib-dynload/_ctypes_test.cpython-311-x86_64-linux-gnu.so",
        "site-packages/foreign.py",
        "sitecustomize.py",
        "usercustomize.py",
        "turtle.py",
    ):
        path = library / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    (base / "bin").mkdir()
    (base / "bin" / "python3.11").write_bytes(b"")
    return Interpreter(
        program=base / "bin" / "python3.11", base=base, library=library, version="3.11.7"
    )


def test_start_up_code_of_the_distribution_and_what_no_service_needs_are_left_out(python):
    paths = {Path(entry.path) for entry in interpreter_entries(python)}
    root = Path(PREFIX)
    assert paths == {
        root / "bin/python3",
        root / "bin/python3.11",
        root / "lib/python3.11/os.py",
        root / "lib/python3.11/json/decoder.py",
        root / "lib/python3.11/lib-dynload/_ctypes.cpython-311-x86_64-linux-gnu.so",
    }
