"""Measuring an image: against QEMU's own figures, and against Luma's image builder."""

from __future__ import annotations

import io
import struct

import aws_cdk as cdk
import pytest
from aws_cdk import aws_s3 as s3
from hypothesis import given
from hypothesis import strategies as st

from enclave_image.eif.layout import Architecture
from enclave_image.eif.writer import EifParts, write_eif
from luma_constructs import EnclaveImage
from luma_constructs import enclave_image_file as module
from luma_constructs.enclave_image_file import EnclaveImageError, measure
from tests.unit.constructs.compute.stacks import small_image

QEMU = {  # what QEMU's Nitro Enclave machine put into an attestation document for the same sections
    "PCR0": "7d2bfb6d7c3d301485045ddbed03e21a0304d6f540a23a4522c8ca9133813c0b"
    "3b2956ef72606e06559ce0608a156fdc",
    "PCR1": "127d41e69be20fad8308b1d1ab8bf017a2f3b925c1f17ea8edb72c2b83406cbe"
    "1309775eebd94ad635ffa19ed7e9fbcd",
    "PCR2": "695029c2c04573eb1daf702d94e399b1c92ea53256b3f6683606ddbbb368c9c3"
    "b6f0a5059b95c334d8f9dca2d1bcf6b4",
}


def test_an_image_measures_as_the_hypervisor_measures_it():
    assert measure(small_image()) == QEMU


def test_luma_s_own_builder_measures_the_same(tmp_path):
    @given(
        kernel=st.binary(min_size=1, max_size=5000),
        disks=st.lists(st.binary(min_size=1), min_size=1, max_size=4),
    )
    def compare(kernel, disks):
        files = []
        for number, content in enumerate((kernel, *disks)):
            path = tmp_path / f"part{number}"
            path.write_bytes(content)
            files.append(path)
        parts = eif_parts(files[0], files[1:])
        path = tmp_path / "image.eif"
        stream = io.BytesIO()
        expected = write_eif(stream, parts).to_json()
        path.write_bytes(stream.getvalue())
        assert measure(path) == {name: expected[name] for name in ("PCR0", "PCR1", "PCR2")}

    compare()


def eif_parts(kernel, ramdisks):
    return EifParts(
        kernel=kernel, cmdline="console=ttyS0", ramdisks=tuple(ramdisks), metadata={},
        architecture=Architecture.X86_64,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"", "no EIF of version 4"),
        (lambda data: data[:300], "no EIF of version 4"),
        (lambda data: b"\x7fELF" + data[4:], "no EIF of version 4"),
        (lambda data: data[:4] + struct.pack(">H", 3) + data[6:], "no EIF of version 4"),
        (lambda data: data[:-2], "ends early; build it anew"),
        (lambda data: data[:-10], "no EIF of version 4"),
    ],
)
def test_what_is_no_image_is_refused(damage, message, tmp_path):
    path = tmp_path / "image.eif"
    path.write_bytes(damage(small_image().read_bytes()))
    with pytest.raises(EnclaveImageError, match=message):
        EnclaveImage.from_file(path)


def test_a_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(
        EnclaveImageError, match=r"No such file.*build the image with `luma enclave"
    ):
        EnclaveImage.from_file(tmp_path / "none.eif")


@pytest.fixture
def bucket():
    return s3.Bucket.from_bucket_name(cdk.Stack(cdk.App(), "Luma"), "Images", "team-images")


def test_without_measurements_an_image_in_a_bucket_is_refused(bucket, monkeypatch, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/measurements.json").write_text('{"schema":"luma/measurements/1","images":{}}')
    monkeypatch.setattr(module, "files", lambda _: tmp_path)
    with pytest.raises(
        EnclaveImageError, match=r"'compiler-cpu' \(it lists none\).*pass registers="
    ):
        EnclaveImage.from_bucket(bucket, "a.eif")


def test_the_measurements_that_come_with_luma_are_used(bucket, monkeypatch, tmp_path):
    (tmp_path / "data").mkdir()
    image = dict(QEMU.items())
    text = '{"schema":"luma/measurements/1","images":{"compiler-cpu":' + str(image).replace(
        "'", '"'
    )
    (tmp_path / "data/measurements.json").write_text(text + "}}")
    monkeypatch.setattr(module, "files", lambda _: tmp_path)
    assert EnclaveImage.from_bucket(bucket, "a.eif").registers == QEMU
    with pytest.raises(EnclaveImageError, match=r"'other' \(it lists compiler-cpu\)"):
        EnclaveImage.from_bucket(bucket, "a.eif", name="other")
