"""Outcome of an evaluation: rates by package and difficulty, tools, cost."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from composer_jax import trajectory
from composer_jax.viewer import estimates

_REFUSED = (
  trajectory.Status.INVALID,
  trajectory.Status.DENIED,
  trajectory.Status.TRUNCATED,
)
_FAILED = (trajectory.Status.ERROR, trajectory.Status.TIMEOUT)
# Upper ends of the bins; a task beyond the last is in one more.
_FAILING = (1, 3, 9)
_LINES = (1, 5, 20)

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
  """What is kept of one attempt."""

  task_id: str
  member: int
  solved: bool
  guards: tuple[str, ...]  # Those that fired.
  submitted: bool
  turns: int
  tokens: int  # Of all contexts.
  sampled: int  # Of these, the agent's own.
  seconds: float
  calls: Mapping[str, int]  # By tool, as the next two.
  failed: Mapping[str, int]  # Ran, and reported a failure.
  refused: Mapping[str, int]  # Never ran.
  usage: Mapping[str, float]


def score(
  episode: trajectory.Trajectory,
  *,
  solved: bool,
  guards: Sequence[str],
  usage: Mapping[str, float],
) -> Score:
  """The episode without its tokens and texts.

  Args:
    episode: the attempt.
    solved: whether the hidden tests pass.
    guards: names of those that fired.
    usage: amounts of what it cost.
  """
  calls, failed, refused = (collections.Counter() for _ in range(3))
  for turn in episode.turns:
    for call, result in zip(turn.calls, turn.results, strict=True):
      name = call.name or '(unreadable)'
      calls[name] += 1
      failed[name] += result.status in _FAILED
      refused[name] += result.status in _REFUSED
  return Score(
    task_id=episode.task_id,
    member=episode.member,
    solved=solved,
    guards=tuple(guards),
    submitted=episode.ending is trajectory.Ending.SUBMITTED,
    turns=len(episode.turns),
    tokens=len(episode),
    sampled=int(episode.sampled_T.sum()),
    seconds=episode.seconds,
    calls=dict(calls),
    failed=dict(failed),
    refused=dict(refused),
    usage=dict(usage),
  )


def summarise(
  tasks: Sequence[trajectory.Task],
  scores: Sequence[Score],
  *,
  k: int,
  lost: int,
  seed: int,
) -> dict[str, Any]:
  """Everything that is reported, as plain JSON values.

  Args:
    tasks: those that were to be attempted.
    scores: of the attempts that were graded; of these tasks only.
    k: attempts that each task was to have.
    lost: attempts that have no score by a fault of ours. They are counted and
      are no failures.
    seed: of the resampling.
  """
  by_task = collections.defaultdict(list)
  for one in scores:
    by_task[one.task_id].append(one)
  groupings: Mapping[str, Callable[[trajectory.Task], str]] = {
    'package': lambda task: task.provenance.package,
    'kind': lambda task: task.provenance.kind,
    'failing tests': lambda task: _bin(task.difficulty.failing, _FAILING),
    'lines of the fix': lambda task: _bin(task.difficulty.lines, _LINES),
  }
  fired = collections.Counter(name for one in scores for name in one.guards)
  result = {
    'k': k,
    'lost': lost,
    'all': _row([by_task[task.id] for task in tasks], k, seed),
    'groups': {},
    'tools': _tools(scores),
    'cost': _cost(scores),
    'guards': {
      name: count / len(scores) for name, count in sorted(fired.items())
    },
  }
  for name, key in groupings.items():
    groups = collections.defaultdict(list)
    for task in tasks:
      groups[key(task)].append(by_task[task.id])
    result['groups'][name] = {
      label: _row(groups[label], k, seed)
      for label in sorted(groups, key=_bin_order)
    }
  return result


def text(summary: Mapping[str, Any]) -> str:
  """The summary as tables for a terminal."""
  k = summary['k']
  header = f'{"":<24}{"tasks":>7}{"attempts":>10}{"pass@1":>9}{"95 %":>19}'
  header += (f'{f"pass@{k}":>10}' + f'{"95 %":>19}') * (k > 1)
  lines = [header, _line('all', summary['all'], k)]
  for name, rows in summary['groups'].items():
    lines += ['', f'by {name}']
    lines += [_line(f'  {label}', row, k) for label, row in rows.items()]
  if summary['tools']:
    lines += ['', f'{"tool":<24}{"calls":>9}{"failed":>9}{"refused":>9}']
  for name, row in summary['tools'].items():
    lines.append(
      f'  {name:<22}{row["calls"]:>9.2f}{row["failed"]:>9.1%}'
      f'{row["refused"]:>9.1%}'
    )
  lines += ['', 'per attempt']
  cost = summary['cost']
  lines += [f'  {name:<22}{value:>12.6g}' for name, value in cost.items()]
  if summary['guards']:
    lines += ['', 'guards fired in']
  for name, share in summary['guards'].items():
    lines.append(f'  {name:<22}{share:>12.1%}')
  if summary['lost']:
    lines += [
      '',
      f'{summary["lost"]} attempts lost by faults of ours; excluded',
    ]
  return '\n'.join(lines)


def _bin(value: int, ends: Sequence[int]) -> str:
  """'2 to 3'; 'unknown' for 0."""
  if value < 1:
    return 'unknown'
  first = 1
  for end in ends:
    if value <= end:
      return f'{first} to {end}' if end > first else f'{end}'
    first = end + 1
  return f'{first} and more'


def _bin_order(label: str) -> tuple[int, str]:
  number = label.split()[0] if label else ''
  return (int(number) if number.isdigit() else 0), label


def _row(attempts: Sequence[Sequence[Score]], k: int, seed: int) -> Row:
  """Rates over tasks, each given by its attempts; None where unknown."""
  counts = [(len(a), sum(one.solved for one in a)) for a in attempts]
  tried = [solved / made for made, solved in counts if made]
  complete = [
    estimates.pass_at_k(made, solved, k) for made, solved in counts if made >= k
  ]
  row = {
    'tasks': len(attempts),
    'attempts': sum(made for made, _ in counts),
    'solved': sum(solved for _, solved in counts),
    'pass_1': None,
    'pass_1_interval': None,
    'pass_k': None,
    'pass_k_interval': None,
    'pass_k_tasks': len(complete),  # Those with k attempts at least.
  }
  if tried:
    row['pass_1'] = float(np.mean(tried))
    # Attempts at one task are alike: no more evidence than there are tasks.
    row['pass_1_interval'] = estimates.interval(row['pass_1'], len(tried))
  if complete:
    row['pass_k'] = float(np.mean(complete))
    row['pass_k_interval'] = estimates.bootstrap(complete, seed)
  return row


def _tools(scores: Sequence[Score]) -> dict[str, Row]:
  """By tool: calls per attempt, and which shares of them went wrong."""
  totals = {
    field: _total(getattr(one, field) for one in scores)
    for field in ('calls', 'failed', 'refused')
  }
  return {
    name: {
      'calls': count / len(scores),
      'failed': totals['failed'][name] / count,
      'refused': totals['refused'][name] / count,
    }
    for name, count in sorted(totals['calls'].items())
  }


def _cost(scores: Sequence[Score]) -> Row:
  """Means over the attempts."""
  if not scores:
    return {}
  mean = {
    field: sum(getattr(one, field) for one in scores) / len(scores)
    for field in ('submitted', 'turns', 'tokens', 'sampled', 'seconds')
  }
  usage = _total(one.usage for one in scores)
  return mean | {name: usage[name] / len(scores) for name in sorted(usage)}


def _total(counts: Iterable[Mapping[str, float]]) -> collections.Counter:
  total = collections.Counter()
  for one in counts:
    total.update(one)
  return total


def _line(label: str, row: Row, k: int) -> str:
  line = f'{label:<24}{row["tasks"]:>7}{row["attempts"]:>10}'
  line += _rate(row['pass_1'], row['pass_1_interval'], 9)
  if k > 1:
    line += _rate(row['pass_k'], row['pass_k_interval'], 10)
  return line


def _rate(rate: float | None, interval, width: int) -> str:
  if rate is None:
    return f'{"-":>{width}}{"":>19}'
  low, high = interval
  return f'{rate:>{width}.1%}{f"{low:.1%} to {high:.1%}":>19}'
