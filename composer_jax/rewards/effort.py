"""A concave cost of effort: quick on easy tasks, patient on hard ones."""

import dataclasses
import math

from composer_jax import trajectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class EffortConfig:
  """What counts as effort, and how its price bends."""

  per_token: float = 0.02  # Tokens the policy chose.
  per_call: float = 0.5
  per_turn: float = 1.0
  per_second: float = 0.0  # Seconds that its calls ran, side by side or not.
  k: float = 0.2  # Scale at which the curve bends, 1 / unit of effort.
  q: float = 1.0  # 0 = linear, 1 = logarithmic.


def amount(episode: trajectory.Trajectory, config: EffortConfig) -> float:
  """Weighted sum of sampled tokens, calls, turns and seconds of the calls.

  How long the policy waited for its own tokens is no effort of its: that
  depends on how busy the machine is.
  """
  seconds = sum(
    result.seconds for turn in episode.turns for result in turn.results
  )
  return (
    config.per_token * float(episode.sampled_T.sum())
    + config.per_call * sum(len(turn.calls) for turn in episode.turns)
    + config.per_turn * len(episode.turns)
    + config.per_second * seconds
  )


def cost(x: float, *, k: float, q: float) -> float:
  """C(x) = ((1 + kx)^(1-q) - 1) / (k (1-q)), or log(1 + kx) / k at q = 1.

  Increasing and concave for q > 0, with C(0) = 0 and C'(0) = 1 (the effort
  penalty of Cursor Composer, arXiv 2603.24477).

  Raises:
    ValueError: x or q negative, or k not positive.
  """
  if x < 0 or q < 0 or k <= 0:
    raise ValueError(f'needs x >= 0, q >= 0, k > 0: x={x} q={q} k={k}')
  if q == 1:
    return math.log1p(k * x) / k
  return ((1 + k * x) ** (1 - q) - 1) / (k * (1 - q))
