import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec.units import (
    check_place,
    check_source,
    check_target,
    format_duration,
    normal_accelerator,
    parse_accelerator,
    parse_count,
    parse_duration_s,
    parse_memory_range,
    parse_price_per_hour,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [("2B", 2_000_000_000), ("1.5M", 1_500_000), ("10K", 10_000), ("3T", 3 * 10**12), ("7", 7)],
)
def test_counts_with_and_without_a_unit(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize(
    "value",
    ["", "B", "-2B", "1.5", "2b", "1e9", "0", 0, -1, True, None, 1.5, "9" * 5000, "\uff12B"],
)
def test_what_is_no_count_is_refused_with_its_value(value):
    with pytest.raises(ValueError, match=r"expected|whole number"):
        parse_count(value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5s", 5), ("500ms", 0.5), ("10m", 600), ("4h", 14400), ("1.5 s", 1.5)]
)
def test_durations(text, seconds):
    assert parse_duration_s(text) == seconds


def test_a_duration_without_a_unit_says_so():
    for value in (5, "5", 5.0):
        with pytest.raises(ValueError, match="has no unit; expected a duration such as '5s'"):
            parse_duration_s(value)


@pytest.mark.parametrize("value", ["0s", "s", "-1s", "5 parsecs", None, True, float("nan")])
def test_what_is_no_duration_is_refused(value):
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration_s(value)


@given(st.integers(min_value=1, max_value=3_600_000))
def test_a_written_duration_reads_back_exactly(milliseconds):
    seconds = parse_duration_s(f"{milliseconds}ms")
    assert parse_duration_s(format_duration(seconds)) == seconds


def test_prices_need_their_unit():
    assert parse_price_per_hour("12/h") == 12
    assert parse_price_per_hour("$0.5 / h") == 0.5
    with pytest.raises(ValueError, match="'12' has no unit; expected a price per hour"):
        parse_price_per_hour("12")


def test_accelerators_have_one_normal_form():
    assert parse_accelerator("H100:8") == ("H100", 8)
    assert normal_accelerator("cpu") == "cpu:1"


def test_memory_ranges_count_in_units_of_10_to_the_9th():
    low, high = parse_memory_range("24GB..80GB")
    assert (low * 2**30, high * 2**30) == (pytest.approx(24e9), pytest.approx(80e9))
    assert parse_memory_range("..80GB")[0] == 0
    assert parse_memory_range("24GB..")[1] == float("inf")
    assert normal_accelerator("24GB..80GB:8") == "24GB..80GB:8"
    for name in ("H100", "g6.xlarge", "24GB", ".."):
        assert parse_memory_range(name) is None
    for empty in ("80GB..24GB", "0GB..0GB", "..0GB"):
        with pytest.raises(ValueError, match="holds no size"):
            normal_accelerator(empty)


@pytest.mark.parametrize("place", ["local", "aws/us-east-1", "aws/us-*", "aws/*"])
def test_places(place):
    assert check_place(place) == place


@pytest.mark.parametrize(
    "value",
    ["", "aws", "aws/", "us-east-1", "aws/US-EAST-1", "aws/us-*-1", "gcp/*", "Local", 1, None],
)
def test_what_is_no_place_is_refused(value):
    with pytest.raises(ValueError, match="is no place; expected local, a region"):
        check_place(value)


@pytest.mark.parametrize("value", ["", ":1", "cpu:0", "cpu:", "cpu:x", 1, None])
def test_what_is_no_accelerator_is_refused(value):
    with pytest.raises(ValueError, match="expected NAME:COUNT"):
        parse_accelerator(value)


def test_an_accelerator_that_yaml_made_a_mapping_explains_the_trap():
    with pytest.raises(ValueError, match=r"write a list, \[trn2:1\], not \{trn2:1\}"):
        parse_accelerator({"trn2:1": None})


@pytest.mark.parametrize(
    "name",
    [
        "cpu",
        "cuda-sm90",
        "cuda-sm100",
        "cuda-sm90x8",
        "tpu-v5e",
        "tpu-v5px8",
        "rocm-gfx942",
        "trn2",
    ],
)
def test_targets_of_all_families_are_understood(name):
    assert check_target(name) == name


@pytest.mark.parametrize(
    "name", ["gpu", "cuda", "cuda-90", "cpu ", "CPU", "trn9", "cpux0", 1, None]
)
def test_what_looks_like_no_target_is_refused(name):
    with pytest.raises(ValueError, match="expected one of the forms"):
        check_target(name)


def test_sources_have_known_schemes_only():
    assert check_source("../data", schemes=("hf",)) == "../data"
    assert check_source("hf://a/b", schemes=("hf",)) == "hf://a/b"
    for bad in ("s3://bucket/x", "hf://", "hf:///"):
        with pytest.raises(ValueError, match="expected"):
            check_source(bad, schemes=("hf",))
