"""One page about one run, and the table that ends it on the terminal.

The page stands alone: no script, no font and no picture comes from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import json
import os
import pathlib
from typing import Any

import jinja2

from composer_jax import trajectory as trajectory_lib
from composer_jax.viewer import curves
from composer_jax.viewer import estimates
from composer_jax.viewer import history

_TEMPLATES = pathlib.Path(__file__).parent / 'templates'
_WHEN = ('before', 'after')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Segment:
  """A stretch of an episode's tokens with one origin, as text."""

  kind: str  # 'prompt', 'policy' or 'tool'.
  text: str
  logprob: float | None = None  # Mean over the policy's tokens, nats.

  def __post_init__(self):
    if self.kind not in ('prompt', 'policy', 'tool'):
      raise ValueError(f'kind is prompt, policy or tool, not {self.kind!r}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Episode:
  """A trajectory to show in full, decoded by whoever knows the tokens."""

  title: str
  trajectory: trajectory_lib.Trajectory
  segments: Sequence[Segment]


def write_report(workdir: str, episodes: Sequence[Episode] = ()) -> str:
  """Writes report.html and curve.png into `workdir`; returns the page's path.

  What the run did not leave (a metric, result.json) is not on the page. Each
  file appears whole or not at all.
  """
  past = history.read_metrics(os.path.join(workdir, 'metrics.jsonl'))
  result = history.read_json(os.path.join(workdir, 'result.json'))
  config = history.read_json(os.path.join(workdir, 'config.json'))
  picture = curves.learning_curve_png(past)
  if picture is not None:
    _write_whole(os.path.join(workdir, 'curve.png'), picture)
  path = os.path.join(workdir, 'report.html')
  page = _render(past, result, config, episodes)
  # Policies may write any character, even halves of pairs.
  _write_whole(path, page.encode('utf-8', errors='backslashreplace'))
  return path


def summary_table(result: Mapping[str, Any]) -> str:
  """The lines of result.json that a person asks for first, aligned."""
  rows = list(_summary(result))
  width = max((len(label) for label, _ in rows), default=0)
  return '\n'.join(f'{label:<{width}}  {value}' for label, value in rows)


def _summary(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
  before, after = [result.get(f'heldout_solve_rate_{w}') for w in _WHEN]
  for when, rate in zip(_WHEN, (before, after), strict=True):
    if rate is not None:
      solved = _rate(rate, result.get('heldout_tasks'))
      yield f'held-out solved {when}', solved
  if before is not None and after is not None:
    ratio = f', {after / before:.2f} x' if before else ''
    yield 'gain', f'{100 * (after - before):+.1f} points{ratio}'
  greedy = [result.get(f'heldout_greedy_{when}') for when in _WHEN]
  if None not in greedy:
    yield 'greedy', ' to '.join(f'{100 * rate:.1f} %' for rate in greedy)
  for name, label in (
    ('heldout_tasks', 'held-out tasks'),
    ('train_tasks', 'training tasks'),
    ('episodes', 'episodes'),
    ('tool_calls', 'tool calls'),
    ('sandbox_level', 'sandbox level'),
    ('weights_published', 'weights published'),
    ('max_lag_seen', 'largest lag'),
    ('learner_steps', 'learner steps'),
  ):
    if result.get(name) is not None:
      value = result[name]
      yield label, f'{value:,}' if isinstance(value, int) else str(value)
  if result.get('visible_share') is not None:
    share = f'{100 * result["visible_share"]:.1f} %'
    yield 'bugs the examples show', share
  if result.get('tests_cached') is not None:
    how = ('run every time', 'run once, then remembered')
    yield 'tests of equal code', how[result['tests_cached']]
  if result.get('wall_seconds') is not None:
    minutes, seconds = divmod(round(result['wall_seconds']), 60)
    yield 'wall time', f'{minutes} min {seconds:02d} s'
  if result.get('seed') is not None:
    yield 'seed', str(result['seed'])


def _rate(rate: float, tasks: int | None) -> str:
  if not tasks:
    return f'{100 * rate:.1f} %'
  low, high = estimates.interval(rate, tasks)
  return f'{100 * rate:.1f} % (95 %: {100 * low:.1f} to {100 * high:.1f})'


def _render(
  past: history.History,
  result: Mapping[str, Any],
  config: Mapping[str, Any],
  episodes: Sequence[Episode],
) -> str:
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_TEMPLATES),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  sections = (
    ('How it learned', tuple(curves.draw_panels(past.rl, curves.LEARNING))),
    ('How it behaves', tuple(curves.draw_panels(past.rl, curves.BEHAVIOUR))),
    ('How it ran', tuple(curves.draw_panels(past.rl, curves.SPEED))),
    (
      'Before it',
      tuple(curves.draw_panels(past.warm_start, curves.WARM_START)),
    ),
  )
  return environment.get_template('report.html.j2').render(
    summary=list(_summary(result)),
    curve=curves.learning_curve_svg(past),
    sections=[section for section in sections if section[1]],
    tool_use=curves.draw_tool_use(past.rl),
    episodes=episodes,
    config=json.dumps(config, indent=2) if config else '',
    torn_lines=past.torn_lines,
  )


def _write_whole(path: str, data: bytes) -> None:
  """Replaces `path` by `data`, so that a reader never sees half of it."""
  unfinished = f'{path}.{os.getpid()}.tmp'
  try:
    with open(unfinished, 'wb') as file:
      file.write(data)
    os.replace(unfinished, path)
  finally:
    pathlib.Path(unfinished).unlink(missing_ok=True)
