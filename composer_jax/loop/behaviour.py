"""What episodes look like from outside: numbers about how the policy works."""

from collections.abc import Iterable, Sequence

import numpy as np

from composer_jax import trajectory

_OK = trajectory.Status.OK
_NEVER_RAN = (
  trajectory.Status.INVALID,
  trajectory.Status.DENIED,
  trajectory.Status.TRUNCATED,
)


def _steps(episode: trajectory.Trajectory):
  """(call, result) pairs in the order of the episode."""
  for turn in episode.turns:
    yield from zip(turn.calls, turn.results, strict=True)


def tested_before_submit(episode: trajectory.Trajectory) -> bool:
  """Whether the last thing it did to the files it submitted was test them."""
  tested = False
  for call, result in _steps(episode):
    if call.name in ('edit_file', 'undo') and result.status is _OK:
      tested = False
    elif call.name == 'run_tests' and result.status not in _NEVER_RAN:
      tested = True
  return tested and episode.ending is trajectory.Ending.SUBMITTED


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
  return episode.rewards.get('solved', 0.0) > 0


def summary(
  episodes: Sequence[trajectory.Trajectory], tool_names: Iterable[str]
) -> dict[str, float]:
  """Means over the episodes; empty if there are none."""
  if not episodes:
    return {}

  def mean(values):
    return float(np.mean(list(values)))

  repeated = [len(done) - len(set(done)) for done in map(edits, episodes)]
  rewards = [episode.reward for episode in episodes]
  result = {
    'solve_rate': mean(map(solved, episodes)),
    'reward': mean(rewards),
    'reward_std': float(np.std(rewards)),
    'tests_before_submit': mean(map(tested_before_submit, episodes)),
    'tries_per_episode': mean(len(edits(e)) for e in episodes),
    'repeated_edits': mean(repeated),
    'invalid_calls': mean(
      count(e, trajectory.Status.INVALID) for e in episodes
    ),
    'failed_calls': mean(count(e, trajectory.Status.ERROR) for e in episodes),
    'turns': mean(len(e.turns) for e in episodes),
    'tokens_per_episode': mean(len(e) for e in episodes),
    'submitted': mean(
      e.ending is trajectory.Ending.SUBMITTED for e in episodes
    ),
  }
  for name in tool_names:
    result[f'calls_{name}'] = mean(calls(e, name) for e in episodes)
  for name in episodes[0].rewards:
    result[f'reward_{name}'] = mean(e.rewards[name] for e in episodes)
  return result
