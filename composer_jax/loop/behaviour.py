"""What episodes look like from outside: numbers about how the policy works."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from composer_jax import trajectory
from composer_jax.rewards import calls as calls_lib

_OK = trajectory.Status.OK


def _steps(episode: trajectory.Trajectory):
  """(call, result) pairs in the order of the episode."""
  for turn in episode.turns:
    yield from zip(turn.calls, turn.results, strict=True)


def edits(episode: trajectory.Trajectory) -> list[tuple]:
  """The edits that took effect, as comparable values."""
  return [
    tuple(sorted(call.arguments.items()))
    for call, result in _steps(episode)
    if call.name == 'edit_file' and result.status is _OK
  ]


def count(episode: trajectory.Trajectory, status: trajectory.Status) -> int:
  return sum(result.status is status for _, result in _steps(episode))


def calls(episode: trajectory.Trajectory, name: str) -> int:
  return sum(call.name == name for call, _ in _steps(episode))


def solved(episode: trajectory.Trajectory) -> bool:
  """Whether it was paid for a solution: one that a guard took back is none."""
  rewards = episode.rewards
  return rewards.get('solved', 0.0) > 0 and not rewards.get('guard', 0.0)


def summary(
  episodes: Sequence[trajectory.Trajectory], tool_names: Iterable[str]
) -> dict[str, float]:
  """Means over the episodes; empty if there are none.

  `tests_before_submit`, `passed_before_submit` and `solved_of_submitted` are
  shares of the submissions, 0 if there are none.
  """
  if not episodes:
    return {}

  def mean(values):
    return float(np.mean(list(values) or 0.0))

  submitted = [e for e in episodes if e.ending is trajectory.Ending.SUBMITTED]
  tests = list(map(calls_lib.last_tests, submitted))
  repeated = [len(done) - len(set(done)) for done in map(edits, episodes)]
  rewards = [episode.reward for episode in episodes]
  result = {
    'solve_rate': mean(map(solved, episodes)),
    'reward': mean(rewards),
    'reward_std': float(np.std(rewards)),
    'tests_before_submit': mean(status is not None for status in tests),
    'passed_before_submit': mean(status is _OK for status in tests),
    'solved_of_submitted': mean(map(solved, submitted)),
    'tries_per_episode': mean(len(edits(e)) for e in episodes),
    'repeated_edits': mean(repeated),
    'invalid_calls': mean(
      count(e, trajectory.Status.INVALID) for e in episodes
    ),
    'failed_calls': mean(count(e, trajectory.Status.ERROR) for e in episodes),
    'turns': mean(len(e.turns) for e in episodes),
    'contexts': mean(len(e.starts) for e in episodes),
    'tokens_per_episode': mean(len(e) for e in episodes),
    'submitted': len(submitted) / len(episodes),
  }
  for name in tool_names:
    result[f'calls_{name}'] = mean(calls(e, name) for e in episodes)
  result.update(_means('reward_', [e.rewards for e in episodes]))
  result.update(_means('fact_', [e.facts for e in episodes]))
  return result


def _means(
  prefix: str, rows: Sequence[Mapping[str, float]]
) -> dict[str, float]:
  """The mean of each name, over the rows that have it."""
  names = dict.fromkeys(name for row in rows for name in row)
  return {
    prefix + name: float(np.mean([row[name] for row in rows if name in row]))
    for name in names
  }
