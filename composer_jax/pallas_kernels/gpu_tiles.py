"""The three grouped products in tiles, for the kernels of either GPU.

A product is a set of tiles of its result, (group, row, column), and the steps
of the contraction that each of them takes. Every step multiplies a slice of the
left operand, 128 rows of the result, with one of the right, its columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
import jax.numpy as jnp

ROWS = 128  # Of a block; the other axes are multiples of it.
_WIDTH = 8  # Columns of tiles that neighbouring SMs work on together.


class Plan(NamedTuple):
  """What one of the products computes.

  The functions take the int32 table of the product, which is data, and a tile.
  """

  out: jax.ShapeDtypeStruct
  columns: int  # Of a tile of the result.
  step: int  # Elements that are contracted at once.
  table: jax.Array
  steps: Callable  # (table, tile) -> how many.
  left: Callable  # (table, tile, step) -> (matrix, tile of rows, step in it).
  right: Callable
  left_axis: int  # Of (matrix, ., .), which is contracted.
  right_axis: int

  @property
  def grid(self) -> tuple[int, int, int]:
    """Tiles of the result."""
    groups, rows, columns = self.out.shape
    return groups, rows // ROWS, columns // self.columns

  def place(self, out_ref, tile):
    """Where a tile of the result goes."""
    group, row, column = tile
    return out_ref.at[
      group, pl.ds(row * ROWS, ROWS), pl.ds(column * self.columns, self.columns)
    ]

  def left_shape(self) -> tuple[int, int]:
    """Of the left operand's slice."""
    return _turned(ROWS, self.step, self.left_axis)

  def right_shape(self) -> tuple[int, int]:
    """Of the right operand's slice."""
    return _turned(self.columns, self.step, self.right_axis)


def forward(x_shape, w_shape, expert_of_block, step: int) -> Plan:
  """y_BMN = x_BMK w_EKN, along K."""
  blocks, rows, k = x_shape
  _, w_k, n = w_shape
  _check(rows, ('k', k, w_k), ('n', n))
  return Plan(
    out=jax.ShapeDtypeStruct((blocks, rows, n), jnp.float32),
    columns=_columns(n),
    step=step,
    table=expert_of_block.astype(jnp.int32),
    steps=lambda experts, tile: jnp.int32(k // step),
    left=lambda experts, tile, step: (tile[0], 0, step),
    right=lambda experts, tile, step: (experts[tile[0]], tile[2], step),
    left_axis=2,
    right_axis=1,
  )


def input_grad(grad_shape, w_shape, expert_of_block, step: int) -> Plan:
  """grad_BMK = grad_BMN w_EKN, along N."""
  blocks, rows, n = grad_shape
  _, k, w_n = w_shape
  _check(rows, ('k', k), ('n', n, w_n))
  return Plan(
    out=jax.ShapeDtypeStruct((blocks, rows, k), jnp.float32),
    columns=_columns(k),
    step=step,
    table=expert_of_block.astype(jnp.int32),
    steps=lambda experts, tile: jnp.int32(n // step),
    left=lambda experts, tile, step: (tile[0], 0, step),
    right=lambda experts, tile, step: (experts[tile[0]], tile[2], step),
    left_axis=2,
    right_axis=2,
  )


def weight_grad(
  x_shape, grad_shape, expert_of_block, experts: int, step: int
) -> Plan:
  """grad_EKN = x_BMK grad_BMN, along M and over the blocks of an expert."""
  _, rows, k = x_shape
  _, grad_rows, n = grad_shape
  _check(rows, ('m', rows, grad_rows), ('k', k), ('n', n))
  wanted = jnp.arange(experts + 1, dtype=expert_of_block.dtype)
  per_block = rows // step

  def block(starts, tile, step):
    return starts[tile[0]] + lax.div(step, jnp.int32(per_block))

  def part(step):
    return lax.rem(step, jnp.int32(per_block))

  return Plan(
    out=jax.ShapeDtypeStruct((experts, k, n), jnp.float32),
    columns=_columns(n),
    step=step,
    table=jnp.searchsorted(expert_of_block, wanted).astype(jnp.int32),
    steps=lambda starts, tile: (
      (starts[tile[0] + 1] - starts[tile[0]]) * per_block
    ),
    left=lambda starts, tile, step: (
      block(starts, tile, step),
      tile[1],
      part(step),
    ),
    right=lambda starts, tile, step: (
      block(starts, tile, step),
      tile[2],
      part(step),
    ),
    left_axis=1,
    right_axis=1,
  )


def elements(ref, at, shape: tuple[int, int], axis: int):
  """The slice of (matrix, ., .) at (matrix, tile of rows, step)."""
  matrix, tile, step = at
  first, second = _turned(tile, step, axis)
  return ref.at[
    matrix,
    pl.ds(first * shape[0], shape[0]),
    pl.ds(second * shape[1], shape[1]),
  ]


def each(grid: tuple[int, int, int]) -> Callable:
  """Runs a function for each tile of the grid that falls to this SM.

  The function takes the tile, how many tiles and how many steps came before it
  on this SM, and returns the number of its own steps. Neighbouring SMs get
  neighbouring tiles, so that what they read is in the L2 cache: blocks lie in
  the order of their experts, therefore groups of one row of tiles are rows.
  """
  groups, rows, columns = grid
  outer, rows = (1, groups) if rows == 1 else (groups, rows)

  def decorate(body):
    @plgpu.nd_loop(
      (outer, rows * columns), collective_axes='sm', init_carry=jnp.int32(0)
    )
    def _(info, carry):
      group, in_group = info.index
      row, column = plgpu.planar_snake(in_group, (rows, columns), 1, _WIDTH)
      tile = (row, 0, column) if outer == 1 else (group, row, column)
      return carry + body(tile, info.local_index, carry)

  return decorate


def _columns(size: int) -> int:
  """Columns of a tile of a result that is so wide."""
  return 256 if size % 256 == 0 else 128


def _turned(rows, step, axis: int):
  """(rows, step) in the order in which a matrix has them."""
  return (rows, step) if axis == 2 else (step, rows)


def _check(rows: int, *axes: tuple) -> None:
  """Raises ValueError for shapes that are not cut into tiles of 128."""
  if rows != ROWS:
    raise ValueError(
      f'blocks have {rows} rows, and the GPU kernels take {ROWS}: dispatch in'
      f' blocks of {ROWS}, or choose the xla implementation'
    )
  for name, size, *others in axes:
    if any(size != other for other in others):
      raise ValueError(f'the operands differ in {name}: {size} and {others}')
    if size % ROWS:
      raise ValueError(
        f'{name}={size} is no multiple of {ROWS}: pad with zeros, or choose the'
        ' xla implementation'
      )
