"""Reductions over dimensions, running sums, and norms."""

from __future__ import annotations

from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import Array

from runtime.compiler.lower.dtypes import is_integral, widen
from runtime.compiler.lower.registry import op

Dims: TypeAlias = int | tuple[int, ...] | None


def _axes(x: Array, dims: Dims) -> tuple[int, ...]:
    """Give torch's dims as axes: None and () mean all, and a scalar has none to reduce."""
    if dims is None or dims == ():
        return tuple(range(x.ndim))
    dims = (dims,) if isinstance(dims, int) else dims
    return tuple(dim % x.ndim for dim in dims) if x.ndim else ()


@op("aten.sum.default", "aten.sum.dim_IntList")
def sum_(x: Array, dims: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    """Add up; the empty sum is 0, and integers add in int32."""
    return jnp.sum(x, _axes(x, dims), dtype=dtype, keepdims=keepdim)


@op("aten.mean.default", "aten.mean.dim")
def mean(x: Array, dims: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Array:
    """Average; the empty mean is NaN."""
    return jnp.mean(x, _axes(x, dims), dtype=dtype, keepdims=keepdim)


@op("aten.prod.default")
def prod(x: Array, *, dtype: Any = None) -> Array:
    """Multiply all elements; the empty product is 1."""
    return jnp.prod(x, dtype=dtype)


@op("aten.prod.dim_int")
def prod_dim(x: Array, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Array:
    """Multiply along one dimension."""
    return jnp.prod(x, _axes(x, dim), dtype=dtype, keepdims=keepdim)


@op("aten.any.default", "aten.any.dim", "aten.any.dims")
def any_(x: Array, dims: Dims = None, keepdim: bool = False) -> Array:
    """Say whether an element is not zero; unlike in a sum, no dims mean each element alone."""
    return jnp.any(x, () if dims == () else _axes(x, dims), keepdims=keepdim)


@op("aten.all.default", "aten.all.dim", "aten.all.dims")
def all_(x: Array, dims: Dims = None, keepdim: bool = False) -> Array:
    """Say whether no element is zero; unlike in a sum, no dims mean each element alone."""
    return jnp.all(x, () if dims == () else _axes(x, dims), keepdims=keepdim)


@op("aten.amax.default", "aten.max.default")
def amax(x: Array, dims: Dims = None, keepdim: bool = False) -> Array:
    """Give the largest element; NaN where there is one."""
    return jnp.max(x, _axes(x, dims), keepdims=keepdim)


@op("aten.amin.default", "aten.min.default")
def amin(x: Array, dims: Dims = None, keepdim: bool = False) -> Array:
    """Give the smallest element; NaN where there is one."""
    return jnp.min(x, _axes(x, dims), keepdims=keepdim)


@op("aten.argmax.default")
def argmax(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """Give the place of the first largest element, or of the first NaN."""
    return jnp.argmax(x, dim if x.ndim else None, keepdims=keepdim)


@op("aten.argmin.default")
def argmin(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """Give the place of the first smallest element, or of the first NaN."""
    return jnp.argmin(x, dim if x.ndim else None, keepdims=keepdim)


@op("aten.max.dim")
def max_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """Give the largest along a dimension, and its place."""
    return amax(x, dim, keepdim), argmax(x, dim, keepdim)


@op("aten.min.dim")
def min_dim(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """Give the smallest along a dimension, and its place."""
    return amin(x, dim, keepdim), argmin(x, dim, keepdim)


@op("aten.var.correction")
def var(
    x: Array, dims: Dims = None, *, correction: float | None = 1, keepdim: bool = False
) -> Array:
    """Give the variance, divided by n - correction."""
    return _moments(x, dims, correction, keepdim)[0]


@op("aten.var_mean.correction")
def var_mean(
    x: Array, dims: Dims = None, *, correction: float | None = 1, keepdim: bool = False
) -> tuple[Array, Array]:
    """Give the variance and the mean."""
    return _moments(x, dims, correction, keepdim)


@op("aten.std.correction")
def std(
    x: Array, dims: Dims = None, *, correction: float | None = 1, keepdim: bool = False
) -> Array:
    """Give the square root of the variance."""
    return jnp.sqrt(_moments(x, dims, correction, keepdim)[0])


def _moments(x: Array, dims: Dims, correction: float | None, keepdim: bool) -> tuple[Array, Array]:
    axes = _axes(x, dims)
    x = widen(x)
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    center = jnp.mean(x, axes, keepdims=True)
    total = jnp.sum(jnp.square(x - center), axes, keepdims=keepdim)
    divisor = max(count - (1 if correction is None else correction), 0)
    return total / jnp.float32(divisor), center if keepdim else jnp.squeeze(center, axes)


@op("aten.linalg_vector_norm.default")
def vector_norm(
    x: Array, order: float = 2, dims: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> Array:
    """Give the norm of vectors: of order 0, 1, 2, any other number, inf or -inf."""
    x = jnp.abs(widen(x if dtype is None else x.astype(dtype)))
    axes = _axes(x, dims)
    if order == 0:
        return jnp.sum(x != 0, axes, keepdims=keepdim)
    if order in (float("inf"), float("-inf")):
        pick = jnp.max if order > 0 else jnp.min
        return pick(x, axes, keepdims=keepdim)
    if order == 2:
        return jnp.sqrt(jnp.sum(x * x, axes, keepdims=keepdim))
    return jnp.power(jnp.sum(jnp.power(x, order), axes, keepdims=keepdim), 1 / order)


@op("aten.logsumexp.default")
def logsumexp(x: Array, dims: Dims, keepdim: bool = False) -> Array:
    """Give log(sum(e^x)), safe for large x."""
    axes = _axes(x, dims)
    x = widen(x)
    top = jnp.max(x, axes, keepdims=True)
    top = jnp.where(jnp.isfinite(top), top, 0)
    total = jnp.log(jnp.sum(jnp.exp(x - top), axes, keepdims=True)) + top
    return total if keepdim else jnp.squeeze(total, axes)


@op("aten.cumsum.default")
def cumsum(x: Array, dim: int, *, dtype: Any = None) -> Array:
    """Give running sums along a dimension; integers and bools add in int32, halves in float32."""
    x = widen(_accumulating(x, dtype))
    return jnp.cumsum(x, dim) if x.ndim else x


@op("aten.cumprod.default")
def cumprod(x: Array, dim: int, *, dtype: Any = None) -> Array:
    """Give running products along a dimension, of half precision in float32."""
    x = widen(_accumulating(x, dtype))
    return jnp.cumprod(x, dim) if x.ndim else x


def _accumulating(x: Array, dtype: Any) -> Array:
    if dtype is not None:
        return x.astype(dtype)
    return x.astype(jnp.int32) if is_integral(x) else x
