"""Routing and the dropless expert feed-forward.

Two dispatches give the same numbers. `dense` runs every expert on every token:
right for a decode step, where few tokens meet many experts. `blocks` sorts
tokens by expert into blocks of rows that share one expert's weights, padded per
expert, so no token is dropped and the work follows the tokens: right for
training and long prefills.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from composer_jax import trajectory
from composer_jax.pallas_kernels import blocks
from composer_jax.pallas_kernels import experts
from composer_jax.pallas_kernels import implementations
from composer_jax.pallas_kernels import matmul


class Routing(NamedTuple):
  """Where each token goes, with gates that carry gradients."""

  expert_NX: jax.Array  # int32
  gate_NX: jax.Array  # float32, sums to one over X
  balance: jax.Array  # scalar; 1 when the load is uniform


def route(
  x_ND: jax.Array,
  router_DE: jax.Array,
  count: int,
  *,
  mask_N: jax.Array,
  replay_NX: jax.Array | None = None,
) -> Routing:
  """Chooses `count` experts per token; float32 throughout.

  Args:
    x_ND: the normalised input of the layer.
    router_DE: the router's weights.
    count: experts per token, X.
    mask_N: tokens that count for the balance (padding does not).
    replay_NX: experts to take instead of the top ones. The gates are computed
      from the live router, so gradients flow; rows that hold UNKNOWN_ROUTE are
      routed afresh (Ma et al. 2025, arXiv 2510.11370).

  Returns:
    The routing. `balance` is E * sum_e(load_e * probability_e) of Fedus et al.
    2021 (arXiv 2101.03961, eq. 4), with the load normalised over X.
  """
  logits_NE = jnp.einsum(
    'ND,DE->NE', x_ND.astype(jnp.float32), router_DE.astype(jnp.float32)
  )
  _, expert_NX = jax.lax.top_k(logits_NE, count)
  if replay_NX is not None:
    known_N1 = (replay_NX != trajectory.UNKNOWN_ROUTE).all(-1, keepdims=True)
    expert_NX = jnp.where(known_N1, replay_NX.astype(jnp.int32), expert_NX)
  chosen_NX = jnp.take_along_axis(logits_NE, expert_NX, axis=-1)
  gate_NX = jax.nn.softmax(chosen_NX, axis=-1)

  experts_count = router_DE.shape[1]
  weight_N1 = mask_N.astype(jnp.float32)[:, None]
  total = jnp.maximum(weight_N1.sum(), 1.0)
  load_NE = jax.nn.one_hot(expert_NX, experts_count).sum(1) / count
  load_E = (load_NE * weight_N1).sum(0) / total
  probability_E = (jax.nn.softmax(logits_NE) * weight_N1).sum(0) / total
  balance = experts_count * (load_E * probability_E).sum()
  return Routing(expert_NX, gate_NX, balance)


def experts_dense(
  x_ND, routing: Routing, weights: experts.Weights, *, experts_count: int, ops
):
  """Every expert on every token, weighted by the gates (zero if not chosen)."""
  weight_NE = jnp.einsum(
    'NXE,NX->NE',
    jax.nn.one_hot(routing.expert_NX, experts_count),
    routing.gate_NX,
  )
  # Repeated, so that XLA:CPU does not transpose the weights at every step.
  x_END = jnp.broadcast_to(x_ND, (experts_count, *x_ND.shape))
  y_END = matmul.of_each(
    lambda x_BMD, expert_of_block: experts.feed_forward(
      x_BMD, weights, expert_of_block, ops
    ),
    x_END,
    ops,
  )
  return jnp.einsum('END,NE->ND', y_END, weight_NE)


def experts_blocks(
  x_ND,
  routing: Routing,
  weights: experts.Weights,
  *,
  experts_count: int,
  ops,
  block_rows: int,
):
  """Each token on its own experts only, in blocks of `block_rows` rows.

  Equal to `experts_dense` up to the order of summation. Memory is bounded by
  N * X + E * block_rows rows.
  """
  slot_NX, layout = _layout(routing.expert_NX, experts_count, block_rows)
  x_PD = blocks.put(x_ND, slot_NX, layout.slots)
  x_BMD = x_PD.reshape(-1, block_rows, x_ND.shape[1])
  y_BMD = experts.feed_forward(x_BMD, weights, layout.expert_of_block, ops)
  y_NXD = blocks.take(y_BMD.reshape(x_PD.shape), slot_NX)
  return jnp.einsum('NXD,NX->ND', y_NXD, routing.gate_NX)


def _layout(expert_NX, experts_count: int, block_rows: int):
  """(slot_NX, blocks.Layout): the slot of each choice of an expert."""
  expert_M = expert_NX.reshape(-1)
  chosen_ME = jax.nn.one_hot(expert_M, experts_count, dtype=jnp.int32)
  rank_ME = jnp.cumsum(chosen_ME, axis=0) - chosen_ME
  rank_M = jnp.take_along_axis(rank_ME, expert_M[:, None], axis=1)[:, 0]
  layout = blocks.layout(chosen_ME.sum(0), len(expert_M), block_rows)
  slot_M = layout.first_slot_E[expert_M] + rank_M
  return slot_M.reshape(expert_NX.shape), layout


def feed_forward(x_ND, layer, *, config, dispatch, mask_N, replay_NX=None):
  """The MoE layer on a flat batch of tokens: (y_ND, Routing)."""
  routing = route(
    x_ND,
    layer['router_DE'],
    config.experts_per_token,
    mask_N=mask_N,
    replay_NX=replay_NX,
  )
  run = {
    'dense': experts_dense,
    'blocks': functools.partial(experts_blocks, block_rows=config.block_rows),
  }[dispatch]
  y_ND = run(
    x_ND,
    routing,
    experts.Weights(layer['gate_EDF'], layer['up_EDF'], layer['down_EFD']),
    experts_count=config.experts,
    ops=implementations.choose(config.precision, config.implementation),
  )
  return y_ND, routing
