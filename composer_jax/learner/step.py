"""TrainState → TrainState."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools

import flax.struct
import jax
import jax.numpy as jnp
import optax

from composer_jax.learner import batch as batch_lib
from composer_jax.learner import loss
from composer_jax.learner import optimizer as optimizer_lib
from composer_jax.model import config as model_config
from composer_jax.model import transformer


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerConfig:
  """The objective and the shape of a micro-batch."""

  optimizer: optimizer_lib.OptimizerConfig = optimizer_lib.OptimizerConfig()
  micro_rows: int = 10  # B of a micro-batch
  row_tokens: int = 384  # T of a micro-batch
  clip_low: float = 0.2
  clip_high: float = 0.28
  balance_weight: float = 0.01
  replay_routes: bool = True  # Take the sampler's experts, gates stay live.


@flax.struct.dataclass
class TrainState:
  """Everything that an update changes."""

  step: jax.Array  # int32: updates applied; also the policy version
  params: dict
  opt_state: optax.OptState
  skipped: jax.Array  # int32: updates refused as empty or non-finite


@flax.struct.dataclass
class Sums:
  """What micro-batches add up to; `tokens` is the count in the mask."""

  tokens: jax.Array
  loss: jax.Array
  entropy: jax.Array
  clipped: jax.Array
  k1: jax.Array
  balance: jax.Array


def init(
  key: jax.Array,
  config: LearnerConfig,
  model: model_config.ModelConfig,
) -> TrainState:
  return fresh(transformer.init(key, model), config)


def fresh(params, config: LearnerConfig) -> TrainState:
  """Step 0 with the given parameters and an empty optimizer."""
  return TrainState(
    step=jnp.zeros((), jnp.int32),
    params=params,
    opt_state=optimizer_lib.make(config.optimizer).init(params),
    skipped=jnp.zeros((), jnp.int32),
  )


def token_logprobs(
  params,
  batch: batch_lib.Batch,
  *,
  model: model_config.ModelConfig,
  temperature: float = 1.0,
  replay: bool = False,
  capacity: int | None = None,
):
  """Log-probability and entropy of each token given those before it.

  Args:
    params: the parameters.
    batch: one micro-batch.
    model: sizes.
    temperature: the logits are divided by it.
    replay: take the batch's experts.
    capacity: None for all tokens, or a bound on how many sampled ones there
      are: then only theirs are computed, and all others read 0. Most tokens are
      prompts and tool output, and the head is a large part of a small model.

  Returns:
    (logprob_BT, entropy_BT, balance) in nats; 0 where a segment begins.
  """
  output = transformer.forward(
    params,
    batch.token_BT,
    batch.segment_BT,
    batch.position_BT,
    config=model,
    route_BTLX=batch.route_BTLX if replay else None,
  )
  wanted_BT = batch.position_BT > 0
  if capacity is not None:
    wanted_BT &= batch.sampled_BT
  shape = batch.token_BT.shape
  size = capacity or batch.token_BT.size
  (flat_N,) = jnp.nonzero(wanted_BT.reshape(-1), size=size, fill_value=0)
  logits_NV = transformer.head(
    params,
    output.hidden_BTD.reshape(-1, model.width)[flat_N - 1],
    output.copy_BTS.reshape(-1, shape[1])[flat_N - 1],
    batch.token_BT[(flat_N - 1) // shape[1]],
  )
  logprob_NV = jax.nn.log_softmax(logits_NV / temperature)
  token_N1 = batch.token_BT.reshape(-1)[flat_N][:, None]
  logprob_N = jnp.take_along_axis(logprob_NV, token_N1, axis=-1)[:, 0]
  entropy_N = -(jnp.exp(logprob_NV) * logprob_NV).sum(-1)

  def spread(value_N):
    # The fill points at token 0, which begins a segment and so is not wanted.
    flat = jnp.zeros(batch.token_BT.size).at[flat_N].set(value_N)
    return jnp.where(wanted_BT, flat.reshape(shape), 0)

  return spread(logprob_N), spread(entropy_N), output.balance


@functools.partial(
  jax.jit,
  static_argnames=(
    'config',
    'model',
    'temperature',
    'supervised',
    'capacity',
  ),
)
def gradient(
  params,
  batch: batch_lib.Batch,
  denominator,
  *,
  config: LearnerConfig,
  model: model_config.ModelConfig,
  temperature: float = 1.0,
  supervised: bool = False,
  capacity: int | None = None,
):
  """(Sums, gradient) of one micro-batch.

  Args:
    params: the parameters.
    batch: one micro-batch.
    denominator: tokens that count in the *whole* update.
    config: the objective.
    model: sizes.
    temperature: of the behaviour policy; the ratio is taken at the same one.
    supervised: cross-entropy on the sampled tokens instead of the surrogate.
    capacity: see `token_logprobs`.
  """

  def objective(params):
    logprob_BT, entropy_BT, balance = token_logprobs(
      params,
      batch,
      model=model,
      temperature=temperature,
      replay=config.replay_routes and not supervised,
      capacity=capacity,
    )
    mask_BT = batch.sampled_BT
    tokens = mask_BT.sum()
    if supervised:
      zero = jnp.zeros(())
      sums = loss.ClippedSums(
        loss.cross_entropy(logprob_BT, mask_BT), zero, zero
      )
    else:
      sums = loss.clipped(
        logprob_BT,
        batch.behaviour_BT,
        batch.advantage_BT,
        mask_BT,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
      )
    # The balance of a micro-batch weighs as much as its share of the tokens.
    balance_sum = balance * tokens
    total = sums.loss + config.balance_weight * balance_sum
    return total / jnp.maximum(denominator, 1), Sums(
      tokens=tokens,
      loss=sums.loss,
      entropy=jnp.where(mask_BT, entropy_BT, 0).sum(),
      clipped=sums.clipped,
      k1=sums.k1,
      balance=balance_sum,
    )

  (_, sums), grads = jax.value_and_grad(objective, has_aux=True)(params)
  return sums, grads


@functools.partial(jax.jit, static_argnames=('config',))
def apply(state: TrainState, grads, tokens, *, config: LearnerConfig):
  """One optimizer step; refused when empty or not finite.

  A refused step changes nothing but the counters: `skipped` and, since the
  prompts are used up all the same, `step`.

  Returns:
    (state, gradient norm).
  """
  norm = optax.tree.norm(grads)
  good = jnp.isfinite(norm) & (tokens > 0)
  updates, opt_state = optimizer_lib.make(config.optimizer).update(
    grads, state.opt_state, state.params
  )
  params = optax.apply_updates(state.params, updates)
  keep = lambda new, old: jnp.where(good, new, old)
  return TrainState(
    step=state.step + 1,
    params=jax.tree.map(keep, params, state.params),
    opt_state=jax.tree.map(keep, opt_state, state.opt_state),
    skipped=state.skipped + ~good,
  ), norm


def update(
  state: TrainState,
  batches: Sequence[batch_lib.Batch],
  *,
  config: LearnerConfig,
  model: model_config.ModelConfig,
  denominator: float | None = None,
  temperature: float = 1.0,
  supervised: bool = False,
):
  """One step from any number of micro-batches.

  Args:
    state: before.
    batches: micro-batches of one shape.
    config: the objective.
    model: sizes.
    denominator: what token sums are divided by; by default the tokens in the
      batches. Give it when sequences without advantage were left out.
    temperature: of the behaviour policy.
    supervised: see `gradient`.

  Returns:
    (state, metrics): metrics are means over the tokens in the batches.
  """
  tokens = sum(int(batch.sampled_BT.sum()) for batch in batches)
  if denominator is None:
    denominator = tokens
  total, grads = None, None
  for batch in batches:
    part = gradient(
      state.params,
      batch,
      float(denominator),
      config=config,
      model=model,
      temperature=temperature,
      supervised=supervised,
      capacity=_capacity(batch),
    )
    # One at a time: XLA:CPU runs as many programs at once as there are cores,
    # and the sampler would wait for all of these.
    jax.block_until_ready(part)
    if total is None:
      total, grads = part
    else:
      total, grads = jax.tree.map(jnp.add, (total, grads), part)
  if grads is None:
    return state.replace(step=state.step + 1, skipped=state.skipped + 1), {}
  state, norm = apply(state, grads, tokens, config=config)
  count = max(1, tokens)
  return state, {
    'loss': float(total.loss) / count,
    'entropy': float(total.entropy) / count,
    'clip_fraction': float(total.clipped) / count,
    'kl_behaviour': float(total.k1) / count,
    'balance': float(total.balance) / count,
    'gradient_norm': float(norm),
    'train_tokens': tokens,
  }


def _capacity(batch: batch_lib.Batch) -> int | None:
  """A quarter of the tokens if that will do: two programs at most."""
  quarter = batch.token_BT.size // 4
  return quarter if int(batch.sampled_BT.sum()) <= quarter else None
