"""The pictures in the documentation show the machines as they are."""

from xml.etree import ElementTree as ET

import pytest

from tests.support.cdk import ROOT, synthesized
from tests.unit.constructs.orchestration import stacks
from tests.unit.constructs.orchestration.definitions import definitions, states

TEXT = "{http://www.w3.org/2000/svg}text"


@pytest.mark.parametrize(
    ("picture", "machine", "others"),
    [
        ("training-jobs", "Jobs/Job", 0),
        # The picture's deployment has no other region and no capacity block.
        ("failover", "Failover", 7),
    ],
)
def test_a_picture_has_the_states_of_its_machine(picture, machine, others):
    tree = ET.parse(ROOT / "docs" / "images" / f"{picture}.svg")
    drawn = {"".join(text.itertext()).strip() for text in tree.iter(TEXT)}
    kinds = {" (Map)", " (Parallel)"}
    drawn = {next((t.removesuffix(k) for k in kinds if t.endswith(k)), t) for t in drawn}
    names = {name for name, _ in states(definitions(synthesized(stacks.machines))[machine])}
    hint = "run docs/images/state_machines.py"
    assert len(drawn - names) == 1, hint  # the title
    assert len(names - drawn) == others, hint
