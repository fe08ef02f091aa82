"""The gated unit and its gradient, each one kernel with its quantisations."""

from __future__ import annotations

import jax

from composer_jax.pallas_kernels import gated
from composer_jax.pallas_kernels import gpu_quantize
from composer_jax.pallas_kernels import mx
from composer_jax.pallas_kernels import xla


def hidden(gate_BMF, up_BMF, form, kept, *, interpret=False) -> xla.Hidden:
  """silu(gate) * up (Shazeer 2020, arXiv 2002.05202, eq. 6), and its inputs.

  Args:
    gate_BMF: what decides.
    up_BMF: what is let through.
    form: `gpu_quantize.Form` of an operand.
    kept: form of what the backward pass opens again as an operand.
    interpret: runs the kernel without a GPU.
  """
  blocks = gpu_quantize.BLOCKS
  (gate,), (up,), (product, product_rows) = gpu_quantize.run(
    (gate_BMF, up_BMF),
    (
      gpu_quantize.Result(lambda gate, up: gate, ((blocks, 2),)),
      gpu_quantize.Result(lambda gate, up: up, ((blocks, 2),)),
      gpu_quantize.Result(gated.unit, ((form, 2), (kept, 1))),
    ),
    name='mx_swiglu',
    interpret=interpret,
  )
  return xla.Hidden(product, product_rows, gate, up)


def hidden_grads(
  grad_BMF,
  gate_BMF: mx.Quantized,
  up_BMF: mx.Quantized,
  form,
  *,
  interpret=False,
) -> xla.HiddenGrads:
  """The gradients of gate and up, from that of their product.

  Args:
    grad_BMF: of the product.
    gate_BMF: as it was kept, along F.
    up_BMF: likewise.
    form: `gpu_quantize.Form` of an operand.
    interpret: runs the kernel without a GPU.
  """
  both = (form, 2), (form, 1)
  (gate, gate_rows), (up, up_rows) = gpu_quantize.run(
    (grad_BMF, gate_BMF, up_BMF),
    (
      gpu_quantize.Result(_gate_grad, both),
      gpu_quantize.Result(_up_grad, both),
    ),
    name='mx_swiglu_grad',
    interpret=interpret,
  )
  return xla.HiddenGrads(gate, up, gate_rows, up_rows)


def _gate_grad(grad, gate, up):
  sigmoid = jax.nn.sigmoid(gate)
  return grad * up * (sigmoid + gate * sigmoid * (1 - sigmoid))


def _up_grad(grad, gate, up):
  del up
  return grad * jax.nn.silu(gate)
