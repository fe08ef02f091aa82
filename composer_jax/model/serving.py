"""Parameters for inference only: every matrix in the model's precision.

A matrix is rounded once per published version, by the learner, so the sampler
computes with the very numbers of the learner's forward pass and no other
quantisation can creep in. MXFP8 ships as elements and scales, on whatever
machine.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax

from composer_jax.pallas_kernels import implementations
from composer_jax.pallas_kernels import matmul

# How many leading axes of a projection are contracted; experts' matrices have
# an axis for the expert first.
_CONTRACTED = {'query_DHC': 1, 'key_DKC': 1, 'value_DKC': 1, 'output_HCD': 2}
_OF_EXPERTS = ('gate_EDF', 'up_EDF', 'down_EFD')
_MATRICES = (*_CONTRACTED, *_OF_EXPERTS)


def ship(params: dict, config) -> dict:
  """What is published of the learner's parameters, for any machine.

  In float32 the parameters themselves; otherwise each matrix is
  [experts or 1, K, N], rounded along K.
  """
  return params if config.precision == 'float32' else _ship(params, config)


def unpack(shipped: dict, config) -> dict:
  """What the forward passes take here, from what `ship` gave."""
  return shipped if config.precision == 'float32' else _unpack(shipped, config)


@functools.partial(jax.jit, static_argnames='config')
def _ship(params: dict, config) -> dict:
  def shipped(name: str, w) -> Any:
    if name in _CONTRACTED:
      w = w.reshape(1, math.prod(w.shape[: _CONTRACTED[name]]), -1)
    return rounded(w, 1)

  rounded = implementations.choose(config.precision, 'xla').quantize
  return _map_matrices(shipped, params)


@functools.partial(jax.jit, static_argnames='config')
def _unpack(shipped: dict, config) -> dict:
  ops = implementations.choose(config.precision, config.implementation)
  return _map_matrices(lambda _, kept: matmul.ready(kept, ops), shipped)


def _map_matrices(change, params: dict) -> dict:
  layers = tuple(
    {
      name: change(name, w) if name in _MATRICES else w
      for name, w in layer.items()
    }
    for layer in params['layers']
  )
  return {**params, 'layers': layers}
