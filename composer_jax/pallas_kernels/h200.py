"""The products as kernels for H200 (sm_90a), with the interface of `xla`.

Hopper multiplies no block-scaled numbers, and summing each block of 32 by
itself would cost as much as bfloat16. An operand is therefore the rounded
numbers in bfloat16, which holds them exactly, and the products are bfloat16.

Blocks have 128 rows, K and N are multiples of 128. Every function takes
`interpret=True`, to run without a GPU; a RuntimeError says where there is none
of this kind.
"""

from __future__ import annotations

import jax

from composer_jax.pallas_kernels import gpu_hopper
from composer_jax.pallas_kernels import gpu_quantize
from composer_jax.pallas_kernels import gpu_swiglu
from composer_jax.pallas_kernels import mx
from composer_jax.pallas_kernels import targets
from composer_jax.pallas_kernels import xla

TARGET = targets.H200
block_rows = 128
columns = 128
_OPERAND, _KEPT = gpu_quantize.WIDE, gpu_quantize.BLOCKS


def quantize(x: jax.Array, axis: int, *, interpret=False) -> mx.Quantized:
  """Of three axes, along one of the last two."""
  targets.require(TARGET, interpret)
  return gpu_quantize.quantize(x, axis, interpret=interpret)


def reopen(kept: mx.Quantized, axis: int, *, interpret=False) -> jax.Array:
  """The operand from what was kept of it; XLA makes one kernel of that."""
  targets.require(TARGET, interpret)
  return xla.reopen(kept, axis)


unpack = reopen


def operand(x: jax.Array, axis: int, *, interpret=False) -> jax.Array:
  """What a product that contracts over the axis takes for x."""
  targets.require(TARGET, interpret)
  return gpu_quantize.operand(x, axis, interpret=interpret)


def forward(x_BMK, w_EKN, expert_of_block, *, interpret=False) -> jax.Array:
  """y_BMN in float32, from operands along K."""
  targets.require(TARGET, interpret)
  return gpu_hopper.forward(
    x_BMK, w_EKN, expert_of_block, num_sms=TARGET.sms, interpret=interpret
  )


def input_grad(
  grad_BMN, w_EKN, expert_of_block, *, interpret=False
) -> jax.Array:
  """grad_BMK in float32, from operands along N."""
  targets.require(TARGET, interpret)
  return gpu_hopper.input_grad(
    grad_BMN, w_EKN, expert_of_block, num_sms=TARGET.sms, interpret=interpret
  )


def weight_grad(
  x_BMK, grad_BMN, expert_of_block, experts: int, *, interpret=False
) -> jax.Array:
  """grad_EKN in float32, from operands along M; zero for an idle expert."""
  targets.require(TARGET, interpret)
  return gpu_hopper.weight_grad(
    x_BMK,
    grad_BMN,
    expert_of_block,
    experts,
    num_sms=TARGET.sms,
    interpret=interpret,
  )


def swiglu(gate_BMF, up_BMF, *, interpret=False) -> xla.Hidden:
  """silu(gate) * up, quantised along both axes, in one kernel."""
  targets.require(TARGET, interpret)
  return gpu_swiglu.hidden(
    gate_BMF, up_BMF, _OPERAND, _KEPT, interpret=interpret
  )


def swiglu_grad(
  grad_BMF, gate_BMF: mx.Quantized, up_BMF: mx.Quantized, *, interpret=False
) -> xla.HiddenGrads:
  """From the gradient of its output and the inputs that `swiglu` kept."""
  targets.require(TARGET, interpret)
  return gpu_swiglu.hidden_grads(
    grad_BMF, gate_BMF, up_BMF, _OPERAND, interpret=interpret
  )
