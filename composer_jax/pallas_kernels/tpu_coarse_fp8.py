"""Products of 8-bit floats on the TPU that multiplies them, v7x.

Not MXFP8. There a block of 32 has a scale, so that every 32 terms of a sum
would have to leave the matrix unit to be scaled, which costs more than the unit
gains. Here a whole row of x and a whole column of w have one, a power of two,
and only the sum is scaled. What is small beside the largest of its row is lost:
E4M3 spans 2^-9 to 448.

Dense products only, and of them the forward one. On a v5e or v6e the compiler
refuses the product.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

_LANES = 128
_VMEM_BYTES = 48 * 2**20
_MOST_K = 16384  # All of it is in a tile.


class Coarse(NamedTuple):
  """A matrix in E4M3 whose scales are 1 long along the summed axis."""

  elements: jax.Array  # float8_e4m3fn
  scales: jax.Array  # float32, powers of two


def quantize(x: jax.Array, axis: int, *, interpret=False) -> Coarse:
  """Elements of a matrix, and a scale for each line along the axis.

  A scale is the least power of two at which nothing saturates, but 2^-126 at
  least. A line that holds a NaN has the scale NaN.

  Raises:
    ValueError: sizes are no multiples of 128, or the axis is too long.
  """
  if x.ndim != 2 or any(size % _LANES for size in x.shape):
    raise ValueError(f'shape {x.shape}: pad two axes to multiples of {_LANES}')
  if x.shape[axis] > _MOST_K:
    raise ValueError(f'{x.shape[axis]} summed numbers: {_MOST_K} at most')
  axis %= 2
  tile = list(x.shape)
  tile[1 - axis] = _LANES
  scale_tile, scale_shape = list(tile), list(x.shape)
  scale_tile[axis] = scale_shape[axis] = 1
  at = (lambda i: (i, 0)) if axis else (lambda i: (0, i))
  return Coarse(
    *pl.pallas_call(
      _quantize_rows if axis else _quantize_columns,
      grid=(x.shape[1 - axis] // _LANES,),
      in_specs=[pl.BlockSpec(tuple(tile), at)],
      out_specs=(
        pl.BlockSpec(tuple(tile), at),
        pl.BlockSpec(tuple(scale_tile), at),
      ),
      out_shape=(
        jax.ShapeDtypeStruct(x.shape, jnp.float8_e4m3fn),
        jax.ShapeDtypeStruct(tuple(scale_shape), jnp.float32),
      ),
      compiler_params=_parameters('parallel'),
      interpret=interpret,
      name=f'coarse_quantize_{axis}',
    )(x)
  )


def forward(x_MK: Coarse, w_KN: Coarse, *, interpret=False) -> jax.Array:
  """y_MN in float32, of matrices quantised along K."""
  (size_M, size_K), (rows, size_N) = x_MK.elements.shape, w_KN.elements.shape
  if rows != size_K:
    raise ValueError(f'{size_K} columns of x and {rows} rows of w differ')
  if x_MK.scales.shape != (size_M, 1) or w_KN.scales.shape != (1, size_N):
    raise ValueError(
      f'scales {x_MK.scales.shape} and {w_KN.scales.shape} of matrices that'
      ' are not both quantised along K'
    )
  tile_M, tile_N = min(size_M, 512), min(size_N, 512)
  return pl.pallas_call(
    _forward_body,
    grid=(pl.cdiv(size_M, tile_M), pl.cdiv(size_N, tile_N)),
    in_specs=[
      pl.BlockSpec((tile_M, size_K), lambda m, n: (m, 0)),
      pl.BlockSpec((tile_M, 1), lambda m, n: (m, 0)),
      pl.BlockSpec((size_K, tile_N), lambda m, n: (0, n)),
      pl.BlockSpec((1, tile_N), lambda m, n: (0, n)),
    ],
    out_specs=pl.BlockSpec((tile_M, tile_N), lambda m, n: (m, n)),
    out_shape=jax.ShapeDtypeStruct((size_M, size_N), jnp.float32),
    compiler_params=_parameters('parallel', 'parallel'),
    interpret=interpret,
    name='coarse_forward',
  )(*x_MK, *w_KN)


def _parameters(*semantics: str):
  return pltpu.CompilerParams(
    dimension_semantics=semantics, vmem_limit_bytes=_VMEM_BYTES
  )


def _bits(x):
  return jax.lax.bitcast_convert_type(x, jnp.int32)


def _float(bits):
  return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _quantize_rows(x_ref, elements_ref, scales_ref):
  _quantize_tile(1, x_ref, elements_ref, scales_ref)


def _quantize_columns(x_ref, elements_ref, scales_ref):
  _quantize_tile(0, x_ref, elements_ref, scales_ref)


def _quantize_tile(axis: int, x_ref, elements_ref, scales_ref):
  """Two passes over a tile, in pieces of 128 by 128."""
  pieces = x_ref.shape[axis] // _LANES

  def here(i):
    start = pl.ds(pl.multiple_of(i * _LANES, _LANES), _LANES)
    return (slice(None), start) if axis else (start, slice(None))

  def largest(i, found):
    bits = _bits(jnp.abs(x_ref[here(i)].astype(jnp.float32)))
    return jnp.maximum(found, bits)

  found = jax.lax.fori_loop(
    0, pieces, largest, jnp.zeros((_LANES, _LANES), jnp.int32)
  )
  # As integers, since a maximum of floats need not see a NaN.
  found = jnp.max(found, axis=axis, keepdims=True)
  exponent = (found + 0x1FFFFF) & 0x7F800000  # Rounded up from 1.75 * 2^k.
  scale = jnp.maximum(_float(exponent - (8 << 23)), 2.0**-126)
  down = _float((254 << 23) - _bits(scale))
  scales_ref[...] = jnp.where(found > 0x7F800000, jnp.nan, scale)

  def write(i, _):
    x = x_ref[here(i)].astype(jnp.float32) * down
    elements_ref[here(i)] = jnp.clip(x, -448, 448).astype(jnp.float8_e4m3fn)
    return 0

  jax.lax.fori_loop(0, pieces, write, 0)


def _forward_body(x_ref, x_scales_ref, w_ref, w_scales_ref, y_ref):
  y = jnp.dot(x_ref[...], w_ref[...], preferred_element_type=jnp.float32)
  y_ref[...] = y * x_scales_ref[...] * w_scales_ref[...]
