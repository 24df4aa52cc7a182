"""A state handed from one island to another over a real stream: whole and right, or refused."""

from __future__ import annotations

import json
import socket
import struct
import threading

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.agent.peers import PeerError
from runtime.agent.state import TrainState
from runtime.agent.transfer import HandedState, receive_state, send_state


def _state(step: int = 12, seed: int = 0) -> HandedState:
    random = np.random.default_rng(seed)
    shapes = {"a.weight": (3, 5), "b.bias": (7,), "scalar": (), "empty": (0, 4)}

    def group() -> dict[str, np.ndarray]:
        return {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}

    state = TrainState(
        step=step,
        params=group(),
        moment1=group(),
        moment2=group(),
        block_exponents=random.integers(-40, 3, 9, np.int32),
    )
    return HandedState(state=state, attempt=1, step_exponents=random.integers(-40, 3, 9, np.int32))


def _sent(handed: HandedState) -> bytes:
    """Give the bytes of one transfer."""
    donor, wire = socket.socketpair()
    parts: list[bytes] = []

    def read() -> None:
        while part := wire.recv(1 << 16):
            parts.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    send_state(donor, handed)
    donor.close()
    reader.join()
    wire.close()
    return b"".join(parts)


def _received(data: bytes) -> HandedState:
    ours, theirs = socket.socketpair()
    theirs.sendall(data)
    theirs.close()
    ours.settimeout(5)
    try:
        return receive_state(ours)
    finally:
        ours.close()


def _same(left: HandedState, right: HandedState) -> bool:
    pairs = zip(left.state.arrays(), right.state.arrays(), strict=True)
    return (
        (left.state.step, left.attempt) == (right.state.step, right.attempt)
        and np.array_equal(left.step_exponents, right.step_exponents)
        and all(
            n == m and a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
            for (n, a), (m, b) in pairs
        )
    )


WHOLE = _sent(_state())


def test_what_comes_in_is_what_was_sent() -> None:
    """Names, shapes (an empty one and a scalar too), bits, step, attempt and the scale in force."""
    assert _same(_received(WHOLE), _state())
    assert _received(WHOLE).state.hash() == _state().state.hash()


def test_special_values_keep_their_bits() -> None:
    handed = _state()
    handed.state.params["b.bias"][:] = [np.nan, -0.0, np.inf, -np.inf, 1e-45, 3.4e38, 0]
    assert _same(_received(_sent(handed)), handed)


@given(position=st.integers(0, len(WHOLE) - 1), bit=st.integers(0, 7))
@settings(max_examples=200, deadline=None)
def test_any_flipped_bit_is_refused(position: int, bit: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[position] ^= 1 << bit
    with pytest.raises(PeerError):
        _received(bytes(damaged))


@given(length=st.integers(0, len(WHOLE) - 1))
@settings(max_examples=100, deadline=None)
def test_any_cut_is_refused(length: int) -> None:
    """The donor died in mid-transfer."""
    with pytest.raises(PeerError):
        _received(WHOLE[:length])


@given(garbage=st.binary(max_size=200))
@settings(max_examples=50, deadline=None)
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(PeerError):
        _received(garbage)


def _with_header(header: object) -> bytes:
    raw = json.dumps(header).encode()
    return struct.pack(">I", len(raw)) + raw + blake3(raw).digest()


@pytest.mark.parametrize(
    "header",
    [
        [],
        {},
        {"arrays": 3},
        {"step": 1, "attempt": 0, "arrays": [["params/a", [2], "|O"]]},
        {"step": 1, "attempt": 0, "arrays": [["params/a", [-2], "<f4"]]},
        {"step": 1, "attempt": 0, "arrays": [["params/a", "xy", "<f4"]]},
        {"step": 1, "attempt": 0, "arrays": []},
    ],
)
def test_a_header_that_describes_no_state_is_refused(header: object) -> None:
    """Such as of another version: its hash is right, its content is not; no object arrays."""
    with pytest.raises(PeerError):
        _received(_with_header(header))


def test_a_huge_header_is_refused_before_it_is_read() -> None:
    with pytest.raises(PeerError, match="announced"):
        _received(struct.pack(">I", 1 << 31))


def test_a_receiver_that_goes_away_is_an_error_for_the_donor_alone() -> None:
    donor, receiver = socket.socketpair()
    receiver.close()
    with pytest.raises(PeerError, match="could not be handed over"):
        send_state(donor, _state())
    donor.close()
