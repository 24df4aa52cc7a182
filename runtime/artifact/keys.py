"""Key files of this machine: the P-384 signing key and the customer's data key.

Both are small text files with mode 0600, refused when others can read or write them. They appear
whole or not at all, and never replace an existing file. A data key file names its key by an id
that also proves the file whole:

    LUMA DATA KEY 1
    id: 16 hex digits
    key: 64 hex digits
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from runtime.artifact._files import sync_folder
from runtime.artifact.sealing import DATA_KEY_BYTES
from runtime.spec.errors import ArtifactError

__all__ = [
    "LocalKeys",
    "default_home",
    "generate_data_key",
    "generate_signing_key",
    "load_data_key",
    "load_or_create_keys",
    "load_public_key",
    "load_signing_key",
    "private_folder",
    "public_key_bytes",
    "public_key_from_bytes",
    "signer_fingerprint",
]

_MAX_FILE_BYTES = 16_384
_DATA_KEY_FORM = re.compile(
    rb"LUMA DATA KEY 1\r?\nid: ([0-9a-f]{16})\r?\nkey: ([0-9a-f]{64})\r?\n?", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalKeys:
    """The keys of this machine.

    Attributes:
        home: the folder that holds `keys/`.
        signing_key: signs artifacts.
        data_key: seals artifacts and the compile cache, 32 bytes.
        signing_key_file: where the signing key lies.
        data_key_file: where the data key lies; agents are given this path.
    """

    home: Path
    signing_key: ec.EllipticCurvePrivateKey = field(repr=False)
    data_key: bytes = field(repr=False)
    signing_key_file: Path
    data_key_file: Path

    @property
    def public_key(self) -> ec.EllipticCurvePublicKey:
        """The key that others verify this machine's artifacts with."""
        return self.signing_key.public_key()


def default_home() -> Path:
    """Give the folder of keys and caches: `$LUMA_HOME`, else `.luma` in the home folder."""
    configured = os.environ.get("LUMA_HOME")
    return Path(configured) if configured else Path.home() / ".luma"


def private_folder(path: Path) -> Path:
    """Make a folder of keys, caches or reports, and all that is missing above it, mode 0700.

    One that exists is closed to others; folders above it that exist are left as they are.

    Raises:
        ArtifactError: it cannot be made.
    """
    try:
        for folder in reversed([path, *path.parents]):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
        if path.stat().st_mode & 0o077:
            path.chmod(0o700)
    except OSError as error:
        raise ArtifactError(
            f"folder {path}: {error.strerror}",
            remedy="set LUMA_HOME to a folder that can be written",
        ) from error
    return path


def load_or_create_keys(home: Path | None = None) -> LocalKeys:
    """Load `home/keys/signing.pem` and `data.key`, making what is missing.

    Two processes that start at once end with the same keys.

    Raises:
        ArtifactError: a key file is damaged, of another form or readable by others, or the folder
            cannot be made.
    """
    home = default_home() if home is None else home
    folder = home / "keys"
    signing_file, data_file = folder / "signing.pem", folder / "data.key"
    private_folder(folder)
    # Exists: made before, or by another process just now. Both are loaded and judged below.
    if not signing_file.exists():
        with contextlib.suppress(_KeyFileExistsError):
            generate_signing_key(signing_file)
    if not data_file.exists():
        with contextlib.suppress(_KeyFileExistsError):
            generate_data_key(data_file)
    return LocalKeys(
        home=home,
        signing_key=load_signing_key(signing_file),
        data_key=load_data_key(data_file),
        signing_key_file=signing_file,
        data_key_file=data_file,
    )


def generate_signing_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Make a P-384 signing key in the new file `path` (PKCS 8 PEM, mode 0600).

    Raises:
        ArtifactError: the file exists or cannot be written.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write_new(path, pem, "signing key file")
    return key


def generate_data_key(path: Path) -> bytes:
    """Make a random 32-byte data key in the new file `path` (mode 0600).

    Raises:
        ArtifactError: the file exists or cannot be written.
    """
    key = secrets.token_bytes(DATA_KEY_BYTES)
    text = f"LUMA DATA KEY 1\nid: {_data_key_id(key)}\nkey: {key.hex()}\n"
    _write_new(path, text.encode(), "data key file")
    return key


