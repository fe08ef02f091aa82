"""The gated unit and its gradient, each one kernel with its quantisations."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from composer_jax.pallas_kernels import gpu_quantize


def hidden(gate_BMF, up_BMF, outputs, *, interpret=False) -> tuple:
  """silu(gate) * up (Shazeer 2020, arXiv 2002.05202, eq. 6), and its inputs.

  Args:
    gate_BMF: what decides.
    up_BMF: what is let through.
    outputs: forms of the hidden numbers, of them again, of gate and of up.
    interpret: runs the kernel without a GPU.

  Returns:
    The four in their forms.
  """
  return gpu_quantize.run(swiglu, (gate_BMF, up_BMF), outputs, interpret)


def swiglu(gate, up):
  """One tile."""
  product = jax.nn.silu(gate) * up
  return product, product, gate, up


def hidden_grads(
  grad_BMF, gate_BMF, up_BMF, outputs: Sequence, *, interpret=False
) -> tuple:
  """The gradients of gate and up, from that of their product.

  Args:
    grad_BMF: of the hidden numbers.
    gate_BMF: as it was kept, `mx.Quantized` along F.
    up_BMF: likewise.
    outputs: forms of the gradients of gate and up, and of both again.
    interpret: runs the kernel without a GPU.

  Returns:
    The four in their forms.
  """
  inputs = grad_BMF, gate_BMF, up_BMF
  return gpu_quantize.run(swiglu_grad, inputs, outputs, interpret)


def swiglu_grad(grad, gate, up):
  """One tile."""
  sigmoid = jax.nn.sigmoid(gate)
  silu = gate * sigmoid
  grad_gate = grad * up * (sigmoid + silu * (1 - sigmoid))
  grad_up = grad * silu
  return grad_gate, grad_up, grad_gate, grad_up
