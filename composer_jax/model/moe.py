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

  experts = router_DE.shape[1]
  weight_N1 = mask_N.astype(jnp.float32)[:, None]
  total = jnp.maximum(weight_N1.sum(), 1.0)
  load_NE = jax.nn.one_hot(expert_NX, experts).sum(1) / count
  load_E = (load_NE * weight_N1).sum(0) / total
  probability_E = (jax.nn.softmax(logits_NE) * weight_N1).sum(0) / total
  return Routing(expert_NX, gate_NX, experts * (load_E * probability_E).sum())


def experts_dense(x_ND, routing: Routing, gate_EDF, up_EDF, down_EFD):
  """Every expert on every token, weighted by the gates (zero if not chosen)."""
  experts = gate_EDF.shape[0]
  weight_NE = jnp.einsum(
    'NXE,NX->NE', jax.nn.one_hot(routing.expert_NX, experts), routing.gate_NX
  )
  # Repeated, so that XLA:CPU does not transpose the weights at every step.
  x_END = jnp.broadcast_to(x_ND, (experts, *x_ND.shape))
  hidden_ENF = jax.nn.silu(jnp.einsum('END,EDF->ENF', x_END, gate_EDF))
  hidden_ENF *= jnp.einsum('END,EDF->ENF', x_END, up_EDF)
  hidden_ENF *= weight_NE.T[:, :, None]
  return jnp.einsum('ENF,EFD->ND', hidden_ENF, down_EFD)


def experts_blocks(
  x_ND, routing: Routing, gate_EDF, up_EDF, down_EFD, *, block_rows: int
):
  """Each token on its own experts only, in blocks of `block_rows` rows.

  Equal to `experts_dense` up to the order of summation. Memory is bounded by
  N * X + E * block_rows rows.
  """
  experts = gate_EDF.shape[0]
  slot_NX, token_P, expert_of_block = _layout(
    routing.expert_NX, experts, block_rows
  )
  x_PD = _gather_rows(x_ND, token_P, slot_NX)
  x_BMD = x_PD.reshape(-1, block_rows, x_ND.shape[1])
  gate_BDF, up_BDF, down_BFD = (
    _expert_weights(w, expert_of_block) for w in (gate_EDF, up_EDF, down_EFD)
  )
  hidden_BMF = jax.nn.silu(jnp.einsum('BMD,BDF->BMF', x_BMD, gate_BDF))
  hidden_BMF *= jnp.einsum('BMD,BDF->BMF', x_BMD, up_BDF)
  y_BMD = jnp.einsum('BMF,BFD->BMD', hidden_BMF, down_BFD)
  y_NXD = _return_rows(y_BMD.reshape(x_PD.shape), token_P, slot_NX)
  return jnp.einsum('NXD,NX->ND', y_NXD, routing.gate_NX)


def _layout(expert_NX, experts: int, block_rows: int):
  """Padded slots: slot_NX of each choice, token_P of each slot (or N)."""
  tokens, count = expert_NX.shape
  blocks = -(-tokens * count // block_rows) + experts
  expert_M = expert_NX.reshape(-1)
  chosen_ME = jax.nn.one_hot(expert_M, experts, dtype=jnp.int32)
  rank_ME = jnp.cumsum(chosen_ME, axis=0) - chosen_ME
  rank_M = jnp.take_along_axis(rank_ME, expert_M[:, None], axis=1)[:, 0]
  blocks_E = -(-chosen_ME.sum(0) // block_rows)
  end_E = jnp.cumsum(blocks_E)
  slot_M = (end_E - blocks_E)[expert_M] * block_rows + rank_M
  token_P = jnp.full((blocks * block_rows,), tokens, jnp.int32)
  token_P = token_P.at[slot_M].set(
    jnp.arange(tokens * count, dtype=jnp.int32) // count,
    unique_indices=True,
  )
  expert_of_block = jnp.searchsorted(end_E, jnp.arange(blocks), side='right')
  expert_of_block = jnp.minimum(expert_of_block, experts - 1)
  return slot_M.reshape(tokens, count), token_P, expert_of_block


@jax.custom_vjp
def _expert_weights(weight_EXY, expert_of_block):
  return weight_EXY[expert_of_block]


def _expert_weights_fwd(weight_EXY, expert_of_block):
  # The (empty) residual keeps the number of experts static.
  return weight_EXY[expert_of_block], (expert_of_block, weight_EXY[:, :0, :0])


def _expert_weights_bwd(residuals, grad_BXY):
  expert_of_block, witness = residuals
  one_hot_BE = jax.nn.one_hot(expert_of_block, witness.shape[0])
  return jnp.einsum('BE,BXY->EXY', one_hot_BE, grad_BXY), None


_expert_weights.defvjp(_expert_weights_fwd, _expert_weights_bwd)


def _take_padded(x_ND, token_P):
  """Rows of x, zero where token_P points past the end."""
  return jnp.take(x_ND, token_P, axis=0, mode='fill', fill_value=0)


# Gathering rows into slots and returning them are each other's transpose, so
# both backward passes are gathers as well: no scatter-add on the hot path.
@jax.custom_vjp
def _gather_rows(x_ND, token_P, slot_NX):
  del slot_NX
  return _take_padded(x_ND, token_P)


def _gather_rows_fwd(x_ND, token_P, slot_NX):
  return _take_padded(x_ND, token_P), slot_NX


def _gather_rows_bwd(slot_NX, grad_PD):
  return grad_PD[slot_NX].sum(1), None, None


_gather_rows.defvjp(_gather_rows_fwd, _gather_rows_bwd)


@jax.custom_vjp
def _return_rows(y_PD, token_P, slot_NX):
  del token_P
  return y_PD[slot_NX]


def _return_rows_fwd(y_PD, token_P, slot_NX):
  return y_PD[slot_NX], (token_P, slot_NX)


def _return_rows_bwd(residuals, grad_NXD):
  token_P, slot_NX = residuals
  tokens, count = slot_NX.shape
  choice_P = jnp.full(token_P.shape, tokens * count, jnp.int32)
  choice_P = choice_P.at[slot_NX.reshape(-1)].set(
    jnp.arange(tokens * count, dtype=jnp.int32), unique_indices=True
  )
  grad_MD = grad_NXD.reshape(tokens * count, -1)
  return _take_padded(grad_MD, choice_P), None, None


_return_rows.defvjp(_return_rows_fwd, _return_rows_bwd)


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
    x_ND, routing, layer['gate_EDF'], layer['up_EDF'], layer['down_EFD']
  )
  return y_ND, routing
