"""The experts' feed-forward as one operation, so that little is kept of it.

Beside the weights, three arrays of the hidden width and one of the model's are
kept, all quantised: the gated unit's inputs and output, and the rows.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax

from composer_jax.pallas_kernels import matmul
from composer_jax.pallas_kernels import xla


class Weights(NamedTuple):
  """Of every expert; arrays, or all of them `matmul.Ready`."""

  gate_EDF: jax.Array
  up_EDF: jax.Array
  down_EFD: jax.Array


def feed_forward(x_BMD, weights: Weights, expert_of_block, ops) -> jax.Array:
  """y_BMD in float32: SwiGLU of each block of rows under its expert.

  Args:
    x_BMD: blocks of rows.
    weights: of every expert, `Ready` ones for inference.
    expert_of_block: see `matmul.block_matmul`.
    ops: the precision.
  """
  width = x_BMD.shape[2]
  x_BMD = matmul.filled(x_BMD, ops.columns, 2)
  if isinstance(weights.gate_EDF, matmul.Ready):
    weights = Weights(*(w.operand for w in weights))
    x_BMD = ops.operand(x_BMD, 2)
    y_BMD, _ = _forward(x_BMD, weights, expert_of_block, ops)
  else:
    weights = Weights(*(matmul.filled(w, ops.columns, 1, 2) for w in weights))
    y_BMD = _feed_forward(x_BMD, weights, expert_of_block, ops)
  return y_BMD[:, :, :width]


def _forward(x_BMD, weights: Weights, expert_of_block, ops):
  """(y_BMD, xla.Hidden) from operands."""
  gate_BMF = ops.forward(x_BMD, weights.gate_EDF, expert_of_block)
  up_BMF = ops.forward(x_BMD, weights.up_EDF, expert_of_block)
  hidden: xla.Hidden = ops.swiglu(gate_BMF, up_BMF)
  y_BMD = ops.forward(hidden.operand_BMF, weights.down_EFD, expert_of_block)
  return y_BMD, hidden


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _feed_forward(x_BMD, weights, expert_of_block, ops):
  y_BMD, _ = _feed_forward_fwd(x_BMD, weights, expert_of_block, ops)
  return y_BMD


def _feed_forward_fwd(x_BMD, weights, expert_of_block, ops):
  operands = Weights(*(ops.operand(w, 1) for w in weights))
  y_BMD, hidden = _forward(
    ops.operand(x_BMD, 2), operands, expert_of_block, ops
  )
  kept_weights = Weights(*(ops.quantize(w, 2) for w in weights))
  return y_BMD, (
    ops.quantize(x_BMD, 1),
    hidden._replace(operand_BMF=None),
    kept_weights,
    expert_of_block,
    matmul.types(x_BMD, *weights),
  )


def _feed_forward_bwd(ops, residuals, grad_BMD):
  kept_x_BMD, hidden, kept_weights, expert_of_block, like = residuals
  experts = like[1].shape[0]
  x_BMD = ops.reopen(kept_x_BMD, 1)
  weights = Weights(*(ops.reopen(w, 2) for w in kept_weights))

  def input_grad(grad, weight):
    return ops.input_grad(grad, weight, expert_of_block)

  def weight_grad(x, grad):
    return ops.weight_grad(x, grad, expert_of_block, experts)

  grad_hidden_BMF = input_grad(ops.operand(grad_BMD, 2), weights.down_EFD)
  grads: xla.HiddenGrads = ops.swiglu_grad(
    grad_hidden_BMF, hidden.gate_BMF, hidden.up_BMF
  )
  grad_x_BMD = input_grad(grads.gate_BMF, weights.gate_EDF)
  grad_x_BMD += input_grad(grads.up_BMF, weights.up_EDF)
  grad_weights = (
    weight_grad(x_BMD, grads.gate_rows_BMF),
    weight_grad(x_BMD, grads.up_rows_BMF),
    weight_grad(ops.reopen(hidden.kept_BMF, 1), ops.operand(grad_BMD, 1)),
  )
  grad_x, *grad_weights = (
    grad.astype(x.dtype)
    for grad, x in zip((grad_x_BMD, *grad_weights), like, strict=True)
  )
  return grad_x, Weights(*grad_weights), None


_feed_forward.defvjp(_feed_forward_fwd, _feed_forward_bwd)
