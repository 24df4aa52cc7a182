"""NEFF headers made byte by byte from the documented layout, whole, cut and altered."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.artifact.neff import HEADER_SIZE, check_loadable, read_header
from runtime.spec import ArtifactError

# Offset and struct code of each field, as the vendor's page has them.
_FIELDS = {
    "pkg_version": (0, "<Q"),
    "header_size": (8, "<Q"),
    "data_size": (16, "<Q"),
    "neff_version_major": (24, "<Q"),
    "neff_version_minor": (32, "<Q"),
    "neff_build_version": (40, "<128s"),
    "num_tpb": (168, "<I"),
    "hash": (172, "<32s"),
    "uuid": (204, "<16s"),
    "name": (220, "<256s"),
    "requested_tpb_count": (476, "<I"),
    "tpb_per_node": (480, "<64s"),
    "feature_bits": (544, "<Q"),
    "lnc_size": (552, "<I"),
}
_DEFAULTS: dict[str, Any] = {
    "pkg_version": 1,
    "header_size": HEADER_SIZE,
    "neff_version_major": 2,
    "neff_build_version": b"2.27.5334.0",
    "num_tpb": 1,
    "hash": bytes(range(32)),
    "uuid": bytes(range(16)),
    "name": b"grad",
    "requested_tpb_count": 1,
    "tpb_per_node": b"\x01",
    "feature_bits": 0x3,
    "lnc_size": 2,
}


def tar_body() -> bytes:
    """A tar archive with the documented top-level file."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        entry = tarfile.TarInfo("info.json")
        entry.size = 2
        archive.addfile(entry, io.BytesIO(b"{}"))
    return stream.getvalue()


def neff(body: bytes | None = None, **changed: Any) -> bytes:
    """Make a NEFF, field by field at its offset."""
    body = gzip.compress(tar_body(), mtime=0) if body is None else body
    raw = bytearray(HEADER_SIZE)
    for name, value in {**_DEFAULTS, "data_size": len(body), **changed}.items():
        offset, code = _FIELDS[name]
        struct.pack_into(code, raw, offset, value)
    return bytes(raw) + body


def test_every_field_is_read_from_its_documented_offset() -> None:
    header = read_header(neff())
    assert (header.package_version, header.header_size) == (1, 1024)
    assert header.data_size == len(neff()) - 1024
    assert header.version == (2, 0)
    assert (header.build, header.name) == ("2.27.5334.0", "grad")
    assert (header.cores, header.requested_cores, header.logical_core) == (1, 1, 2)
    assert (header.digest, header.uuid) == (bytes(range(32)), bytes(range(16)))
    assert header.cores_per_node[:2] == b"\x01\x00"
    assert header.features == 3


@pytest.mark.parametrize(
    ("body", "kind"),
    [(gzip.compress(tar_body()), "gzip"), (tar_body(), "tar"), (b"something else", "unknown")],
)
def test_the_body_is_known_by_its_first_bytes(body: bytes, kind: str) -> None:
    assert read_header(neff(body)).compression == kind


def test_a_longer_header_moves_the_body() -> None:
    body = tar_body()
    data = neff(body, header_size=HEADER_SIZE + 512)
    data = data[:HEADER_SIZE] + bytes(512) + body
    assert read_header(data).compression == "tar"


@given(st.integers(0, len(neff()) - 1))
def test_a_file_that_was_cut_is_refused(length: int) -> None:
    with pytest.raises(ArtifactError, match="NEFF"):
        read_header(neff()[:length])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"header_size": 512}, "header_size 512; expected 1024"),
        ({"header_size": 1 << 40}, "header_size 1099511627776"),
        ({"data_size": 7}, r"states 1024 \+ 7 bytes and the file has"),
        ({"data_size": (1 << 64) - 1}, "the file has"),
        ({"num_tpb": 1 << 20}, "cores 1048576; expected at most"),
        ({"requested_tpb_count": 1 << 31}, "requested_cores"),
        ({"lnc_size": 1 << 30}, "logical_core"),
        ({"name": b"x" * 256}, "name is no text that ends"),
        ({"name": b"\xff\xfe\0"}, "name is no text"),
        ({"neff_build_version": b"v" * 128}, "neff_build_version is no text"),
    ],
)
def test_a_field_out_of_bounds_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        read_header(neff(**changed))


def test_a_header_without_a_body_is_refused() -> None:
    with pytest.raises(ArtifactError, match="it has no body"):
        read_header(neff(b""))


def test_a_feature_that_the_runtime_lacks_is_refused() -> None:
    """The case of aws-neuron-sdk issue 820: features 0x100 on a mask of 0x80000000000000ff."""
    header = read_header(neff(feature_bits=0x100))
    with pytest.raises(ArtifactError, match="features 0x100 need 0x100, which this runtime lacks"):
        check_loadable(header, supported_features=0x80000000000000FF, cores=1)
    check_loadable(
        read_header(neff(feature_bits=0x80000000000000FF)),
        supported_features=0x80000000000000FF,
        cores=1,
    )


@given(st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1))
def test_exactly_the_missing_bits_decide(features: int, mask: int) -> None:
    header = read_header(neff(feature_bits=features))
    if features & ~mask:
        with pytest.raises(ArtifactError, match="lacks"):
            check_loadable(header, supported_features=mask, cores=1)
    else:
        check_loadable(header, supported_features=mask, cores=1)


def test_more_cores_than_the_node_gives_are_refused() -> None:
    header = read_header(neff(requested_tpb_count=8))
    with pytest.raises(ArtifactError, match="needs 8 NeuronCores and the node gives 2"):
        check_loadable(header, supported_features=0xFF, cores=2)
    check_loadable(header, supported_features=0xFF, cores=8)
