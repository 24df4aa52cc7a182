"""Complex numbers: pairs of reals and back, as rotary embeddings use them."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from runtime.compiler.lower.registry import op


@op("aten.view_as_complex.default")
def view_as_complex(x: Array) -> Array:
    """Give [..., 2] reals as [...] complex numbers."""
    return lax.complex(x[..., 0], x[..., 1])


@op("aten.view_as_real.default")
def view_as_real(x: Array) -> Array:
    """Give [...] complex numbers as [..., 2] reals."""
    return jnp.stack([lax.real(x), lax.imag(x)], -1)


@op("aten.complex.default")
def complex_(real: Array, imaginary: Array) -> Array:
    """Give the complex numbers with these parts."""
    return lax.complex(*jnp.broadcast_arrays(real, imaginary))


@op("aten.polar.default")
def polar(magnitude: Array, angle: Array) -> Array:
    """Give the complex numbers of a magnitude and an angle in radians."""
    return complex_(magnitude * jnp.cos(angle), magnitude * jnp.sin(angle))


@op("aten._conj.default", "aten._conj_physical.default", "aten.conj_physical.default")
def conjugate(x: Array) -> Array:
    """Give the complex conjugate; torch's lazy form of it is the same values."""
    return jnp.conj(x)


@op("aten.real.default")
def real(x: Array) -> Array:
    """Give the real part."""
    return lax.real(x)


@op("aten.imag.default")
def imaginary(x: Array) -> Array:
    """Give the imaginary part."""
    return lax.imag(x)
