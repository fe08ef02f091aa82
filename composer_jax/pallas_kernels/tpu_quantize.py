"""Kernels for TPU that quantise, or round as quantising would.

They take three axes, the last of them a multiple of 128 long and the second one
of 32. A tile is worked on in slabs of 32 rows, which fit in the registers.
"""

from __future__ import annotations

from collections.abc import Callable
import math

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from composer_jax.pallas_kernels import mx
from composer_jax.pallas_kernels import tpu_blocks
from composer_jax.pallas_kernels import tpu_rounding

LANES = tpu_blocks.LANES
_TILE_ELEMENTS = 2**19
_VMEM_BYTES = 56 * 2**20  # Of 128 MiB, or 64 on v7x.


def check(
  x: jax.Array, axis: int, dtypes: tuple = (jnp.float32, jnp.bfloat16)
) -> int:
  """The axis counted from 0, if the kernels take x.

  Raises:
    ValueError: the shape, the axis or the type is not supported.
  """
  if x.ndim != 3 or axis % 3 == 0:
    raise ValueError(
      f'three axes, blocks along one of the last two: {x.shape}, axis {axis}'
    )
  if x.shape[1] % mx.BLOCK or x.shape[2] % LANES:
    raise ValueError(
      f'shape {x.shape} on a TPU: pad axis 1 to a multiple of {mx.BLOCK} and'
      f' axis 2 to one of {LANES}'
    )
  if x.dtype not in dtypes:
    names = ' or '.join(dtype.__name__ for dtype in dtypes)
    raise ValueError(f'a kernel for {names} was given {x.dtype}')
  return axis % 3


def quantize(x: jax.Array, axis: int, *, interpret=False) -> mx.Quantized:
  """As `mx.quantize` in E4M3, bit by bit but for the sign of NaN."""
  axis = check(x, axis)
  groups, rows, columns = x.shape
  tile_R, tile_C, scale_tile = _tiles(x.shape, axis)
  scale_shape = list(x.shape)
  scale_shape[axis] //= mx.BLOCK
  if axis == 1:
    scratch = [tpu_blocks.block_rows(tile_R, tile_C)]
  else:
    scratch = tpu_blocks.turned(tile_R, tile_C)
  tile = pl.BlockSpec((1, tile_R, tile_C), same_tile)
  return mx.Quantized(
    *pl.pallas_call(
      _quantize_sublanes if axis == 1 else _quantize_lanes,
      grid=(groups, pl.cdiv(rows, tile_R), pl.cdiv(columns, tile_C)),
      in_specs=[tile],
      out_specs=(tile, pl.BlockSpec(scale_tile, same_tile)),
      out_shape=(
        jax.ShapeDtypeStruct(x.shape, jnp.float8_e4m3fn),
        jax.ShapeDtypeStruct(scale_shape, jnp.uint8),
      ),
      scratch_shapes=scratch,
      compiler_params=parameters(),
      interpret=interpret,
      name=f'mx_quantize_{axis}',
    )(x)
  )


def operand(x: jax.Array, axis: int, *, interpret=False) -> jax.Array:
  """The bfloat16 numbers that `quantize` would keep; -0 becomes 0."""
  axis = check(x, axis)
  groups, rows, columns = x.shape
  tile_C = min(columns, 1024)
  tile_R = tile_rows(rows, tile_C)
  tile = pl.BlockSpec((1, tile_R, tile_C), same_tile)
  return pl.pallas_call(
    _operand_sublanes if axis == 1 else _operand_lanes,
    grid=(groups, pl.cdiv(rows, tile_R), pl.cdiv(columns, tile_C)),
    in_specs=[tile],
    out_specs=tile,
    out_shape=jax.ShapeDtypeStruct(x.shape, jnp.bfloat16),
    compiler_params=parameters(),
    interpret=interpret,
    name=f'mx_operand_{axis}',
  )(x)


def reopen(kept: mx.Quantized, axis: int, *, interpret=False) -> jax.Array:
  """The bfloat16 operand from what was kept of it."""
  elements, scales = kept
  axis = check(elements, axis, (jnp.float8_e4m3fn,))
  groups, rows, columns = elements.shape
  scale_shape = list(elements.shape)
  scale_shape[axis] //= mx.BLOCK
  if scales.shape != tuple(scale_shape) or scales.dtype != jnp.uint8:
    raise ValueError(
      f'elements {elements.shape} along axis {axis} have uint8 scales of'
      f' {tuple(scale_shape)}, not {scales.dtype} of {scales.shape}'
    )
  tile_R, tile_C, scale_tile = _tiles(elements.shape, axis)
  tile = pl.BlockSpec((1, tile_R, tile_C), same_tile)
  by_block = _by_block(scale_tile, axis)
  scratch = [pltpu.VMEM(by_block, jnp.float32)] * 2
  if axis == 2:
    scratch.append(pltpu.VMEM((tile_R, by_block[0]), jnp.int32))
  return pl.pallas_call(
    _reopen_sublanes if axis == 1 else _reopen_lanes,
    grid=(groups, pl.cdiv(rows, tile_R), pl.cdiv(columns, tile_C)),
    in_specs=[tile, pl.BlockSpec(scale_tile, same_tile)],
    out_specs=tile,
    out_shape=jax.ShapeDtypeStruct(elements.shape, jnp.bfloat16),
    scratch_shapes=scratch,
    compiler_params=parameters(),
    interpret=interpret,
    name=f'mx_reopen_{axis}',
  )(elements, scales)


