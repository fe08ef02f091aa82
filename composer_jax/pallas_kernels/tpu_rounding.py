"""The arithmetic of MXFP8 inside kernels for TPU.

Blocks lie along the axis before the last, the sublanes, where a maximum is
cheap. Everything is done in float32 and int32, which every TPU has, and no step
depends on denormal numbers, which none has.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

_INFINITY = 0x7F800000  # Bits of float32; what is above is NaN.
_NAN_ELEMENT = 0x7F  # Bits of float8_e4m3fn.


class Powers(NamedTuple):
  """What each block is multiplied with, and how its elements are made."""

  largest: jax.Array  # Bits of the largest absolute value, int32.
  down: jax.Array  # Takes the block to the range of the elements ...
  up: jax.Array  # ... and back; NaN where the block holds one.
  tiny: jax.Array  # Below it, scaled numbers are denormal elements.
  code: jax.Array  # int32, added to make an element's bits ...
  mask: jax.Array  # ... and or-ed with them, for NaN.


def powers(x: jax.Array, smallest: float) -> Powers:
  """Of blocks of 32 rows of float32; one row of each power.

  The factors are normal numbers, so that nothing is flushed: 2^127 and its
  reciprocal are never both at hand. `smallest` says which end is bent: 2^-126
  is the least factor `up`, as rounding needs it; 0 leaves `down` exact, as
  elements do.
  """
  # As integers: of floats, a maximum need not see a NaN.
  bits = jnp.max(_bits(jnp.abs(x)), axis=-2, keepdims=True)
  # Over 1.75 * 2^k the carry of the mantissa makes it k + 1.
  exponent = (bits + 0x1FFFFF) & _INFINITY
  up = jnp.maximum(_float(exponent - (8 << 23)), smallest)
  not_finite = bits >= _INFINITY
  is_nan = bits > _INFINITY
  # An infinite block is scaled by 2^-120 although its scale is 2^127.
  return Powers(
    largest=bits,
    down=_float((254 << 23) - _bits(up)),
    up=jnp.where(is_nan, jnp.nan, up),
    tiny=jnp.where(not_finite, 2.0, 2.0**-6),
    code=jnp.where(not_finite, 0, 56),
    mask=jnp.where(is_nan, _NAN_ELEMENT, 0),
  )


def scale(largest: jax.Array) -> jax.Array:
  """The scale of a block, int32 in 0..255, from `Powers.largest`."""
  exponent = jnp.maximum(((largest + 0x1FFFFF) >> 23) - 8, 0)
  exponent = jnp.where(largest >= _INFINITY, 254, exponent)
  return jnp.where(largest > _INFINITY, 255, exponent)


def rounded(x: jax.Array, by: Powers) -> jax.Array:
  """The float32 numbers that x's elements would stand for; -0 becomes 0."""
  scaled = x * by.down
  exponent = jnp.maximum(_float(_bits(scaled) & _INFINITY), by.tiny)
  # 1.5 * 2^20 times the power of two: its last place is the element's. Added
  # as an integer, so that infinity stays what it is.
  magic = _float(_bits(exponent) + ((20 << 23) + 0x400000))
  return ((scaled + magic) - magic) * by.up


def encoded(x: jax.Array, by: Powers) -> jax.Array:
  """int32 whose low bytes are x's elements, rounded to nearest even."""
  scaled = jnp.minimum(jnp.abs(x) * by.down, 448.0 * 2**7)
  exponent = jnp.maximum(_float(_bits(scaled) & _INFINITY), by.tiny)
  # As above; the low byte of the sum is the number of last places. To it is
  # added 8 times the exponent: the bits of an element, modulo 256.
  places = scaled + _float(_bits(exponent) + (20 << 23))
  code = jnp.where(_bits(x) < 0, by.code + 0x80, by.code)
  code += _bits(places) + (_bits(exponent) >> 20)
  return code | by.mask


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
