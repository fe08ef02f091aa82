"""The products as kernels for B200 (sm_100a), with the interface of `xla`.

An operand is `gpu_blackwell.Operand`, E4M3 elements and packed scales: the
tensor core multiplies both. What is kept for the backward pass, by `quantize`
or as `kept_BMF` of `swiglu`, is already an operand, so `reopen` costs nothing.

Blocks have 128 rows, all other axes are multiples of 128. Every function takes
`interpret=True`, to run without a GPU; a RuntimeError says where there is none
of this kind.
"""

from __future__ import annotations

import jax

from composer_jax.pallas_kernels import gpu_blackwell
from composer_jax.pallas_kernels import gpu_quantize
from composer_jax.pallas_kernels import gpu_swiglu
from composer_jax.pallas_kernels import mx
from composer_jax.pallas_kernels import targets
from composer_jax.pallas_kernels import xla

TARGET = targets.B200
block_rows = 128
columns = 128
_OPERAND = gpu_quantize.PACKED


def quantize(
  x: jax.Array, axis: int, *, interpret=False
) -> gpu_blackwell.Operand:
  """Of three axes, along one of the last two; an operand at once."""
  return operand(x, axis, interpret=interpret)


def reopen(
  kept: gpu_blackwell.Operand, axis: int, *, interpret=False
) -> gpu_blackwell.Operand:
  """The operand from what was kept of it: itself."""
  del axis, interpret
  return kept


def unpack(
  kept: mx.Quantized, axis: int, *, interpret=False
) -> gpu_blackwell.Operand:
  """An operand of what was quantised elsewhere."""
  del interpret
  return gpu_blackwell.Operand(
    kept.elements, gpu_blackwell.packed(kept.scales, axis)
  )


def operand(
  x: jax.Array, axis: int, *, interpret=False
) -> gpu_blackwell.Operand:
  """What a product that contracts over the axis takes for x."""
  targets.require(TARGET, interpret)
  return gpu_quantize.packed(x, axis, interpret=interpret)


def forward(
  x_BMK: gpu_blackwell.Operand,
  w_EKN: gpu_blackwell.Operand,
  expert_of_block,
  *,
  interpret=False,
) -> jax.Array:
  """y_BMN in float32, from operands along K."""
  targets.require(TARGET, interpret)
  return gpu_blackwell.forward(
    x_BMK, w_EKN, expert_of_block, num_sms=TARGET.sms, interpret=interpret
  )


def input_grad(
  grad_BMN: gpu_blackwell.Operand,
  w_EKN: gpu_blackwell.Operand,
  expert_of_block,
  *,
  interpret=False,
) -> jax.Array:
  """grad_BMK in float32, from operands along N."""
  targets.require(TARGET, interpret)
  return gpu_blackwell.input_grad(
    grad_BMN, w_EKN, expert_of_block, num_sms=TARGET.sms, interpret=interpret
  )


def weight_grad(
  x_BMK: gpu_blackwell.Operand,
  grad_BMN: gpu_blackwell.Operand,
  expert_of_block,
  experts: int,
  *,
  interpret=False,
) -> jax.Array:
  """grad_EKN in float32, from operands along M; zero for an idle expert."""
  targets.require(TARGET, interpret)
  return gpu_blackwell.weight_grad(
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
    gate_BMF, up_BMF, _OPERAND, _OPERAND, interpret=interpret
  )


def swiglu_grad(
  grad_BMF, gate_BMF: mx.Quantized, up_BMF: mx.Quantized, *, interpret=False
) -> xla.HiddenGrads:
  """From the gradient of its output and the inputs that `swiglu` kept."""
  targets.require(TARGET, interpret)
  return gpu_swiglu.hidden_grads(
    grad_BMF, gate_BMF, up_BMF, _OPERAND, interpret=interpret
  )
