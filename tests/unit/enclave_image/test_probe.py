"""The list of what a compile loads: a run that goes wrong is an error that says so."""

import pytest

from enclave_image import probe
from runtime.spec.errors import CompileError


def test_a_compile_that_does_not_end_is_a_compile_error(monkeypatch):
    monkeypatch.setattr(probe, "_TIMEOUT_S", 0.0)
    with pytest.raises(CompileError, match=r"probe of target 'cpu': no end after 0\.0 s") as caught:
        probe.loaded_files("cpu")
    assert caught.value.remedy
