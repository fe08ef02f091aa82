"""The optimizer: Muon for matrices, Adam for the rest."""

from __future__ import annotations

import dataclasses

import jax
import optax
from optax import contrib

# Which axes a matrix reduces and which it produces; other axes are independent
# matrices. What is not named here (embedding, router, norms) goes to Adam.
_MATRICES = {
  'query_DHC': contrib.MuonDimensionNumbers((0,), (1, 2)),
  'key_DKC': contrib.MuonDimensionNumbers((0,), (1, 2)),
  'value_DKC': contrib.MuonDimensionNumbers((0,), (1, 2)),
  'output_HCD': contrib.MuonDimensionNumbers((0, 1), (2,)),
  'gate_EDF': contrib.MuonDimensionNumbers((1,), (2,)),
  'up_EDF': contrib.MuonDimensionNumbers((1,), (2,)),
  'down_EFD': contrib.MuonDimensionNumbers((1,), (2,)),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
  """Update rule of one phase of training."""

  muon_rate: float = 0.01  # Step size for matrices; 0 = Adam for everything.
  adam_rate: float = 1e-3  # Step size for everything else.
  warmup_steps: int = 20
  decay_steps: int = 0  # Cosine to a tenth of the rate; 0 = constant.
  clip_norm: float = 1.0


def make(config: OptimizerConfig) -> optax.GradientTransformation:
  """Global-norm clip, then Muon (Jordan 2024) and Adam under one schedule."""
  adam_rate = _schedule(config, config.adam_rate)
  if not config.muon_rate:
    rule = optax.adam(adam_rate, b2=0.99)
  else:
    rule = contrib.muon(
      _schedule(config, config.muon_rate),
      adam_learning_rate=adam_rate,
      adam_b2=0.99,
      muon_weight_dimension_numbers=_dimensions,
    )
  return optax.chain(optax.clip_by_global_norm(config.clip_norm), rule)


def _schedule(config: OptimizerConfig, rate: float):
  if not config.decay_steps:
    return optax.linear_schedule(0, rate, max(1, config.warmup_steps))
  return optax.warmup_cosine_decay_schedule(
    0, rate, config.warmup_steps, config.decay_steps, end_value=rate / 10
  )


def _dimensions(params):
  def of(path, _):
    return _MATRICES.get(path[-1].key)

  return jax.tree_util.tree_map_with_path(of, params)
