"""Raw mutation of bytes, the same for the same seed."""

from __future__ import annotations

import random

_TELLING = (0x00, 0x1B, 0x5B, 0x5F, 0x7F, 0x9B, 0x9F, 0xA0, 0xBB, 0xBF, 0xD2, 0xF6, 0xFB, 0xFF)
"""Heads that announce much, or that no document has."""


def mutate(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Give `data` with one to four changes; pieces may come from `other`."""
    for _ in range(rng.randint(1, 4)):
        data = rng.choice(_CHANGES)(rng, data, other)
    return data


def _flip(rng, data, _):
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _telling(rng, data, _):
    at = rng.randint(0, len(data))
    return data[:at] + bytes([rng.choice(_TELLING)]) + data[at + rng.randint(0, 1) :]


def _cut(rng, data, _):
    return data[: rng.randint(0, len(data))]


def _drop(rng, data, _):
    at = rng.randint(0, len(data))
    return data[:at] + data[at + rng.randint(1, 64) :]


def _insert(rng, data, _):
    at = rng.randint(0, len(data))
    return data[:at] + rng.randbytes(rng.randint(1, 64)) + data[at:]


def _repeat(rng, data, _):
    at = rng.randint(0, len(data))
    piece = data[at : at + rng.randint(1, 600)]
    return data[:at] + piece * rng.randint(1, 4) + data[at:]


def _splice(rng, data, other):
    at, there = rng.randint(0, len(data)), rng.randint(0, len(other))
    size = rng.randint(1, 700)
    return data[:at] + other[there : there + size] + data[at + size :]


def _length(rng, data, _):
    at = rng.randint(0, len(data))
    size = rng.choice((1, 2, 4, 8))
    value = rng.choice((0, 0xFF, (1 << (8 * size - 1)) - 1, (1 << (8 * size)) - 1))
    field = (value & ((1 << (8 * size)) - 1)).to_bytes(size, "big")
    return data[:at] + field + data[at + size :]


def _nest(rng, data, _):
    return rng.choice((b"\x81", b"\xa1\x00", b"\xbf\x00", b"\xd2")) * rng.randint(1, 9) + data


_CHANGES = (_flip, _flip, _telling, _cut, _drop, _insert, _repeat, _splice, _length, _nest)
