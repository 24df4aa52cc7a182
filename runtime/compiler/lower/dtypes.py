"""Dtypes: what a torch dtype becomes in a compiled program, and how integers fit there.

Accelerators compute in 32 bits, so torch's int64 becomes int32 (token ids, positions, counts and
masks all fit; sizes are static). A constant that does not fit is an error, except int64's own
extremes, which code uses as "no limit" and which become int32's. float64 has no form on the targets,
and is refused. complex64 (rotary embeddings as rotations of complex numbers) is XLA's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import Array

from runtime.spec import LoweringError

Scalar: TypeAlias = bool | int | float

_INT32 = np.iinfo(np.int32)
_INT64 = np.iinfo(np.int64)
_RUN_DTYPES = {
    "bool": np.dtype(np.bool_),
    "uint8": np.dtype(np.uint8),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(jnp.bfloat16),
    "float32": np.dtype(np.float32),
    "complex64": np.dtype(np.complex64),
}
_HALVES = (np.dtype(np.float16), np.dtype(jnp.bfloat16))


def has_run_dtype(name: str) -> bool:
    """Say whether tensors of this torch dtype can be lowered."""
    return name in _RUN_DTYPES


def run_dtype(name: str) -> np.dtype:
    """Give the dtype that stands for a torch dtype in a compiled program.

    Raises:
        LoweringError: the dtype has no form on any target (float64, complex128).
    """
    if name not in _RUN_DTYPES:
        allowed = ", ".join(_RUN_DTYPES)
        message = f"dtype '{name}' cannot be lowered; allowed are {allowed}"
        raise LoweringError(message, remedy="cast the tensor in the model, for example to float32")
    return _RUN_DTYPES[name]


def run_integer(value: int) -> int:
    """Give the int32 that stands for an integer constant; int64's extremes become int32's.

    Raises:
        LoweringError: the value fits in int64 only.
    """
    if _INT32.min <= value <= _INT32.max:
        return value
    if value in (_INT64.min, _INT64.max):
        return _INT32.min if value < 0 else _INT32.max
    message = f"integer constant {value} does not fit in int32, the integers of compiled programs"
    raise LoweringError(message)


def widen(x: Array) -> Array:
    """Give half-precision values as float32, in which torch computes compound formulas on them."""
    return x.astype(np.float32) if x.dtype in _HALVES else x


def floating(x: Array) -> Array:
    """Give integers and bools as float32, as torch's functions of reals take them."""
    return x.astype(np.float32) if is_integral(x) else x


def is_integral(x: Array) -> bool:
    """Say whether the values are integers or bools."""
    return not jnp.issubdtype(x.dtype, jnp.inexact)


def promote(*values: Array | Scalar) -> list[Array]:
    """Give the operands of an elementwise op in the dtype in which torch computes it.

    Torch lets tensors with dimensions decide before those without, and these before Python numbers;
    the later ones count only where their kind (bool, integer, float, complex) is a higher one.
    Integers that are cast to a narrower dtype wrap around.
    """
    arrays = [x for x in values if isinstance(x, Array)]
    result = _join(x.dtype for x in arrays if x.ndim)
    result = _combine(result, _join(x.dtype for x in arrays if not x.ndim))
    result = _combine(result, _join(_number_dtype(x) for x in values if not isinstance(x, Array)))
    return [cast(x, result) for x in values]


def _join(dtypes: Iterable[Any]) -> Any:
    """Give the smallest dtype that holds all, or None of none."""
    result = None
    for dtype in dtypes:
        result = dtype if result is None else jnp.promote_types(result, dtype)
    return result


def _combine(higher: Any, lower: Any) -> Any:
    """Join a dtype with one that counts only by its kind (torch's `combine_categories`)."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    return jnp.promote_types(higher, lower) if _kind(lower) > _kind(higher) else higher


def _kind(dtype: Any) -> int:
    """Give the rank of a dtype's kind: bool, integer, float, complex."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return 3
    if jnp.issubdtype(dtype, jnp.floating):
        return 2
    return 0 if dtype == jnp.bool_ else 1


def _number_dtype(value: Scalar) -> Any:
    if isinstance(value, bool):
        return np.dtype(np.bool_)
    return np.dtype(np.int32 if isinstance(value, int) else np.float32)


def cast(value: Array | Scalar, dtype: Any) -> Array:
    """Give a value in a dtype; an integer that does not fit wraps around, as in torch."""
    # Only numpy wraps a Python number; jax refuses it.
    return (
        value.astype(dtype)
        if isinstance(value, Array)
        else jnp.asarray(np.array(value).astype(dtype))
    )
