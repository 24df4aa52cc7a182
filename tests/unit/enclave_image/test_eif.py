"""The image format against golden values that QEMU's own measurement has equalled."""

import base64
import hashlib
import io
import struct
import tracemalloc

import cbor2
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512
from hypothesis import given
from hypothesis import strategies as st

from enclave_image.eif import (
    Architecture,
    EifParts,
    SectionKind,
    image_metadata,
    instance_pcr,
    layout,
    load_image_signer,
    read_eif,
    role_pcr,
    write_eif,
)
from enclave_image.eif.layout import default_memory_bytes
from enclave_image.eif.measure import application_pcr
from runtime.spec.errors import ArtifactError
from tests.support.eif import SMALL, image_bytes, patched, signer, with_crc

GOLDEN = {
    "PCR0": "7d2bfb6d7c3d301485045ddbed03e21a0304d6f540a23a4522c8ca9133813c0b"
    "3b2956ef72606e06559ce0608a156fdc",
    "PCR1": "127d41e69be20fad8308b1d1ab8bf017a2f3b925c1f17ea8edb72c2b83406cbe"
    "1309775eebd94ad635ffa19ed7e9fbcd",
    "PCR2": "695029c2c04573eb1daf702d94e399b1c92ea53256b3f6683606ddbbb368c9c3"
    "b6f0a5059b95c334d8f9dca2d1bcf6b4",
}
PCR3 = (
    "31c5183b37461ff447e2fae8ca6a2a80aa1f82f16e5751aa30ef0acba669f67c"
    "0b3b86d90d73379dc8d2d179c1296305"
)
PCR4 = (
    "dbbcd440eca27eaa7321a32ecc0f4633a83c323498902824675b7208756c60f8"
    "87d6382adb6ba91a6daa3503400480ab"
)


def read(data, folder):
    path = folder / "image.eif"
    path.write_bytes(data)
    return read_eif(path)


def test_the_golden_image_has_the_golden_bytes():
    data = image_bytes()
    assert len(data) == 635
    assert data[0x220:0x224].hex() == "817c0f74"
    digest = "a3162ca90be8b322707c429c1ea8ac0761e01ab3d41d0603292ceae5c26a1225"
    assert hashlib.sha256(data).hexdigest() == digest


def test_the_golden_image_has_the_golden_measurements(tmp_path):
    pcrs = write_eif(io.BytesIO(), SMALL)
    assert pcrs.to_json() == {**GOLDEN, "PCR8": "0" * 96}
    assert read(image_bytes(), tmp_path).pcrs == pcrs
    assert role_pcr("arn:aws:iam::123456789012:role/r").hex() == PCR3
    assert instance_pcr("i-0test").hex() == PCR4


def test_a_reader_gives_back_what_was_written(tmp_path):
    parts = EifParts(
        kernel=b"k" * 1000,
        cmdline="a=b",
        ramdisks=(b"0" * 10, b"1" * 2_500_000, b"2"),
        metadata={"ImageName": "n"},
        architecture=Architecture.AARCH64,
    )
    data = image_bytes(parts)
    image = read(data, tmp_path)
    assert image.header.architecture is Architecture.AARCH64
    assert image.size_bytes == len(data)
    assert image.cmdline == "a=b"
    assert image.metadata == {"ImageName": "n"}
    assert image.signature is None
    kinds = [section.kind.name for section in image.sections]
    assert kinds == ["KERNEL", "CMDLINE", "METADATA", "RAMDISK", "RAMDISK", "RAMDISK"]
    for section, content in zip(
        image.sections, (b"k" * 1000, b"a=b", None, *parts.ramdisks), strict=True
    ):
        start = section.offset + 12
        if content is not None:
            assert data[start : start + section.size] == content


def test_parts_may_be_files(tmp_path):
    for name, content in (("k", b"kernel"), ("0", b"rd0"), ("1", b"rd1")):
        (tmp_path / name).write_bytes(content)
    parts = EifParts(
        kernel=tmp_path / "k",
        cmdline="console=ttyS0",
        ramdisks=(tmp_path / "0", tmp_path / "1"),
        metadata={},
    )
    assert image_bytes(parts) == image_bytes()
    assert application_pcr([tmp_path / "1"]).hex() == GOLDEN["PCR2"]


