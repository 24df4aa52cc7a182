"""A run's TLS: both sides show one certificate, and nothing else is let in."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from runtime.coordinator.tls import (
    CERTIFICATE_FILE,
    KEY_FILE,
    TLS_FOLDER,
    RunTls,
    make_identity,
    run_tls,
)
from runtime.spec.errors import CoordinationError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run") / TLS_FOLDER
    make_identity(place)
    return place


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("other") / TLS_FOLDER
    make_identity(place)
    return place


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    for end in (left, right):
        end.settimeout(60)
    yield left, right
    left.close()
    right.close()


def _accepting(tls: RunTls, connection: socket.socket) -> tuple[threading.Thread, list[object]]:
    """Accept in a thread; what came of it is in the list: bytes, or the error."""
    said: list[object] = []

    def accept() -> None:
        try:
            with tls.accept(connection) as secured:
                said.append(secured.recv(100))
                secured.sendall(b"answer")
        except OSError as error:
            said.append(error)

    thread = threading.Thread(target=accept)
    thread.start()
    return thread, said


def test_two_of_one_run_understand_each_other(folder: Path, pair) -> None:
    thread, said = _accepting(RunTls(folder), pair[0])
    with RunTls(folder).connect(pair[1]) as connection:
        connection.sendall(b"question")
        assert connection.recv(100) == b"answer"
        assert connection.version() == "TLSv1.3"
    thread.join()
    assert said == [b"question"]


def test_one_of_another_run_is_refused_by_both_sides(folder: Path, other: Path, pair) -> None:
    thread, said = _accepting(RunTls(folder), pair[0])
    with pytest.raises(ssl.SSLError):
        RunTls(other).connect(pair[1])
    thread.join()
    assert isinstance(said[0], ssl.SSLError)


def _trusting(mine: Path, theirs: Path) -> ssl.SSLContext:
    """Give a client that believes the run's certificate, and shows one of its own."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(theirs / CERTIFICATE_FILE)
    context.load_cert_chain(mine / CERTIFICATE_FILE, mine / KEY_FILE)
    return context


def test_a_client_with_its_own_certificate_gets_no_byte(folder: Path, other: Path, pair) -> None:
    """In TLS 1.3 the client is through before the server has judged it."""
    thread, said = _accepting(RunTls(folder), pair[0])
    with (
        pytest.raises(OSError),
        _trusting(other, folder).wrap_socket(pair[1]) as connection,
    ):
        connection.sendall(b"question")
        assert connection.recv(100) == b""
        raise ConnectionError("closed without a byte")
    thread.join()
    assert isinstance(said[0], ssl.SSLError)


def test_a_client_without_certificate_gets_no_byte(folder: Path, pair) -> None:
    thread, said = _accepting(RunTls(folder), pair[0])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(folder / CERTIFICATE_FILE)
    with pytest.raises(OSError), context.wrap_socket(pair[1]) as connection:
        connection.sendall(b"question")
        assert connection.recv(100) == b""
        raise ConnectionError("closed without a byte")
    thread.join()
    assert isinstance(said[0], ssl.SSLError)


def test_what_the_run_s_key_signs_is_not_the_run(folder: Path, tmp_path: Path, pair) -> None:
    """The certificate is no authority: one that its key has issued is refused."""
    issuer = x509.load_pem_x509_certificate((folder / CERTIFICATE_FILE).read_bytes())
    signer = serialization.load_pem_private_key((folder / KEY_FILE).read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    child = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(issuer.not_valid_before_utc)
        .not_valid_after(issuer.not_valid_after_utc)
        .sign(signer, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (tmp_path / CERTIFICATE_FILE).write_bytes(child.public_bytes(pem))
    (tmp_path / KEY_FILE).write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    thread, said = _accepting(RunTls(folder), pair[0])
    with pytest.raises(OSError), _trusting(tmp_path, folder).wrap_socket(pair[1]) as connection:
        connection.sendall(b"question")
        assert connection.recv(100) == b""
        raise ConnectionError("closed without a byte")
    thread.join()
    assert isinstance(said[0], ssl.SSLError)


def test_plain_bytes_are_no_handshake(folder: Path, pair) -> None:
    thread, said = _accepting(RunTls(folder), pair[0])
    pair[1].sendall(b"\x00\x00\x00\x10" + b"hello, I am an i")
    thread.join()
    assert isinstance(said[0], ssl.SSLError)


def test_older_versions_are_refused(folder: Path, pair) -> None:
    thread, said = _accepting(RunTls(folder), pair[0])
    context = _trusting(folder, folder)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(OSError):
        context.wrap_socket(pair[1])
    thread.join()
    assert isinstance(said[0], OSError)


def test_the_key_is_for_its_owner_alone(folder: Path) -> None:
    assert stat.S_IMODE((folder / KEY_FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_an_identity_is_never_replaced(folder: Path) -> None:
    before = (folder / KEY_FILE).read_bytes()
    with pytest.raises(FileExistsError):
        make_identity(folder)
    assert (folder / KEY_FILE).read_bytes() == before


def test_a_key_of_another_certificate_is_told(folder: Path, other: Path, tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_bytes((other / KEY_FILE).read_bytes())
    (tmp_path / CERTIFICATE_FILE).write_bytes((folder / CERTIFICATE_FILE).read_bytes())
    with pytest.raises(CoordinationError, match="belong together"):
        RunTls(tmp_path)


@pytest.mark.parametrize("text", ["", "no certificate"])
def test_a_broken_certificate_is_told(folder: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / KEY_FILE).write_bytes((folder / KEY_FILE).read_bytes())
    (tmp_path / CERTIFICATE_FILE).write_text(text)
    with pytest.raises(CoordinationError, match="belong together"):
        RunTls(tmp_path)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_a_loopback_address_may_be_without(tmp_path: Path, host: str) -> None:
    assert run_tls(tmp_path, host) is None


@pytest.mark.parametrize("host", ["10.0.0.7", "0.0.0.0", "::", "localhost.example", "node-1"])
def test_any_other_address_needs_it(tmp_path: Path, host: str) -> None:
    with pytest.raises(CoordinationError, match=f"host {host} is no loopback address"):
        run_tls(tmp_path, host)


def test_where_there_is_one_it_is_used(folder: Path) -> None:
    assert run_tls(folder.parent, "127.0.0.1") is not None
    assert run_tls(folder.parent, "10.0.0.7") is not None
