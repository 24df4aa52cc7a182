"""The NSM's client: over the software NSM, and its ioctl against a stand-in for the kernel."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import os
import stat
import struct

import cbor2
import pytest

from enclave_image.nsm import Nsm, NsmDevice, NsmError, PcrState, security_module
from runtime.artifact.attestation import authenticate
from runtime.spec import AttestationError
from tests.attestation_support import SoftwareNsm
from tests.attestation_support.documents import MEASURED
from tests.attestation_support.pki import EPOCH


@pytest.fixture
def nsm(pki):
    return Nsm(SoftwareNsm(pki=pki, clock=lambda: EPOCH))


def test_every_request_works_over_the_software_nsm(nsm, roots):
    described = nsm.describe()
    assert described.module_id == "i-0test-enc0test"
    assert (described.digest, described.max_pcrs, described.version) == ("SHA384", 32, (1, 0, 0))
    assert described.locked_pcrs == tuple(range(16))
    assert len(nsm.random()) == 256
    assert nsm.describe_pcr(0) == PcrState(MEASURED[0], True)
    assert nsm.extend_pcr(16, b"x") == hashlib.sha384(bytes(48) + b"x").digest()
    nsm.lock_pcr(16)
    nsm.lock_pcrs(18)
    assert nsm.describe().locked_pcrs == tuple(range(18))
    document = nsm.attestation(user_data=b"u", nonce=b"n", public_key=b"k")
    found = authenticate(document, roots=roots, at=EPOCH)
    assert (found.user_data, found.nonce, found.public_key) == (b"u", b"n", b"k")


@pytest.mark.parametrize(
    ("call", "asked"),
    [
        (lambda nsm: nsm.describe(), "DescribeNSM"),
        (lambda nsm: nsm.random(), "GetRandom"),
        (
            lambda nsm: nsm.attestation(nonce=b"n"),
            {"Attestation": {"nonce": b"n", "user_data": None, "public_key": None}},
        ),
        (lambda nsm: nsm.describe_pcr(3), {"DescribePCR": {"index": 3}}),
        (lambda nsm: nsm.extend_pcr(16, b"x"), {"ExtendPCR": {"index": 16, "data": b"x"}}),
        (lambda nsm: nsm.lock_pcr(16), {"LockPCR": {"index": 16}}),
        (lambda nsm: nsm.lock_pcrs(4), {"LockPCRs": {"range": 4}}),
    ],
)
def test_requests_have_the_devices_shapes(pki, call, asked):
    sent = []
    software = SoftwareNsm(pki=pki, clock=lambda: EPOCH)
    call(Nsm(lambda request: sent.append(request) or software(request)))
    assert [cbor2.loads(request) for request in sent] == [asked]


def test_the_nsms_refusals_keep_their_code(nsm):
    with pytest.raises(NsmError) as refused:
        nsm.extend_pcr(0, b"x")
    assert refused.value.code == "ReadOnlyIndex"
    assert refused.value.message == "ExtendPCR: the NSM refused it with 'ReadOnlyIndex'"


@pytest.mark.parametrize(
    "answer",
    [
        {},
        [],
        "GetRandom",
        "LockPCR",
        {"GetRandom": {}},
        {"GetRandom": {"random": "text"}},
        {"GetRandom": b"bytes"},
        {"LockPCR": {}},
        {"Error": 5},
        {"GetRandom": {"random": b"x"}, "Error": "no"},
    ],
)
def test_another_answer_than_was_asked_for_is_refused(answer):
    with pytest.raises(NsmError) as refused:
        Nsm(lambda _: cbor2.dumps(answer)).random()
    assert refused.value.code is None


@pytest.mark.parametrize("field", ["locked_pcrs", "max_pcrs", "version_minor", "module_id"])
def test_a_description_of_other_types_is_refused(pki, field):
    described = cbor2.loads(SoftwareNsm(pki=pki)(cbor2.dumps("DescribeNSM")))
    described["DescribeNSM"][field] = [True]
    with pytest.raises(NsmError):
        Nsm(lambda _: cbor2.dumps(described)).describe()


@pytest.mark.parametrize("answer", [b"", b"\x9f", b"\xa1", bytes(0x3001), b"\xa0\x00"])
def test_hostile_answers_are_refused_by_the_bounded_reader(answer):
    with pytest.raises(AttestationError):
        Nsm(lambda _: answer).random()


class Kernel:
    """Stands in for the driver behind `fcntl.ioctl`: it reads and writes the caller's memory."""

    def __init__(self, answer: bytes, length: int | None = None) -> None:
        self.answer = answer
        self.length = len(answer) if length is None else length
        self.calls = []

    def __call__(self, fd, request, argument):
        asked, asked_size, room, room_size = struct.unpack("=QQQQ", argument)
        self.calls.append(
            (fd, request, len(argument), ctypes.string_at(asked, asked_size), room_size)
        )
        ctypes.memmove(room, self.answer, len(self.answer))
        argument[24:32] = struct.pack("=Q", self.length)
        return 0