@given(
    kernel=st.binary(min_size=1, max_size=50),
    cmdline=st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=50),
    ramdisks=st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=5),
)
def test_measurements_are_those_of_the_definition(kernel, cmdline, ramdisks):
    parts = EifParts(kernel=kernel, cmdline=cmdline, ramdisks=ramdisks, metadata={"a": 1})

    def extended(data):
        return hashlib.sha384(bytes(48) + hashlib.sha384(data).digest()).digest()

    start = kernel + cmdline.encode()
    pcrs = write_eif(io.BytesIO(), parts)
    assert pcrs.pcr0 == extended(start + b"".join(ramdisks))
    assert pcrs.pcr1 == extended(start + ramdisks[0])
    assert pcrs.pcr2 == extended(b"".join(ramdisks[1:]))


def test_neither_metadata_nor_signature_changes_what_is_measured():
    plain = write_eif(io.BytesIO(), SMALL)
    other = EifParts(
        kernel=SMALL.kernel,
        cmdline=SMALL.cmdline,
        ramdisks=SMALL.ramdisks,
        metadata=image_metadata(
            name="n", version="1", tool_version="2", kernel_version="3", custom={"x": "y"}
        ),
    )
    signed = write_eif(io.BytesIO(), other, signer=signer())
    assert (plain.pcr0, plain.pcr1, plain.pcr2) == (signed.pcr0, signed.pcr1, signed.pcr2)
    assert plain.pcr8 != signed.pcr8


def test_custom_metadata_has_a_limit():
    with pytest.raises(ArtifactError, match=r"CustomMetadata has .* at most 4096"):
        image_metadata(
            name="n", version="1", tool_version="2", kernel_version="3", custom={"x": "y" * 4096}
        )


# --- signature ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("curve", "algorithm", "digest", "half"),
    [
        (ec.SECP256R1(), -7, SHA256(), 32),
        (ec.SECP384R1(), -35, SHA384(), 48),
        (ec.SECP521R1(), -36, SHA512(), 66),
    ],
    ids=["P-256", "P-384", "P-521"],
)
def test_the_signature_section_is_what_aws_tools_write(tmp_path, curve, algorithm, digest, half):
    own = signer(curve)
    image = read(image_bytes(signer=own), tmp_path)
    der = own.certificate.public_bytes(serialization.Encoding.DER)
    assert image.pcrs.pcr8 == hashlib.sha384(bytes(48) + hashlib.sha384(der).digest()).digest()
    assert image.signature is not None
    assert image.signature.certificate == own.certificate
    section = image.sections[-1]
    assert section.kind is SectionKind.SIGNATURE
    # The rest reads the section by another CBOR library, field by field.
    data = (tmp_path / "image.eif").read_bytes()[section.offset + 12 :]
    [entry] = cbor2.loads(data)
    assert list(entry) == ["signing_certificate", "signature"], "QEMU looks at the first alone"
    assert bytes(entry["signing_certificate"]) == own.certificate.public_bytes(
        serialization.Encoding.PEM
    )
    protected, unprotected, payload, raw = cbor2.loads(bytes(entry["signature"]))
    assert cbor2.loads(protected) == {1: algorithm}
    assert unprotected == {}
    assert cbor2.loads(payload) == {
        "register_index": 0,
        "register_value": list(image.pcrs.pcr0),
    }
    signed = cbor2.dumps(["Signature1", protected, b"", payload])
    r, s = int.from_bytes(raw[:half], "big"), int.from_bytes(raw[half:], "big")
    own.key.public_key().verify(encode_dss_signature(r, s), signed, ec.ECDSA(digest))


def test_signing_twice_gives_the_same_bytes():
    own = signer()
    assert image_bytes(signer=own) == image_bytes(signer=own)


def test_a_signature_over_another_image_is_refused(tmp_path):
    signed = bytearray(image_bytes(signer=signer()))
    signed[signed.index(b"kernel")] ^= 1
    swapped = with_crc(bytes(signed))
    with pytest.raises(ArtifactError, match=r"register_value: .* the image's PCR0 is"):
        read(swapped, tmp_path)


def test_a_signature_by_another_key_is_refused(tmp_path):
    own, other = signer(), signer()
    forged = type(own)(other.key, own.certificate)
    with pytest.raises(ArtifactError, match="not by the key of its own certificate"):
        read(image_bytes(signer=forged), tmp_path)


def _altered(own, old, new):
    """Give a signer whose certificate has other bytes; its own signature is nobody's to check."""
    der = own.certificate.public_bytes(serialization.Encoding.DER)
    assert der.count(old) == 1
    assert len(old) == len(new)
    return type(own)(own.key, _Der(der.replace(old, new)))


class _Der:
    """Stands for a certificate that `cryptography` refuses to load."""

    def __init__(self, der):
        self.der = der

    def public_bytes(self, encoding):
        if encoding is serialization.Encoding.DER:
            return self.der
        body = base64.encodebytes(self.der)
        return b"-----BEGIN CERTIFICATE-----\n" + body + b"-----END CERTIFICATE-----\n"


