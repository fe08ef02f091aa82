"""The decoder: initial parameters, packed forward, cached forward."""

from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from composer_jax.model import attention
from composer_jax.model import moe

# Standard deviation of the embeddings, which also serve as the output layer:
# small there, so that no token starts out predicting itself; undone on input.
_EMBED_SCALE = 0.02
# Weights of the P tokens before each one at the start, the nearest first.
_NEARNESS = (1.0, 0.7, 0.5)
_COPY_SHARPNESS = 2.0  # At the start; learned per channel.
_COPY_FLOOR = 1e-20  # Keeps the logarithm of what cannot be copied finite.
CONTEXT = len(_NEARNESS)  # P: tokens before each one that its embedding shows.
NO_TOKEN = -1  # Nothing stands before a sequence.


class Output(NamedTuple):
  """What a forward pass returns.

  `head` turns the hidden states, the copy weights and the tokens that these
  weigh into the logits.
  """

  logits_BTV: jax.Array  # normalised: log-probabilities at temperature 1
  hidden_BTD: jax.Array
  copy_BTS: jax.Array  # sums to one over the tokens seen
  route_BTLX: jax.Array  # int8, experts chosen
  balance: jax.Array  # mean over layers of the router's balance term


@flax.struct.dataclass
class Cache:
  """Keys and values of every layer, one array per layer; what can be copied.

  Slots beyond a row's length hold leftovers; they are never attended to before
  they are overwritten.
  """

  token_BS: jax.Array
  copy_key_BSC: jax.Array
  key_LBKSC: tuple[jax.Array, ...]
  value_LBKSC: tuple[jax.Array, ...]


def init(key: jax.Array, config) -> dict:
  """Random parameters that copy from the start.

  Standard deviation 1/sqrt(fan in), the experts' output damped. Queries and
  keys share their draw, the keys moved aside like the token before (see
  `_embed`), and the output undoes the values. So every head begins by looking
  at what followed the like of the present token and by raising its logit: the
  induction that a small model otherwise spends most of its training to find
  (mimetic initialisation, Trockman & Kolter 2023, arXiv 2305.09828).
  """
  d, f, c = config.width, config.expert_width, config.head_width
  h, k, e = config.query_heads, config.kv_heads, config.experts
  damp = (2 * config.layers) ** -0.5

  def normal(key, shape, fan_in, scale=1.0):
    return jax.random.normal(key, shape, jnp.float32) * scale * fan_in**-0.5

  def layer(key):
    keys = jax.random.split(key, 7)
    shared_DKC = normal(keys[0], (d, k, c), d)
    value_DKC = normal(keys[2], (d, k, c), d)
    return {
      'attention_norm_D': jnp.ones(d),
      'query_DHC': _per_query_head(shared_DKC, h)
      + normal(keys[1], (d, h, c), d, 0.3),
      'key_DKC': jnp.roll(shared_DKC, _shift(d), axis=0),
      'value_DKC': value_DKC,
      'query_norm_C': jnp.ones(c),
      'key_norm_C': jnp.ones(c),
      'output_HCD': _per_query_head(value_DKC, h).transpose(1, 2, 0),
      'expert_norm_D': jnp.ones(d),
      'router_DE': normal(keys[3], (d, e), d),
      'gate_EDF': normal(keys[4], (e, d, f), d),
      'up_EDF': normal(keys[5], (e, d, f), d),
      'down_EFD': normal(keys[6], (e, f, d), f, damp),
    }

  embed_key, copy_key, *layer_keys = jax.random.split(key, config.layers + 2)
  return {
    'context_PD': jnp.tile(jnp.array(_NEARNESS)[:, None], (1, d)),
    'embed_VD': normal(embed_key, (config.vocab_size, d), 1, _EMBED_SCALE),
    'layers': tuple(layer(key) for key in layer_keys),
    'final_norm_D': jnp.ones(d),
    'copy': _init_copy(copy_key, config),
  }


def _init_copy(key, config) -> dict:
  query_DC = jax.random.normal(key, (config.width, config.copy_width))
  query_DC *= config.width**-0.5
  return {
    'query_DC': query_DC,
    'key_DC': jnp.roll(query_DC, _shift(config.width), axis=0),
    'norm_C': jnp.full(config.copy_width, _COPY_SHARPNESS),
    'gate_D': jnp.zeros(config.width),
    'bias': jnp.zeros(()),
  }


def _shift(width: int) -> int:
  """By how many channels the token before is moved aside."""
  return width // 8


