"""The MXFP8 format: 8-bit floats, and one power of two for each 32 of them.

OCP Microscaling Formats v1.0, section 5. Scales are carried as uint8, the
biased exponent (E8M0): 0 stands for 2^-127, 254 for 2^127 and 255 for NaN.
Where the hardware flushes denormal numbers (XLA:CPU does), a denormal counts as
zero, in and out.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

BLOCK = 32  # Elements that share a scale.
_BIAS = 127
_NAN_SCALE = 255
_INFINITY = 0x7F800000  # Bits of float32; what is above is NaN.


class Quantized(NamedTuple):
  """A tensor in blocks along one of its axes."""

  elements: jax.Array
  scales: jax.Array  # uint8, 32 times shorter along the axis


class _Element(NamedTuple):
  dtype: jnp.dtype
  largest: float
  exponent: int  # Of the largest number.


ELEMENTS = {
  'e4m3': _Element(jnp.float8_e4m3fn, 448.0, 8),
  'e5m2': _Element(jnp.float8_e5m2, 57344.0, 15),
}
ROUNDINGS = ('rceil', 'floor')


def quantize(
  x: jax.Array,
  axis: int = -1,
  *,
  element: str = 'e4m3',
  rounding: str = 'rceil',
) -> Quantized:
  """Elements and scales of x, in blocks of 32 along the axis.

  The scale of a block is a power of two: with `rceil` the smallest one at which
  nothing saturates (amax / largest, rounded up; Mishra et al. 2025, arXiv
  2506.08027), with `floor` the one of OCP v1.0, at which the largest elements
  may saturate. Elements are rounded to nearest even and saturate; a block that
  holds a NaN is all NaN.

  Args:
    x: floating-point numbers.
    axis: a multiple of 32 long.
    element: 'e4m3' or 'e5m2'.
    rounding: of the scale, 'rceil' or 'floor'.

  Returns:
    (elements, shaped like x; uint8 scales, 32 times shorter along the axis).

  Raises:
    ValueError: the axis is no multiple of 32, or a name or type is unknown.
  """
  if element not in ELEMENTS or rounding not in ROUNDINGS:
    raise ValueError(
      f'element={element!r} must be one of {", ".join(ELEMENTS)} and'
      f' rounding={rounding!r} one of {", ".join(ROUNDINGS)}'
    )
  if not jnp.issubdtype(x.dtype, jnp.floating):
    raise ValueError(f'only floating-point numbers are quantised: {x.dtype}')
  kind = ELEMENTS[element]
  x_blocks = _split(x.astype(jnp.float32), axis)
  inner = _inner(x, axis)
  # As integers, so that neither flushing nor a division can interfere.
  bits = jax.lax.bitcast_convert_type(jnp.abs(x_blocks), jnp.int32)
  largest = bits.max(axis=inner, keepdims=True)
  scale = (largest >> 23) - kind.exponent
  if rounding == 'rceil':
    scale += (largest & 0x7FFFFF) > 0x600000  # 1.75: the largest's mantissa.
    scale = jnp.where(largest == _INFINITY, 2 * _BIAS, scale)
  scale = jnp.clip(scale, 0, 2 * _BIAS)
  scaled = _times_power(x_blocks, _BIAS - scale)
  scaled = jnp.clip(scaled, -kind.largest, kind.largest)
  is_nan = largest > _INFINITY
  elements = jnp.where(is_nan, jnp.nan, scaled).astype(kind.dtype)
  scale = jnp.where(is_nan, _NAN_SCALE, scale).astype(jnp.uint8)
  return Quantized(elements.reshape(x.shape), jnp.squeeze(scale, inner))


def dequantize(
  elements: jax.Array, scales: jax.Array, axis: int = -1
) -> jax.Array:
  """The float32 numbers that elements and scales stand for; exact."""
  x_blocks = _split(elements.astype(jnp.float32), axis)
  inner = _inner(elements, axis)
  scale = jnp.expand_dims(scales, inner).astype(jnp.int32)
  x_blocks = _times_power(x_blocks, jnp.minimum(scale, 2 * _BIAS) - _BIAS)
  x_blocks = jnp.where(scale == _NAN_SCALE, jnp.nan, x_blocks)
  return x_blocks.reshape(elements.shape)


def _inner(x, axis: int) -> int:
  """Where the 32 elements of a block lie after `_split`."""
  return axis % x.ndim + 1


def _split(x, axis: int):
  """The axis split into blocks and their elements."""
  axis %= x.ndim
  size = x.shape[axis]
  if size % BLOCK:
    raise ValueError(
      f'axis {axis} of shape {x.shape} is no multiple of {BLOCK}: pad it'
    )
  return x.reshape(*x.shape[:axis], size // BLOCK, BLOCK, *x.shape[axis + 1 :])


def _times_power(x, exponent):
  """Multiplies by 2^exponent, for exponents in [-127, 127].

  In two steps, since neither 2^-127 nor its reciprocal need be at hand.
  """
  half = exponent >> 1
  return x * _power(half) * _power(exponent - half)


def _power(exponent):
  return jax.lax.bitcast_convert_type((exponent + _BIAS) << 23, jnp.float32)
