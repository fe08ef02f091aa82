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
NO_TOKEN = -1  # Nothing stands before a sequence.


class Output(NamedTuple):
  """What a forward pass returns."""

  logits_BTV: jax.Array
  hidden_BTD: jax.Array  # what `head` turns into the logits
  route_BTLX: jax.Array  # int8, experts chosen
  balance: jax.Array  # mean over layers of the router's balance term


@flax.struct.dataclass
class Cache:
  """Keys and values of every layer, one array per layer.

  Slots beyond a row's length hold leftovers; they are never attended to before
  they are overwritten.
  """

  key_LBKSC: tuple[jax.Array, ...]
  value_LBKSC: tuple[jax.Array, ...]


def init(key: jax.Array, config) -> dict:
  """Random parameters that copy from the start.

  Standard deviation 1/sqrt(fan in), the experts' output damped. Queries and
  keys share their draw, the keys moved aside like the token before (see
  `_embed`), and the output undoes the values. So every head begins by looking
  at what followed earlier occurrences of the present token and by raising its
  logit: the induction that a small model otherwise spends most of its training
  to find (mimetic initialisation, Trockman & Kolter 2023, arXiv 2305.09828).
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

  embed_key, *layer_keys = jax.random.split(key, config.layers + 1)
  return {
    'previous_D': jnp.ones(d),
    'embed_VD': normal(embed_key, (config.vocab_size, d), 1, _EMBED_SCALE),
    'layers': tuple(layer(key) for key in layer_keys),
    'final_norm_D': jnp.ones(d),
  }


def _shift(width: int) -> int:
  """By how many channels the token before is moved aside."""
  return width // 4


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

  before_BT = jnp.pad(token_BT, ((0, 0), (1, 0)))[:, :-1]
  before_BT = jnp.where(position_BT > 0, before_BT, NO_TOKEN)

  def attend(_, query_BTHC, key_BTKC, value_BTKC):
    key_BKTC, value_BKTC = (
      x.transpose(0, 2, 1, 3) for x in (key_BTKC, value_BTKC)
    )
    return attention.attend_causal(
      query_BTHC, key_BKTC, value_BKTC, allowed_BTS
    )

  return _decoder(
    params,
    token_BT,
    before_BT,
    position_BT,
    attend,
    config=config,
    dispatch=dispatch,
    mask_BT=segment_BT > 0,
    route_BTLX=route_BTLX,
  )


def init_cache(batch: int, length: int, config) -> Cache:
  shape = (batch, config.kv_heads, length, config.head_width)
  arrays = lambda: tuple(jnp.zeros(shape) for _ in range(config.layers))
  return Cache(key_LBKSC=arrays(), value_LBKSC=arrays())


def forward_cached(
  params, token_BT, before_B, start_B, cache: Cache, *, config, dispatch: str
) -> tuple[Output, Cache]:
  """Appends T tokens to each row at its own position `start_B`.

  `before_B` is the token at start - 1 of each row, NO_TOKEN at the beginning.

  The cache must have room for start + T slots in every row, padding included:
  a row with fewer than T real tokens leaves leftovers behind them.
  """
  time = token_BT.shape[1]
  before_BT = jnp.concatenate([before_B[:, None], token_BT[:, :-1]], axis=1)
  position_BT = start_B[:, None] + jnp.arange(time)[None]
  slots = cache.key_LBKSC[0].shape[2]
  allowed_BTS = jnp.arange(slots)[None, None] <= position_BT[:, :, None]
  keys, values = list(cache.key_LBKSC), list(cache.value_LBKSC)

  def attend(index, query_BTHC, key_BTKC, value_BTKC):
    keys[index] = _write(keys[index], key_BTKC, start_B)
    values[index] = _write(values[index], value_BTKC, start_B)
    return attention.attend(query_BTHC, keys[index], values[index], allowed_BTS)

  output = _decoder(
    params,
    token_BT,
    before_BT,
    position_BT,
    attend,
    config=config,
    dispatch=dispatch,
    mask_BT=jnp.ones_like(token_BT, bool),
  )
  return output, Cache(key_LBKSC=tuple(keys), value_LBKSC=tuple(values))


def _write(cache_BKSC, new_BTKC, start_B):
  def row(cache_KSC, new_KTC, start):
    return jax.lax.dynamic_update_slice(cache_KSC, new_KTC, (0, start, 0))

  return jax.vmap(row)(cache_BKSC, new_BTKC.transpose(0, 2, 1, 3), start_B)


def _decoder(
  params,
  token_BT,
  before_BT,
  position_BT,
  attend,
  *,
  config,
  dispatch,
  mask_BT,
  route_BTLX=None,
) -> Output:
  x_BTD = _embed(params, token_BT, before_BT)
  routes, balances = [], []
  for index, layer in enumerate(params['layers']):
    normed_BTD = attention.rms_norm(x_BTD, layer['attention_norm_D'])
    projected = attention.project(normed_BTD, layer, position_BT, config)
    mixed_BTHC = attend(index, *projected)
    x_BTD += jnp.einsum('BTHC,HCD->BTD', mixed_BTHC, layer['output_HCD'])

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
  return Output(
    logits_BTV=head(params, x_BTD),
    hidden_BTD=x_BTD,
    route_BTLX=jnp.stack(routes, axis=2).astype(jnp.int8),
    balance=jnp.stack(balances).mean(),
  )


def _embed(params, token_BT, before_BT):
  """Each token, and the one before it moved aside by some channels.

  Bigrams are what a first layer spends its heads on; with them at hand, one
  layer finds "what follows the like of this" (token shift of Peng et al. 2023,
  arXiv 2305.13048, on the embedding alone).
  """
  exists_BT1 = (before_BT != NO_TOKEN)[:, :, None]
  before_BTD = jnp.where(exists_BT1, params['embed_VD'][before_BT], 0)
  before_BTD = jnp.roll(before_BTD, _shift(before_BTD.shape[-1]), axis=-1)
  scale_D = params['previous_D'][None, None]
  return (params['embed_VD'][token_BT] + scale_D * before_BTD) / _EMBED_SCALE


def head(params, hidden):
  """Logits [..., V] of hidden states [..., D]."""
  return jnp.einsum('...D,VD->...V', hidden, params['embed_VD'])