def _per_query_head(x_DKC, heads: int):
  return jnp.repeat(x_DKC, heads // x_DKC.shape[1], axis=1)


def forward(
  params,
  token_BT,
  segment_BT,
  position_BT,
  *,
  config,
  dispatch: str = 'blocks',
  route_BTLX=None,
) -> Output:
  """Packed rows: a token sees earlier tokens of its own segment.

  Args:
    params: from `init`.
    token_BT: ids.
    segment_BT: which packed sequence a token belongs to; 0 is padding.
    position_BT: position inside the segment, from 0.
    config: the ModelConfig.
    dispatch: see moe.py.
    route_BTLX: experts to replay; UNKNOWN_ROUTE routes afresh.
  """
  time = token_BT.shape[1]
  same_BTS = segment_BT[:, :, None] == segment_BT[:, None, :]
  allowed_BTS = same_BTS & (segment_BT > 0)[:, :, None]
  allowed_BTS &= jnp.tri(time, dtype=bool)[None]

  before_BP = jnp.full((len(token_BT), CONTEXT), NO_TOKEN, jnp.int32)
  context_PBT = _context(before_BP, token_BT)
  inside_PBT = position_BT[None] > jnp.arange(CONTEXT)[:, None, None]
  context_PBT = jnp.where(inside_PBT, context_PBT, NO_TOKEN)

  def attend(_, query_BTHC, key_BTKC, value_BTKC):
    key_BKTC, value_BKTC = (
      x.transpose(0, 2, 1, 3) for x in (key_BTKC, value_BTKC)
    )
    return attention.attend_causal(
      query_BTHC, key_BKTC, value_BKTC, allowed_BTS
    )

  def copy(query_BTC, key_BTC):
    return attention.weights(query_BTC, key_BTC, allowed_BTS), token_BT

  return _decoder(
    params,
    token_BT,
    context_PBT,
    position_BT,
    attend,
    copy,
    config=config,
    dispatch=dispatch,
    mask_BT=segment_BT > 0,
    route_BTLX=route_BTLX,
  )


def init_cache(batch: int, length: int, config) -> Cache:
  shape = (batch, config.kv_heads, length, config.head_width)
  arrays = lambda: tuple(jnp.zeros(shape) for _ in range(config.layers))
  return Cache(
    token_BS=jnp.zeros((batch, length), jnp.int32),
    copy_key_BSC=jnp.zeros((batch, length, config.copy_width)),
    key_LBKSC=arrays(),
    value_LBKSC=arrays(),
  )


def forward_cached(
  params, token_BT, before_BP, start_B, cache: Cache, *, config, dispatch: str
) -> tuple[Output, Cache]:
  """Appends T tokens to each row at its own position `start_B`.

  `before_BP` are the tokens that precede start in each row, the nearest last,
  NO_TOKEN before the beginning.

  The cache must have room for start + T slots in every row, padding included:
  a row with fewer than T real tokens leaves leftovers behind them.
  """
  time = token_BT.shape[1]
  context_PBT = _context(before_BP, token_BT)
  position_BT = start_B[:, None] + jnp.arange(time)[None]
  slots = cache.key_LBKSC[0].shape[2]
  allowed_BTS = jnp.arange(slots)[None, None] <= position_BT[:, :, None]
  keys, values = list(cache.key_LBKSC), list(cache.value_LBKSC)

  def attend(index, query_BTHC, key_BTKC, value_BTKC):
    keys[index] = _write(keys[index], key_BTKC.swapaxes(1, 2), start_B)
    values[index] = _write(values[index], value_BTKC.swapaxes(1, 2), start_B)
    return attention.attend(query_BTHC, keys[index], values[index], allowed_BTS)

  token_BS = _write(cache.token_BS, token_BT, start_B)
  copy_key_BSC = cache.copy_key_BSC

  def copy(query_BTC, key_BTC):
    nonlocal copy_key_BSC
    copy_key_BSC = _write(copy_key_BSC, key_BTC, start_B)
    return attention.weights(query_BTC, copy_key_BSC, allowed_BTS), token_BS

  output = _decoder(
    params,
    token_BT,
    context_PBT,
    position_BT,
    attend,
    copy,
    config=config,
    dispatch=dispatch,
    mask_BT=jnp.ones_like(token_BT, bool),
  )
  return output, Cache(
    token_BS=token_BS,
    copy_key_BSC=copy_key_BSC,
    key_LBKSC=tuple(keys),
    value_LBKSC=tuple(values),
  )


def _write(cache, new, start_B):
  """Puts `new` at each row's start; S is the last axis or the one before C."""
  axis = max(0, cache.ndim - 3)  # Without B.

  def row(cache, new, start):
    return jax.lax.dynamic_update_slice_in_dim(cache, new, start, axis)

  return jax.vmap(row)(cache, new, start_B)


def _decoder(
  params,
  token_BT,
  context_PBT,
  position_BT,
  attend,
  copy,
  *,
  config,
  dispatch,
  mask_BT,
  route_BTLX=None,
) -> Output:
  x_BTD = _embed(params, token_BT, context_PBT)
  routes, balances = [], []
  for index, layer in enumerate(params['layers']):
    normed_BTD = attention.rms_norm(x_BTD, layer['attention_norm_D'])
    projected = attention.project(normed_BTD, layer, position_BT, config)
    mixed_BTHC = attend(index, *projected)
    x_BTD += attention.output(mixed_BTHC, layer, config)

    normed_BTD = attention.rms_norm(x_BTD, layer['expert_norm_D'])
    replay = None
    if route_BTLX is not None:
      replay = route_BTLX[:, :, index].reshape(-1, config.experts_per_token)
    y_ND, routing = moe.feed_forward(
      normed_BTD.reshape(-1, config.width),
      layer,
      config=config,
      dispatch=dispatch,
      mask_N=mask_BT.reshape(-1),
      replay_NX=replay,
    )
    x_BTD += y_ND.reshape(x_BTD.shape)
    routes.append(routing.expert_NX.reshape(*token_BT.shape, -1))
    balances.append(routing.balance)
  x_BTD = attention.rms_norm(x_BTD, params['final_norm_D'])
  copy_BTS, token_BS = copy(*_copy_project(x_BTD, params['copy']))
  return Output(
    logits_BTV=head(params, x_BTD, copy_BTS, token_BS[:, None]),
    hidden_BTD=x_BTD,
    copy_BTS=copy_BTS,
    route_BTLX=jnp.stack(routes, axis=2).astype(jnp.int8),
    balance=jnp.stack(balances).mean(),
  )


def _context(before_BP, token_BT):
  """The P tokens before each one, the nearest first."""
  time = token_BT.shape[1]
  all_BT = jnp.concatenate([before_BP, token_BT], axis=1)
  starts = range(CONTEXT - 1, -1, -1)
  return jnp.stack([all_BT[:, start : start + time] for start in starts])


def _embed(params, token_BT, context_PBT):
  """Each token, and those before it moved aside by some channels each.

  N-grams are what a first layer spends its heads on; with them at hand, one
  layer finds "what follows the like of this phrase" (token shift of Peng et al.
  2023, arXiv 2305.13048, on the embedding alone).
  """
  x_BTD = params['embed_VD'][token_BT]
  shift = _shift(x_BTD.shape[-1])
  for p in range(CONTEXT):
    exists_BT1 = (context_PBT[p] != NO_TOKEN)[:, :, None]
    before_BTD = jnp.where(exists_BT1, params['embed_VD'][context_PBT[p]], 0)
    before_BTD = jnp.roll(before_BTD, (p + 1) * shift, axis=-1)
    x_BTD += params['context_PD'][p][None, None] * before_BTD
  return x_BTD / _EMBED_SCALE


def _copy_project(x_BTD, layer):
  """Queries and keys of the copy head."""
  query_BTC = jnp.einsum('BTD,DC->BTC', x_BTD, layer['query_DC'])
  key_BTC = jnp.einsum('BTD,DC->BTC', x_BTD, layer['key_DC'])
  return (
    attention.rms_norm(query_BTC, layer['norm_C']),
    attention.rms_norm(key_BTC, jnp.ones_like(layer['norm_C'])),
  )


def head(params, hidden, copy, token):
  """Log-probabilities [..., V] of the next token.

  A gated mixture of a softmax over the vocabulary and of the tokens seen, each
  as likely as the copy head weighs its place: the policy quotes code that it
  was never trained on (pointer-generator, See et al. 2017, arXiv 1704.04368).

  Args:
    params: the parameters.
    hidden: [..., D].
    copy: [..., S] weights, from `Output.copy_BTS`.
    token: [..., S] the tokens they weigh, or a shape that broadcasts to it.
  """
  written = jax.nn.log_softmax(
    jnp.einsum('...D,VD->...V', hidden, params['embed_VD'])
  )
  token = jnp.broadcast_to(token, copy.shape)
  index = jnp.indices(copy.shape, jnp.int32, sparse=True)[:-1]
  quoted = jnp.zeros_like(written).at[*index, token].add(copy)
  gate = jnp.einsum('...D,D->...', hidden, params['copy']['gate_D'])
  gate = (gate + params['copy']['bias'])[..., None]
  return jnp.logaddexp(
    jax.nn.log_sigmoid(-gate) + written,
    jax.nn.log_sigmoid(gate) + jnp.log(quoted + _COPY_FLOOR),
  )
