"""TLS between the processes of one run: one key, one certificate, and nobody else's.

A run in the account has one key and one self-signed certificate, made at launch. Whoever can read
them, the nodes' role alone, is a part of the run: both sides of every connection show the
certificate, and each accepts exactly it, whatever the other's address is called. TLS 1.3 only.

A run folder holds them in `tls/`; without that folder a run speaks plain TCP, and then on the
loopback interface alone.
"""

from __future__ import annotations

import datetime as dt
import os
import socket
import ssl
from pathlib import Path

from runtime.spec.aws import is_loopback
from runtime.spec.errors import CoordinationError

TLS_FOLDER = "tls"
KEY_FILE = "key.pem"
CERTIFICATE_FILE = "certificate.pem"
_VALID_FOR = dt.timedelta(days=3650)
# A node's clock may be behind that of the machine that launched the run.
_VALID_BEFORE = dt.timedelta(days=1)


class RunTls:
    """A run's identity, ready for both sides of a connection.

    Args:
        folder: holds the key and the certificate.

    Raises:
        CoordinationError: they cannot be read, or do not belong together.
    """

    def __init__(self, folder: Path) -> None:
        try:
            text = (folder / CERTIFICATE_FILE).read_text()
            self._pinned = ssl.PEM_cert_to_DER_cert(text)
            self._server = _context(ssl.PROTOCOL_TLS_SERVER, folder)
            self._client = _context(ssl.PROTOCOL_TLS_CLIENT, folder)
            # A ring's sender never reads. A ticket that lies unread when it closes would make the
            # kernel reset the connection, and drop what the receiver has not read yet.
            self._server.num_tickets = 0
        except (OSError, ValueError) as error:
            raise CoordinationError(
                f"{folder}: holds no key and certificate that belong together ({error})",
                remedy="bring the run's tls/ from its bucket again",
            ) from None

    @property
    def server(self) -> ssl.SSLContext:
        """The context of the side that accepts; see `check` for what it leaves out."""
        return self._server

    @property
    def client(self) -> ssl.SSLContext:
        """The context of the side that connects; see `check` for what it leaves out."""
        return self._client

    def check(self, connection: ssl.SSLSocket | ssl.SSLObject) -> None:
        """Make sure that the other side showed exactly the run's certificate.

        Raises:
            ssl.SSLError: it showed another.
        """
        if connection.getpeercert(binary_form=True) != self._pinned:
            raise ssl.SSLError("the other side showed another run's certificate")

    def accept(self, connection: socket.socket) -> ssl.SSLSocket:
        """Secure an accepted connection; its time-out holds for the handshake.

        Raises:
            OSError: the other side is none of this run, or broke off.
        """
        return self._secured(self._server.wrap_socket(connection, server_side=True))

    def connect(self, connection: socket.socket) -> ssl.SSLSocket:
        """Secure a connection that was opened; its time-out holds for the handshake.

        Raises:
            OSError: the other side is none of this run, or broke off.
        """
        return self._secured(self._client.wrap_socket(connection))

    def _secured(self, connection: ssl.SSLSocket) -> ssl.SSLSocket:
        try:
            self.check(connection)
        except ssl.SSLError:
            connection.close()
            raise
        return connection


def run_tls(run_dir: Path, host: str) -> RunTls | None:
    """Give a run's TLS, None for a run that stays on this machine.

    Args:
        run_dir: the run folder.
        host: the address to listen on, or to connect to.

    Raises:
        CoordinationError: the address is no loopback one and the run has no TLS, or what it has
            cannot be read.
    """
    folder = run_dir / TLS_FOLDER
    if folder.exists():
        return RunTls(folder)
    if is_loopback(host):
        return None
    raise CoordinationError(
        f"host {host} is no loopback address, and '{run_dir}' has no {TLS_FOLDER}/; expected TLS for "
        "every connection between machines",
        remedy="bring the run's tls/ from its bucket",
    )


def make_identity(folder: Path) -> None:
    """Make a run's key and certificate, readable by the owner alone.

    The key is ECDSA on P-256; the certificate is no authority, so that it vouches for nothing but
    itself.

    Raises:
        OSError: the folder cannot be made, or holds an identity already.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "luma run")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID_BEFORE)
        .not_valid_after(now + _VALID_FOR)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    _write_new(folder / KEY_FILE, private)
    _write_new(folder / CERTIFICATE_FILE, certificate.public_bytes(pem))


def _context(protocol: int, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # nodes have addresses, not names: the certificate is pinned
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / CERTIFICATE_FILE, folder / KEY_FILE)
    context.load_verify_locations(folder / CERTIFICATE_FILE)
    return context


def _write_new(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
