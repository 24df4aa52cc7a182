"""What a job accepts is matched with the catalogue; what nothing has is refused with a hint."""

from __future__ import annotations

import pytest

from runtime.plan.requests import check_requests, regions_of, requests_of, target_for
from runtime.spec import SpecError, load_catalogue

CATALOGUE = load_catalogue()


def taken(job, text: str) -> set[str]:
    (request,) = requests_of(job(resources__accelerators=[text]))
    return {row.name for row in CATALOGUE.accelerators if request.takes(row)}


@pytest.mark.parametrize(
    ("text", "some", "never"),
    [
        ("H100:8", "p5.48xlarge", "p5e.48xlarge"),
        ("h100", "p5.4xlarge", "g6.xlarge"),
        ("cuda-sm90:8", "p5en.48xlarge", "g6.xlarge"),
        ("trn2:1", "trn2.48xlarge", "trn1.2xlarge"),
        ("cpu:1", "c7i.8xlarge", "c8g.8xlarge.no"),
        ("g6e.12xlarge:4", "g6e.12xlarge", "g6e.xlarge"),
        ("40GB..90GB:1", "p5.4xlarge", "g6.xlarge"),
        ("24GB..", "g6.xlarge", "c7i.16xlarge"),
        ("..20GB", "g4dn.xlarge", "m7i.large"),
    ],
)
def test_a_request_takes_chips_targets_types_and_memory(job, text, some, never) -> None:
    assert some in taken(job, text)
    assert never not in taken(job, text)


def test_an_accelerator_that_nothing_has_is_refused_with_what_is_spelt_alike(job) -> None:
    spec = job(resources__accelerators=["H10O:8", "900GB..", "L4:1"])
    with pytest.raises(SpecError) as caught:
        check_requests(requests_of(spec), CATALOGUE)
    text = caught.value.message
    assert "resources.accelerators[0]: 'H10O:8' is not in the catalogue; did you mean h100" in text
    assert "resources.accelerators[1]: no chip has the memory '900GB..:1'" in text
    assert "L4" not in text


def test_an_islands_target_is_the_chip_with_its_number(job) -> None:
    row = CATALOGUE.by_name("p5.48xlarge")
    assert target_for(row, 8, ["cpu"]) == "cuda-sm90x8"
    assert target_for(row, 1, []) == "cuda-sm90"
    assert target_for(row, 8, ["cuda-sm90x8-tp4"]) == "cuda-sm90x8-tp4"
    assert target_for(CATALOGUE.by_name("c8g.8xlarge"), 1, ["cpu"]) is None


def test_patterns_of_places_mean_known_regions() -> None:
    assert regions_of(["aws/us-*", "aws/eu-west-1", "aws/us-east-1"], CATALOGUE) == (
        "us-east-1",
        "eu-west-1",
    )
    asked = CATALOGUE.model_copy(update={"updated_regions": ("us-west-2",)})
    assert regions_of(["aws/us-*"], asked) == ("us-east-1", "us-west-2")
    with pytest.raises(SpecError, match="'aws/eu-\\*' matches no region that the catalogue knows"):
        regions_of(["aws/eu-*"], CATALOGUE)
