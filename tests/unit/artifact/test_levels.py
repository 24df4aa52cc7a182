"""Which level a set of evidence reaches, and what a measurements file may say."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.artifact import LEVELS, AcceptedMeasurements
from runtime.artifact.levels import EVIDENCE, needs, reached_level, reaches
from runtime.spec import ArtifactError

ORDER = ["none", *LEVELS]
# Written out again from DESIGN.md, section 3.
RESTS_ON = {
    "L0": {"signature", "signer"},
    "L1": {"signature", "signer", "seal"},
    "L2": {"signature", "signer", "seal", "attestation", "image"},
    "L3": {"signature", "signer", "seal", "attestation", "image", "key-policy"},
}
holding = st.sets(st.sampled_from(EVIDENCE))
levels = st.sampled_from(LEVELS)


def test_needs_are_those_of_the_design():
    assert {level: set(needs(level)) for level in LEVELS} == RESTS_ON


@given(holding, levels)
def test_level_reached_is_the_highest_that_the_claim_allows_and_whose_evidence_holds(held, claimed):
    # Who may open is the key policy's to say, and not the image's: L2 allows L3.
    most = {"L0": "L0", "L1": "L1", "L2": "L3", "L3": "L3"}[claimed]
    below = [level for level in LEVELS if RESTS_ON[level] <= held and level <= most]
    assert reached_level(held, claimed) == (below[-1] if below else "none")


@given(holding, st.sampled_from(EVIDENCE), levels)
def test_taking_evidence_away_never_raises_a_level(held, gone, claimed):
    before, after = reached_level(held, claimed), reached_level(held - {gone}, claimed)
    assert ORDER.index(after) <= ORDER.index(before)
    for level in LEVELS:
        if gone in RESTS_ON[level]:
            assert not reaches(after, level)


@given(st.sampled_from(ORDER), levels)
def test_reaches_compares_by_rank(reached, asked):
    assert reaches(reached, asked) == (ORDER.index(reached) >= ORDER.index(asked))


def registers(start: str, *indices: int) -> dict[str, str]:
    return {f"PCR{i}": start + f"{i:02x}" * 47 for i in indices}


def measured(registers: dict[str, str]) -> dict[int, bytes]:
    return {int(name[3:]): bytes.fromhex(value) for name, value in registers.items()}


def document(**changes) -> dict:
    whole = {
        "schema": "luma/measurements/1",
        "images": {
            "cpu": registers("a0", 0, 1, 2, 8),
            "cuda": registers("b0", 0, 1, 2),
        },
        "amis": {"node": registers("c0", 4) | {"PCR12": "0" * 96}},
        "references": ["for people"],
    }
    return whole | changes


def test_an_image_is_known_by_all_of_its_registers():
    accepted = AcceptedMeasurements.from_json(document())
    cpu, cuda = registers("a0", 0, 1, 2, 8), registers("b0", 0, 1, 2)
    assert accepted.image_of(measured(cpu)) == "cpu"
    assert accepted.image_of(measured(cuda) | {3: bytes(48), 4: b"\1" * 48}) == "cuda"
    for register in cpu:
        changed = cpu | {register: "ff" * 48}
        assert accepted.image_of(measured(changed)) is None
        absent = {name: value for name, value in cpu.items() if name != register}
        assert accepted.image_of(measured(absent)) is None
    # Registers of two images together are neither.
    assert accepted.image_of(measured(cpu | {"PCR0": cuda["PCR0"]})) is None
    assert accepted.image_of({}) is None


def test_digits_are_read_in_any_case_and_with_their_prefix():
    cpu = registers("ab", 0, 1, 2)
    written = {name: "sha384:" + value.upper() for name, value in cpu.items()}
    accepted = AcceptedMeasurements.from_json(document(images={"cpu": written}))
    assert accepted.image_of(measured(cpu)) == "cpu"


@pytest.mark.parametrize("register", ["PCR0", "PCR1", "PCR2", "PCR8"])
def test_zeros_are_no_measurement(register):
    images = {"cpu": registers("a0", 0, 1, 2, 8) | {register: "0" * 96}}
    with pytest.raises(ArtifactError, match=rf"images\.cpu: policy\.{register}: '48 zero bytes'"):
        AcceptedMeasurements.from_json(document(images=images))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"schema": "luma/measurements/2"}, r"measurements\.schema: 'luma/measurements/2'"),
        ({"images": None}, r"measurements\.images: None"),
        ({"images": []}, r"measurements\.images"),
        ({"images": {"": {}}}, r"measurements\.images: ''"),
        ({"images": {"a\nb": {}}}, r"measurements\.images"),
        ({"images": {"cpu": []}}, r"measurements\.images\.cpu"),
        ({"images": {"cpu": {}}}, r"images\.cpu: .* PCR0, PCR1, PCR2"),
        ({"images": {"cpu": registers("a0", 0, 1)}}, r"images\.cpu: .* PCR0, PCR1, PCR2"),
        ({"images": {"cpu": {"PCR32": "a" * 96}}}, "'PCR32' is not allowed"),
        ({"images": {"cpu": {"PCR01": "a" * 96}}}, "'PCR01' is not allowed"),
        ({"images": {"cpu": {"pcr0": "a" * 96}}}, "'pcr0' is not allowed"),
        ({"images": {"cpu": registers("a0", 0, 1) | {"PCR2": 7}}}, r"images\.cpu\.PCR2: 7"),
        ({"images": {"cpu": registers("a0", 0, 1) | {"PCR2": "a" * 95}}}, r"images\.cpu: .*PCR2"),
        ({"amis": {"node": registers("c0", 4)}}, r"amis\.node: policy"),
        ({"amis": {"node": registers("c0", 0)}}, r"amis\.node: policy"),
        ({"amis": {"node": {"PCR7": "0" * 96}}}, r"amis\.node: policy\.PCR7: '48 zero bytes'"),
        ({"amis": {"node": {"PCR4": "0" * 96, "PCR12": "0" * 96}}}, r"amis\.node: policy\.PCR4"),
        ({"amis": None}, r"measurements\.amis: None"),
    ],
)
def test_other_measurements_are_refused_by_name(changes, match):
    with pytest.raises(ArtifactError, match=match):
        AcceptedMeasurements.from_json(document(**changes))


@pytest.mark.parametrize("value", [None, [], "text", 7])
def test_measurements_are_an_object(value):
    with pytest.raises(ArtifactError, match=r"measurements\.schema"):
        AcceptedMeasurements.from_json(value)


def test_the_repositorys_own_file_is_read():
    from enclave_image.measurements import MEASUREMENTS

    accepted = AcceptedMeasurements.from_file(MEASUREMENTS)
    assert accepted.images.keys() == json.loads(MEASUREMENTS.read_text())["images"].keys()


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"schema": "luma/measurements/1", "schema": "x"}', "'schema' stands twice"),
        (b" " * ((1 << 20) + 1), "larger than 1048576 bytes"),
    ],
)
def test_files_that_are_no_measurements(tmp_path, content, match):
    path = tmp_path / "measurements.json"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=match) as caught:
        AcceptedMeasurements.from_file(path)
    assert str(path) in caught.value.message


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ArtifactError, match="cannot be read"):
        AcceptedMeasurements.from_file(tmp_path / "none.json")
