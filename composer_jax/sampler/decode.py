"""Prefill and decode as pure functions: state in, state out.

Numbers of a row depend on that row alone: shapes are fixed, and the random
number of a token is a function of the row's seed and the token's position. So a
sequence comes out the same whatever else shares the batch.
"""

from __future__ import annotations

import functools

import flax.struct
import jax
import jax.numpy as jnp

from composer_jax.model import transformer


@flax.struct.dataclass
class Rows:
  """What is decoded in one batch; the arrays have a row for each sequence."""

  # int32: where in the cache a row is, unused ones at the spare last slot; or
  # None: every slot has its row, in order.
  slot_B: jax.Array | None
  token_B: jax.Array  # int32: the next token to feed
  before_BP: jax.Array  # int32: the tokens before it, or NO_TOKEN; nearest last
  start_B: jax.Array  # int32: its position
  remaining_B: jax.Array  # int32: tokens still to sample; 0 = idle
  seed_B: jax.Array  # uint32
  temperature_B: jax.Array  # 0 = greedy


@flax.struct.dataclass
class Steps:
  """What `decode` sampled: T steps for each row."""

  token_BT: jax.Array  # int32
  logprob_BT: jax.Array  # float32 nats
  route_BTLX: jax.Array  # int8: experts of the tokens that were *fed*
  count_B: jax.Array  # int32: how many of the T steps are real


def sample_token(logits_BV, rows: Rows):
  """(token_B, logprob_B) at each row's temperature.

  One uniform number per row, inverted through the cumulative distribution. The
  log-probability is that of the tempered distribution; for a greedy row it is
  that of temperature 1.
  """
  greedy_B = rows.temperature_B == 0
  scale_B = jnp.where(greedy_B, 1.0, rows.temperature_B)
  logprob_BV = jax.nn.log_softmax(logits_BV / scale_B[:, None])

  def uniform(seed, position):
    key = jax.random.fold_in(jax.random.key(seed), position)
    return jax.random.uniform(key)

  uniform_B = jax.vmap(uniform)(rows.seed_B, rows.start_B)
  cumulative_BV = jnp.cumsum(jnp.exp(logprob_BV), axis=-1)
  threshold_B1 = uniform_B[:, None] * cumulative_BV[:, -1:]
  drawn_B = jnp.argmax(cumulative_BV > threshold_B1, axis=-1)
  token_B = jnp.where(greedy_B, jnp.argmax(logits_BV, axis=-1), drawn_B)
  token_B = token_B.astype(jnp.int32)
  chosen_B1 = jnp.take_along_axis(logprob_BV, token_B[:, None], axis=-1)
  return token_B, chosen_B1[:, 0]


@functools.partial(
  jax.jit,
  static_argnames=('steps', 'stop_id', 'config'),
  donate_argnames=('cache',),
)
def decode(params, cache, rows: Rows, *, steps: int, stop_id: int, config):
  """Feeds and samples up to `steps` tokens per row; unused rows stand still.

  Returns:
    (cache, Steps). A row ends with `stop_id`, which counts and is not fed.
  """

  def step(carry, _):
    part, rows, count_B = carry
    output, part = transformer.forward_cached(
      params,
      rows.token_B[:, None],
      rows.before_BP,
      rows.start_B,
      part,
      config=config,
      dispatch='dense',
    )
    token_B, logprob_B = sample_token(output.logits_BTV[:, 0], rows)
    live_B = rows.remaining_B > 0
    count_B += live_B
    ended_B = live_B & (token_B == stop_id)
    moved_BP = jnp.concatenate(
      [rows.before_BP[:, 1:], rows.token_B[:, None]], axis=1
    )
    rows = rows.replace(
      token_B=jnp.where(live_B, token_B, rows.token_B),
      before_BP=jnp.where(live_B[:, None], moved_BP, rows.before_BP),
      start_B=rows.start_B + live_B,
      remaining_B=jnp.where(ended_B, 0, rows.remaining_B - live_B),
    )
    return (part, rows, count_B), (
      token_B,
      logprob_B,
      output.route_BTLX[:, 0],
    )

  part = cache if rows.slot_B is None else _take(cache, rows.slot_B)
  carry = part, rows, jnp.zeros_like(rows.start_B)
  carry, (token_TB, logprob_TB, route_TBLX) = jax.lax.scan(
    step, carry, length=steps
  )
  part, _, count_B = carry
  if rows.slot_B is not None:
    part = _put(cache, rows.slot_B, part)
  return part, Steps(
    token_BT=token_TB.swapaxes(0, 1),
    logprob_BT=logprob_TB.swapaxes(0, 1),
    route_BTLX=route_TBLX.swapaxes(0, 1),
    count_B=count_B,
  )


@functools.partial(
  jax.jit, static_argnames=('config',), donate_argnames=('cache',)
)
def prefill(params, cache, slot_R, token_RT, before_RP, start_R, *, config):
  """Feeds T known tokens to the chosen slots; samples nothing.

  Rows are padded on the right; see `transformer.forward_cached` for what the
  padding leaves behind. Unused rows name the cache's spare last slot.

  Returns:
    (cache, route_RTLX).
  """
  part = _take(cache, slot_R)
  output, part = transformer.forward_cached(
    params,
    token_RT,
    before_RP,
    start_R,
    part,
    config=config,
    dispatch='blocks',
  )
  return _put(cache, slot_R, part), output.route_BTLX


def _take(cache, slot_R):
  return jax.tree.map(lambda x: x[slot_R], cache)


def _put(cache, slot_R, part):
  return jax.tree.map(lambda x, y: x.at[slot_R].set(y), cache, part)