VERSION_3 = bytes.fromhex("a003020102")
UNREADABLE_CERTIFICATES = {
    "version 2": (VERSION_3, bytes.fromhex("a003020101"), "InvalidVersion"),
    "version 4": (VERSION_3, bytes.fromhex("a003020103"), "InvalidVersion"),
    "version 1 stated": (VERSION_3, bytes.fromhex("a003020100"), "ValueError"),
    "subject not in UTF-8": (b"by whom?", b"by \xff\xfe?!?", "ValueError"),
}


@pytest.mark.parametrize("name", UNREADABLE_CERTIFICATES)
def test_a_certificate_that_cannot_be_read_is_refused_with_the_image(tmp_path, name):
    old, new, cause = UNREADABLE_CERTIFICATES[name]
    own = _altered(signer(name="by whom?", issuer="luma test"), old, new)
    message = rf"EIF signature signing_certificate: .* \({cause}\); expected X\.509 v3"
    with pytest.raises(ArtifactError, match=message):
        read(image_bytes(signer=own), tmp_path)
    key, certificate = _write_pem(tmp_path, own)
    with pytest.raises(ArtifactError, match=rf"signing certificate .* \({cause}\)"):
        load_image_signer(key, certificate)


def test_the_signers_name_is_told(tmp_path):
    assert read(image_bytes(), tmp_path).to_json()["signed_by"] is None
    signed = read(image_bytes(signer=signer(name="by whom?")), tmp_path)
    assert signed.to_json()["signed_by"] == "CN=by whom?"


def _with_section(section):
    """Give an image whose signature section holds other bytes."""
    data = image_bytes(signer=signer())
    at = len(image_bytes()) + 12
    data = data[:at] + section
    data = data[: at - 12] + struct.pack(">HHQ", 4, 0, len(section)) + data[at:]
    return patched(data, 0x11C + 8 * 5, ">Q", len(section))


@pytest.mark.parametrize(
    "section",
    [
        b"\x80",
        cbor2.dumps([{"signing_certificate": [1], "signature": [2], "more": 1}]),
        cbor2.dumps([{"signing_certificate": b"1", "signature": b"2"}]),
        cbor2.dumps([{"signing_certificate": [256], "signature": [2]}]),
        cbor2.dumps([{"signing_certificate": [1], "signature": [2]}]) + b"\0",
        cbor2.dumps([[[[[[[]]]]]]]),
        b"\x9f\xff",
        b"\xc5\x82\x1a\x7f\xff\xff\xff\x01",  # a big fraction that a general decoder would compute
        b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x81\x18\x01",
        b"\x81\xa2\x61a\x01\x61a\x01",
        b"\x81\xa1\x01\x01",
        b"\x61\xff",
    ],
    ids=lambda data: data[:8].hex(),
)
def test_a_signature_section_of_another_form_is_refused(tmp_path, section):
    with pytest.raises(ArtifactError, match="EIF signature"):
        read(_with_section(section), tmp_path)


