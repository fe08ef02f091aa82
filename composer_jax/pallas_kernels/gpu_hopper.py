"""Grouped bfloat16 products for Hopper (sm_90a): `wgmma` fed by TMA.

One persistent kernel makes the three products. Per SM a warpgroup loads slices
into a ring of slots and two others multiply them, 64 rows of the result each,
summing in float32 registers.
"""

from __future__ import annotations

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
import jax.numpy as jnp

from composer_jax.pallas_kernels import gpu_tiles

_STEP = 64  # Contracted at once: 128 bytes, one row of the swizzle.
_SLOTS = 4
_CHUNK = 32  # Columns of the result that are stored at once.
_MULTIPLIERS = 2  # Warpgroups; the one after them loads.
_ROWS = gpu_tiles.ROWS // _MULTIPLIERS  # Of the result, per multiplier.
# Registers per thread; two multipliers and a loader fill the SM's 65,536.
_LOADER_REGISTERS, _MULTIPLIER_REGISTERS = 40, 232


def forward(x_BMK, w_EKN, expert_of_block, *, num_sms: int, interpret=False):
  """y_BMN in float32; M is 128, K and N multiples of it."""
  plan = gpu_tiles.forward(x_BMK.shape, w_EKN.shape, expert_of_block, _STEP)
  return _run(plan, x_BMK, w_EKN, 'mx_forward', num_sms, interpret)


def input_grad(
  grad_BMN, w_EKN, expert_of_block, *, num_sms: int, interpret=False
):
  """grad_BMK in float32; M is 128, K and N multiples of it."""
  plan = gpu_tiles.input_grad(
    grad_BMN.shape, w_EKN.shape, expert_of_block, _STEP
  )
  return _run(plan, grad_BMN, w_EKN, 'mx_input_grad', num_sms, interpret)


def weight_grad(
  x_BMK,
  grad_BMN,
  expert_of_block,
  experts: int,
  *,
  num_sms: int,
  interpret=False,
):
  """grad_EKN in float32; zero for an idle expert."""
  plan = gpu_tiles.weight_grad(
    x_BMK.shape, grad_BMN.shape, expert_of_block, experts, _STEP
  )
  return _run(plan, x_BMK, grad_BMN, 'mx_weight_grad', num_sms, interpret)


def _run(plan, left, right, name: str, num_sms: int, interpret) -> jax.Array:
  """Launches one thread block per SM."""
  for x in (left, right):
    if x.dtype != jnp.bfloat16:
      raise ValueError(f'{x.dtype} is no operand: make it with `operand`')

  def kernel(
    table, left_ref, right_ref, out_ref, *, slots, out_smem, full, empty
  ):
    warpgroup = lax.axis_index('warpgroup')

    @pl.when(warpgroup == _MULTIPLIERS)
    def _():
      plgpu.set_max_registers(_LOADER_REGISTERS, action='decrease')
      _load(plan, table, (left_ref, right_ref), slots, full, empty)

    @pl.when(warpgroup < _MULTIPLIERS)
    def _():
      plgpu.set_max_registers(_MULTIPLIER_REGISTERS, action='increase')
      _multiply(plan, table, slots, full, empty, out_smem, out_ref)

  return plgpu.kernel(
    kernel,
    out_type=plan.out,
    scratch_types=dict(
      slots=(
        _shared((_SLOTS, *plan.left.shape), jnp.bfloat16),
        _shared((_SLOTS, *plan.right.shape), jnp.bfloat16),
      ),
      out_smem=_shared((_MULTIPLIERS, 2, _ROWS, _CHUNK), jnp.float32),
      full=plgpu.Barrier(num_arrivals=2, num_barriers=_SLOTS),
      empty=plgpu.Barrier(num_arrivals=_MULTIPLIERS, num_barriers=_SLOTS),
    ),
    grid=(num_sms,),
    grid_names=('sm',),
    num_threads=_MULTIPLIERS + 1,
    thread_name='warpgroup',
    kernel_name=name,
    compiler_params=plgpu.CompilerParams(
      lowering_semantics=plgpu.LoweringSemantics.Warpgroup
    ),
    interpret=gpu_tiles.interpreter(interpret),
  )(plan.table, left, right)


def _shared(shape, dtype):
  """Shared memory as TMA and `wgmma` take it: rows of 128 bytes, swizzled."""
  return plgpu.SMEM(
    shape,
    dtype,
    transforms=(
      plgpu.TilingTransform((8, 128 // jnp.dtype(dtype).itemsize)),
      plgpu.SwizzleTransform(128),
    ),
  )


def _load(plan, table, refs, slots, full, empty):
  """Fills the slots as the multipliers empty them."""
  sides = plan.left, plan.right

  @gpu_tiles.each(plan.grid)
  def totals(tile, _, before):
    at = [side.at(table, tile) for side in sides]

    def load(step, _):
      slot = lax.rem(before + step, _SLOTS)

      @pl.when(before + step >= _SLOTS)
      def _():
        plgpu.barrier_wait(empty.at[slot])

      for side, ref, smem, where in zip(sides, refs, slots, at, strict=True):
        plgpu.copy_gmem_to_smem(
          side.elements(ref, where(step)), smem.at[slot], full.at[slot]
        )

    steps = plan.steps(table, tile)
    lax.fori_loop(0, steps, load, None)
    return steps

  _, steps = totals
  gpu_tiles.drain(empty, _SLOTS, steps)


def _multiply(plan, table, slots, full, empty, out_smem, out_ref):
  """This warpgroup's rows of each of the SM's tiles of the result."""
  left_smem, right_smem = slots
  warpgroup = lax.axis_index('warpgroup')
  rows = pl.ds(warpgroup * _ROWS, _ROWS)

  @gpu_tiles.each(plan.grid)
  def _(tile, _, before):
    steps = plan.steps(table, tile)

    def accumulate(acc):
      def multiply(step, _):
        slot = lax.rem(before + step, _SLOTS)
        plgpu.barrier_wait(full.at[slot])
        if plan.left.axis == 2:
          left = left_smem.at[slot, rows]
        else:
          left = left_smem.at[slot, :, rows].transpose((1, 0))
        right = right_smem.at[slot]
        if plan.right.axis == 2:
          right = right.transpose((1, 0))
        plgpu.wgmma(acc, left, right)
        plgpu.wgmma_wait(0)
        plgpu.barrier_arrive(empty.at[slot])

      lax.fori_loop(0, steps, multiply, None)
      return acc[...]  # Zeros after no steps.

    result = pl.run_scoped(accumulate, plgpu.ACC((_ROWS, plan.columns)))
    _store(result, out_smem.at[warpgroup], plan.place(out_ref, tile).at[rows])
    return steps

  plgpu.wait_smem_to_gmem(0)


def _store(result, out_smem, out_ref):
  """Through two buffers in turn: one is filled while the other is read."""
  for chunk in range(result.shape[1] // _CHUNK):
    columns = slice(chunk * _CHUNK, (chunk + 1) * _CHUNK)
    buffer = out_smem.at[chunk % 2]
    plgpu.wait_smem_to_gmem(1, wait_read_only=True)
    buffer[...] = result[:, columns]
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(buffer, out_ref.at[:, columns])
