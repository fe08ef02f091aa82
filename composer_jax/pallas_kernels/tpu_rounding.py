"""The arithmetic of MXFP8 inside kernels for TPU.

Blocks lie along the axis before the last, the sublanes, where a maximum is
cheap. Everything is done in float32 and int32, which every TPU has, and no step
depends on denormal numbers, which none has.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

SUBLANES = 8
_INFINITY = 0x7F800000  # Bits of float32; what is above is NaN.
_NAN_ELEMENT = 0x7F  # Bits of float8_e4m3fn.


def rounded(x: jax.Array) -> jax.Array:
  """The float32 numbers that x's elements would stand for; -0 becomes 0.

  Args:
    x: float32 of (blocks, 32, lanes).
  """
  largest = jnp.max(_magnitude(x), axis=-2, keepdims=True)
  # The factors are normal numbers, so that nothing is flushed: 2^127 and its
  # reciprocal are never both at hand.
  up = jnp.maximum(_power(largest), 2.0**-126)
  scaled = x * _reciprocal(up)
  exponent = jnp.maximum(
    _float(_bits(scaled) & _INFINITY), _float(_tiny(largest))
  )
  # 1.5 * 2^20 times the power of two: its last place is the element's. Added
  # as an integer, so that infinity stays what it is.
  magic = _float(_bits(exponent) + ((20 << 23) + 0x400000))
  up = jnp.where(largest > _INFINITY, jnp.nan, up)
  return ((scaled + magic) - magic) * up


def largest_by_sublane(x: jax.Array) -> jax.Array:
  """Bits of the largest magnitudes, int32, of every eighth row of a block.

  Args:
    x: float32 of (blocks, 32, lanes).

  Returns:
    (blocks, 8, lanes).
  """
  blocks, rows, lanes = x.shape
  bits = _magnitude(x).reshape(blocks, rows // SUBLANES, SUBLANES, lanes)
  return jnp.max(bits, axis=1)


class Powers(NamedTuple):
  """What makes elements of the numbers of a block; all of it int32."""

  down: jax.Array  # Bits of what takes the block to the elements' range.
  mask: jax.Array  # Leaves the magnitude of a number; of a NaN block, 0.
  tiny: jax.Array  # Bits: below it, scaled numbers are denormal elements.
  code: jax.Array  # Added to an exponent's bits, makes an element's.


def powers(largest: jax.Array) -> Powers:
  """Of blocks whose largest magnitude has these bits."""
  is_nan = largest > _INFINITY
  code = jnp.where(largest >= _INFINITY, 0, 56)
  code = jnp.where(is_nan, _NAN_ELEMENT, code)
  return Powers(
    down=_bits(_reciprocal(jnp.maximum(_power(largest), 0.0))),
    mask=jnp.where(is_nan, 0, 0x7FFFFFFF),
    tiny=_tiny(largest),
    code=code + (20 << 23),
  )


def scale(largest: jax.Array) -> jax.Array:
  """The scale of such blocks, int32 in 0..255."""
  exponent = jnp.maximum(((largest + 0x1FFFFF) >> 23) - 8, 0)
  exponent = jnp.where(largest >= _INFINITY, 254, exponent)
  return jnp.where(largest > _INFINITY, 255, exponent)


def encoded(x: jax.Array, by: Powers) -> jax.Array:
  """int32 whose low bytes are the elements of x, but for their signs.

  They are rounded to nearest even.

  Args:
    x: float32 of (blocks, 32, lanes).
    by: arrays of (blocks, 1, lanes).
  """
  scaled = _float(_bits(x) & by.mask) * _float(by.down)
  scaled = jnp.minimum(scaled, 448.0 * 2**7)
  exponent = jnp.maximum(_float(_bits(scaled) & _INFINITY), _float(by.tiny))
  # 2^20 times the power of two: the low byte of the sum is the number of last
  # places, and 56 for the exponents' bias. To it is added 8 times the exponent:
  # the bits of an element, modulo 256.
  places = scaled + _float(_bits(exponent) + by.code)
  return _bits(places) + (_bits(exponent) >> 20)


def _magnitude(x):
  # As integers: of floats, a maximum need not see a NaN.
  return _bits(jnp.abs(x))


def _power(largest):
  """What a block's elements are multiplied with; negative if not normal."""
  # Over 1.75 * 2^k the carry of the mantissa makes it k + 1.
  return _float(((largest + 0x1FFFFF) & _INFINITY) - (8 << 23))


def _reciprocal(power):
  """Of a power of two; 2^127 of 0, the one that elements need for 2^-127."""
  return _float((254 << 23) - _bits(power))


def _tiny(largest):
  # An infinite block is scaled by 2^-120 although its scale is 2^127.
  return jnp.where(largest >= _INFINITY, 128 << 23, (127 - 6) << 23)


def _bits(x):
  return jax.lax.bitcast_convert_type(x, jnp.int32)


def _float(bits):
  return jax.lax.bitcast_convert_type(bits, jnp.float32)


def factors(scale: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Two float32 numbers whose product is what an int32 scale stands for.

  Two, since 2^-127 is no normal number.
  """
  exponent = jnp.minimum(scale, 254) - 127
  half = exponent >> 1
  first = jnp.where(scale == 255, jnp.nan, _float((half + 127) << 23))
  return first, _float((exponent - half + 127) << 23)