def _tiles(shape: tuple[int, ...], axis: int):
  """Rows and columns of a tile, and the shape of its scales' tile."""
  _, rows, columns = shape
  if axis == 1:
    tile_R = min(rows, 1024)
    tile_C = min(columns, max(1024, _TILE_ELEMENTS // tile_R))
    return tile_R, tile_C, (1, tile_R // mx.BLOCK, tile_C)
  tile_C = segment_columns(columns)
  tile_R = tile_rows(rows, tile_C)
  return tile_R, tile_C, (1, tile_R, tile_C // mx.BLOCK)


def segment_columns(columns: int) -> int:
  """Of a tile whose scales lie along lanes.

  Raises:
    ValueError: all columns would have to be one tile, and are too many.
  """
  if columns % tpu_blocks.SEGMENT == 0:
    return tpu_blocks.SEGMENT
  if columns > 4 * tpu_blocks.SEGMENT:
    raise ValueError(
      f'{columns} columns in blocks along them, on a TPU: pad them to a'
      f' multiple of {tpu_blocks.SEGMENT}'
    )
  return columns


def tile_rows(rows: int, columns: int) -> int:
  """Of a tile so wide: a multiple of 128, or all of fewer rows."""
  if rows < LANES:
    return rows
  most = max(LANES, _TILE_ELEMENTS // columns)
  return min(rows, most) // LANES * LANES


def factor_shape(rows: int, columns: int) -> tuple[int, int, int]:
  """The shape of one number for each block along lanes, turned.

  Its second axis is 1 long, so that a block can be any of the first.
  """
  return pl.cdiv(columns, tpu_blocks.SEGMENT) * LANES, 1, rows


def _by_block(scale_tile: tuple[int, int, int], axis: int):
  """As `factor_shape`, for blocks along either axis."""
  _, rows, columns = scale_tile
  if axis == 1:
    return rows, 1, columns
  return factor_shape(rows, columns * mx.BLOCK)


def parameters():
  """Of the compiler, for a grid of three independent axes."""
  return pltpu.CompilerParams(
    dimension_semantics=('parallel',) * 3, vmem_limit_bytes=_VMEM_BYTES
  )


def same_tile(group, row, column):
  return group, row, column


def for_slabs(shape: tuple[int, int], slab: tuple[int, int], body: Callable):
  """Calls body(row, column), of the first element, for each slab of a tile."""
  rows, columns = (size // part for size, part in zip(shape, slab, strict=True))

  def step(i, _):
    # The compiler must see that a single slab begins at row 0.
    row = pl.multiple_of(i // columns * slab[0], slab[0]) if rows > 1 else 0
    column = pl.multiple_of(i % columns * slab[1], LANES)
    body(row, column)
    return 0

  jax.lax.fori_loop(0, rows * columns, step, 0)


def _sublane_slabs(x_ref, body: Callable):
  """Calls body(row, column, width) for pieces of 32 rows.

  Four pieces of 512 columns stand in one step of the loop, so that one can
  begin while another ends; each fits in the registers.
  """
  _, rows, columns = x_ref.shape
  height, width = math.gcd(rows, 2 * mx.BLOCK), math.gcd(columns, 1024)
  piece = min(width, 512)

  def slab(row, column):
    for below in range(0, height, mx.BLOCK):
      for start in range(0, width, piece):
        body(row + below, column + start, piece)

  for_slabs((rows, columns), (height, width), slab)


def _quantize_sublanes(x_ref, elements_ref, scales_ref, blocks_ref):
  def note(row, column, width):
    here = 0, pl.ds(row, mx.BLOCK), pl.ds(column, width)
    tpu_blocks.note_largest(
      blocks_ref, x_ref[here].astype(jnp.float32), row, column
    )

  def encode(row, column, width):
    here = 0, pl.ds(row, mx.BLOCK), pl.ds(column, width)
    elements_ref[here] = tpu_blocks.sublane_elements(
      blocks_ref, x_ref[here], row, column
    )

  _sublane_slabs(x_ref, note)
  tpu_blocks.settle_sublanes(blocks_ref, scales_ref)
  _sublane_slabs(x_ref, encode)


def _operand_sublanes(x_ref, out_ref):
  def piece(row, column, width):
    here = 0, pl.ds(row, mx.BLOCK), pl.ds(column, width)
    out_ref[here] = sublane_operand(x_ref[here].astype(jnp.float32))

  _sublane_slabs(x_ref, piece)


# Blocks along lanes are turned, and turned back: the unit that transposes has
# nothing else to do.


def _lane_slab(rows: int, columns: int) -> tuple[int, int]:
  return min(rows, LANES), math.gcd(columns, 2048)


def _operand_lanes(x_ref, out_ref):
  _, rows, columns = x_ref.shape
  height, width = _lane_slab(rows, columns)

  def slab(row, column):
    here = 0, pl.ds(row, height), pl.ds(column, width)
    out_ref[here] = lane_operand(x_ref[here])

  for_slabs((rows, columns), (height, width), slab)


def lane_operand(x: jax.Array) -> jax.Array:
  """The operand for blocks along lanes, of up to 128 rows."""
  return sublane_operand(x.T.astype(jnp.float32)).T


def sublane_operand(x: jax.Array) -> jax.Array:
  """The operand of float32 for blocks along sublanes."""
  blocks = tpu_rounding.rounded(tpu_blocks.as_blocks(x))
  return blocks.reshape(x.shape).astype(jnp.bfloat16)


def _quantize_lanes(x_ref, elements_ref, scales_ref, turned_ref, blocks_ref):
  _, rows, columns = x_ref.shape
  height, width = _lane_slab(rows, columns)

  def note(row, column):
    here = 0, pl.ds(row, height), pl.ds(column, width)
    x = x_ref[here]
    tpu_blocks.note_turned(turned_ref, blocks_ref, x, row, column)
    # Here, where the transposing unit is waited for.
    elements_ref[here] = tpu_blocks.signed_zeros(x)

  def encode(row, column):
    here = 0, pl.ds(row, height), pl.ds(column, width)
    elements_ref[here] = tpu_blocks.lane_elements(
      turned_ref, blocks_ref, elements_ref[here], row, column
    )

  for_slabs((rows, columns), (height, width), note)
  tpu_blocks.settle_lanes(blocks_ref, scales_ref)
  for_slabs((rows, columns), (height, width), encode)


def _reopen_sublanes(elements_ref, scales_ref, out_ref, first_ref, second_ref):
  first_ref[:, 0, :], second_ref[:, 0, :] = tpu_rounding.factors(
    scales_ref[0].astype(jnp.int32)
  )

  def piece(row, column, width):
    here = 0, pl.ds(row, mx.BLOCK), pl.ds(column, width)
    block = pl.ds(row // mx.BLOCK, 1), slice(None), pl.ds(column, width)
    x = tpu_blocks.as_blocks(elements_ref[here].astype(jnp.float32))
    x = x * first_ref[block] * second_ref[block]
    out_ref[here] = x.reshape(mx.BLOCK, width).astype(jnp.bfloat16)

  _sublane_slabs(elements_ref, piece)


def _reopen_lanes(
  elements_ref, scales_ref, out_ref, first_ref, second_ref, scale_ref
):
  _, rows, columns = elements_ref.shape
  turn_factors(scales_ref, scale_ref, first_ref, second_ref)
  height, width = _lane_slab(rows, columns)

  def slab(row, column):
    here = 0, pl.ds(row, height), pl.ds(column, width)
    x = turned_numbers(
      elements_ref[here], first_ref, second_ref, row, column // mx.BLOCK
    )
    out_ref[here] = x.astype(jnp.bfloat16).T

  for_slabs((rows, columns), (height, width), slab)


def turn_factors(scales_ref, scale_ref, first_ref, second_ref):
  """Writes the factors of the scales of a tile, turned."""
  _, _, blocks = scales_ref.shape
  scale_ref[:, :blocks] = scales_ref[0].astype(jnp.int32)
  first, second = tpu_rounding.factors(scale_ref[...].T)
  first_ref[:, 0, :], second_ref[:, 0, :] = first, second


def turned_numbers(elements, first_ref, second_ref, row, block) -> jax.Array:
  """float32 numbers, turned, of elements with blocks along lanes."""
  bits = jax.lax.bitcast_convert_type(elements, jnp.int8).T
  x = jax.lax.bitcast_convert_type(bits, jnp.float8_e4m3fn)
  x = x.astype(jnp.float32)
  size, height = x.shape[0] // mx.BLOCK, x.shape[1]
  here = pl.ds(block, size), slice(None), pl.ds(row, height)
  return (tpu_blocks.as_blocks(x) * first_ref[here] * second_ref[here]).reshape(
    x.shape
  )
