"""What some attempts at some tasks say about all such attempts."""

from collections.abc import Sequence
import math

import numpy as np

_RESAMPLES = 2000


def interval(rate: float, tasks: int) -> tuple[float, float]:
  """The 95 % interval of a share of `tasks` (Wilson, 1927)."""
  z = 1.959964
  middle = (rate + z**2 / (2 * tasks)) / (1 + z**2 / tasks)
  half = z * math.sqrt(rate * (1 - rate) / tasks + (z / (2 * tasks)) ** 2)
  half /= 1 + z**2 / tasks
  # At 0 and 1 rounding would lead out of the shares.
  return max(middle - half, 0.0), min(middle + half, 1.0)


def pass_at_k(attempts: int, solved: int, k: int) -> float:
  """The chance that one of `k` attempts solves a task, without bias.

  One minus the share of the choices of k attempts in which none is solved
  (Chen et al. 2021, arXiv 2107.03374, equation 1).

  Raises:
    ValueError: there are fewer than `k` attempts, or more solved than made.
  """
  if not 0 <= solved <= attempts or not 1 <= k <= attempts:
    raise ValueError(f'pass@{k} of {attempts} attempts, {solved} solved')
  return 1 - math.comb(attempts - solved, k) / math.comb(attempts, k)


def bootstrap(values: Sequence[float], seed: int) -> tuple[float, float]:
  """The 95 % interval of the mean, by drawing the tasks anew.

  The percentile method (Efron 1979). Where all values are equal it is empty,
  however few they are.
  """
  values = np.asarray(values, float)
  rng = np.random.default_rng(seed)
  means = [
    values[rng.integers(len(values), size=len(values))].mean()
    for _ in range(_RESAMPLES)
  ]
  low, high = np.percentile(means, [2.5, 97.5])
  return float(low), float(high)
