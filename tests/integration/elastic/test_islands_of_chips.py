"""Islands of several chips in real runs: killed and joined, they end with an undisturbed run's bits.

The chips are host devices of the island's process; `template` is the same job as in the other tests,
compiled for them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.coordinator.plan import RunPlan
from tests.integration.elastic.conftest import Template, launch_template

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=["cpux2", "cpux4-tp2"])
def template(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, luma_home: Path
) -> Template:
    """The job, undisturbed, on one island of several chips."""
    place = tmp_path_factory.mktemp("chips")
    return launch_template(place, luma_home, target=request.param)


def test_the_run_is_certified_as_exact_and_names_its_chips(template: Template) -> None:
    certificate = json.loads((template.folder / "certificate.json").read_text())
    target = RunPlan.read(template.folder).target
    assert target.startswith("cpux")
    assert certificate["level"] == "exact"
    assert certificate["target"] == target
    assert [name.partition("/")[0] for name in certificate["chip_classes"]] == [target]
    assert certificate["state_hash"] == template.state_hash


def test_two_islands_give_the_bits_of_one(make_fleet, same_bits) -> None:
    fleet = make_fleet(2)
    fleet.start(2)
    same_bits(fleet)


@pytest.mark.parametrize("phase", ["in-shard:4", "in-ring:4", "after-apply:4"])
def test_an_island_killed_is_replaced_by_one_that_is_handed_the_state(
    make_fleet, same_bits, phase: str
) -> None:
    fleet = make_fleet(2)
    fleet.start(2, fault=f"kill@{phase}")
    fleet.wait_killed("island-0")
    fleet.start_island(2)
    same_bits(fleet)


def test_a_run_killed_whole_goes_on_from_its_checkpoint(make_fleet, same_bits) -> None:
    fleet = make_fleet(1)
    fleet.start(1, fault="kill@after-checkpoint-rename")
    fleet.wait_killed("island-0")
    fleet.kill_coordinator()
    fleet.start_coordinator(restart=True)
    fleet.start_island(1)
    same_bits(fleet)
