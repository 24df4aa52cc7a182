"""Addresses: read strictly; a unix socket is for its user alone."""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path

import pytest

from enclave_image.service import address as addresses
from enclave_image.service.address import Address, connect, listen
from enclave_image.service.errors import PeerGoneError, ServiceError
from tests.support.compile_service import PATIENCE_S, short_folder


@pytest.fixture
def folder():
    with short_folder() as made:
        yield made


def test_addresses_are_read_and_shown():
    for text in ("unix:/run/luma.sock", "vsock:16:5005", "vsock:any:1"):
        assert str(Address.parse(text)) == text
    assert Address.parse("vsock:any:5005").cid == socket.VMADDR_CID_ANY


@pytest.mark.parametrize(
    "text",
    [
        "",
        "unix:",
        "unix:" + "x" * 108,
        "unix:/a\0b",
        "/run/luma.sock",
        "tcp:127.0.0.1:1",
        "vsock:1",
        "vsock:-1:5",
        "vsock:1:0",
        "vsock:4294967296:5",
        "vsock:1:4294967295",
        "vsock:1:5 ",
        "vsock:\u0661:5",
    ],
)
def test_others_are_refused(text):
    with pytest.raises(ServiceError, match="expected unix:/path") as caught:
        Address.parse(text)
    assert caught.value.remedy


def test_a_socket_is_for_its_user_alone(folder):
    address = Address.parse(f"unix:{folder}/s")
    with listen(address):
        assert stat.S_IMODE(Path(address.path).stat().st_mode) == 0o600
        connect(address, timeout_s=PATIENCE_S).close()


def test_a_dead_socket_is_replaced_and_a_live_one_is_not(folder):
    address = Address.parse(f"unix:{folder}/s")
    listen(address).close()
    with listen(address), pytest.raises(ServiceError, match="cannot be listened on"):
        listen(address)


def test_a_file_is_never_replaced(folder):
    path = folder / "s"
    path.write_text("kept")
    with pytest.raises(ServiceError, match="cannot be listened on"):
        listen(Address.parse(f"unix:{path}"))
    assert path.read_text() == "kept"


def test_nobody_there(folder):
    with pytest.raises(PeerGoneError, match="cannot be reached") as caught:
        connect(Address.parse(f"unix:{folder}/s"), timeout_s=PATIENCE_S)
    assert "luma enclave serve" in caught.value.remedy


def test_another_users_process_is_refused(folder, monkeypatch):
    address = Address.parse(f"unix:{folder}/s")
    peer = os.getuid() + 1
    with listen(address):

        class Other(socket.socket):
            """Says of its peer what the kernel would, were it another user's."""

            def getsockopt(self, *_):
                return struct.pack("=3i", 1, peer, peer)

        monkeypatch.setattr(addresses.socket, "socket", Other)
        with pytest.raises(ServiceError, match=f"belongs to user {peer}"):
            connect(address, timeout_s=PATIENCE_S)
