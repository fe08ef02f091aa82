"""The products in plain XLA: what a CPU runs and kernels are compared with.

Every implementation of the products is a module with the functions of this one.
They work on blocks of M rows, each block with one expert's matrix; a dense
product is that with one expert. Letters: B blocks, M rows of a block, K and N
the axes of a matrix, F the hidden axis of an expert.

An operand is what a product takes, here the rounded numbers in bfloat16: four
significant bits times a power of two fit in it, so nothing is lost.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from composer_jax.pallas_kernels import mx


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


def quantize(x: jax.Array, axis: int) -> mx.Quantized:
  """Of three axes, along one of the last two."""
  return mx.quantize(x, axis)


def reopen(kept: mx.Quantized, axis: int) -> jax.Array:
  """The operand from what was kept of it."""
  return mx.dequantize(*kept, axis).astype(jnp.bfloat16)


def operand(x: jax.Array, axis: int) -> jax.Array:
  """What a product that contracts over the axis takes for x."""
  return reopen(quantize(x, axis), axis)


def forward(x_BMK, w_EKN, expert_of_block) -> jax.Array:
  """y_BMN in float32, from operands along K."""
  return _product('BMK,BKN->BMN', x_BMK, w_EKN[expert_of_block])


def input_grad(grad_BMN, w_EKN, expert_of_block) -> jax.Array:
  """grad_BMK in float32, from operands along N."""
  return _product('BMN,BKN->BMK', grad_BMN, w_EKN[expert_of_block])


def weight_grad(x_BMK, grad_BMN, expert_of_block, experts: int) -> jax.Array:
  """grad_EKN in float32, from operands along M; zero for an idle expert."""
  grad_BKN = _product('BMK,BMN->BKN', x_BMK, grad_BMN)
  return jax.ops.segment_sum(
    grad_BKN, expert_of_block, experts, indices_are_sorted=True
  )


def swiglu(gate_BMF, up_BMF) -> Hidden:
  """silu(gate) * up, quantised along both axes (Shazeer 2020, eq. 6)."""
  hidden_BMF = jax.nn.silu(gate_BMF) * up_BMF
  return Hidden(
    operand_BMF=operand(hidden_BMF, 2),
    kept_BMF=quantize(hidden_BMF, 1),
    gate_BMF=quantize(gate_BMF, 2),
    up_BMF=quantize(up_BMF, 2),
  )


def swiglu_grad(grad_BMF, gate_BMF, up_BMF) -> HiddenGrads:
  """From the gradient of its output and the inputs that `swiglu` kept."""
  gate_BMF, up_BMF = (mx.dequantize(*x, 2) for x in (gate_BMF, up_BMF))
  sigmoid_BMF = jax.nn.sigmoid(gate_BMF)
  silu_BMF = gate_BMF * sigmoid_BMF
  slope_BMF = sigmoid_BMF + silu_BMF * (1 - sigmoid_BMF)
  grad_gate_BMF = grad_BMF * up_BMF * slope_BMF
  grad_up_BMF = grad_BMF * silu_BMF
  return HiddenGrads(
    gate_BMF=operand(grad_gate_BMF, 2),
    up_BMF=operand(grad_up_BMF, 2),
    gate_rows_BMF=operand(grad_gate_BMF, 1),
    up_rows_BMF=operand(grad_up_BMF, 1),
  )


def _product(equation: str, left, right):
  return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)
