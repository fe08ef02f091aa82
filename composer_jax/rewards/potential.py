"""Rewards along the way that do not change what is best to do.

A bonus F = gamma * Phi(s') - Phi(s) for the step from s to s', for any
potential Phi of states, leaves every optimal policy optimal (Ng, Harada,
Russell 1999, theorem 1). In episodes Phi must be 0 where they end, or the
bonus pays for the place of the end (Grzes 2017, "Reward shaping in episodic
reinforcement learning").
"""

from __future__ import annotations

from collections.abc import Sequence
import itertools
import re

from composer_jax import trajectory
from composer_jax.rewards import calls

# `1 of 3 failed` of the assert runner; `2 failed, 3 passed` of pytest.
_OF = re.compile(r'\b(\d+) of (\d+) failed')
_COUNT = re.compile(r'\b(\d+) (passed|failed|errors?)\b')


def shaping(potentials: Sequence[float], gamma: float = 1.0) -> list[float]:
  """The bonus of each step; the last of the states is the end of the episode.

  Args:
    potentials: Phi of the states that steps were taken from, in order.
    gamma: discount of the return. The discounted sum of the bonuses is
      -potentials[0]: the same for whatever is done.
  """
  return [
    gamma * after - before
    for before, after in itertools.pairwise([*potentials, 0.0])
  ]


def turn_bonuses(
  episode: trajectory.Trajectory, gamma: float = 1.0
) -> list[float]:
  """One bonus per turn: Phi is the share of visible tests last seen passing.

  Range of each: [-1, 1]. For credit within an episode; in the reward of a
  whole one it sums to 0. Gamed by nothing, that is the theorem, as far as the
  state holds what the potential depends on; here it is what the policy saw.
  """
  seen, potentials = 0.0, []
  for turn in episode.turns:
    potentials.append(seen)
    for call, result in zip(turn.calls, turn.results, strict=True):
      share = passing_share(result.text) if calls.is_test_run(call) else None
      seen = seen if share is None else share
  return shaping(potentials, gamma)


def passing_share(text: str) -> float | None:
  """Share of the tests that pass, out of what a test run printed last."""
  of = _OF.findall(text)
  if of:
    failed, total = map(int, of[-1])
    return (total - failed) / total if total else None
  last = next(
    (line for line in reversed(text.splitlines()) if _COUNT.search(line)), ''
  )
  counts = {kind: int(number) for number, kind in _COUNT.findall(last)}
  total = sum(counts.values())
  return counts.get('passed', 0) / total if total else None
