"""The main job, small: `luma launch examples/tiny/job.yaml` as a user types it, with faults.

One launch with the uninterrupted reference, then a second one of the same job with other faults:
both must end in the reference's hash, and the second must compile nothing.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import psutil
import pytest

from runtime.artifact import load_or_create_keys
from runtime.serve.checkpoint import find_checkpoint, read_servable

STEPS, SAMPLES = 30, 30 * 8 * 2

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def second(place, first):
    """The same job again: two killed at once, the coordinator, then everything."""
    del first  # it must have been launched before
    chaos = "kill:0+2@step=5,kill:coordinator@step=9,kill:all@step=17"
    return place.launch("second", "--chaos", chaos)


def test_the_killed_run_is_exact_and_equals_the_uninterrupted_reference(first):
    certificate = first.certificate
    assert certificate["level"] == "exact", certificate["problems"]
    assert certificate["reference_state_hash"] == certificate["state_hash"]
    assert (certificate["steps"], certificate["steps_lost"]) == (STEPS, 0)
    assert certificate["samples_seen"] == SAMPLES
    assert certificate["samples_exactly_once"]
    (interruption,) = certificate["interruptions"]
    assert interruption["island"] == "island-1"
    assert interruption["kind"] == "SIGKILL"
    assert interruption["at_step"] == 12
    assert interruption["seconds_to_next_commit"] > 0


def test_the_run_learned_something(first):
    assert first.certificate["final_loss"] < first.certificate["first_loss"] - 1.0


def test_the_run_folder_holds_what_scripts_are_promised(first):
    assert json.loads((first.folder / "certificate.json").read_text()) == first.certificate
    assert (first.folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert ET.parse(first.folder / "loss.svg").getroot().tag.endswith("svg")
    events = [json.loads(line) for line in (first.folder / "events.jsonl").read_text().splitlines()]
    kinds = {event["kind"] for event in events}
    assert {"commit", "interruption", "joined", "left", "checkpoint", "done"} <= kinds
    assert any(
        path.name == f"step-{STEPS:06d}" for path in (first.folder / "checkpoints").iterdir()
    )


def test_the_final_checkpoint_can_be_served_as_it_is(first):
    checkpoint = find_checkpoint(first.folder)
    assert checkpoint.name == f"step-{STEPS:06d}"
    assert read_servable(checkpoint).has_chat_template


def test_the_compile_cache_is_sealed_under_the_machines_key_and_closed_to_others(place, first):
    del first  # it has compiled
    home = place.path / "home"
    assert not list(home.rglob("cache.key"))
    assert load_or_create_keys(home).data_key_file.exists()
    folders = [home, *(home / name for name in ("keys", "cache", "cache/compile", "cache/capture"))]
    assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700] * len(folders)


def test_a_replacement_with_a_new_name_took_the_dead_islands_place(first):
    events = [json.loads(line) for line in (first.folder / "events.jsonl").read_text().splitlines()]
    spawned = [event["island"] for event in events if event["kind"] == "spawned"]
    assert spawned == ["coordinator", "island-0", "island-1", "island-2", "island-3"]


def test_no_process_of_the_run_is_left(first, second):
    for run in (first, second):
        left = [p for p in psutil.process_iter(["cmdline"]) if str(run.folder) in str(p.info)]
        assert left == []


def test_any_other_faults_end_in_the_same_hash_with_nothing_lost(first, second):
    certificate = second.certificate
    assert certificate["level"] == "exact", certificate["problems"]
    assert certificate["state_hash"] == first.certificate["state_hash"]
    assert certificate["steps_lost"] == 0
    assert certificate["samples_seen"] == SAMPLES
    hit = [(item["island"], item["at_step"]) for item in certificate["interruptions"]]
    assert hit[:3] == [("island-0", 5), ("island-2", 5), ("coordinator", 9)]
    assert sum(step == 17 for _, step in hit) >= 2  # every process that was there


def test_a_second_launch_captures_and_compiles_nothing_and_says_so(first, second):
    assert "nothing was compiled" in second.stderr
    assert "captured before" in second.stderr
    assert "nothing was compiled" not in first.stderr


def test_the_plan_was_shown(first):
    for part in ("islands", "3 x cpu", "memory", "fits", "a step", "0 $/h"):
        assert part in first.stderr


def test_the_artifact_verifies_and_its_manifest_is_readable(place, first):
    artifact = first.folder / "artifact.luma"
    verified = place.luma("verify", artifact, "--leaks", "--json")
    assert verified.returncode == 0, verified.stderr
    document = json.loads(verified.stdout)
    assert document["label"] == "L1 (key file)"
    assert document["digest"] == first.certificate["artifact_digest"]
    inspected = place.luma("inspect", artifact, "--json")
    assert json.loads(inspected.stdout)["digest"] == document["digest"]


def test_status_logs_and_events_read_a_finished_run(place, first):
    status = json.loads(place.luma("status", first.folder, "--json").stdout)
    assert (status["state"], status["step"]) == ("done", STEPS)
    assert status["coordinator"] is None
    lines = place.luma("events", first.folder, "--json").stdout.splitlines()
    assert sum(json.loads(line)["kind"] == "commit" for line in lines) == STEPS
    assert place.luma("logs", first.folder, "island-9").returncode == 1
    assert place.luma("logs", first.folder, "coordinator").returncode == 0


def test_resuming_a_run_that_is_done_computes_nothing(place, first):
    again = place.luma("launch", "--resume", first.folder, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["certificate"] == first.certificate
    assert "done already" in again.stderr


def test_the_final_checkpoint_loads_in_transformers_and_hashes_as_certified(first):
    from transformers import AutoModelForCausalLM

    from runtime.agent.checkpoint import latest_checkpoint
    from runtime.coordinator.plan import RunPlan

    plan = RunPlan.read(first.folder)
    info = latest_checkpoint(first.folder / "checkpoints", plan.job_digest)
    assert info is not None
    assert info.state_hash == first.certificate["state_hash"]
    model = AutoModelForCausalLM.from_pretrained(info.path)
    assert sum(p.numel() for p in model.parameters()) == 1_025_408