def _write_pem(folder, own):
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    key.write_bytes(
        own.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    certificate.write_bytes(own.certificate.public_bytes(serialization.Encoding.PEM))
    return key, certificate


def test_a_signer_is_read_from_files(tmp_path):
    own = signer()
    loaded = load_image_signer(*_write_pem(tmp_path, own))
    assert image_bytes(signer=loaded) == image_bytes(signer=own)


def test_a_key_and_a_certificate_that_do_not_belong_together_are_refused(tmp_path):
    one, two = tmp_path / "1", tmp_path / "2"
    one.mkdir()
    two.mkdir()
    key, _ = _write_pem(one, signer())
    _, certificate = _write_pem(two, signer())
    with pytest.raises(ArtifactError, match="not of the key") as caught:
        load_image_signer(key, certificate)
    assert "E36" in caught.value.remedy


def test_files_that_are_no_key_or_certificate_are_refused(tmp_path):
    key, certificate = _write_pem(tmp_path, signer())
    with pytest.raises(ArtifactError, match=r"signing key .* cannot be read"):
        load_image_signer(tmp_path / "none", certificate)
    with pytest.raises(ArtifactError, match="not a private key in PEM"):
        load_image_signer(certificate, certificate)
    with pytest.raises(ArtifactError, match="not a PEM certificate"):
        load_image_signer(key, key)
    rsa_key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    key.write_bytes(rsa_key)
    with pytest.raises(ArtifactError, match="not an elliptic-curve key on one of"):
        load_image_signer(key, certificate)


# --- what is refused ------------------------------------------------------------------------------

OFFSETS, SIZES = 0x1C, 0x11C

BROKEN = {
    "magic": (0, ">4s", b".elf", "EIF magic"),
    "version 3": (4, ">H", 3, "EIF version: 3; expected 4"),
    "version 5": (4, ">H", 5, "EIF version: 5"),
    "flags": (6, ">H", 2, "EIF flags"),
    "reserved": (0x18, ">H", 1, "reserved"),
    "reserved behind the sizes": (0x21C, ">I", 1, "reserved"),
    "no sections": (0x1A, ">H", 0, "num_sections: 0"),
    "too many sections": (0x1A, ">H", 33, "num_sections: 33; expected 1 to 32"),
    "fewer sections than there are": (0x1A, ">H", 4, "not zero beyond the 4"),
    "more sections than there are": (0x1A, ">H", 6, r"section_offsets\[5\]: 0 overlaps"),
    "unused offset": (OFFSETS + 8 * 31, ">Q", 1, "not zero beyond"),
    "overlap": (OFFSETS + 8, ">Q", 560, r"section_offsets\[1\]: 560 overlaps"),
    "gap": (OFFSETS + 8, ">Q", 567, r"section_offsets\[1\]: 567 leaves a gap"),
    "offset beyond the file": (OFFSETS, ">Q", 1 << 63, r"section_offsets\[0\]"),
    "size beyond the file": (SIZES + 8 * 4, ">Q", 1 << 63, r"section_sizes\[4\].*beyond"),
    "size of the head": (548 + 4, ">Q", 7, r"section 0 section_size: 7.*\[0\] is 6"),
    "empty section": (SIZES, ">Q", 0, r"section_sizes\[0\]: 0"),
    "section type 0": (548, ">H", 0, "section 0 section_type: 0"),
    "section type 6": (548, ">H", 6, "section 0 section_type: 6"),
    "section flags": (550, ">H", 1, "section 0 flags"),
    "two command lines": (548, ">H", 2, "kernel sections: 0"),
    "no command line": (566, ">H", 3, "cmdline sections: 0"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_field_is_named(tmp_path, name):
    at, form, value, message = BROKEN[name]
    with pytest.raises(ArtifactError, match=message):
        read(patched(image_bytes(), at, form, value), tmp_path)


def test_a_wrong_checksum_is_refused(tmp_path):
    data = bytearray(image_bytes())
    data[-1] ^= 1
    with pytest.raises(ArtifactError, match="EIF crc32: the header says 817c0f74"):
        read(bytes(data), tmp_path)


@pytest.mark.parametrize("size", [0, 3, 547, 548, 555, 560, 600, 634])
def test_a_cut_file_is_refused(tmp_path, size):
    with pytest.raises(ArtifactError, match=r"cut|beyond the file's end"):
        read(image_bytes()[:size], tmp_path)


def test_bytes_behind_the_last_section_are_refused(tmp_path):
    with pytest.raises(ArtifactError, match="2 bytes follow the last of 5"):
        read(with_crc(image_bytes() + b"xx"), tmp_path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [(b"[]", "not a JSON object"), (b"{", "not JSON"), (b"\xff\xff", "not JSON in UTF-8")],
)
def test_metadata_that_is_no_json_object_is_refused(tmp_path, metadata, message):
    data = image_bytes()
    at = data.index(b"{}")
    fitted = data[:at] + metadata.ljust(2) + data[at + 2 :]
    with pytest.raises(ArtifactError, match=message):
        read(with_crc(fitted), tmp_path)


@pytest.mark.parametrize("depth", [20, 20_000])
def test_deeply_nested_metadata_is_refused(tmp_path, depth):
    text = '{"a":' * depth + "1" + "}" * depth
    data = image_bytes()
    head = data.index(b"{}") - 12
    inner = struct.pack(">HHQ", 5, 0, len(text)) + text.encode()
    grown = data[:head] + inner + data[head + 14 :]
    grown = patched(grown, SIZES + 16, ">Q", len(text))
    for number in (3, 4):
        (offset,) = struct.unpack_from(">Q", data, OFFSETS + 8 * number)
        grown = patched(grown, OFFSETS + 8 * number, ">Q", offset + len(text) - 2)
    with pytest.raises(ArtifactError, match=r"EIF metadata|section_sizes"):
        read(grown, tmp_path)


def test_held_sections_have_limits(tmp_path):
    parts = EifParts(kernel=b"k", cmdline="c" * 4096, ramdisks=(b"r",), metadata={})
    read(image_bytes(parts), tmp_path)
    with pytest.raises(ArtifactError, match="EIF cmdline: 4097 bytes"):
        image_bytes(EifParts(kernel=b"k", cmdline="c" * 4097, ramdisks=(b"r",), metadata={}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cmdline": "a\0b"}, "without a NUL"),
        ({"cmdline": ""}, "0 bytes"),
        ({"ramdisks": ()}, "ramdisks: 0"),
        ({"ramdisks": (b"x",) * 29}, "ramdisks: 29; expected 1 to 28"),
        ({"kernel": b""}, "kernel: empty"),
        ({"metadata": {"a": "b" * 70_000}}, "metadata: .* bytes"),
    ],
)
def test_parts_that_make_no_image_are_refused(change, message):
    fields = {"kernel": b"k", "cmdline": "c", "ramdisks": (b"r",), "metadata": {}, **change}
    with pytest.raises(ArtifactError, match=message):
        image_bytes(EifParts(**fields))


def test_a_missing_part_is_named(tmp_path):
    parts = EifParts(kernel=tmp_path / "none", cmdline="c", ramdisks=(b"r",), metadata={})
    with pytest.raises(ArtifactError, match="none: cannot be read"):
        image_bytes(parts)


@given(position=st.integers(0, 634), mask=st.integers(1, 255))
def test_no_changed_byte_is_accepted(tmp_path_factory, position, mask):
    data = bytearray(image_bytes())
    data[position] ^= mask
    path = tmp_path_factory.mktemp("eif") / "image.eif"
    path.write_bytes(data)
    with pytest.raises(ArtifactError):
        read_eif(path)


@given(
    changes=st.lists(st.tuples(st.integers(0, 634), st.binary(min_size=1, max_size=8)), max_size=4)
)
def test_whatever_is_changed_is_read_or_refused_with_a_fitting_checksum(tmp_path_factory, changes):
    data = bytearray(image_bytes())
    for at, new in changes:
        data[at : at + len(new)] = new
    path = tmp_path_factory.mktemp("eif") / "image.eif"
    path.write_bytes(with_crc(bytes(data[:635])))
    refused = None
    try:
        image = read_eif(path)
    except ArtifactError as error:
        refused = error.message
    if refused is None:
        assert image.size_bytes == 635
        assert sum(section.size + 12 for section in image.sections) == 635 - 548
    else:
        assert "EIF" in refused


@given(data=st.binary(max_size=700))
def test_other_bytes_are_refused_and_nothing_else_happens(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("eif") / "image.eif"
    for content in (data, image_bytes()[:548] + data, image_bytes()[:28] + data):
        path.write_bytes(with_crc(content) if len(content) > 548 else content)
        with pytest.raises(ArtifactError):
            read_eif(path)


@given(image=st.integers(1, 1 << 40))
def test_the_memory_asked_for_is_four_times_the_image_and_little_more(image):
    asked = default_memory_bytes(image)
    assert asked % 2**20 == 0
    assert max(2**30, 4 * image) <= asked < max(2**30, 4 * image) + 2**20


@pytest.mark.parametrize(
    ("image", "mib"), [(635, 1024), (2**28, 1024), (2**28 + 1, 1025), (482 << 20, 1928)]
)
def test_the_memory_asked_for_is_in_whole_mib(image, mib):
    assert default_memory_bytes(image) == mib << 20


def test_a_large_image_asks_for_more_memory_in_its_header(tmp_path, monkeypatch):
    assert read(image_bytes(), tmp_path).header.default_memory_bytes == 1 << 30
    # Large beside the least: an image of 256 MiB would take a while to hash.
    monkeypatch.setattr(layout, "_LEAST_MEMORY_BYTES", 1 << 20)
    parts = EifParts(kernel=b"k", cmdline="c", ramdisks=(b"r", bytes(3 << 20)), metadata={})
    image = read(image_bytes(parts), tmp_path)
    assert image.header.default_memory_bytes == 13 << 20  # of 3 MiB and a few bytes


def test_memory_does_not_grow_with_the_image(tmp_path):
    size = 48 << 20
    ramdisk = tmp_path / "ramdisk"
    with ramdisk.open("wb") as file:
        file.truncate(size)  # a hole: takes no disk
    path = tmp_path / "image.eif"
    parts = EifParts(kernel=b"k", cmdline="c", ramdisks=(b"r", ramdisk), metadata={})
    tracemalloc.start()
    try:
        with path.open("w+b") as file:
            written = write_eif(file, parts)
        image = read_eif(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert image.pcrs == written
    assert image.size_bytes > size
    assert peak < 8 << 20