def load_signing_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Load a signing key file.

    Raises:
        ArtifactError: missing, readable by others, or no unencrypted P-384 private key in PEM.
    """
    data = _read_private(path, "signing key file")
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ArtifactError(
            f"signing key file {path}: no unencrypted private key in PEM form"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp384r1":
        raise ArtifactError(f"signing key file {path}: holds another kind of key; expected P-384")
    return key


def load_data_key(path: Path) -> bytes:
    """Load a data key file; gives the 32-byte key.

    Raises:
        ArtifactError: missing, readable by others, damaged, or of another form.
    """
    match = _DATA_KEY_FORM.fullmatch(_read_private(path, "data key file"))
    if match is None:
        raise ArtifactError(f"data key file {path}: not of the form 'LUMA DATA KEY 1', id, key")
    key = bytes.fromhex(match[2].decode())
    if _data_key_id(key) != match[1].decode():
        raise ArtifactError(
            f"data key file {path}: the id does not fit the key; the file is damaged",
            remedy="restore it from a copy",
        )
    return key


def load_public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """Load a trusted signer's public key in PEM form.

    Raises:
        ArtifactError: missing, or no P-384 public key.
    """
    try:
        with path.open("rb") as file:
            key = serialization.load_pem_public_key(file.read(_MAX_FILE_BYTES))
    except OSError as error:
        raise ArtifactError(f"public key file {path}: {error.strerror}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ArtifactError(f"public key file {path}: no public key in PEM form") from error
    return _require_p384(key, f"public key file {path}")


def public_key_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    """Give the DER SubjectPublicKeyInfo of a public key, as manifests hold it."""
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def public_key_from_bytes(der: bytes, where: str) -> ec.EllipticCurvePublicKey:
    """Read what `public_key_bytes` gave; `where` names it in errors.

    Raises:
        ArtifactError: no P-384 key, or not the DER form that `public_key_bytes` gives.
    """
    try:
        key = serialization.load_der_public_key(der)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ArtifactError(f"{where}: no public key in DER form") from error
    checked = _require_p384(key, where)
    if public_key_bytes(checked) != der:
        raise ArtifactError(f"{where}: the public key is not in its canonical form")
    return checked


def signer_fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Give the name of a signer: "sha384:" and the hex digest of its DER public key."""
    return "sha384:" + hashlib.sha384(public_key_bytes(key)).hexdigest()


class _KeyFileExistsError(ArtifactError):
    """A key file was to be made where one exists."""


def _require_p384(key: object, where: str) -> ec.EllipticCurvePublicKey:
    """Give `key` if it is a P-384 public key."""
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
        raise ArtifactError(f"{where}: holds another kind of key; expected P-384")
    return key


def _data_key_id(key: bytes) -> str:
    """Give the id of a data key; it tells nothing of the key."""
    return hashlib.sha384(b"luma data key id" + key).hexdigest()[:16]


def _write_new(path: Path, data: bytes, what: str) -> None:
    """Write a private file that must not exist, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            # A link, not a rename: it fails where another process was first.
            path.hardlink_to(temporary)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)
    except FileExistsError as error:
        raise _KeyFileExistsError(
            f"{what} {path}: exists; a key is never overwritten", remedy="choose another path"
        ) from error
    except OSError as error:
        raise ArtifactError(f"{what} {path}: cannot be written: {error.strerror}") from error


def _read_private(path: Path, what: str) -> bytes:
    """Read a small file that only its owner may read or write."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ArtifactError(f"{what} {path}: {error.strerror}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise ArtifactError(
            f"{what} {path}: mode {stat.S_IMODE(mode):04o} lets others at the key; expected 0600",
            remedy=f"chmod 600 {path}",
        )
    if len(data) > _MAX_FILE_BYTES:
        raise ArtifactError(f"{what} {path}: larger than any key file")
    return data
