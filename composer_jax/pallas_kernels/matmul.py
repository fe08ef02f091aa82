"""A product of matrices in MXFP8, with both of its gradients in MXFP8.

The three products contract over three different axes, so each operand is
quantised along either of its own, both times from the high-precision original.
What the backward pass needs is kept quantised.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from composer_jax.pallas_kernels import mx


@jax.custom_vjp
def mx_matmul(x_MK: jax.Array, w_KN: jax.Array) -> jax.Array:
  """The product x w, block-scaled along K and summed in float32.

  The gradients are block-scaled products as well: of x along N, of w along M.
  No axis need be a multiple of 32; zeros fill the last block.

  Returns:
    y_MN in float32.
  """
  y_MN, _ = _forward(x_MK, w_KN)
  return y_MN


def _forward(x_MK, w_KN):
  y_MN = _product(
    'MK,KN->MN', _wide(quantize(x_MK, 1), 1), _wide(quantize(w_KN, 0), 0)
  )
  like = jnp.zeros((), x_MK.dtype), jnp.zeros((), w_KN.dtype)
  return y_MN, (quantize(x_MK, 0), quantize(w_KN, 1), like)


def _backward(residuals, grad_MN):
  x_MK, w_KN, (like_x, like_w) = residuals
  grad_x_MK = _product(
    'MN,KN->MK', _wide(quantize(grad_MN, 1), 1), _wide(w_KN, 1)
  )
  grad_w_KN = _product(
    'MK,MN->KN', _wide(x_MK, 0), _wide(quantize(grad_MN, 0), 0)
  )
  return grad_x_MK.astype(like_x.dtype), grad_w_KN.astype(like_w.dtype)


mx_matmul.defvjp(_forward, _backward)


def quantize(x: jax.Array, axis: int) -> mx.Quantized:
  """E4M3 along the axis, which is filled up with zeros to a multiple of 32."""
  missing = -x.shape[axis] % mx.BLOCK
  if missing:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, missing)
    x = jnp.pad(x, widths)
  return mx.quantize(x, axis)


def _wide(x: mx.Quantized, axis: int):
  """The numbers in bfloat16: four significant bits times 2^k fit in it."""
  return mx.dequantize(*x, axis).astype(jnp.bfloat16)


def _product(equation: str, left, right):
  return jnp.einsum(equation, left, right, preferred_element_type=jnp.float32)
