"""The products without blocks: operands rounded to one type, or not at all.

The functions are those of xla.py, so that a precision is a choice between
modules and nothing else differs.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from composer_jax.pallas_kernels import gated
from composer_jax.pallas_kernels import xla


@dataclasses.dataclass(frozen=True)
class Plain:
  """Products of operands of one type, summed in float32."""

  dtype: str  # 'float32' or 'bfloat16'
  products: Any = xla  # The module that multiplies.

  @property
  def block_rows(self) -> int | None:
    return self.products.block_rows

  @property
  def columns(self) -> int:
    return self.products.columns

  def forward(self, x_BMK, w_EKN, expert_of_block) -> jax.Array:
    return self.products.forward(x_BMK, w_EKN, expert_of_block)

  def input_grad(self, grad_BMN, w_EKN, expert_of_block) -> jax.Array:
    return self.products.input_grad(grad_BMN, w_EKN, expert_of_block)

  def weight_grad(self, x_BMK, grad_BMN, expert_of_block, experts: int):
    return self.products.weight_grad(x_BMK, grad_BMN, expert_of_block, experts)

  def quantize(self, x: jax.Array, axis: int) -> jax.Array:
    del axis
    return x.astype(self.dtype)

  def reopen(self, kept: jax.Array, axis: int) -> jax.Array:
    del axis
    return kept

  def unpack(self, kept: jax.Array, axis: int) -> jax.Array:
    return self.reopen(kept, axis)

  def operand(self, x: jax.Array, axis: int) -> jax.Array:
    return self.quantize(x, axis)

  def swiglu(self, gate_BMF, up_BMF) -> xla.Hidden:
    hidden_BMF = gated.unit(gate_BMF, up_BMF).astype(self.dtype)
    return xla.Hidden(
      operand_BMF=hidden_BMF,
      kept_BMF=hidden_BMF,
      gate_BMF=gate_BMF.astype(self.dtype),
      up_BMF=up_BMF.astype(self.dtype),
    )

  def swiglu_grad(self, grad_BMF, gate_BMF, up_BMF) -> xla.HiddenGrads:
    grads = gated.unit_grad(
      grad_BMF, gate_BMF.astype(jnp.float32), up_BMF.astype(jnp.float32)
    )
    gate_BMF, up_BMF = (x.astype(self.dtype) for x in grads)
    return xla.HiddenGrads(gate_BMF, up_BMF, gate_BMF, up_BMF)


FLOAT32 = Plain('float32')
BFLOAT16 = Plain('bfloat16')
