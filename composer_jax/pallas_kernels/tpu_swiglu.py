"""The gated unit and its gradient on a TPU, quantised where they are made.

A tile is one block of rows, in slabs of up to 128 by 1024. What is quantised
along lanes is turned first, as in `tpu_quantize`.
"""

from __future__ import annotations

import math

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from composer_jax.pallas_kernels import mx
from composer_jax.pallas_kernels import tpu_blocks
from composer_jax.pallas_kernels import tpu_quantize
from composer_jax.pallas_kernels import xla

_MOST_ROWS = 128  # Of a block.


def swiglu(gate_BMF, up_BMF, *, interpret=False) -> xla.Hidden:
  """silu(gate) * up in float32, quantised along both axes, in one kernel."""
  _check(gate_BMF, up_BMF)
  shape = gate_BMF.shape
  tile, along_M, along_F, tile_F = _tiles(shape)
  elements = jax.ShapeDtypeStruct(shape, jnp.float8_e4m3fn)
  blocks, size_M, size_F = shape
  scales_M = blocks, size_M // mx.BLOCK, size_F
  scales_F = jax.ShapeDtypeStruct(
    (blocks, size_M, size_F // mx.BLOCK), jnp.uint8
  )
  width = _slab_columns(tile_F)
  largest = tpu_quantize.factor_shape(size_M, tile_F)[::2]
  operand, *parts = pl.pallas_call(
    _swiglu_body,
    grid=(blocks, 1, pl.cdiv(size_F, tile_F)),
    in_specs=[tile, tile],
    out_specs=(tile, tile, along_M, tile, along_F, tile, along_F),
    out_shape=(
      jax.ShapeDtypeStruct(shape, jnp.bfloat16),
      elements,
      jax.ShapeDtypeStruct(scales_M, jnp.uint8),
      *(elements, scales_F) * 2,
    ),
    scratch_shapes=[
      tpu_blocks.block_rows(size_M, width),
      *[
        pltpu.VMEM(largest, jnp.int32),
        pltpu.VMEM((width, size_M), jnp.float32),
        tpu_blocks.block_rows(width, size_M),
      ]
      * 2,
    ],
    compiler_params=tpu_quantize.parameters(),
    interpret=interpret,
    name='mx_swiglu',
  )(gate_BMF, up_BMF)
  kept, gate, up = (mx.Quantized(*parts[i : i + 2]) for i in (0, 2, 4))
  return xla.Hidden(operand, kept, gate, up)


def swiglu_grad(
  grad_BMF, gate_BMF, up_BMF, *, interpret=False
) -> xla.HiddenGrads:
  """Operands of both gradients along both axes, in one kernel."""
  _check(grad_BMF, grad_BMF)
  for x in (gate_BMF, up_BMF):
    if x.elements.shape != grad_BMF.shape:
      raise ValueError(
        f'a gradient of {grad_BMF.shape} for inputs of {x.elements.shape}'
      )
  blocks, size_M, size_F = grad_BMF.shape
  tile, _, along_F, tile_F = _tiles(grad_BMF.shape)
  turned_shape = tpu_quantize.factor_shape(size_M, tile_F)
  out = jax.ShapeDtypeStruct(grad_BMF.shape, jnp.bfloat16)
  return xla.HiddenGrads(
    *pl.pallas_call(
      _swiglu_grad_body,
      grid=(blocks, 1, pl.cdiv(size_F, tile_F)),
      in_specs=[tile, tile, along_F, tile, along_F],
      out_specs=(tile,) * 4,
      out_shape=(out,) * 4,
      scratch_shapes=[
        pltpu.VMEM((size_M, turned_shape[0]), jnp.int32),
        *[pltpu.VMEM(turned_shape, jnp.float32)] * 4,
      ],
      compiler_params=tpu_quantize.parameters(),
      interpret=interpret,
      name='mx_swiglu_grad',
    )(grad_BMF, *gate_BMF, *up_BMF)
  )


def _check(gate_BMF, up_BMF):
  tpu_quantize.check(gate_BMF, 2)
  tpu_quantize.check(up_BMF, 2)
  if gate_BMF.shape != up_BMF.shape:
    raise ValueError(f'gate {gate_BMF.shape} and up {up_BMF.shape} differ')
  if gate_BMF.shape[1] > _MOST_ROWS:
    raise ValueError(
      f'shape {gate_BMF.shape}: the gated unit takes blocks of at most'
      f' {_MOST_ROWS} rows on a TPU; reshape it into more blocks'
    )


def _tiles(shape: tuple[int, int, int]):
  """Specs of elements, of scales along M and along F; a tile's columns."""
  _, size_M, size_F = shape
  tile_F = tpu_quantize.segment_columns(size_F)
  same = tpu_quantize.same_tile
  return (
    pl.BlockSpec((1, size_M, tile_F), same),
    pl.BlockSpec((1, size_M // mx.BLOCK, tile_F), same),
    pl.BlockSpec((1, size_M, tile_F // mx.BLOCK), same),
    tile_F,
  )


def _slab_columns(tile_F: int) -> int:
  return math.gcd(tile_F, 1024)


def _swiglu_body(
  gate_ref,
  up_ref,
  operand_ref,
  kept_ref,
  kept_scales_ref,
  gate_elements_ref,
  gate_scales_ref,
  up_elements_ref,
  up_scales_ref,
  kept_blocks_ref,
  *turned_refs,
):
  _, size_M, tile_F = gate_ref.shape
  width = _slab_columns(tile_F)
  inputs = (
    (gate_ref, gate_elements_ref, *turned_refs[:3]),
    (up_ref, up_elements_ref, *turned_refs[3:]),
  )

  def slab(_, column):
    here = 0, slice(None), pl.ds(column, width)
    hidden = jax.nn.silu(gate_ref[here].astype(jnp.float32))
    hidden *= up_ref[here].astype(jnp.float32)
    operand_ref[here] = tpu_quantize.lane_operand(hidden)
    tpu_blocks.note_largest(kept_blocks_ref, hidden, 0, 0)
    for ref, _, _, *refs in inputs:
      tpu_blocks.note_turned(*refs, ref[here], 0, 0)
    tpu_blocks.settle_sublanes(kept_blocks_ref, kept_scales_ref, column)
    blocks = pl.ds(column // mx.BLOCK, width // mx.BLOCK)
    for _, _, largest_ref, _, blocks_ref in inputs:
      largest = tpu_blocks.settled(blocks_ref.at[0])
      largest_ref[blocks] = largest[:, :size_M]
    kept_ref[here] = tpu_blocks.sublane_elements(kept_blocks_ref, hidden, 0, 0)
    for ref, elements_ref, _, *refs in inputs:
      zeros = tpu_blocks.signed_zeros(ref[here])
      elements_ref[here] = tpu_blocks.lane_elements(*refs, zeros, 0, 0)

  tpu_quantize.for_slabs((size_M, tile_F), (size_M, width), slab)
  for scales_ref, largest_ref in (
    (gate_scales_ref, turned_refs[0]),
    (up_scales_ref, turned_refs[3]),
  ):
    scales_ref[0] = tpu_blocks.turned_scales(largest_ref[...], scales_ref)


def _swiglu_grad_body(
  grad_ref,
  gate_ref,
  gate_scales_ref,
  up_ref,
  up_scales_ref,
  out_gate_ref,
  out_up_ref,
  out_gate_rows_ref,
  out_up_rows_ref,
  scale_ref,
  *factor_refs,
):
  _, size_M, tile_F = grad_ref.shape
  width = _slab_columns(tile_F)
  gate_factors, up_factors = factor_refs[:2], factor_refs[2:]
  tpu_quantize.turn_factors(gate_scales_ref, scale_ref, *gate_factors)
  tpu_quantize.turn_factors(up_scales_ref, scale_ref, *up_factors)

  def slab(_, column):
    here = 0, slice(None), pl.ds(column, width)
    block = column // mx.BLOCK
    # The letters' order tells that all this is turned.
    gate_FM = tpu_quantize.turned_numbers(
      gate_ref[here], *gate_factors, 0, block
    )
    up_FM = tpu_quantize.turned_numbers(up_ref[here], *up_factors, 0, block)
    grad_FM = grad_ref[here].T.astype(jnp.float32)
    sigmoid_FM = jax.nn.sigmoid(gate_FM)
    silu_FM = gate_FM * sigmoid_FM
    slope_FM = sigmoid_FM + silu_FM * (1 - sigmoid_FM)
    for grad, lanes_ref, rows_ref in (
      (grad_FM * up_FM * slope_FM, out_gate_ref, out_gate_rows_ref),
      (grad_FM * silu_FM, out_up_ref, out_up_rows_ref),
    ):
      lanes_ref[here] = tpu_quantize.sublane_operand(grad).T
      rows_ref[here] = tpu_quantize.sublane_operand(grad.T)

  tpu_quantize.for_slabs((size_M, tile_F), (size_M, width), slab)
