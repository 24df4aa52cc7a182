"""Places, turns, and the memory of compiling processes."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from enclave_image.service.errors import PeerGoneError, ServiceBusyError
from enclave_image.service.limits import LimitedChildren, Limits, Places, Turns
from tests.support.compile_service import PATIENCE_S, in_thread

TAKES_300_MB = (
    "import sys; sys.stdin.readline(); x = bytearray(300 << 20); x[::4096] = bytes(len(x[::4096]));"
    "print('taken')"
)


def test_places_are_counted_and_given_back():
    places = Places(2)
    with places.take(lambda: 7), places.take(lambda: 7):
        assert places.taken == 2
        with pytest.raises(ServiceBusyError) as caught, places.take(lambda: 7):
            pass
        assert caught.value.retry_after_s == 7
        assert "ask again in 7 s" in caught.value.message
    assert places.taken == 0
    with pytest.raises(ZeroDivisionError), places.take(lambda: 7):
        raise ZeroDivisionError
    assert places.taken == 0


def test_turns_come_in_the_order_in_which_they_were_asked_for():
    turns, order = Turns(1), []
    joins = []
    with turns.turn(lambda: False):
        for number in range(4):

            def wait(number=number):
                with turns.turn(lambda: False):
                    order.append(number)

            joins.append(in_thread(wait))
            while turns.waiting <= number:
                threading.Event().wait(0.002)
        assert order == []
    for join in joins:
        join()
    assert order == [0, 1, 2, 3]
    assert turns.waiting == 0


def test_as_many_run_as_there_are_turns():
    turns, both = Turns(2), threading.Barrier(2, timeout=PATIENCE_S)

    def run():
        with turns.turn(lambda: False):
            both.wait()

    joins = [in_thread(run), in_thread(run)]
    for join in joins:
        join()


def test_whoever_gives_up_leaves_the_line_to_the_others():
    turns, gone = Turns(1), threading.Event()
    with turns.turn(lambda: False):

        def wait():
            with turns.turn(gone.is_set):
                pass

        leaving = in_thread(wait)
        while turns.waiting == 0:
            threading.Event().wait(0.002)
        gone.set()
        turns.wake()
        with pytest.raises(PeerGoneError):
            leaving()
        assert turns.waiting == 0
    with turns.turn(lambda: False):
        pass


def start(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize(("limit", "taken"), [(200 << 20, False), (2 << 30, True)])
def test_a_process_gets_no_more_memory_than_its_limit(limit, taken):
    child = start(TAKES_300_MB)
    LimitedChildren(limit).add(child)
    out, error = child.communicate(b"\n", timeout=PATIENCE_S)
    assert (out == b"taken\n") == taken
    assert (b"MemoryError" in error) != taken


def test_the_kernel_would_end_it_before_the_service():
    child = start(
        "import sys; sys.stdin.readline(); print(open('/proc/self/oom_score_adj').read())"
    )
    LimitedChildren(1 << 30).add(child)
    out, _ = child.communicate(b"\n", timeout=PATIENCE_S)
    assert out.strip() == b"1000"


def test_a_process_that_has_ended_has_nothing_to_limit():
    child = start("pass")
    child.communicate(timeout=PATIENCE_S)
    children = LimitedChildren(1 << 30)
    children.add(child)
    children.end()


def test_each_request_has_a_user_of_its_own_where_there_is_one():
    limits = Limits(child_user=20_000)
    users = [limits.user_of(number) for number in range(1, 1000)]
    assert len(set(users)) == len(users)
    assert min(users) > 20_000, "root and the image's own are none of them"
    assert max(limits.user_of(number) for number in (39_999, 40_000, 10**9)) < 65_534
    assert Limits().user_of(7) is None


def test_places_are_what_runs_and_what_waits():
    assert Limits(compiles=3, queue=4).places == 7
