"""Hand the state of the step in flight to an island that joins.

The donor sends one JSON header (step, attempt, names, shapes and dtypes) and its BLAKE3, then the
arrays' bytes, then a BLAKE3 of everything so far. The receiver reserves memory only after the first
hash and gives nothing out before the second.
"""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from blake3 import blake3

from runtime.agent.peers import PeerError, receive_into
from runtime.agent.state import TrainState, little_endian_bytes

_LENGTH = struct.Struct(">I")
_MAX_HEADER_BYTES = 1 << 26
_STEP_EXPONENTS = "step_exponents"
_DTYPES = {"<f4", "<i4"}
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedState:
    """A state together with the scale that the step in flight uses.

    Attributes:
        state: the state after `state.step` applied steps.
        attempt: how often the step in flight was redone with a larger scale.
        step_exponents: int32 [n_blocks], E in force for this attempt.
    """

    state: TrainState
    attempt: int
    step_exponents: np.ndarray


def send_state(connection: socket.socket, handed: HandedState) -> None:
    """Send a state over an open connection.

    Raises:
        PeerError: the connection broke.
    """
    arrays = [*handed.state.arrays(), (_STEP_EXPONENTS, handed.step_exponents)]
    table = [[name, list(array.shape), f"<{array.dtype.str[1:]}"] for name, array in arrays]
    header = json.dumps(
        {"step": handed.state.step, "attempt": handed.attempt, "arrays": table}
    ).encode()
    hasher = blake3(header)
    try:
        connection.sendall(_LENGTH.pack(len(header)) + header + hasher.digest())
        for _, array in arrays:
            view = little_endian_bytes(array)
            hasher.update(view)
            connection.sendall(view)
        connection.sendall(hasher.digest())
    except OSError as error:
        raise PeerError(f"the state could not be handed over ({error})") from None


def receive_state(connection: socket.socket) -> HandedState:
    """Receive a state; nothing of it is given out unless its hash is right.

    Raises:
        PeerError: the connection broke, or the bytes are not what was sent.
    """
    prefix = bytearray(_LENGTH.size)
    receive_into(connection, memoryview(prefix))
    (length,) = _LENGTH.unpack(prefix)
    if length > _MAX_HEADER_BYTES:
        raise PeerError(f"a state header of {length} bytes was announced")
    raw = bytearray(length)
    receive_into(connection, memoryview(raw))
    hasher = blake3(raw)
    _check_digest(connection, hasher)
    try:
        header = json.loads(raw)
        arrays = {
            name: _receive_array(connection, shape, dtype, hasher)
            for name, shape, dtype in header["arrays"]
        }
        _check_digest(connection, hasher)
        return _assemble(header, arrays)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PeerError(f"what came in is not a state ({error!r})") from None


def _check_digest(connection: socket.socket, hasher: Any) -> None:
    digest = bytearray(_DIGEST_BYTES)
    receive_into(connection, memoryview(digest))
    if bytes(digest) != hasher.digest():
        raise PeerError("the state that came in has another hash than the one that was sent")


def _receive_array(
    connection: socket.socket, shape: list[int], dtype: str, hasher: Any
) -> np.ndarray:
    if dtype not in _DTYPES:
        raise PeerError(f"a state has arrays of {sorted(_DTYPES)}, not of {dtype!r}")
    array = np.empty(shape, np.dtype(dtype))
    view = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
    receive_into(connection, view)
    hasher.update(view)
    return array


def _assemble(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> HandedState:
    groups: dict[str, dict[str, np.ndarray]] = {"params": {}, "moment1": {}, "moment2": {}}
    for name, array in arrays.items():
        group, _, rest = name.partition("/")
        if group in groups:
            groups[group][rest] = array
    state = TrainState(step=header["step"], block_exponents=arrays["block_exponents"], **groups)
    return HandedState(
        state=state, attempt=header["attempt"], step_exponents=arrays[_STEP_EXPONENTS]
    )
