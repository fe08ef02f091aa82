"""Products of blocks of rows with their experts' matrices, on a TPU.

Blocks come sorted by expert. Several of them are one tile of rows, and a step
of the grid is a pair of a tile and an expert with rows in it: most tiles belong
to one expert and are one product, in the others each block is one. Steps follow
the experts, so that a matrix stays in fast memory as long as it is needed.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

LANES = 128
_TILE_ROWS = 512
_PIECE_COLUMNS = 512  # Of a tile's product, so that the code stays short.
_SUMMED_ROWS = 1024  # Of a tile whose rows are summed over.
_OPERAND_BYTES = 8 * 2**20  # Of one tile; there are two of each operand.
_VMEM_BYTES = 56 * 2**20
_NN = (((1,), (0,)), ((), ()))
_NT = (((1,), (1,)), ((), ()))
_TN = (((0,), (0,)), ((), ()))


class Steps(NamedTuple):
  """What each step of the grid works on; all int32, all prefetched."""

  tile: jax.Array
  expert: jax.Array
  count: jax.Array  # Of shape (1,); steps beyond have nothing to do.
  expert_of_block: jax.Array  # Filled up to whole tiles with -1.


def steps(
  expert_of_block: jax.Array, experts: int, tile_blocks: int, visit_idle: bool
) -> Steps:
  """The steps, by expert; idle experts have one with no rows, or none.

  Args:
    expert_of_block: ascending, one of `experts` for each block.
    experts: their number.
    tile_blocks: blocks of a tile.
    visit_idle: whether an expert without blocks has a step.
  """
  blocks = expert_of_block.size
  expert_of_block = expert_of_block.astype(jnp.int32)
  tile = jnp.arange(blocks, dtype=jnp.int32) // tile_blocks
  before = jnp.concatenate([jnp.full(1, -1, jnp.int32), expert_of_block[:-1]])
  is_first = (expert_of_block != before) | (
    jnp.arange(blocks) % tile_blocks == 0
  )
  everyone = jnp.arange(experts, dtype=jnp.int32)
  is_idle = visit_idle & ~jnp.isin(everyone, expert_of_block)
  expert = jnp.concatenate(
    [
      jnp.where(is_first, expert_of_block, experts),
      jnp.where(is_idle, everyone, experts),
    ]
  )
  order = jnp.argsort(expert, stable=True)
  count = jnp.sum(expert < experts)
  most = pl.cdiv(blocks, tile_blocks) + experts - 1
  order = order[jnp.minimum(jnp.arange(most), count - 1)]
  tile = jnp.concatenate([tile, jnp.zeros(experts, jnp.int32)])[order]
  return Steps(
    tile=jax.lax.cummax(tile),
    expert=expert[order],
    count=count[None].astype(jnp.int32),
    expert_of_block=jnp.pad(
      expert_of_block, (0, -blocks % tile_blocks), constant_values=-1
    ),
  )


def forward(x_BMK, w_EKN, expert_of_block, *, interpret=False) -> jax.Array:
  """y_BMN in float32, from operands along K.

  Args:
    x_BMK: bfloat16; all but B multiples of 128, here and below. M may be 32 or
      64 as well.
    w_EKN: bfloat16.
    expert_of_block: ascending; without it, each block has its own matrix.
    interpret: runs on a CPU, as in `pallas_call`.
  """
  expert_of_block = _check(
    x_BMK, w_EKN, expert_of_block, w_EKN.shape[0], w_EKN.shape[1:]
  )
  return _by_rows(
    x_BMK, w_EKN, expert_of_block, 1, 'mx_forward', interpret=interpret
  )


def input_grad(
  grad_BMN, w_EKN, expert_of_block, *, interpret=False
) -> jax.Array:
  """grad_BMK in float32, from operands along N."""
  expert_of_block = _check(
    grad_BMN, w_EKN, expert_of_block, w_EKN.shape[0], w_EKN.shape[1:]
  )
  return _by_rows(
    grad_BMN, w_EKN, expert_of_block, 2, 'mx_input_grad', interpret=interpret
  )


def _check(
  left_BMK, right, expert_of_block, experts: int, sizes: tuple[int, ...]
) -> jax.Array:
  """The experts of the blocks, if the kernels take these operands.

  `sizes` are those of the right operand that are axes of a matrix.
  """
  blocks, rows, _ = left_BMK.shape
  if expert_of_block is None:
    expert_of_block = jnp.arange(experts)
  if expert_of_block.shape != (blocks,):
    raise ValueError(
      f'{blocks} blocks, but experts for {expert_of_block.shape} of them'
    )
  if rows not in (32, 64) and rows % LANES:
    raise ValueError(f'blocks of {rows} rows: pad to 32, 64 or 128 of them')
  for x in (left_BMK, right):
    if x.dtype != jnp.bfloat16:
      raise ValueError(f'operands are bfloat16, not {x.dtype}')
  for size in (left_BMK.shape[2], *sizes):
    if size % LANES:
      raise ValueError(
        f'shapes {left_BMK.shape} and {right.shape} in a product on a TPU: pad'
        f' the axes of matrices to multiples of {LANES}'
      )
  return expert_of_block


def _largest_part(size: int, most: int) -> int:
  """The largest divisor of size that is a multiple of 128, up to most."""
  units = size // LANES
  return LANES * max(
    i for i in range(1, max(1, most // LANES) + 1) if units % i == 0
  )


def _tile_columns(size: int) -> int:
  """Whole pieces of `_PIECE_COLUMNS`, or all of fewer columns."""
  return min(size, _PIECE_COLUMNS * min(2, max(1, size // _PIECE_COLUMNS)))


def _by_rows(
  x_BMK, w, expert_of_block, summed: int, name: str, *, interpret
) -> jax.Array:
  """Each block with its expert's matrix, summed over an axis of the latter."""
  blocks, block_M, size_K = x_BMK.shape
  experts, size_N = w.shape[0], w.shape[3 - summed]
  if w.shape[summed] != size_K:
    raise ValueError(f'{x_BMK.shape} and {w.shape} differ in the summed axis')
  tile_blocks = max(1, _TILE_ROWS // block_M)
  tile_M = tile_blocks * block_M
  at = steps(expert_of_block, experts, tile_blocks, visit_idle=False)
  tile_K = _largest_part(size_K, _OPERAND_BYTES // 2 // 1024)
  tile_N = _tile_columns(size_N)
  matrix = (tile_K, tile_N) if summed == 1 else (tile_N, tile_K)

  def matrix_index(n, s, k, tile, expert, *_):
    return (expert[s], k, n) if summed == 1 else (expert[s], n, k)

  y_MN = pl.pallas_call(
    functools.partial(_rows_body, block_M=block_M, summed=summed),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=4,
      grid=(pl.cdiv(size_N, tile_N), at.tile.size, size_K // tile_K),
      in_specs=[
        pl.BlockSpec((tile_M, tile_K), lambda n, s, k, tile, *_: (tile[s], k)),
        pl.BlockSpec((1, *matrix), matrix_index),
      ],
      out_specs=pl.BlockSpec(
        (tile_M, tile_N), lambda n, s, k, tile, *_: (tile[s], n)
      ),
    ),
    out_shape=jax.ShapeDtypeStruct((blocks * block_M, size_N), jnp.float32),
    compiler_params=_parameters('parallel', 'arbitrary', 'arbitrary'),
    interpret=interpret,
    name=name,
  )(*at, x_BMK.reshape(-1, size_K), w)
  return y_MN.reshape(blocks, block_M, size_N)


def _parameters(*semantics: str):
  return pltpu.CompilerParams(
    dimension_semantics=semantics, vmem_limit_bytes=_VMEM_BYTES
  )


def _pieces(s, at: Steps, tile: tuple[int, int], block_M: int, product):
  """Calls product(rows, columns) for the rows of the step's expert.

  Args:
    s: the step.
    at: the steps.
    tile: rows of a tile of blocks, and columns of a tile of the product.
    block_M: rows of a block.
    product: works on slices of the two.
  """
  tile_M, tile_N = tile
  tile_blocks = tile_M // block_M
  piece_N = min(tile_N, _PIECE_COLUMNS)
  first, expert = at.tile[s] * tile_blocks, at.expert[s]
  # Sorted, so that what lies between two of the expert's is the expert's.
  is_whole = (at.expert_of_block[first] == expert) & (
    at.expert_of_block[first + tile_blocks - 1] == expert
  )

  def all_columns(rows):
    def step(j, _):
      product(rows, pl.ds(pl.multiple_of(j * piece_N, LANES), piece_N))
      return 0

    jax.lax.fori_loop(0, tile_N // piece_N, step, 0)

  def by_block():
    def step(i, _):
      @pl.when(at.expert_of_block[first + i] == expert)
      def _():
        all_columns(pl.ds(pl.multiple_of(i * block_M, block_M), block_M))

      return 0

    jax.lax.fori_loop(0, tile_blocks, step, 0)

  @pl.when(s < at.count[0])
  def _():
    jax.lax.cond(is_whole, lambda: all_columns(pl.ds(0, tile_M)), by_block)


def _rows_body(
  tile, expert, count, expert_of_block, x_ref, w_ref, y_ref, *, block_M, summed
):
  k, at = pl.program_id(2), Steps(tile, expert, count, expert_of_block)

  def product(rows, columns):
    if summed == 1:
      w, dims = w_ref[0, :, columns], _NN
    else:
      w, dims = w_ref[0, columns, :], _NT
    y = jax.lax.dot_general(
      x_ref[rows, :], w, dims, preferred_element_type=jnp.float32
    )

    @pl.when(k == 0)
    def _():
      y_ref[rows, columns] = y

    @pl.when(k > 0)
    def _():
      y_ref[rows, columns] += y

  _pieces(pl.program_id(1), at, y_ref.shape, block_M, product)


def weight_grad(
  x_BMK, grad_BMN, expert_of_block, experts: int, *, interpret=False
) -> jax.Array:
  """grad_EKN in float32, from operands along M; zero for an idle expert."""
  expert_of_block = _check(
    x_BMK, grad_BMN, expert_of_block, experts, grad_BMN.shape[2:]
  )
  if x_BMK.shape[:2] != grad_BMN.shape[:2]:
    raise ValueError(f'{x_BMK.shape} and {grad_BMN.shape} differ in rows')
  _, block_M, size_K = x_BMK.shape
  size_N = grad_BMN.shape[2]
  tile_blocks = max(1, _SUMMED_ROWS // block_M)
  tile_M = tile_blocks * block_M
  at = steps(expert_of_block, experts, tile_blocks, visit_idle=True)
  tile_K, tile_N = _tile_columns(size_K), _tile_columns(size_N)
  return pl.pallas_call(
    functools.partial(_weights_body, block_M=block_M),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=4,
      grid=(pl.cdiv(size_K, tile_K), pl.cdiv(size_N, tile_N), at.tile.size),
      in_specs=[
        pl.BlockSpec((tile_M, tile_K), lambda k, n, s, tile, *_: (tile[s], k)),
        pl.BlockSpec((tile_M, tile_N), lambda k, n, s, tile, *_: (tile[s], n)),
      ],
      out_specs=pl.BlockSpec(
        (1, tile_K, tile_N),
        lambda k, n, s, tile, expert, *_: (expert[s], k, n),
      ),
    ),
    out_shape=jax.ShapeDtypeStruct((experts, size_K, size_N), jnp.float32),
    compiler_params=_parameters('parallel', 'parallel', 'arbitrary'),
    interpret=interpret,
    name='mx_weight_grad',
  )(*at, x_BMK.reshape(-1, size_K), grad_BMN.reshape(-1, size_N))


def _weights_body(
  tile, expert, count, expert_of_block, x_ref, grad_ref, out_ref, *, block_M
):
  s, at = pl.program_id(2), Steps(tile, expert, count, expert_of_block)

  @pl.when((s == 0) | (expert[s] != expert[jnp.maximum(s - 1, 0)]))
  def _():
    out_ref[...] = jnp.zeros_like(out_ref)

  def product(rows, columns):
    out_ref[0, :, columns] += jax.lax.dot_general(
      x_ref[rows, :],
      grad_ref[rows, columns],
      _TN,
      preferred_element_type=jnp.float32,
    )

  _pieces(s, at, grad_ref.shape, block_M, product)
