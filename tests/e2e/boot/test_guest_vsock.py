"""The vsock device's handshake against a process that speaks it, and the heartbeat."""

import contextlib
import socket
import sys
import threading

import pytest

from enclave_image.init import HEARTBEAT, heartbeat
from tests.e2e.boot.guest_vsock import Heartbeat, connect_port
from tests.e2e.boot.machines import Wiring
from tests.e2e.boot.processes import started, wait_for
from tests.e2e.boot.tools import BootError
from tests.support.compile_service import short_folder

PATIENCE_S = 60.0
# One connection after the other: port 5005 echoes, 5006 sends at once, 5007 answers without an end
# of line, 5008 says no; on any other nobody listens, and the device closes.
DEVICE = """
import re, socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
listener.bind(sys.argv[1])
listener.listen()
print("up", flush=True)
while True:
    peer, _ = listener.accept()
    line = b""
    while not line.endswith(b"\\n"):
        line += peer.recv(1)
    port = re.fullmatch(rb"connect ([0-9]+)\\n", line)[1]
    if port == b"5005":
        peer.sendall(b"OK 1073741824\\n")
        peer.sendall(peer.recv(100))
    elif port == b"5006":
        peer.sendall(b"OK 7\\nfirst words")
    elif port == b"5007":
        peer.sendall(b"OK " + b"1" * 100)
    elif port == b"5008":
        peer.sendall(b"NO\\n")
    peer.close()
"""


@pytest.fixture
def wiring():
    with short_folder() as folder:
        yield Wiring(folder)


@pytest.fixture
def device(wiring):
    """A process that does what vhost-device-vsock does on this side."""
    command = [sys.executable, "-c", DEVICE, str(wiring.host)]
    with started("device", command, wiring.folder / "out") as running:
        wait_for("device", lambda: running.lines() or None, [running], timeout_s=PATIENCE_S)
        yield wiring.host


def test_a_stream_begins_behind_the_devices_answer(device):
    with connect_port(device, 5005, timeout_s=PATIENCE_S) as peer:
        peer.sendall(b"to the guest")
        assert peer.recv(100) == b"to the guest"
    with connect_port(device, 5006, timeout_s=PATIENCE_S) as peer:
        assert peer.recv(100) == b"first words"


@pytest.mark.parametrize(("port", "answer"), [(1, "b''"), (5007, "b'OK 111"), (5008, r"b'NO\\n'")])
def test_any_other_answer_is_refused(device, port, answer):
    with pytest.raises(BootError, match=f"vsock port {port}: the device answered {answer}"):
        connect_port(device, port, timeout_s=PATIENCE_S)


def test_a_device_that_is_not_there_is_told(wiring):
    with pytest.raises(BootError, match="vsock port 5005: No such file"):
        connect_port(wiring.host, 5005, timeout_s=PATIENCE_S)


def unix(path):
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    peer.settimeout(PATIENCE_S)
    peer.connect(str(path))
    return peer


def test_the_first_process_of_an_image_is_answered(wiring):
    with Heartbeat(wiring) as beat:
        assert not beat.heard.is_set()
        assert heartbeat(lambda _cid: unix(wiring.guest_calls(9000)))
        assert beat.heard.wait(PATIENCE_S)


def test_another_byte_and_a_peer_that_leaves_are_no_heartbeat(wiring):
    with Heartbeat(wiring) as beat:
        with contextlib.closing(unix(wiring.guest_calls(9000))):
            pass
        with contextlib.closing(unix(wiring.guest_calls(9000))) as peer:
            peer.sendall(b"x")
            assert peer.recv(1) == b""
        assert not beat.heard.is_set()
        with contextlib.closing(unix(wiring.guest_calls(9000))) as peer:
            peer.sendall(HEARTBEAT)
            assert peer.recv(1) == HEARTBEAT


def test_the_heartbeats_thread_ends_with_the_block(wiring):
    with Heartbeat(wiring):
        assert "luma-heartbeat" in {thread.name for thread in threading.enumerate()}
    assert "luma-heartbeat" not in {thread.name for thread in threading.enumerate()}
