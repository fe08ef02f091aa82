"""The blocks of a tile on a TPU, quantised once all of them are known.

Eight rows of a scratch belong to a block: first the largest magnitude in each
sublane, then the block's powers, which so are made for many blocks at once. A
kernel goes over its tile, or a slab of it, twice: it notes, settles, encodes.
"""

from __future__ import annotations

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from composer_jax.pallas_kernels import mx
from composer_jax.pallas_kernels import tpu_rounding

LANES = 128
SEGMENT = mx.BLOCK * LANES  # Columns whose scales fill the lanes once.
_SUBLANES = tpu_rounding.SUBLANES


def as_blocks(x: jax.Array) -> jax.Array:
  """(blocks, 32, lanes) of (32 * blocks, lanes)."""
  return x.reshape(-1, mx.BLOCK, x.shape[1])


def block_rows(rows: int, columns: int):
  """The scratch for blocks along the rows of a tile; lanes come first."""
  shape = pl.cdiv(columns, LANES), rows // mx.BLOCK * _SUBLANES, LANES
  return pltpu.VMEM(shape, jnp.int32)


def turned(rows: int, columns: int) -> list:
  """The scratches for blocks along columns: the tile, turned, and their rows.

  There are enough of these to be turned back.
  """
  return [
    pltpu.VMEM((columns, rows), jnp.float32),
    block_rows(pl.cdiv(columns, SEGMENT) * SEGMENT, rows),
  ]


def note_largest(blocks_ref, x: jax.Array, row, column):
  """Notes the largest magnitudes of a part of a tile, as float32."""
  for blocks, here in _by_lanes(x, row, column):
    largest = tpu_rounding.largest_by_sublane(blocks)
    blocks_ref[here] = largest.reshape(-1, largest.shape[2])


def note_turned(turned_ref, blocks_ref, x: jax.Array, row, column):
  """As `note_largest`, along lanes; keeps the part, turned."""
  x = x.T.astype(jnp.float32)
  turned_ref[pl.ds(column, x.shape[0]), pl.ds(row, x.shape[1])] = x
  note_largest(blocks_ref, x, column, row)


def settle_sublanes(blocks_ref, scales_ref, column=0):
  """Makes powers and scales, from a column on, of all that was noted."""
  for i in range(blocks_ref.shape[0]):
    lanes = pl.ds(column + i * LANES, LANES)
    scales_ref[0, :, lanes] = _scale_bytes(settled(blocks_ref.at[i]))


def settle_lanes(blocks_ref, scales_ref):
  """As `settle_sublanes`, of a tile that `note_turned` noted."""
  _, rows, _ = scales_ref.shape
  height = min(rows, LANES)
  for i in range(blocks_ref.shape[0]):
    scales = turned_scales(settled(blocks_ref.at[i]), scales_ref)
    scales_ref[0, i * height : (i + 1) * height] = scales[:height]


def turned_scales(largest: jax.Array, scales_ref) -> jax.Array:
  """uint8 scales along lanes, of the largest magnitudes' bits by block."""
  return _scale_bytes(largest.T)[:, : scales_ref.shape[2]]


def settled(ref) -> jax.Array:
  """The bits of the blocks' largest magnitudes; powers take their place."""
  blocks = ref.shape[0] // _SUBLANES
  rows = [pl.ds(s, blocks, stride=_SUBLANES) for s in range(_SUBLANES)]
  largest = ref[rows[0]]
  for row in rows[1:]:
    largest = jnp.maximum(largest, ref[row])
  for row, power in zip(rows, tpu_rounding.powers(largest), strict=False):
    ref[row] = power
  return largest


def sublane_elements(blocks_ref, x: jax.Array, row, column) -> jax.Array:
  """The elements of what was noted, once it is settled."""
  codes = _codes(blocks_ref, x.astype(jnp.float32), row, column)
  return _signed(codes.astype(jnp.int8), signed_zeros(x))


def lane_elements(turned_ref, blocks_ref, zeros: jax.Array, row, column):
  """As `sublane_elements`, of what `note_turned` noted, and `signed_zeros`."""
  height, width = zeros.shape
  here = pl.ds(column, width), pl.ds(row, height)
  codes = _codes(blocks_ref, turned_ref[here], column, row)
  return _signed(codes.astype(jnp.int16).T.astype(jnp.int8), zeros)


def signed_zeros(x: jax.Array) -> jax.Array:
  """Elements that are 0 or -0, as is the sign of x."""
  if x.dtype == jnp.bfloat16:
    # Of two rows at once: what comes from the other one is lost.
    signs = pltpu.bitcast(pltpu.bitcast(x, jnp.int32) >> 8, jnp.int16)
  else:
    signs = jax.lax.bitcast_convert_type(x, jnp.int32) >> 24
  return _as_elements(signs.astype(jnp.int8) & -128)


def _signed(codes, zeros):
  return _as_elements(codes | jax.lax.bitcast_convert_type(zeros, jnp.int8))


def _as_elements(code):
  return jax.lax.bitcast_convert_type(code, jnp.float8_e4m3fn)


def _codes(blocks_ref, x, row, column):
  codes = []
  for blocks, here in _by_lanes(x, row, column):
    powers = blocks_ref[here].reshape(len(blocks), _SUBLANES, -1)
    by = tpu_rounding.Powers(*(powers[:, i : i + 1] for i in range(4)))
    codes.append(tpu_rounding.encoded(blocks, by).reshape(len(x), -1))
  return jnp.concatenate(codes, axis=1)


def _by_lanes(x, row, column):
  """Blocks of 128 columns of x at a time, and where their eight rows are."""
  first = row // mx.BLOCK * _SUBLANES
  for start in range(0, x.shape[1], LANES):
    blocks = as_blocks(x[:, start : start + LANES])
    rows = pl.ds(first, len(blocks) * _SUBLANES)
    yield blocks, ((column + start) // LANES, rows, slice(blocks.shape[2]))


def _scale_bytes(largest: jax.Array) -> jax.Array:
  return jax.lax.bitcast_convert_type(
    tpu_rounding.scale(largest).astype(jnp.int8), jnp.uint8
  )
