"""Pinned inputs: a file fits its pin by every digest, or is refused."""

import hashlib
import json

import pytest

from enclave_image import inputs
from enclave_image.eif import Architecture
from enclave_image.inputs import checked_input, load_pins
from runtime.spec.errors import ArtifactError

CONTENT = b"a kernel\n"
# `printf 'a kernel\n' | git hash-object --stdin`
GIT_BLOB = "6556294f76d44a87eee29f48a3cfed420a37bbd4"


def pins_file(folder, **digests):
    entry = {
        "kind": "kernel",
        "name": "test",
        "version": "1.2",
        "architecture": "x86_64",
        "source": "a test",
        **digests,
    }
    path = folder / "pins.json"
    path.write_text(json.dumps({"inputs": [entry]}))
    return path


def test_the_repositorys_pins_are_whole_and_say_where_from():
    pins = load_pins()
    assert {(pin.kind, pin.architecture) for pin in pins} == {
        (kind, architecture) for kind in ("kernel", "nsm") for architecture in Architecture
    }
    for pin in pins:
        assert "aws-nitro-enclaves-cli, commit" in pin.source
        assert pin.digests


@pytest.mark.parametrize("form", ["sha256", "git_blob"])
def test_a_file_fits_its_pin(tmp_path, form):
    value = hashlib.sha256(CONTENT).hexdigest() if form == "sha256" else GIT_BLOB
    (tmp_path / "kernel").write_bytes(CONTENT)
    pins = load_pins(pins_file(tmp_path, **{form: value}))
    found = checked_input(tmp_path / "kernel", "kernel", pins)
    assert (found.pin.name, found.pin.version) == ("test", "1.2")
    assert found.content == CONTENT
    assert found.pin.needs_nsm is False


def test_a_file_of_no_kernels_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "MAX_INPUT_BYTES", 1 << 20)
    pins = load_pins(pins_file(tmp_path, git_blob=GIT_BLOB))
    with (tmp_path / "kernel").open("wb") as file:
        file.truncate((1 << 20) + 1)
    with pytest.raises(ArtifactError, match=r"--kernel: .* more than 1 MiB") as caught:
        checked_input(tmp_path / "kernel", "kernel", pins)
    assert "not a disk" in caught.value.remedy


def test_kernels_before_6_8_need_the_driver_that_is_pinned_beside_them():
    pins = load_pins()
    drivers = {(pin.version, pin.architecture) for pin in pins if pin.kind == "nsm"}
    kernels = [pin for pin in pins if pin.kind == "kernel"]
    assert kernels
    for pin in kernels:
        major, minor = map(int, pin.version.split(".")[:2])
        assert pin.needs_nsm is ((major, minor) < (6, 8))
        if pin.needs_nsm:
            assert (pin.version, pin.architecture) in drivers
    assert not any(pin.needs_nsm for pin in pins if pin.kind != "kernel")


@pytest.mark.parametrize("value", ["true", 1, None])
def test_a_need_that_is_no_truth_value_is_refused(tmp_path, value):
    with pytest.raises(ArtifactError, match="needs_nsm of 'test': not true or false"):
        load_pins(pins_file(tmp_path, git_blob=GIT_BLOB, needs_nsm=value))


def test_all_digests_of_a_pin_must_fit(tmp_path):
    (tmp_path / "kernel").write_bytes(CONTENT)
    pins = load_pins(pins_file(tmp_path, sha256="0" * 64, git_blob=GIT_BLOB))
    with pytest.raises(ArtifactError, match="which no pin states; pinned: test") as caught:
        checked_input(tmp_path / "kernel", "kernel", pins)
    assert hashlib.sha256(CONTENT).hexdigest() in caught.value.message
    assert "--pins" in caught.value.remedy


def test_a_pin_is_of_one_kind(tmp_path):
    (tmp_path / "kernel").write_bytes(CONTENT)
    pins = load_pins(pins_file(tmp_path, git_blob=GIT_BLOB))
    with pytest.raises(ArtifactError, match=r"--nsm: .* pinned: none"):
        checked_input(tmp_path / "kernel", "nsm", pins)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ArtifactError, match=r"--kernel: .*none cannot be read"):
        checked_input(tmp_path / "none", "kernel", load_pins())


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"inputs": [1]}', '{"inputs": [{"kind": "kernel"}]}'],
)
def test_another_form_of_pins_is_refused(tmp_path, text):
    path = tmp_path / "pins.json"
    path.write_text(text)
    with pytest.raises(ArtifactError, match=r"pins .*pins\.json"):
        load_pins(path)


@pytest.mark.parametrize("digests", [{}, {"sha256": "00"}, {"sha256": "G" * 64}])
def test_a_pin_without_a_whole_digest_is_refused(tmp_path, digests):
    with pytest.raises(ArtifactError, match="expected the form"):
        load_pins(pins_file(tmp_path, **digests))
