"""The products in plain XLA: what a CPU runs and kernels are compared with.

Every implementation of the products is a module with the functions of this one.
They work on blocks of M rows, each block with one expert's matrix; a dense
product is that with one expert. Letters: B blocks, M rows of a block, K and N
the axes of a matrix, F the hidden axis of an expert.

An operand is what a product takes, here the rounded numbers in bfloat16: four
significant bits times a power of two fit in it, so nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
from typing import NamedTuple

import jax
from jax.experimental import xla_metadata
import jax.numpy as jnp

from composer_jax.pallas_kernels import gated
from composer_jax.pallas_kernels import mx
from composer_jax.pallas_kernels import targets

block_rows = None  # That a block must have: any number will do.
columns = 1  # K and N must be multiples of it.


class Hidden(NamedTuple):
  """What the gated unit makes of its two inputs, in blocks of 32."""

  operand_BMF: jax.Array  # Of the next product, along F.
  kept_BMF: mx.Quantized  # For its weights' gradient, along M.
  gate_BMF: mx.Quantized  # For the unit's own gradient, along F.
  up_BMF: mx.Quantized


class HiddenGrads(NamedTuple):
  """The gradients of the gated unit's inputs, as operands."""

  gate_BMF: jax.Array  # Along F.
  up_BMF: jax.Array
  gate_rows_BMF: jax.Array  # Along M.
  up_rows_BMF: jax.Array


def _apart(function: Callable, static: Sequence[str] = ()) -> Callable:
  """The function, compiled apart from what uses its result.

  XLA:CPU fuses rounding into each use of the rounded numbers and so repeats it:
  for every block of an expert, and for every pass over the block. Elsewhere
  this changes nothing.
  """

  @functools.partial(jax.jit, static_argnames=static)
  @functools.wraps(function)
  def compiled(*arguments):
    with xla_metadata.set_xla_metadata(inlineable=None):
      return function(*arguments)

  @functools.wraps(function)
  def call(*arguments):
    if targets.device_kind() != 'cpu':
      return function(*arguments)
    with xla_metadata.set_xla_metadata(inlineable='false'):
      return compiled(*arguments)

  return call


def quantize(x: jax.Array, axis: int) -> mx.Quantized:
  """Blocks along the axis, which zeros fill up to a multiple of 32."""
  scales = _scales(x, axis)
  return mx.Quantized(_elements(x, scales, axis), scales)


@functools.partial(_apart, static=('axis',))
def reopen(kept: mx.Quantized, axis: int) -> jax.Array:
  """The operand from what was kept of it."""
  return mx.dequantize(*kept, axis).astype(jnp.bfloat16)


unpack = reopen  # From `mx.Quantized`, whatever `quantize` gives.


def operand(x: jax.Array, axis: int) -> jax.Array:
  """What a product that contracts over the axis takes for x."""
  return _rounded(x, _scales(x, axis), axis)


def forward(x_BMK, w_EKN, expert_of_block) -> jax.Array:
  """y_BMN in float32, from operands along K.

  Without `expert_of_block` each block has the matrix of its number.
  """
  return _product('BMK,BKN->BMN', x_BMK, _of_block(w_EKN, expert_of_block))


def input_grad(grad_BMN, w_EKN, expert_of_block) -> jax.Array:
  """grad_BMK in float32, from operands along N."""
  w_BKN = _of_block(w_EKN, expert_of_block)
  return _product('BMN,BKN->BMK', grad_BMN, w_BKN)


def weight_grad(x_BMK, grad_BMN, expert_of_block, experts: int) -> jax.Array:
  """grad_EKN in float32, from operands along M; zero for an idle expert."""
  grad_BKN = _product('BKM,BMN->BKN', _transposed(x_BMK), grad_BMN)
  if expert_of_block is None:
    return grad_BKN
  return jax.ops.segment_sum(
    grad_BKN, expert_of_block, experts, indices_are_sorted=True
  )


def swiglu(gate_BMF, up_BMF) -> Hidden:
  """`gated.unit`, quantised along both axes."""
  hidden_BMF = _unit(gate_BMF, up_BMF)
  return Hidden(
    operand_BMF=operand(hidden_BMF, 2),
    kept_BMF=quantize(hidden_BMF, 1),
    gate_BMF=quantize(gate_BMF, 2),
    up_BMF=quantize(up_BMF, 2),
  )


def swiglu_grad(grad_BMF, gate_BMF, up_BMF) -> HiddenGrads:
  """From the gradient of its output and the inputs that `swiglu` kept."""
  grad_gate_BMF, grad_up_BMF = _reopened_grad(grad_BMF, gate_BMF, up_BMF)
  return HiddenGrads(
    gate_BMF=operand(grad_gate_BMF, 2),
    up_BMF=operand(grad_up_BMF, 2),
    gate_rows_BMF=operand(grad_gate_BMF, 1),
    up_rows_BMF=operand(grad_up_BMF, 1),
  )


_unit = _apart(gated.unit)


@functools.partial(_apart, static=('axis',))
def _scales(x, axis: int):
  return mx.scales(_filled(x, axis), axis)


@functools.partial(_apart, static=('axis',))
def _elements(x, scales, axis: int):
  return mx.elements(_filled(x, axis), scales, axis)


@functools.partial(_apart, static=('axis',))
def _rounded(x, scales, axis: int):
  rounded = mx.mx_round_trip(_filled(x, axis), scales, axis)
  return rounded.astype(jnp.bfloat16)


def _filled(x, axis: int):
  missing = -x.shape[axis] % mx.BLOCK
  widths = [(0, 0)] * x.ndim
  widths[axis] = (0, missing)
  return jnp.pad(x, widths) if missing else x


@_apart
def _reopened_grad(grad_BMF, gate_BMF: mx.Quantized, up_BMF: mx.Quantized):
  size = grad_BMF.shape[2]
  gate_BMF, up_BMF = (
    mx.dequantize(*kept, 2)[:, :, :size] for kept in (gate_BMF, up_BMF)
  )
  return gated.unit_grad(grad_BMF, gate_BMF, up_BMF)


@_apart
def _transposed(x_BMK):
  """XLA:CPU is three times slower at a product that transposes as well."""
  return x_BMK.swapaxes(1, 2)


def _of_block(w_EKN, expert_of_block):
  return w_EKN if expert_of_block is None else w_EKN[expert_of_block]


def _product(equation: str, left, right):
  return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)
