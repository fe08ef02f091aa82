"""SwiGLU, silu(gate) * up (Shazeer 2020, arXiv 2002.05202, eq. 6)."""

import jax


def unit(gate, up):
  """The hidden numbers of an expert."""
  return jax.nn.silu(gate) * up


def unit_grad(grad, gate, up):
  """(gradient of gate, gradient of up) from that of `unit`."""
  sigmoid = jax.nn.sigmoid(gate)
  silu = gate * sigmoid
  return grad * up * (sigmoid + silu * (1 - sigmoid)), grad * silu
