"""Products with both of their gradients, in the precision that `ops` has.

In MXFP8 the three products contract over three different axes, so each operand
is quantised along either of its own, both times from the high-precision
original. What the backward pass needs is kept quantised.

`ops` is a module with the functions of xla.py, or an object with them.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from composer_jax.pallas_kernels import blocks
from composer_jax.pallas_kernels import implementations
from composer_jax.pallas_kernels import mx

_BLOCK_ROWS = 128


@flax.struct.dataclass
class Ready:
  """Matrices made into operands once, for inference."""

  operand: Any
  columns: int = flax.struct.field(pytree_node=False)  # N, fillings left out.


def ready(kept: jax.Array | mx.Quantized, ops: Any) -> Ready:
  """Operands along K of matrices [E, K, N] that are rounded along it."""
  columns = jax.tree.leaves(kept)[0].shape[2]
  if isinstance(kept, mx.Quantized):
    kept = mx.Quantized(
      filled(kept.elements, ops.columns, 1, 2),
      filled(filled(kept.scales, ops.columns // mx.BLOCK, 1), ops.columns, 2),
    )
  else:
    kept = filled(kept, ops.columns, 1, 2)
  return Ready(ops.unpack(kept, 1), columns)


def filled(x, multiple: int, *axes: int) -> jax.Array:
  """Zeros fill the axes up to multiples."""
  widths = [
    (0, -size % max(1, multiple) * (axis in axes))
    for axis, size in enumerate(x.shape)
  ]
  return jnp.pad(x, widths) if any(map(sum, widths)) else x


def mx_matmul(
  x_MK: jax.Array, w_KN: jax.Array, *, implementation: str = 'auto'
) -> jax.Array:
  """The product x w, block-scaled along K and summed in float32.

  The gradients are block-scaled products as well: of x along N, of w along M.
  No axis need be a multiple of 32; zeros fill the last block.

  Args:
    x_MK: floating-point numbers.
    w_KN: floating-point numbers.
    implementation: see `implementations.choose`.

  Returns:
    y_MN in float32.
  """
  if x_MK.ndim != 2 or w_KN.ndim != 2 or x_MK.shape[1] != w_KN.shape[0]:
    raise ValueError(f'no product of {x_MK.shape} and {w_KN.shape}')
  ops = implementations.choose('mxfp8', implementation)
  return dense(x_MK, w_KN[None], ops)


def mx_grouped_matmul(
  x_NK: jax.Array,
  w_EKF: jax.Array,
  group_sizes_E: jax.Array,
  *,
  implementation: str = 'auto',
) -> jax.Array:
  """Each row times the matrix of its group, like `jax.lax.ragged_dot`.

  Args:
    x_NK: rows sorted by group.
    w_EKF: a matrix for each group.
    group_sizes_E: how many rows each group has; traced, zeros allowed.
    implementation: see `implementations.choose`.

  Returns:
    y_NF in float32; zeros in the rows behind the last group. The weights'
    gradient is block-scaled along the rows of each group, in blocks that begin
    with the group.
  """
  groups = group_sizes_E.shape
  if x_NK.ndim != 2 or w_EKF.ndim != 3 or groups != w_EKF.shape[:1]:
    raise ValueError(
      f'rows {x_NK.shape}, matrices {w_EKF.shape} and sizes {groups}: two axes,'
      ' three, and one as long as there are matrices'
    )
  if x_NK.shape[1] != w_EKF.shape[1]:
    raise ValueError(f'no product of {x_NK.shape} and {w_EKF.shape[1:]}')
  ops = implementations.choose('mxfp8', implementation)
  return grouped(x_NK, w_EKF, group_sizes_E, ops)


def dense(x_MK, w_1KN, ops) -> jax.Array:
  """y_MN in float32 from one matrix, or one that is `Ready`."""
  y_1MN = of_each(
    lambda x_BMK, expert_of_block: block_matmul(
      x_BMK, w_1KN, expert_of_block, ops
    ),
    x_MK[None],
    ops,
  )
  return y_1MN[0]


def of_each(run: Callable, x_EMK, ops) -> jax.Array:
  """run(x_BMK, expert_of_block) where expert e has all the rows x_EMK[e]."""
  block_rows = ops.block_rows
  if block_rows is None:
    return run(x_EMK, None)
  experts, rows, width = x_EMK.shape
  blocks_each = -(-rows // block_rows)
  missing = blocks_each * block_rows - rows
  x_EMK = jnp.pad(x_EMK, ((0, 0), (0, missing), (0, 0)))
  expert_of_block = jnp.repeat(jnp.arange(experts), blocks_each)
  y_BMN = run(x_EMK.reshape(-1, block_rows, width), expert_of_block)
  return y_BMN.reshape(experts, rows + missing, -1)[:, :rows]


def grouped(x_NK, w_EKF, group_sizes_E, ops) -> jax.Array:
  """`mx_grouped_matmul` in the precision that `ops` has."""
  rows = len(x_NK)
  layout = blocks.layout(group_sizes_E, rows, _BLOCK_ROWS)
  end_E = jnp.cumsum(group_sizes_E)
  index_N = jnp.arange(rows)
  group_N = jnp.searchsorted(end_E, index_N, side='right')
  inside_E = layout.first_slot_E - (end_E - group_sizes_E)
  slot_N = index_N + jnp.take(inside_E, group_N, mode='fill', fill_value=0)
  slot_N1 = jnp.where(index_N < end_E[-1], slot_N, layout.slots)[:, None]
  x_PK = blocks.put(x_NK, slot_N1, layout.slots)
  x_BMK = x_PK.reshape(-1, _BLOCK_ROWS, x_NK.shape[1])
  y_BMF = block_matmul(x_BMK, w_EKF, layout.expert_of_block, ops)
  return blocks.take(y_BMF.reshape(layout.slots, -1), slot_N1)[:, 0]


def block_matmul(x_BMK, w_EKN, expert_of_block, ops) -> jax.Array:
  """y_BMN in float32: each block of rows times the matrix of its expert.

  Args:
    x_BMK: blocks of rows.
    w_EKN: the matrices, or `Ready` ones for inference.
    expert_of_block: ascending; or None if each block has a matrix of its own,
      where `ops` takes blocks of any number of rows.
    ops: the precision.
  """
  x_BMK = filled(x_BMK, ops.columns, 2)
  if isinstance(w_EKN, Ready):
    y_BMN = ops.forward(ops.operand(x_BMK, 2), w_EKN.operand, expert_of_block)
    return y_BMN[:, :, : w_EKN.columns]
  w_filled_EKN = filled(w_EKN, ops.columns, 1, 2)
  y_BMN = _block_matmul(x_BMK, w_filled_EKN, expert_of_block, ops)
  return y_BMN[:, :, : w_EKN.shape[2]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _block_matmul(x_BMK, w_EKN, expert_of_block, ops):
  y_BMN, _ = _block_matmul_fwd(x_BMK, w_EKN, expert_of_block, ops)
  return y_BMN


def _block_matmul_fwd(x_BMK, w_EKN, expert_of_block, ops):
  y_BMN = ops.forward(
    ops.operand(x_BMK, 2), ops.operand(w_EKN, 1), expert_of_block
  )
  kept = ops.quantize(x_BMK, 1), ops.quantize(w_EKN, 2)
  return y_BMN, (*kept, expert_of_block, types(x_BMK, w_EKN))


def _block_matmul_bwd(ops, residuals, grad_BMN):
  x_BMK, w_EKN, expert_of_block, (like_x, like_w) = residuals
  grad_x_BMK = ops.input_grad(
    ops.operand(grad_BMN, 2), ops.reopen(w_EKN, 2), expert_of_block
  )
  grad_w_EKN = ops.weight_grad(
    ops.reopen(x_BMK, 1),
    ops.operand(grad_BMN, 1),
    expert_of_block,
    like_w.shape[0],
  )
  return (
    grad_x_BMK.astype(like_x.dtype),
    grad_w_EKN.astype(like_w.dtype),
    None,
  )


_block_matmul.defvjp(_block_matmul_fwd, _block_matmul_bwd)


def types(*arrays):
  """Nothing but the types and first axes, which a gradient must have again."""
  return tuple(x[:, :0, :0] for x in arrays)
