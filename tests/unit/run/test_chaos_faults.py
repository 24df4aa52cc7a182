"""`--chaos`: what it accepts, what it refuses and how, and when its signals are due."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.run.chaos import ChaosSchedule, Shot, check_faults, missed_faults, parse_faults
from runtime.spec import SpecError


def fire(schedule: ChaosSchedule, until: float, step: float = 0.01) -> list[tuple[float, Shot]]:
    """Poll a schedule up to a time and give what it fired, with the times."""
    fired, now = [], 0.0
    while now <= until:
        fired += [(round(now, 3), shot) for shot in schedule.due(now)]
        now += step
    return fired


@pytest.mark.parametrize(
    ("text", "slots", "step"),
    [
        ("kill:1@step=12", (1,), 12),
        ("kill:0+2@step=5", (0, 2), 5),
        ("kill:coordinator@step=8", (), 8),
        ("kill:all@step=9", (), 9),
        ("stop:1@step=4:for=6s", (1,), 4),
        ("slow:2@step=3:x4", (2,), 3),
    ],
)
def test_the_documented_faults_are_understood(text, slots, step):
    (fault,) = parse_faults([text])
    assert (fault.slots, fault.step, fault.text) == (slots, step, text)
    assert fault.coordinator == ("coordinator" in text)
    assert fault.everyone == ("all" in text)


def test_a_list_may_use_commas_and_repeated_options():
    faults = parse_faults(["kill:1@step=2, kill:0@step=4", "stop:0@step=6:for=500ms"])
    assert [fault.step for fault in faults] == [2, 4, 6]
    assert faults[2].duration_s == 0.5


def test_all_wrong_faults_are_told_at_once_with_what_is_allowed():
    wrong = [
        "kill:1",
        "burn:1@step=2",
        "kill:x@step=2",
        "kill:1@step=2:x4",
        "stop:1@step=2",
        "slow:1@step=2",
        "slow:1@step=2:x1",
        "stop:all@step=2:for=1s",
        "slow:1@step=2:y4",
        "kill:1@step=-1",
    ]
    with pytest.raises(SpecError) as caught:
        parse_faults(wrong)
    assert caught.value.exit_code == 2
    for text in wrong:
        assert f"'{text}'" in caught.value.message
    assert "kill:SLOTS@step=N" in caught.value.diagnostics()


@given(st.text(max_size=30).filter(lambda text: text.replace(",", "").strip()))
def test_no_text_makes_anything_but_faults_or_a_spec_error(text):
    with contextlib.suppress(SpecError):
        assert parse_faults([text])


def test_faults_outside_the_run_are_refused():
    faults = parse_faults(["kill:3@step=2", "kill:0@step=30"])
    with pytest.raises(SpecError, match=r"slots 0 to 2(.|\n)*steps 0 to 29"):
        check_faults(faults, islands=3, total_steps=30)
    check_faults(parse_faults(["kill:2@step=29"]), islands=3, total_steps=30)


def test_faults_of_past_steps_are_refused_on_a_resume():
    faults = parse_faults(["kill:0@step=9", "kill:0@step=10"])
    with pytest.raises(SpecError, match="step 9, which is past; the run goes on with step 10"):
        check_faults(faults, islands=1, total_steps=30, first_step=10)
    check_faults(faults[1:], islands=1, total_steps=30, first_step=10)


def test_a_fault_that_struck_nobody_is_named():
    faults = parse_faults(["kill:0@step=2", "stop:1@step=3:for=1s", "kill:all@step=4"])
    struck = [{"fault": "kill:0@step=2"}, {"fault": "kill:all@step=4"}, {"how": "SIGKILL"}]
    (line,) = missed_faults(faults, struck)
    assert "'stop:1@step=3:for=1s' never struck" in line


def test_a_kill_lands_inside_its_step_and_once_even_if_the_step_is_redone():
    schedule = ChaosSchedule(parse_faults(["kill:1@step=3"]))
    for step in range(4):
        schedule.step_started(step, float(step))
    assert schedule.due(3.1) == []
    (shot,) = schedule.due(3.5)
    assert (shot.signal, shot.slots, shot.interruption) == ("SIGKILL", (1,), "SIGKILL")
    schedule.step_started(2, 5.0)
    schedule.step_started(3, 6.0)
    assert schedule.due(60.0) == []
    assert schedule.pending() == []


def test_a_fault_of_the_first_step_fires_and_a_skipped_step_is_made_up_for():
    schedule = ChaosSchedule(parse_faults(["kill:0@step=0", "kill:1@step=5"]))
    schedule.step_started(0, 0.0)
    assert [shot.slots for shot in schedule.due(0.0)] == [(0,)]
    schedule.step_started(7, 1.0)
    assert [shot.slots for shot in schedule.due(5.0)] == [(1,)]


def test_a_stop_is_followed_by_a_continue_after_its_time():
    schedule = ChaosSchedule(parse_faults(["stop:1@step=0:for=2s"]))
    schedule.step_started(0, 0.0)
    fired = fire(schedule, 4.0)
    assert [(shot.signal, shot.interruption) for _, shot in fired] == [
        ("SIGSTOP", "SIGSTOP 2 s"),
        ("SIGCONT", None),
    ]
    assert fired[1][0] - fired[0][0] == pytest.approx(2.0, abs=0.02)


def test_a_slowed_island_runs_about_one_part_in_four_and_is_freed_at_the_end():
    schedule = ChaosSchedule(parse_faults(["slow:2@step=0:x4:for=8s"]))
    schedule.step_started(0, 0.0)
    fired = fire(schedule, 12.0)
    assert fired[0][1].interruption == "slow x4"
    assert all(shot.interruption is None for _, shot in fired[1:])
    assert fired[-1][1].signal == "SIGCONT"
    assert fired[-1][0] == pytest.approx(8.0, abs=0.05)
    going, since = 0.0, None
    for time, shot in fired:
        if shot.signal == "SIGCONT":
            since = time
        elif since is not None:
            going, since = going + time - since, None
    assert going / 8.0 == pytest.approx(0.25, abs=0.05)