@pytest.fixture
def device(tmp_path):
    path = tmp_path / "nsm"
    path.touch()
    with NsmDevice(path) as device:
        yield device


def test_the_ioctl_carries_addresses_and_lengths(device, monkeypatch):
    kernel = Kernel(cbor2.dumps({"GetRandom": {"random": b"r" * 256}}))
    monkeypatch.setattr(fcntl, "ioctl", kernel)
    assert Nsm(device).random() == b"r" * 256
    [(fd, request, size, asked, room)] = kernel.calls
    assert fd == device._fd
    # _IOWR(0x0A, 0, 32): direction 3 in the top bits, the argument's size, the driver's number.
    assert request == (3 << 30) | (32 << 16) | (0x0A << 8) | 0
    assert size == 32
    assert asked == cbor2.dumps("GetRandom")
    assert room == 0x3000


def test_the_largest_answer_fits(device, monkeypatch):
    answer = bytes(range(256)) * 48
    monkeypatch.setattr(fcntl, "ioctl", Kernel(answer))
    assert device(b"\x00") == answer
    assert len(answer) == 0x3000


@pytest.mark.parametrize("length", [0, 0x3001, 1 << 63])
def test_an_answer_of_an_impossible_length_is_refused(device, monkeypatch, length):
    monkeypatch.setattr(fcntl, "ioctl", Kernel(b"x", length))
    with pytest.raises(NsmError, match=f"answer: {length} bytes are not allowed"):
        device(b"\x00")


@pytest.mark.parametrize(("size", "allowed"), [(0, False), (1, True), (4096, True), (4097, False)])
def test_a_request_has_a_limit(device, monkeypatch, size, allowed):
    monkeypatch.setattr(fcntl, "ioctl", Kernel(b"\xf6"))
    if allowed:
        assert device(bytes(size)) == b"\xf6"
        return
    with pytest.raises(NsmError, match=f"request: {size} bytes are not allowed"):
        device(bytes(size))


def test_the_kernels_refusal_is_told(device, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    with pytest.raises(NsmError, match="the request failed"):
        device(b"\x00")


def test_a_host_without_an_nsm_says_so(tmp_path):
    with pytest.raises(NsmError) as refused:
        NsmDevice(tmp_path / "nsm")
    assert "cannot be opened" in refused.value.message
    assert "Nitro Enclave" in refused.value.remedy


def test_the_service_keeps_the_device_to_itself(tmp_path):
    """The kernel's driver makes it with mode 0666: a compiling process could ask for a document."""
    path = tmp_path / "nsm"
    path.touch(0o666)
    path.chmod(0o666)
    assert isinstance(security_module(path), Nsm)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert security_module(tmp_path / "none") is None


def test_the_device_is_closed_once(tmp_path):
    path = tmp_path / "nsm"
    path.touch()
    device = NsmDevice(path)
    fd = device._fd
    device.close()
    device.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
