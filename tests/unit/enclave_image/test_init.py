"""The first process, part by part; a slow test boots the image's own in a name space."""

import errno
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from enclave_image import init
from enclave_image.boot import COMMAND_LINES, boot_entries
from enclave_image.cpio import Directory, File
from enclave_image.eif import Architecture
from enclave_image.interpreter import PROGRAM

SCRIPT = Path(init.__file__)


def test_the_first_line_starts_the_images_own_interpreter_without_environment_or_packages():
    [script] = [entry for entry in boot_entries() if isinstance(entry, File)]
    assert script.path == "init"
    assert script.mode == 0o755
    first, _, rest = script.content.partition(b"\n")
    assert first == f"#!/{PROGRAM} -IS".encode()
    assert rest == SCRIPT.read_bytes()
    # The kernel reads 127 bytes of that line (fs/binfmt_script.c), older ones as well.
    assert len(first) < 127
    assert f"/{PROGRAM}" == init.PYTHON


def test_every_file_system_has_its_folder():
    folders = {f"/{entry.path}" for entry in boot_entries() if isinstance(entry, Directory)}
    for mount in init.MOUNTS:
        below_another = any(mount.path.startswith(other.path + "/") for other in init.MOUNTS)
        assert mount.path in folders or below_another, mount
    assert Directory("tmp", 0o1777) in boot_entries()


def test_another_first_process_and_a_driver_can_be_given():
    entries = boot_entries(init=b"i", nsm=b"n")
    assert File("init", b"i", 0o755) in entries
    assert File("nsm.ko", b"n", 0o644) in entries


def test_command_lines_fit_and_reboot_ends_the_enclave():
    for architecture in Architecture:
        assert COMMAND_LINES[architecture].startswith("reboot=k panic=30 ")
        assert " -- " not in COMMAND_LINES[architecture]


def test_what_cannot_be_mounted_is_told(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(init, "log", said.append)
    mounts = (
        init.Mount("tmpfs", str(tmp_path / "a"), 0),
        init.Mount("proc", str(tmp_path / "b"), 0),
    )
    failed = init.mount_all(lambda m: errno.EPERM if m.kind == "proc" else 0, mounts)
    assert failed == [str(tmp_path / "b")]
    assert said == [f"proc on {tmp_path / 'b'}: Operation not permitted"]
    assert (tmp_path / "a").is_dir()


@pytest.fixture
def parents():
    """Give a function that makes a peer which answers a heartbeat with given bytes."""
    threads = []

    def peer(answer):
        ours, theirs = socket.socketpair()

        def serve():
            with theirs:
                if theirs.recv(1) == init.HEARTBEAT:
                    theirs.sendall(answer)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return ours

    yield peer
    for thread in threads:
        thread.join()


def test_the_heartbeat_goes_to_the_first_that_answers(parents):
    asked = []

    def connect(cid):
        asked.append(cid)
        if cid == 3:
            raise OSError(errno.ETIMEDOUT, "timed out")
        return parents(b"\xb7")

    assert init.heartbeat(connect) is True
    assert asked == [3, 2]


def test_a_wrong_or_missing_heartbeat_is_told(parents, monkeypatch):
    said = []
    monkeypatch.setattr(init, "log", said.append)
    assert init.heartbeat(lambda _cid: parents(b"\x00"), (3,)) is False
    assert said == ["heartbeat: CID 3 gave another answer"]
    assert init.heartbeat(lambda _cid: parents(b""), (2,)) is False


def test_orphans_are_collected_until_the_service_ends():
    ended = iter([(7, 0), (9, 0), (5, 0x300), (8, 0)])
    assert init.reap_until(5, lambda: next(ended)) == 0x300
    assert next(ended) == (8, 0)


def test_a_missing_console_is_no_error(tmp_path):
    assert init.open_console(str(tmp_path / "none")) is False


def test_it_is_for_process_1_alone():
    done = subprocess.run(
        [sys.executable, "-IS", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "for process 1 alone" in done.stderr


def test_it_imports_the_standard_library_alone():
    command = (
        f"import runpy, sys; runpy.run_path({str(SCRIPT)!r}, run_name='init');"
        "print(*sorted({n.partition('.')[0] for n in sys.modules} - sys.stdlib_module_names))"
    )
    shown = subprocess.run(
        [sys.executable, "-IS", "-c", command], capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(shown) <= {"__main__"}


def test_the_script_is_readable_source():
    assert stat.S_ISREG(SCRIPT.stat().st_mode)
    compile(SCRIPT.read_bytes(), str(SCRIPT), "exec")
