"""The package's public names: all load, none is loaded before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import luma_constructs
from tests.support.cdk import ROOT


@pytest.mark.parametrize("name", luma_constructs.__all__)
def test_each_name_loads_and_is_documented(name):
    value = getattr(luma_constructs, name)
    assert value.__doc__, name
    assert value.__module__.startswith("luma_constructs")
    assert name in dir(luma_constructs)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = luma_constructs.Nothing


def test_importing_the_package_starts_no_cdk():
    code = "import sys, luma_constructs; print('aws_cdk' in sys.modules, 'jsii' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split() == ["False", "False"]
