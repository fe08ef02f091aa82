"""Grouped-query attention with rotary positions; packed or cached."""

import math

import jax
import jax.numpy as jnp

from composer_jax.pallas_kernels import implementations
from composer_jax.pallas_kernels import matmul

_MASKED = -1e30  # Finite: a row without any key gives a mean, never NaN.
_CHUNK = 128  # Queries that share one range of keys.


def rms_norm(x, scale, epsilon: float = 1e-6):
  """Root-mean-square norm over the last axis (Zhang & Sennrich 2019)."""
  mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
  shape = (1,) * (x.ndim - 1) + scale.shape
  return x * jax.lax.rsqrt(mean_square + epsilon) * scale.reshape(shape)


def rope(x_BTHC, position_BT, base: float):
  """Rotary position embedding (Su et al. 2021, arXiv 2104.09864)."""
  half = x_BTHC.shape[-1] // 2
  frequency = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
  angle = position_BT[:, :, None, None] * frequency.reshape(1, 1, 1, half)
  sin, cos = jnp.sin(angle), jnp.cos(angle)
  left, right = x_BTHC[..., :half], x_BTHC[..., half:]
  return jnp.concatenate(
    [left * cos - right * sin, right * cos + left * sin], axis=-1
  )


def project(x_BTD, layer, position_BT, config):
  """Normalised, rotated queries and keys, and values."""
  query_heads = config.query_heads, config.head_width
  kv_heads = config.kv_heads, config.head_width
  query_BTHC = _linear(x_BTD, layer['query_DHC'], query_heads, config)
  key_BTKC = _linear(x_BTD, layer['key_DKC'], kv_heads, config)
  value_BTKC = _linear(x_BTD, layer['value_DKC'], kv_heads, config)
  query_BTHC = rms_norm(query_BTHC, layer['query_norm_C'])
  key_BTKC = rms_norm(key_BTKC, layer['key_norm_C'])
  query_BTHC = rope(query_BTHC, position_BT, config.rope_base)
  key_BTKC = rope(key_BTKC, position_BT, config.rope_base)
  return query_BTHC, key_BTKC, value_BTKC


def output(mixed_BTHC, layer, config):
  """What the heads found, back in the width of the model."""
  mixed_BTO = mixed_BTHC.reshape(*mixed_BTHC.shape[:2], -1)
  return _linear(mixed_BTO, layer['output_HCD'], (config.width,), config)


def _linear(x_BTK, weight, shape, config):
  """The rows times a matrix, in the model's precision: [B, T, *shape].

  `weight` is [K, *shape], its axes split or not, or what `serving.unpack` made
  of it.
  """
  rows_NK = x_BTK.reshape(-1, x_BTK.shape[2])
  if not isinstance(weight, matmul.Ready):
    weight = weight.reshape(1, rows_NK.shape[1], math.prod(shape))
  ops = implementations.choose(config.precision, config.implementation)
  y_NO = matmul.dense(rows_NK, weight, ops)
  return y_NO.reshape(*x_BTK.shape[:2], *shape)


def attend(query_BTHC, key_BKSC, value_BKSC, allowed_BTS):
  """Softmax attention; each key-value head serves H / K query heads."""
  batch, time, heads, channels = query_BTHC.shape
  kv_heads = key_BKSC.shape[1]
  query_BTKQC = query_BTHC.reshape(
    batch, time, kv_heads, heads // kv_heads, channels
  )
  score_BKQTS = jnp.einsum('BTKQC,BKSC->BKQTS', query_BTKQC, key_BKSC)
  score_BKQTS *= channels**-0.5
  score_BKQTS = jnp.where(allowed_BTS[:, None, None], score_BKQTS, _MASKED)
  weight_BKQTS = jax.nn.softmax(score_BKQTS, axis=-1)
  # Transposed afterwards: XLA:CPU is six times slower at doing both at once.
  mixed_BKQTC = jnp.einsum('BKQTS,BKSC->BKQTC', weight_BKQTS, value_BKSC)
  mixed_BTKQC = mixed_BKQTC.transpose(0, 3, 1, 2, 4)
  return mixed_BTKQC.reshape(batch, time, heads, channels)


def weights(query_BTC, key_BSC, allowed_BTS):
  """The softmax weights of one head, without positions."""
  score_BTS = jnp.einsum('BTC,BSC->BTS', query_BTC, key_BSC)
  score_BTS *= query_BTC.shape[-1] ** -0.5
  return jax.nn.softmax(jnp.where(allowed_BTS, score_BTS, _MASKED), axis=-1)


def attend_causal(query_BTHC, key_BKTC, value_BKTC, allowed_BTS):
  """`attend` where no query looks ahead: keys past its chunk are skipped."""
  time = query_BTHC.shape[1]
  chunks = []
  for start in range(0, time, _CHUNK):
    stop = min(start + _CHUNK, time)
    chunks.append(
      attend(
        query_BTHC[:, start:stop],
        key_BKTC[:, :, :stop],
        value_BKTC[:, :, :stop],
        allowed_BTS[:, start:stop, :stop],
      )
    )
  return jnp.concatenate(chunks, axis=1)
