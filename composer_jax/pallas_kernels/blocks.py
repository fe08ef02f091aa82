"""Rows in blocks that have one expert each, filled up with zeros.

So no row is dropped, no 32 numbers that share a scale cross experts, and the
work follows the rows. Letters: M rows, X copies of each (the experts that a
token chose), D channels, E experts, P slots.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Layout(NamedTuple):
  """Which slots each expert has."""

  first_slot_E: jax.Array  # int32
  expert_of_block: jax.Array  # int32, ascending; spare blocks have the last one
  slots: int  # P


def layout(size_E: jax.Array, total: int, block_rows: int) -> Layout:
  """For experts with `size_E` rows each, at most `total` together."""
  experts = len(size_E)
  blocks = -(-total // block_rows) + experts
  blocks_E = -(-size_E // block_rows)
  end_E = jnp.cumsum(blocks_E)
  expert_of_block = jnp.searchsorted(end_E, jnp.arange(blocks), side='right')
  return Layout(
    first_slot_E=(end_E - blocks_E) * block_rows,
    expert_of_block=jnp.minimum(expert_of_block, experts - 1),
    slots=blocks * block_rows,
  )


# Putting rows into slots and taking them back are each other's transpose, so
# both gradients are gathers as well: no scatter-add on the hot path.
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def put(x_MD, slot_MX, slots: int):
  """x_PD: each row in its slots, zeros in the others.

  A slot number of P or more is nowhere.
  """
  return _take(x_MD, _choice_of_slot(slot_MX, slots) // slot_MX.shape[1])


def _put_fwd(x_MD, slot_MX, slots):
  return put(x_MD, slot_MX, slots), slot_MX


def _put_bwd(slots, slot_MX, grad_PD):
  del slots
  return _take(grad_PD, slot_MX).sum(1), None


put.defvjp(_put_fwd, _put_bwd)


@jax.custom_vjp
def take(x_PD, slot_MX):
  """x_MXD: what is in the slots; zeros where a slot is nowhere."""
  return _take(x_PD, slot_MX)


def _take_fwd(x_PD, slot_MX):
  # The (empty) second residual keeps the number of slots static.
  return _take(x_PD, slot_MX), (slot_MX, x_PD[:, :0])


def _take_bwd(residuals, grad_MXD):
  slot_MX, witness = residuals
  choice_P = _choice_of_slot(slot_MX, len(witness))
  return _take(grad_MXD.reshape(-1, grad_MXD.shape[2]), choice_P), None


take.defvjp(_take_fwd, _take_bwd)


def _take(x, index):
  return jnp.take(x, index, axis=0, mode='fill', fill_value=0)


def _choice_of_slot(slot_MX, slots: int):
  """For each slot where it stands in the flat slot_MX, M * X if nowhere."""
  choice_P = jnp.full((slots,), slot_MX.size, jnp.int32)
  return choice_P.at[slot_MX.reshape(-1)].set(
    jnp.arange(slot_MX.size, dtype=jnp.int32), mode='drop'
  )
