"""Losses on log-probabilities. They never see a model.

Each returns a *sum* over the tokens that count; the caller divides once by a
denominator of the whole update, so any split into micro-batches gives the same
gradient.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class ClippedSums(NamedTuple):
  """Sums over the tokens of `mask_BT`."""

  loss: jax.Array
  clipped: jax.Array  # tokens whose gradient the clip removed
  k1: jax.Array  # log behaviour - log policy: estimates KL(behaviour, policy)


def cross_entropy(logprob_BT, mask_BT):
  """Negative log-likelihood of the tokens in the mask."""
  return -jnp.where(mask_BT, logprob_BT, 0).sum()


def clipped(
  logprob_BT,
  behaviour_BT,
  advantage_BT,
  mask_BT,
  *,
  clip_low: float,
  clip_high: float,
) -> ClippedSums:
  """The clipped surrogate of PPO, token by token, with two clip widths.

  -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) with
  r = exp(logprob - behaviour); Schulman et al. 2017 (arXiv 1707.06347, eq. 7),
  asymmetric as in Yu et al. 2025 (arXiv 2503.14476).
  """
  # Outside the mask the difference is replaced *before* exp, so that neither
  # value nor gradient can be non-finite there.
  difference_BT = jnp.where(mask_BT, logprob_BT - behaviour_BT, 0)
  ratio_BT = jnp.exp(difference_BT)
  bounded_BT = jnp.clip(ratio_BT, 1 - clip_low, 1 + clip_high)
  surrogate_BT = jnp.minimum(ratio_BT * advantage_BT, bounded_BT * advantage_BT)
  removed_BT = ratio_BT * advantage_BT > bounded_BT * advantage_BT
  return ClippedSums(
    loss=-jnp.where(mask_BT, surrogate_BT, 0).sum(),
    clipped=(mask_BT & removed_BT).sum(),
    k1=-difference_BT.sum(),
  )
