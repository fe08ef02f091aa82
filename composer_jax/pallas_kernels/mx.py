"""The MXFP8 format: 8-bit floats, and one power of two for each 32 of them.

OCP Microscaling Formats v1.0, section 5. Scales are carried as uint8, the
biased exponent (E8M0): 0 stands for 2^-127, 254 for 2^127 and 255 for NaN.
Where the hardware flushes denormal numbers (XLA:CPU does), a denormal counts as
zero, in and out.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

BLOCK = 32  # Elements that share a scale.
_BIAS = 127
_NAN_SCALE = 255
_LEAST_E4M3 = -6  # Exponent of the least normal element.
_MANTISSA = 23  # Bits of it in float32.
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
  scale = scales(x, axis, element=element, rounding=rounding)
  return Quantized(elements(x, scale, axis, element=element), scale)


def scales(
  x: jax.Array,
  axis: int = -1,
  *,
  element: str = 'e4m3',
  rounding: str = 'rceil',
) -> jax.Array:
  """The scales alone; see `quantize`."""
  if element not in ELEMENTS or rounding not in ROUNDINGS:
    raise ValueError(
      f'element={element!r} must be one of {", ".join(ELEMENTS)} and'
      f' rounding={rounding!r} one of {", ".join(ROUNDINGS)}'
    )
  if not jnp.issubdtype(x.dtype, jnp.floating):
    raise ValueError(f'only floating-point numbers are quantised: {x.dtype}')
  kind = ELEMENTS[element]
  # As integers, so that neither flushing nor a division can interfere.
  bits = _bits(jnp.abs(_split(x.astype(jnp.float32), axis)))
  largest = bits.max(axis=_inner(x, axis))
  scale = (largest >> _MANTISSA) - kind.exponent
  if rounding == 'rceil':
    scale += (largest & 0x7FFFFF) > 0x600000  # 1.75: the largest's mantissa.
    scale = jnp.where(largest == _INFINITY, 2 * _BIAS, scale)
  scale = jnp.clip(scale, 0, 2 * _BIAS)
  return jnp.where(largest > _INFINITY, _NAN_SCALE, scale).astype(jnp.uint8)


def elements(
  x: jax.Array, scales: jax.Array, axis: int = -1, *, element: str = 'e4m3'
) -> jax.Array:
  """The elements at these scales."""
  scaled = _scaled(x, _along(scales, axis), axis, ELEMENTS[element])
  return scaled.astype(ELEMENTS[element].dtype).reshape(x.shape)


def dequantize(
  elements: jax.Array, scales: jax.Array, axis: int = -1
) -> jax.Array:
  """The float32 numbers that elements and scales stand for; exact."""
  x_blocks = _split(elements.astype(jnp.float32), axis)
  scale = _along(scales, axis)
  return _times_power(x_blocks, scale, scale).reshape(elements.shape)


@functools.partial(jax.jit, static_argnames='axis')
def mx_round_trip(x: jax.Array, scales: jax.Array, axis: int) -> jax.Array:
  """`dequantize` of E4M3 `elements` at these scales, but that -0 becomes 0.

  In float32 all the way: XLA:CPU takes several times as long to cast to 8 bits
  and back.
  """
  scale = _along(scales, axis)
  scaled = _scaled(x, scale, axis, ELEMENTS['e4m3'])
  # The sum with 1.5 * 2^20 times an element's power of two has no places below
  # the element's own; the least such power is that of denormal elements.
  exponent = (_bits(scaled) >> _MANTISSA) & 0xFF
  magic = jnp.maximum(exponent, _BIAS + _LEAST_E4M3) + _MANTISSA - 3
  magic = _as_float((magic << _MANTISSA) | 0x400000)
  return _times_power((scaled + magic) - magic, scale, scale).reshape(x.shape)


def _along(scales, axis: int):
  """As int32, of length 1 where the 32 elements lie after `_split`."""
  return jnp.expand_dims(scales, _inner(scales, axis)).astype(jnp.int32)


def _scaled(x, scale, axis: int, kind: _Element):
  """Blocks in the range of the elements, not rounded."""
  x_blocks = _split(x.astype(jnp.float32), axis)
  scaled = _times_power(x_blocks, 2 * _BIAS - scale, scale)
  return jnp.clip(scaled, -kind.largest, kind.largest)


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


def _times_power(x, exponent, scale):
  """Multiplies by 2^(exponent - 127), in [0, 254]; gives NaN if scale is 255.

  In two steps, since float32 has no normal 2^-127. Integers alone make the
  factors: XLA:CPU does not vectorise what selects among them.
  """
  nan = -((scale + 1) >> 8) & 0x7FC00000
  power = _as_float((jnp.maximum(exponent, 1) << _MANTISSA) | nan)
  zero = (256 - exponent) >> 8  # 1 if the exponent is 0, else 0.
  return x * power * _as_float((_BIAS - zero) << _MANTISSA)


def _bits(x):
  return jax.lax.bitcast_convert_type(x, jnp.int32)


def _as_float(bits):
  return jax.lax.bitcast_convert_type(bits, jnp.float32)
