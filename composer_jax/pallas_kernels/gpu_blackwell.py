"""Grouped block-scaled products for Blackwell (sm_100a): `tcgen05` on E4M3.

The tensor core multiplies elements and scales (kind mxf8f6f4, block_scale) and
sums in float32 tensor memory. One persistent kernel makes the three products:
per SM a warpgroup loads slices into a ring of slots, another starts their
multiplication and a third stores what is finished.

The elements of an operand stay where its tensor had them; the tensor core reads
either axis as the contracted one. Its scales are packed, see `Operand`.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
import jax.numpy as jnp

from composer_jax.pallas_kernels import gpu_tiles

_STEP = 128  # Contracted at once: 128 bytes, and one tile of scales.
_SLOTS = 4
_CHUNK = 16  # Columns of the result that are stored at once.
_SCALES = (32, 16)  # Of 128 rows and 128 elements of the contracted axis.
_COLUMNS_OF_TENSOR_MEMORY = 512
_LOADER, _MULTIPLIER, _STORER = range(3)  # Warpgroups.


class Operand(NamedTuple):
  """A stack of matrices in blocks of 32 along one of their two axes."""

  elements: jax.Array  # E4M3 (matrices, ., .), as the tensor had them.
  # uint8 (matrices, R/128, C/128, 32, 16) for C contracted and R other
  # elements: the scale of row r and block c of a tile is at [r % 32, 4 * (r //
  # 32) + c] (PTX ISA 8.7, scale factor layout of tcgen05.mma, scale_vec::1X).
  scales: jax.Array


def packed(scales: jax.Array, axis: int) -> jax.Array:
  """The scales of `mx.Quantized` along the axis, 1 or 2, as an operand's."""
  scales = scales.swapaxes(1, 2) if axis == 1 else scales
  matrices, rows, blocks = scales.shape
  tiles = scales.reshape(matrices, rows // 128, 4, 32, blocks // 4, 4)
  tiles = tiles.transpose(0, 1, 4, 3, 2, 5)
  return tiles.reshape(*tiles.shape[:3], *_SCALES)


def forward(
  x: Operand, w: Operand, expert_of_block, *, num_sms: int, interpret=False
):
  """y_BMN in float32; M is 128, K and N multiples of it."""
  plan = gpu_tiles.forward(
    x.elements.shape, w.elements.shape, expert_of_block, _STEP
  )
  return _run(plan, x, w, 'mx_forward', num_sms, interpret)


def input_grad(
  grad: Operand, w: Operand, expert_of_block, *, num_sms: int, interpret=False
):
  """grad_BMK in float32; M is 128, K and N multiples of it."""
  plan = gpu_tiles.input_grad(
    grad.elements.shape, w.elements.shape, expert_of_block, _STEP
  )
  return _run(plan, grad, w, 'mx_input_grad', num_sms, interpret)


def weight_grad(
  x: Operand,
  grad: Operand,
  expert_of_block,
  experts: int,
  *,
  num_sms: int,
  interpret=False,
):
  """grad_EKN in float32; zero for an idle expert."""
  plan = gpu_tiles.weight_grad(
    x.elements.shape, grad.elements.shape, expert_of_block, experts, _STEP
  )
  return _run(plan, x, grad, 'mx_weight_grad', num_sms, interpret)


class _Memory(NamedTuple):
  """What a thread block has, as types and as references to it."""

  slots: tuple[Operand, Operand]  # Left and right, in shared memory.
  scales: tuple  # Of one step, where the tensor core reads them.
  sums: jax.Array  # Results in tensor memory, side by side.
  out: jax.Array  # Parts of a result in shared memory.
  # Barriers.
  full: jax.Array  # A slot, by the loader.
  empty: jax.Array  # A slot, by the tensor core.
  summed: jax.Array  # A result, by the tensor core.
  stored: jax.Array  # A result, by the storer.


def _run(plan, left, right, name: str, num_sms: int, interpret) -> jax.Array:
  """Launches one thread block per SM."""
  _check(left, plan.left.axis)
  _check(right, plan.right.axis)

  def kernel(table, left, left_scales, right, right_scales, out, *, memory):
    warpgroup = lax.axis_index('warpgroup')

    @pl.when(warpgroup == _LOADER)
    def _():
      refs = Operand(left, left_scales), Operand(right, right_scales)
      _load(plan, table, refs, memory)

    @pl.when(warpgroup == _MULTIPLIER)
    def _():
      _multiply(plan, table, memory)

    @pl.when(warpgroup == _STORER)
    def _():
      _store(plan, table, memory, out)

  return plgpu.kernel(
    kernel,
    out_type=plan.out,
    scratch_types=dict(memory=_memory(plan)),
    grid=(num_sms,),
    grid_names=('sm',),
    num_threads=3,
    thread_name='warpgroup',
    kernel_name=name,
    compiler_params=plgpu.CompilerParams(
      lowering_semantics=plgpu.LoweringSemantics.Warpgroup
    ),
    interpret=gpu_tiles.interpreter(interpret),
  )(
    plan.table,
    left.elements,
    lax.bitcast_convert_type(left.scales, jnp.float8_e8m0fnu),
    right.elements,
    lax.bitcast_convert_type(right.scales, jnp.float8_e8m0fnu),
  )


def _check(operand: Operand, axis: int) -> None:
  """Raises ValueError for what was not quantised along the axis."""
  matrices, *sizes = operand.elements.shape
  others, contracted = sizes if axis == 2 else sizes[::-1]
  tiles = (matrices, others // gpu_tiles.ROWS, contracted // _STEP, *_SCALES)
  if operand.scales.shape != tiles:
    raise ValueError(
      f'scales {operand.scales.shape} are not those of {operand.elements.shape}'
      f' along axis {axis}, {tiles}: make it with `operand` along that axis'
    )


def _memory(plan) -> _Memory:
  """The types of a thread block's memory."""
  sides = plan.left, plan.right
  # A second result is summed while one is stored, where there is room for it.
  results = 1 if 2 * plan.columns >= _COLUMNS_OF_TENSOR_MEMORY else 2

  def slots(side):
    scales = (_SLOTS, side.rows // gpu_tiles.ROWS, 1, *_SCALES)
    return Operand(
      elements=_shared((_SLOTS, *side.shape), jnp.float8_e4m3fn, 128),
      scales=plgpu.SMEM(scales, jnp.float8_e8m0fnu),
    )

  def scales(side):
    return plgpu.TMEM(
      (side.rows, _STEP // 32),
      jnp.float8_e8m0fnu,
      layout=plgpu.TMEMLayout.SCALES_LAYOUT,
    )

  def of_tensor_core(count):
    return plgpu.Barrier(num_barriers=count, orders_tensor_core=True)

  return _Memory(
    slots=tuple(map(slots, sides)),
    scales=tuple(map(scales, sides)),
    sums=plgpu.TMEM((gpu_tiles.ROWS, results * plan.columns), jnp.float32),
    out=_shared((2, gpu_tiles.ROWS, _CHUNK), jnp.float32, 64),
    full=plgpu.Barrier(num_arrivals=4, num_barriers=_SLOTS),
    empty=of_tensor_core(_SLOTS),
    summed=of_tensor_core(results),
    stored=of_tensor_core(results),
  )


def _shared(shape, dtype, swizzle: int):
  """Shared memory as TMA and the tensor core take it, in swizzled rows."""
  return plgpu.SMEM(
    shape,
    dtype,
    transforms=(
      plgpu.TilingTransform((8, swizzle // jnp.dtype(dtype).itemsize)),
      plgpu.SwizzleTransform(swizzle),
    ),
  )


def _load(plan, table, refs, memory):
  """Fills the slots as the tensor core empties them."""
  sides = plan.left, plan.right

  @gpu_tiles.each(plan.grid)
  def totals(tile, _, before):
    at = [side.at(table, tile) for side in sides]

    def load(step, _):
      slot = lax.rem(before + step, _SLOTS)

      @pl.when(before + step >= _SLOTS)
      def _():
        plgpu.barrier_wait(memory.empty.at[slot])

      for side, ref, smem, where in zip(
        sides, refs, memory.slots, at, strict=True
      ):
        plgpu.copy_gmem_to_smem(
          side.elements(ref.elements, where(step)),
          smem.elements.at[slot],
          memory.full.at[slot],
        )
        plgpu.copy_gmem_to_smem(
          _scales(ref.scales, where(step), smem.scales.shape[1]),
          smem.scales.at[slot],
          memory.full.at[slot],
        )

    steps = plan.steps(table, tile)
    lax.fori_loop(0, steps, load, None)
    return steps

  _, steps = totals
  gpu_tiles.drain(memory.empty, _SLOTS, steps)


def _scales(ref, at, tiles: int):
  """Packed scales of the slice at (matrix, tile of rows, step)."""
  matrix, tile, step = at
  return ref.at[matrix, pl.ds(tile * tiles, tiles), pl.ds(step, 1)]


def _multiply(plan, table, memory):
  """Has the tensor core sum each of the SM's tiles of the result."""
  results = memory.sums.shape[1] // plan.columns
  left_slots, right_slots = memory.slots
  left_scales, right_scales = memory.scales

  @gpu_tiles.each(plan.grid)
  def totals(tile, count, before):
    result = lax.rem(count, results)

    @pl.when(count >= results)
    def _():
      plgpu.barrier_wait(memory.stored.at[result])

    def multiply(step, _):
      slot = lax.rem(before + step, _SLOTS)
      plgpu.barrier_wait(memory.full.at[slot])
      plgpu.async_copy_scales_to_tmem(left_slots.scales.at[slot], left_scales)
      plgpu.async_copy_scales_to_tmem(right_slots.scales.at[slot], right_scales)
      left, right = left_slots.elements.at[slot], right_slots.elements.at[slot]
      plgpu.tcgen05_mma(
        memory.sums.at[:, pl.ds(result * plan.columns, plan.columns)],
        left if plan.left.axis == 2 else left.transpose((1, 0)),
        right.transpose((1, 0)) if plan.right.axis == 2 else right,
        memory.empty.at[slot],
        a_scale=left_scales,
        b_scale=right_scales,
        accumulate=step > 0,
      )

    steps = plan.steps(table, tile)
    lax.fori_loop(0, steps, multiply, None)
    plgpu.tcgen05_commit_arrive(memory.summed.at[result])
    return steps

  tiles, _ = totals
  gpu_tiles.drain(memory.stored, results, tiles)


def _store(plan, table, memory, out_ref):
  """Through two buffers in turn: one is filled while the other is read."""
  results = memory.sums.shape[1] // plan.columns

  @gpu_tiles.each(plan.grid)
  def _(tile, count, _):
    steps = plan.steps(table, tile)
    result = lax.rem(count, results)
    plgpu.barrier_wait(memory.summed.at[result])
    for chunk in range(plan.columns // _CHUNK):
      buffer = memory.out.at[chunk % 2]
      column = result * plan.columns + chunk * _CHUNK
      part = plgpu.async_load_tmem(memory.sums.at[:, pl.ds(column, _CHUNK)])
      plgpu.wait_smem_to_gmem(1, wait_read_only=True)
      # Without a step nothing was written to the tensor memory.
      is_sum = jnp.broadcast_to(steps > 0, part.shape)
      buffer[...] = jnp.where(is_sum, part, 0.0)
      plgpu.commit_smem()
      plgpu.copy_smem_to_gmem(
        buffer,
        plan.place(out_ref, tile).at[:, pl.ds(chunk * _CHUNK, _CHUNK)],
      )
    plgpu.wait_load_tmem()
    plgpu.barrier_arrive(memory.stored.at[result])
    return steps

  plgpu.wait_smem_to_gmem(0)
