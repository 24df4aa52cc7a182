"""Tensors from nothing: constants and counters."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from runtime.compiler.lower.dtypes import Scalar
from runtime.compiler.lower.registry import op

_DEFAULT = jnp.float32


def _dtype_of(value: Scalar) -> Any:
    """Give the dtype that torch takes for a Python number."""
    if isinstance(value, bool):
        return jnp.bool_
    return jnp.int32 if isinstance(value, int) else _DEFAULT


@op("aten.full.default")
def full(shape: tuple[int, ...], value: Scalar, *, dtype: Any = None) -> Array:
    """Give a tensor of one value."""
    return jnp.full(shape, value, _dtype_of(value) if dtype is None else dtype)


@op("aten.full_like.default")
def full_like(x: Array, value: Scalar, *, dtype: Any = None) -> Array:
    """Give a tensor of one value with x's shape, and its dtype unless told."""
    return jnp.full(x.shape, value, x.dtype if dtype is None else dtype)


@op("aten.new_full.default")
def new_full(x: Array, shape: tuple[int, ...], value: Scalar, *, dtype: Any = None) -> Array:
    """Give a tensor of one value with x's dtype unless told."""
    return jnp.full(shape, value, x.dtype if dtype is None else dtype)


@op("aten.fill.Scalar", "aten.fill.Tensor")
def fill(x: Array, value: Any) -> Array:
    """Give x's shape and dtype filled with one value."""
    return jnp.full(x.shape, jnp.asarray(value, x.dtype))


@op("aten.zeros.default", "aten.empty.memory_format")
def zeros(shape: tuple[int, ...], *, dtype: Any = None) -> Array:
    """Give zeros; torch leaves an empty tensor's values open, and zeros are reproducible."""
    return jnp.zeros(shape, _DEFAULT if dtype is None else dtype)


@op("aten.empty_permuted.default", "aten.empty_strided.default")
def empty_permuted(shape: tuple[int, ...], _layout: tuple[int, ...], *, dtype: Any = None) -> Array:
    """Give zeros; the strides have no meaning here."""
    return zeros(shape, dtype=dtype)


@op("aten.ones.default")
def ones(shape: tuple[int, ...], *, dtype: Any = None) -> Array:
    """Give ones."""
    return jnp.ones(shape, _DEFAULT if dtype is None else dtype)


@op("aten.zeros_like.default", "aten.empty_like.default")
def zeros_like(x: Array, *, dtype: Any = None) -> Array:
    """Give zeros with x's shape."""
    return full_like(x, 0, dtype=dtype)


@op("aten.ones_like.default")
def ones_like(x: Array, *, dtype: Any = None) -> Array:
    """Give ones with x's shape."""
    return full_like(x, 1, dtype=dtype)


@op("aten.new_zeros.default", "aten.new_empty.default")
def new_zeros(x: Array, shape: tuple[int, ...], *, dtype: Any = None) -> Array:
    """Give zeros with x's dtype."""
    return new_full(x, shape, 0, dtype=dtype)


@op("aten.new_empty_strided.default")
def new_empty_strided(
    x: Array, shape: tuple[int, ...], _strides: tuple[int, ...], *, dtype: Any = None
) -> Array:
    """Give zeros with x's dtype; the strides have no meaning here."""
    return new_full(x, shape, 0, dtype=dtype)


@op("aten.new_ones.default")
def new_ones(x: Array, shape: tuple[int, ...], *, dtype: Any = None) -> Array:
    """Give ones with x's dtype."""
    return new_full(x, shape, 1, dtype=dtype)


@op("aten.scalar_tensor.default")
def scalar_tensor(value: Scalar, *, dtype: Any = None) -> Array:
    """Give a tensor without dimensions; a number is a float32 unless told."""
    return jnp.asarray(value, _DEFAULT if dtype is None else dtype)


@op("aten.arange.default")
def arange(stop: Scalar, *, dtype: Any = None) -> Array:
    """Count from 0."""
    return jnp.arange(stop, dtype=dtype)


@op("aten.arange.start")
def arange_start(start: Scalar, stop: Scalar, *, dtype: Any = None) -> Array:
    """Count from `start`."""
    return jnp.arange(start, stop, dtype=dtype)


@op("aten.arange.start_step")
def arange_start_step(start: Scalar, stop: Scalar, step: Scalar = 1, *, dtype: Any = None) -> Array:
    """Count from `start` by `step`, up to but without `stop`."""
    return jnp.arange(start, stop, step, dtype=dtype)


@op("aten._assert_tensor_metadata.default", "aten._assert_scalar.default")
def no_effect(*_args: Any, **_kwargs: Any) -> None:
    """Give nothing: capture has checked what these assert, and shapes are static."""
