"""The pages on the sealed compile name tests, options and limits that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from enclave_image.service.address import DEFAULT_PORT
from enclave_image.service.blobs import CHUNK_BYTES
from enclave_image.service.limits import Limits

ROOT = Path(__file__).parents[3]
THREATS = ROOT / "docs" / "threat-model.md"
FLOW = ROOT / "docs" / "explanation" / "sealed-compile.md"


def named_tests() -> list[tuple[str, str]]:
    """Give (file, test) of each one that the page names; `::name` is of the file before it."""
    found, file = [], ""
    for text in re.findall(r"`([^`\n]*::test_\w+)`", THREATS.read_text()):
        path, _, name = text.partition("::")
        file = path or file
        found.append((file, name))
    return found


def test_every_test_that_the_threat_model_names_is_there():
    named = named_tests()
    assert len(named) > 30
    for file, name in named:
        text = (ROOT / file).read_text()
        assert re.search(rf"^def {name}\(", text, re.MULTILINE), f"{file}::{name}"


@pytest.mark.parametrize("page", [THREATS, FLOW])
def test_pages_that_are_linked_are_there(page):
    for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_figures_of_the_page_are_the_codes():
    text, limits = FLOW.read_text(), Limits()
    assert f"vsock:CID:{DEFAULT_PORT}" in text
    assert f"{CHUNK_BYTES >> 10} KiB chunks" in text
    assert f"{limits.opening_s:g} s to the request, {limits.frame_s:g} s a frame" in text
    assert f"at most {limits.package_bytes >> 20} MiB" in text
    assert f"{limits.request_s / 3600:g} h a request" in text
