"""Short scalars in a job file: `2B` tokens, `5s`, `12/h`, `cpu:1`, `cuda-sm90`, `aws/us-*`.

Each parser takes what YAML gave (text or a number), returns a plain number or normal text, and
raises ValueError with a message that names the value and what is allowed.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final

from runtime.spec.target_name import TargetName

_COUNT_FACTORS: Final = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_SECONDS: Final = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}

# At most 18 digits before the point: more is a typing mistake, and int() of very long text is slow.
_COUNT: Final = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([KMBT]?)", re.ASCII)
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(ms|s|m|h)", re.ASCII)
_PRICE: Final = re.compile(r"\$?(\d{1,9}(?:\.\d{1,6})?)\s*/\s*h", re.ASCII)
_ACCELERATOR: Final = re.compile(
    r"([A-Za-z][A-Za-z0-9_.-]{0,40}"
    r"|\d{1,5}GB\.\.(?:\d{1,5}GB)?|\.\.\d{1,5}GB)(?::(\d{1,4}))?",
    re.ASCII,
)
_MEMORY: Final = re.compile(r"(?:(\d+)GB)?\.\.(?:(\d+)GB)?", re.ASCII)
_GIB_OF_GB: Final = 1e9 / 2**30

PLACE: Final = re.compile(
    r"local|aws/(?:[a-z]{2,5}(?:-[a-z]{2,12}){1,3}-\d{1,2}|[a-z0-9-]{0,32}\*)", re.ASCII
)
"""Where a job may run: this machine, a region of AWS, or all regions whose names start alike."""


def parse_count(value: object) -> int:
    """Read a count such as `40`, `"1.5M"` or `"2B"` (K, M, B and T are powers of 1,000).

    Raises:
        ValueError: the value is no count, or not a whole number of at least one.
    """
    match = _COUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**18:
            return value
        msg = f"{value!r} is no count; expected a whole number or one with K, M, B or T, such as 2B"
        raise ValueError(msg)
    count = Decimal(match[1]) * _COUNT_FACTORS[match[2]]
    if count != count.to_integral_value() or not 0 < count < 10**18:
        msg = f"{value!r} is not a whole number between 1 and 10^18"
        raise ValueError(msg)
    return int(count)


def parse_duration_s(value: object) -> float:
    """Read a duration such as `"500ms"`, `"5s"`, `"10m"` or `"4h"`; gives seconds.

    Raises:
        ValueError: the value has no unit, or is not longer than zero.
    """
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        fault = "has no unit" if _is_number(value) else "is no duration"
        msg = f"{value!r} {fault}; expected a duration such as '5s' (ms, s, m, h)"
        raise ValueError(msg)
    seconds = float(Decimal(match[1]) * _SECONDS[match[2]])
    if seconds <= 0:
        msg = f"{value!r} is not longer than zero; expected a duration such as '5s'"
        raise ValueError(msg)
    return seconds


def format_duration(seconds: float) -> str:
    """Write seconds so that `parse_duration_s` reads the same number back."""
    return f"{Decimal(repr(seconds)):f}".removesuffix(".0") + "s"


def parse_price_per_hour(value: object) -> float:
    """Read a price such as `"12/h"` or `"$0.5/h"`; gives US dollars per hour.

    Raises:
        ValueError: the value has no unit or is no price.
    """
    match = _PRICE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        fault = "has no unit" if _is_number(value) else "is no price"
        msg = f"{value!r} {fault}; expected a price per hour such as '12/h'"
        raise ValueError(msg)
    return float(match[1])


def parse_accelerator(value: object) -> tuple[str, int]:
    """Read a request such as `"cpu:1"`, `"H100:8"` or `"24GB..:1"`; gives the name and the count.

    What stands before the colon names a chip, a target's chip or an instance type, or is a range of
    memory a chip, which `parse_memory_range` reads.

    Raises:
        ValueError: the value does not look like NAME:COUNT, or the count is zero.
    """
    match = _ACCELERATOR.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or match[2] == "0" * len(match[2] or "-"):
        hint = "; in YAML write a list, [trn2:1], not {trn2:1}" if isinstance(value, dict) else ""
        msg = f"{value!r} is no accelerator; expected NAME:COUNT such as cpu:1 or H100:8{hint}"
        raise ValueError(msg)
    parse_memory_range(match[1])
    return match[1], int(match[2] or 1)


def parse_memory_range(name: str) -> tuple[float, float] | None:
    """Read a range of memory a chip: `24GB..`, `24GB..80GB` or `..80GB`.

    Returns:
        The least and the most memory, GiB (a GB is 10^9 bytes); None where the text is a name.

    Raises:
        ValueError: no size is in the range.
    """
    match = _MEMORY.fullmatch(name)
    if match is None or not (match[1] or match[2]):
        return None
    low, high = float(match[1] or 0), float(match[2] or "inf")
    if high < low or high == 0:
        msg = f"{name!r} holds no size; expected a range of memory such as 24GB.. or 24GB..80GB"
        raise ValueError(msg)
    return low * _GIB_OF_GB, high * _GIB_OF_GB


def check_place(value: object) -> str:
    """Accept `local`, `aws/REGION` or `aws/PATTERN` (a beginning and one `*`) as it is.

    Raises:
        ValueError: the value has another form.
    """
    if isinstance(value, str) and PLACE.fullmatch(value):
        return value
    msg = (
        f"{value!r} is no place; expected local, a region such as aws/us-east-1, or a beginning of "
        "regions' names such as aws/us-*"
    )
    raise ValueError(msg)


def normal_accelerator(value: object) -> str:
    """Write an accelerator request in its one normal form, `NAME:COUNT`.

    Raises:
        ValueError: as `parse_accelerator`.
    """
    name, count = parse_accelerator(value)
    return f"{name}:{count}"


def check_target(value: object) -> str:
    """Accept the name of a compile target, such as `cpu` or `cuda-sm90x8`, as it is.

    Raises:
        ValueError: the value does not look like a target.
    """
    TargetName.parse(value)
    return str(value)


def check_source(value: str, *, schemes: tuple[str, ...]) -> str:
    """Accept a path, or an address of one of the given schemes, as it is.

    Raises:
        ValueError: the scheme is none of these, or nothing follows it.
    """
    scheme, mark, rest = value.partition("://")
    if not mark:
        return value
    allowed = " or ".join(f"{name}://" for name in schemes)
    if scheme not in schemes:
        msg = f"{value!r} has a scheme that is not available; expected a path, or {allowed}"
        raise ValueError(msg)
    if not rest.strip("/"):
        msg = f"{value!r} names nothing; expected a name after {scheme}://"
        raise ValueError(msg)
    return value


def _is_number(value: object) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, int | float):
        return math.isfinite(value)
    return isinstance(value, str) and re.fullmatch(r"\s*\d+(\.\d+)?\s*", value) is not None
