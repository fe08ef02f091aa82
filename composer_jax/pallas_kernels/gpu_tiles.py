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


class Side(NamedTuple):
  """How the slices of the left or the right operand lie in its matrices.

  The rows of a slice are those of the result's tile, or its columns.
  """

  at: Callable  # (table, tile) -> step -> (matrix, tile of rows, step in it)
  axis: int  # Of (matrix, ., .), which is contracted.
  rows: int
  step: int

  @property
  def shape(self) -> tuple[int, int]:
    """Of a slice."""
    return self._turned(self.rows, self.step)

  def elements(self, ref, at):
    """The slice at (matrix, tile of rows, step)."""
    matrix, tile, step = at
    first, second = (
      pl.ds(index * size, size)
      for index, size in zip(self._turned(tile, step), self.shape, strict=True)
    )
    return ref.at[matrix, first, second]

  def _turned(self, rows, step):
    """(rows, step) in the order in which a matrix has them."""
    return (rows, step) if self.axis == 2 else (step, rows)


class Plan(NamedTuple):
  """What one of the products computes.

  Functions take the int32 table of the product, which is data, and a tile.
  """

  out: jax.ShapeDtypeStruct
  table: jax.Array
  steps: Callable  # (table, tile) -> how many.
  left: Side
  right: Side

  @property
  def columns(self) -> int:
    """Of a tile of the result."""
    return self.right.rows

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


def forward(x_shape, w_shape, expert_of_block, step: int) -> Plan:
  """y_BMN = x_BMK w_EKN, along K."""
  blocks, rows, k = x_shape
  _, w_k, n = w_shape
  _check(rows, ('k', k, w_k), ('n', n))
  return _by_blocks((blocks, rows, n), k, expert_of_block, step, w_axis=1)


def input_grad(grad_shape, w_shape, expert_of_block, step: int) -> Plan:
  """grad_BMK = grad_BMN w_EKN, along N."""
  blocks, rows, n = grad_shape
  _, k, w_n = w_shape
  _check(rows, ('k', k), ('n', n, w_n))
  return _by_blocks((blocks, rows, k), n, expert_of_block, step, w_axis=2)


def _by_blocks(
  out_shape, contracted: int, expert_of_block, step: int, *, w_axis: int
) -> Plan:
  """Each block with its expert's matrix."""

  def block(experts, tile):
    del experts
    return _in_matrix(tile[0], 0)

  def weights(experts, tile):
    return _in_matrix(experts[tile[0]], tile[2])

  return Plan(
    out=jax.ShapeDtypeStruct(out_shape, jnp.float32),
    table=expert_of_block.astype(jnp.int32),
    steps=lambda experts, tile: jnp.int32(contracted // step),
    left=Side(block, 2, ROWS, step),
    right=Side(weights, w_axis, _columns(out_shape[2]), step),
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

  def steps(starts, tile):
    return (starts[tile[0] + 1] - starts[tile[0]]) * per_block

  def inputs(starts, tile):
    return _in_blocks(starts[tile[0]], tile[1], per_block)

  def grads(starts, tile):
    return _in_blocks(starts[tile[0]], tile[2], per_block)

  return Plan(
    out=jax.ShapeDtypeStruct((experts, k, n), jnp.float32),
    table=jnp.searchsorted(expert_of_block, wanted).astype(jnp.int32),
    steps=steps,
    left=Side(inputs, 1, ROWS, step),
    right=Side(grads, 1, _columns(n), step),
  )


def _in_matrix(matrix, tile) -> Callable:
  """Along one matrix, whose number is read once."""
  return lambda step: (matrix, tile, step)


def _in_blocks(first, tile, per_block: int) -> Callable:
  """Along one block after the other."""
  return lambda step: (
    first + lax.div(step, per_block),
    tile,
    lax.rem(step, per_block),
  )


def each(grid: tuple[int, int, int]) -> Callable:
  """Runs a function for each tile of the grid that falls to this SM.

  The function takes the tile, how many tiles and how many steps came before it
  on this SM, and returns the number of its own steps. Neighbouring SMs get
  neighbouring tiles, so that what they read is in the L2 cache; that holds
  across groups too, since blocks lie in the order of their experts.

  What takes the function's place is how many tiles and steps there were.
  """
  groups, rows, columns = grid

  def decorate(body):
    @plgpu.nd_loop(
      (groups * rows * columns,),
      collective_axes='sm',
      init_carry=(jnp.int32(0), jnp.int32(0)),
    )
    def totals(info, carry):
      row, column = plgpu.planar_snake(
        info.index[0], (groups * rows, columns), 1, _WIDTH
      )
      tile = (lax.div(row, rows), lax.rem(row, rows), column)
      tiles, steps = carry
      return tiles + 1, steps + body(tile, tiles, steps)

    return totals

  return decorate


def drain(barriers, slots: int, arrivals) -> None:
  """Waits for the arrivals that nothing waited for, the last of each slot."""

  def wait(arrival, _):
    plgpu.barrier_wait(barriers.at[lax.rem(arrival, slots)])

  lax.fori_loop(lax.max(arrivals - slots, 0), arrivals, wait, None)


def interpreter(interpret):
  """What `plgpu.kernel` takes; True stands for the default parameters."""
  if interpret is not True:
    return interpret
  try:
    return plgpu.InterpretGPUParams()
  except AttributeError as error:
    raise NotImplementedError(
      f'jax {jax.__version__} cannot interpret this kernel; 0.11 can'
    ) from error


def _columns(size: int) -> int:
  """Columns of a tile of a result that is so wide."""
  return 256 if size % 256 == 0 else 128


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
