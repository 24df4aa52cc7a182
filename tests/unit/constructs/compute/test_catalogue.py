"""The catalogue at synth, held against the runtime's own reader and parser of targets."""

from __future__ import annotations

import pytest
from aws_cdk import aws_ec2 as ec2
from hypothesis import given
from hypothesis import strategies as st

from luma_constructs._catalogue import (
    TargetParts,
    architecture_of,
    fitting,
    hosts,
    known_targets,
    load_rows,
    row_of,
)
from runtime.spec.catalogue import load_catalogue
from runtime.spec.target_name import TargetName

CHIPS = ["cpu", "cuda-sm89", "cuda-sm90", "tpu-v5e", "rocm-gfx942", "trn2", "inf2"]


def test_both_readers_see_the_same_rows():
    ours = load_rows()
    theirs = load_catalogue().accelerators
    assert [row.name for row in ours] == [row.name for row in theirs]
    for row, other in zip(ours, theirs, strict=True):
        assert (row.count, row.vcpus, row.host_memory_gib, row.efa_interfaces) == (
            other.count, other.vcpus, other.host_memory_gib, other.efa_interfaces,
        )  # fmt: skip
        assert (row.usd_per_hour, row.target, row.where) == (
            other.usd_per_hour_on_demand, other.compile_target, other.where,
        )  # fmt: skip


@given(
    st.sampled_from(CHIPS),
    st.one_of(st.none(), st.integers(0, 10_000)),
    st.one_of(st.none(), st.integers(0, 64)),
)
def test_a_target_s_name_is_taken_apart_as_the_runtime_does(chip, chips, tensor):
    name = chip + (f"x{chips}" if chips is not None else "")
    name += f"-tp{tensor}" if tensor is not None else ""
    try:
        expected = TargetName.parse(name)
    except ValueError:
        assert TargetParts.parse(name) is None
        return
    found = TargetParts.parse(name)
    assert found is not None
    assert (found.name, found.chip, found.chips) == (name, expected.chip, expected.chips)


@given(st.text(max_size=20))
def test_other_names_are_no_targets(name):
    try:
        TargetName.parse(name)
    except ValueError:
        assert TargetParts.parse(name) is None


@pytest.mark.parametrize("value", [None, 3, b"cpu", ["cpu"]])
def test_what_is_no_text_is_no_target(value):
    assert TargetParts.parse(value) is None


@pytest.mark.parametrize(
    ("target", "family"),
    [
        ("cpu", "cpu"), ("cuda-sm90x8", "cuda"), ("tpu-v6e", "tpu"), ("rocm-gfx950", "rocm"),
        ("trn1", "neuron"), ("trn2x16", "neuron"), ("inf2", "neuron"),
    ],
)  # fmt: skip
def test_a_target_s_family(target, family):
    assert TargetParts.parse(target).family == family


def test_a_default_host_holds_exactly_one_island():
    for target in ("cuda-sm89", "cuda-sm89x4", "cuda-sm90x8", "trn1x16"):
        parts = TargetParts.parse(target)
        rows = fitting(parts, "x86_64")
        assert rows
        assert {(row.target, row.count) for row in rows} == {(parts.chip, parts.chips)}
        assert all("." in row.name for row in rows)


def test_a_cpu_s_islands_are_not_counted():
    two = TargetParts.parse("cpux2")
    assert fitting(two, "x86_64") == fitting(TargetParts.parse("cpu"), "x86_64") != ()


def test_fractions_of_chips_and_ultraservers_are_no_hosts_of_one_island():
    assert "g6f.large" not in {
        row.name for row in fitting(TargetParts.parse("cuda-sm89"), "x86_64")
    }
    assert "trn2-ultraserver" not in {row.name for row in hosts(TargetParts.parse("trn2"))}


def test_each_target_is_known_at_one_place():
    assert not set(known_targets("ec2")) & set(known_targets("external"))
    assert "cuda-sm90" in known_targets("ec2")
    assert "rocm-gfx942" in known_targets("external")


def test_an_unknown_type_has_no_row():
    assert row_of("g99.large") is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("g4dn.xlarge", "x86_64"), ("g5g.xlarge", "arm64"), ("c7g.large", "arm64"),
        ("m7gd.large", "arm64"), ("a1.large", "arm64"), ("p6e-gb200.36xlarge", "arm64"),
        ("p6-b200.48xlarge", "x86_64"), ("trn2u.48xlarge", "x86_64"), ("c7i.large", "x86_64"),
        ("g6.xlarge", "x86_64"), ("im4gn.large", "arm64"), ("hpc7g.4xlarge", "arm64"),
    ],
)  # fmt: skip
def test_a_type_s_processor_follows_from_its_name(name, expected):
    assert architecture_of(name) == expected


def test_cdk_agrees_about_processors():
    names = [row.name for row in load_rows() if row.launchable]
    plain = [name for name in names if "-" not in name]  # CDK takes no family such as p6-b200 apart
    assert len(plain) > 80
    for name in plain:
        kind = ec2.InstanceType(name).architecture
        assert (architecture_of(name) == "arm64") is (kind == ec2.InstanceArchitecture.ARM_64), name
