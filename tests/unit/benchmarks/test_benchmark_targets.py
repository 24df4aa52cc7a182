"""What the subject `targets` reports: a cold compile, then a look-up, and what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import build_target, targets
from benchmarks.result import Result
from runtime.compiler import GraphPackage
from runtime.compiler.targets import back_end, find_target, target_names
from tests.unit.packages import square_graph


def measured(name: str, cold_s: float) -> Result:
    return Result(
        name=f"targets/tiny/{name}",
        unit="s, warm",
        luma=[0.01],
        baselines={"cold": [cold_s]},
        notes={"cold_s": cold_s},
    )


@pytest.mark.parametrize("name", target_names())
def test_a_missing_compiler_is_named(name: str) -> None:
    target = find_target(name)
    lacking = back_end(target).missing(target)
    expected = "" if lacking is None else f"{lacking.package} is not installed"
    assert build_target.missing(name) == expected


def test_the_last_entry_holds_each_cold_time_and_every_target_that_lacks() -> None:
    reasons = {"trn2": "neuronx-cc is not installed"}
    entry = targets._summary(
        "tiny", [measured("cpu", 2.0), measured("tpu-v4", 3.5)], reasons, 1.0
    ).to_json()
    assert entry["missing"] == reasons
    assert entry["notes"] == {"capture_s": 1.0, "cold_s": {"cpu": 2.0, "tpu-v4": 3.5}}
    assert entry["luma"] == 6.5
    assert entry["met"] is None


@pytest.mark.slow
def test_the_second_call_is_a_look_up_with_the_same_figures(tmp_path: Path) -> None:
    package = GraphPackage({"grad": square_graph()}, config_digest="0" * 64, seq_len=4)
    (tmp_path / "package").write_bytes(package.to_bytes())
    cold, warm = (
        build_target.compile_target(str(tmp_path / "package"), "cpu", str(tmp_path / "cache"))
        for _ in range(2)
    )
    assert (cold["cached"], warm["cached"]) == (False, True)
    assert set(cold["programs"]) == {"grad", "apply"}
    assert warm["programs"] == {}
    for key in ("payload_bytes", "peak_memory_bytes", "scrubbed"):
        assert warm[key] == cold[key]
    assert cold["payload_bytes"] > 0
    assert cold["predicted_step_s"] > 0
