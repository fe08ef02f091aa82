"""Draws a run's metrics: the learning curve, and small panels for a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import io
import re
from typing import Any

import markupsafe
import matplotlib
from matplotlib import axes
from matplotlib import figure
from matplotlib import ticker
import numpy as np

from composer_jax.viewer import estimates
from composer_jax.viewer import history

# Readable on white and on black alike.
_COLOURS = ('#3987e5', '#d95926', '#199e70', '#c98500', '#d55181', '#9085e9')
_INK = '#3b3f45'
# Text and frames of an inline picture take the colour of the page around them.
_PAGE_INK = '#0a0b0c'
_CALLS = 'calls_'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
  """One small chart: metrics of the same unit over learner steps."""

  title: str
  note: str
  lines: Mapping[str, str]  # Metric to legend.
  band: str = ''  # Metric: how far the first line spreads.
  percent: bool = False


LEARNING = (
  Panel(
    title='Reward',
    note='mean of a step; band: one standard deviation',
    lines={'reward': 'mean'},
    band='reward_std',
  ),
  Panel(
    title='Entropy',
    note='nats per sampled token',
    lines={'entropy': 'entropy'},
  ),
  Panel(
    title='Learner against behaviour policy',
    note='KL, nats per token',
    lines={'kl_behaviour': 'KL'},
  ),
  Panel(
    title='Clipped tokens',
    note='share of the sampled tokens',
    lines={'clip_fraction': 'clipped'},
    percent=True,
  ),
  Panel(
    title='Useful episodes',
    note='share whose group did not all score the same',
    lines={'useful_share': 'useful'},
    percent=True,
  ),
)
SPEED = (
  Panel(
    title='Lag',
    note='policy versions behind the learner',
    lines={'lag_mean': 'mean', 'lag_max': 'largest'},
  ),
  Panel(
    title='Tokens',
    note='per second',
    lines={'tokens_per_s': 'of episodes', 'sampled_per_s': 'sampled'},
  ),
  Panel(
    title='Tool calls',
    note='per second',
    lines={'tool_calls_per_s': 'calls/s'},
  ),
  Panel(
    title='Waiting',
    note="share of the learner's time, for episodes",
    lines={'waited_share': 'waiting'},
    percent=True,
  ),
)
BEHAVIOUR = (
  Panel(
    title='Submissions',
    note='share of the episodes that end in one',
    lines={'submitted': 'submitted'},
    percent=True,
  ),
  Panel(
    title='Before submitting',
    note='share of the submissions, tests since the last edit',
    lines={
      'tests_before_submit': 'tests run',
      'passed_before_submit': 'tests passed',
      'solved_of_submitted': 'hidden tests pass',
    },
    percent=True,
  ),
  Panel(
    title='Tries',
    note='edits that took effect, per episode',
    lines={'tries_per_episode': 'tries'},
  ),
  Panel(
    title='Repeated edits',
    note='the same edit again, per episode',
    lines={'repeated_edits': 'repeats'},
  ),
  Panel(
    title='Invalid calls',
    note='per episode',
    lines={'invalid_calls': 'invalid'},
  ),
  Panel(title='Turns', note='per episode', lines={'turns': 'turns'}),
)
WARM_START = (
  Panel(
    title='Warm start',
    note='loss, nats per token',
    lines={'loss': 'loss'},
  ),
)


def smooth(value_T: np.ndarray, width: int) -> np.ndarray:
  """Mean over the `width` values around each, fewer at the ends."""
  kernel = np.ones(width)
  known_T = np.isfinite(value_T)
  total_T = np.convolve(np.where(known_T, value_T, 0.0), kernel, 'same')
  count_T = np.convolve(known_T.astype(float), kernel, 'same')
  return np.divide(
    total_T, count_T, out=np.full(len(value_T), np.nan), where=count_T > 0
  )


def _draw_line(
  axis: axes.Axes,
  rows: Sequence[Mapping[str, Any]],
  name: str,
  label: str,
  colour: str,
) -> None:
  """Every value faintly, and their running mean on top."""
  step_T, value_T = history.series(rows, name)
  width = min(len(step_T), max(1, len(step_T) // 15))
  if width > 1:
    axis.plot(step_T, value_T, color=colour, alpha=0.25, linewidth=0.8)
    value_T = smooth(value_T, width)
  marker = 'o' if len(step_T) == 1 else None
  axis.plot(
    step_T, value_T, color=colour, linewidth=1.8, label=label, marker=marker
  )


def _style(ink: str) -> Mapping[str, Any]:
  return {
    'axes.axisbelow': True,
    'axes.edgecolor': ink,
    'axes.grid': True,
    'axes.grid.axis': 'y',
    'axes.labelcolor': ink,
    'axes.linewidth': 0.6,
    'axes.spines.right': False,
    'axes.spines.top': False,
    'font.family': 'sans-serif',
    'font.size': 9,
    'grid.alpha': 0.15,
    'grid.color': ink,
    'legend.fontsize': 8,
    'legend.frameon': False,
    'svg.fonttype': 'none',
    'svg.hashsalt': 'composer_jax',
    'text.color': ink,
    'xtick.color': ink,
    'xtick.major.size': 0,
    'ytick.color': ink,
    'ytick.major.size': 0,
  }


def _as_svg(drawing: figure.Figure) -> markupsafe.Markup:
  """The figure as an element of an HTML page, free of any address."""
  stream = io.StringIO()
  nothing = dict.fromkeys(('Creator', 'Date', 'Format', 'Type'))
  drawing.savefig(stream, format='svg', transparent=True, metadata=nothing)
  text = stream.getvalue()
  text = text[text.index('<svg') :].replace(_PAGE_INK, 'currentColor')
  text = re.sub(r'font-family: [^;]*; ', '', text)
  text = re.sub(r' xmlns(:\w+)?="[^"]*"', '', text)
  return markupsafe.Markup(
    re.sub(r' (width|height)="[\d.]+pt"', '', text, count=2)
  )


def _has(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> bool:
  return any(row.get(name) is not None for row in rows for name in names)


def draw_panels(
  rows: Sequence[Mapping[str, Any]], panels: Sequence[Panel]
) -> Iterator[tuple[Panel, markupsafe.Markup]]:
  """The panels for which the rows have any metric, each as inline SVG."""
  for panel in panels:
    if not _has(rows, tuple(panel.lines)):
      continue
    with matplotlib.rc_context(_style(_PAGE_INK)):
      drawing = figure.Figure(figsize=(3.9, 2.1), layout='constrained')
      axis = drawing.add_subplot()
      for colour, (name, label) in zip(
        _COLOURS, panel.lines.items(), strict=False
      ):
        if _has(rows, (name,)):
          _draw_line(axis, rows, name, label, colour)
      if panel.band:
        _draw_band(axis, rows, next(iter(panel.lines)), panel.band)
      _finish(axis, percent=panel.percent)
      if len(panel.lines) > 1:
        axis.legend(loc='upper left', ncols=2)
        axis.margins(y=0.25)
      yield panel, _as_svg(drawing)


def _draw_band(
  axis: axes.Axes, rows: Sequence[Mapping[str, Any]], name: str, spread: str
) -> None:
  rows = [row for row in rows if _has([row], [name]) and _has([row], [spread])]
  if len(rows) < 2:
    return
  step_T, mean_T = history.series(rows, name)
  _, spread_T = history.series(rows, spread)
  width = max(1, len(step_T) // 15)
  mean_T, spread_T = smooth(mean_T, width), smooth(spread_T, width)
  axis.fill_between(
    step_T,
    mean_T - spread_T,
    mean_T + spread_T,
    color=_COLOURS[0],
    alpha=0.15,
    linewidth=0,
  )


def _finish(axis: axes.Axes, percent: bool) -> None:
  if percent:
    axis.yaxis.set_major_formatter(lambda value, _: f'{100 * value:g}%')
  axis.yaxis.set_major_locator(ticker.MaxNLocator(4))
  axis.xaxis.set_major_locator(
    ticker.MaxNLocator(5, integer=True, min_n_ticks=1)
  )
  axis.margins(x=0.02)


def draw_tool_use(
  rows: Sequence[Mapping[str, Any]],
) -> markupsafe.Markup | None:
  """How the calls divide over the tools, step by step; None without calls."""
  names = sorted(
    {name for row in rows for name in row if name.startswith(_CALLS)}
  )
  rows = [row for row in rows if _has([row], names)]
  if not rows:
    return None
  count_NT = np.array(
    [[float(row.get(name) or 0) for row in rows] for name in names]
  )
  width = min(len(rows), max(1, len(rows) // 15))
  count_NT = np.stack([smooth(count_T, width) for count_T in count_NT])
  share_NT = count_NT / np.maximum(count_NT.sum(axis=0), 1e-9)
  step_T = [row['step'] for row in rows]
  with matplotlib.rc_context(_style(_PAGE_INK)):
    drawing = figure.Figure(figsize=(7.9, 2.6), layout='constrained')
    axis = drawing.add_subplot()
    axis.stackplot(
      step_T,
      share_NT,
      labels=[name.removeprefix(_CALLS) for name in names],
      colors=[_COLOURS[i % len(_COLOURS)] for i in range(len(names))],
      alpha=0.85,
    )
    _finish(axis, percent=True)
    axis.margins(x=0, y=0)
    handles, labels = axis.get_legend_handles_labels()
    drawing.legend(handles[::-1], labels[::-1], loc='outside right center')
    return _as_svg(drawing)


def draw_learning_curve(past: history.History) -> figure.Figure | None:
  """Solve rates over learner steps; None when there is none to draw.

  The line is the share of training episodes solved at each step; the points are
  held-out tasks before, during and after, with 95 % intervals.
  """
  if not _has((*past.rl, *past.evaluations), ('solve_rate',)):
    return None
  drawing = figure.Figure(figsize=(7.9, 3.7), layout='constrained')
  axis = drawing.add_subplot()
  if _has(past.rl, ('solve_rate',)):
    _draw_line(axis, past.rl, 'solve_rate', 'training episodes', _COLOURS[0])
  if _has(past.evaluations, ('solve_rate',)):
    _draw_held_out(axis, past.evaluations)
  axis.set_xlabel('learner step')
  axis.set_ylabel('tasks solved')
  axis.set_ylim(0, 1)
  _finish(axis, percent=True)
  axis.margins(x=0.06)
  axis.legend(loc='best', ncols=3)
  return drawing


def _draw_held_out(axis: axes.Axes, rows: Sequence[Mapping[str, Any]]) -> None:
  colour = _COLOURS[1]
  rows = [row for row in rows if _has([row], ['solve_rate'])]
  step_T, rate_T = history.series(rows, 'solve_rate')
  low_T, high_T = np.array([_bounds(row) for row in rows]).T
  axis.axhline(rate_T[0], color=colour, linewidth=0.8, linestyle=(0, (4, 3)))
  axis.errorbar(
    step_T,
    rate_T,
    yerr=np.abs([rate_T - low_T, high_T - rate_T]),
    fmt='o',
    color=colour,
    capsize=4,
    markersize=7,
    linewidth=1.8,
    label='held-out tasks, 95 %',
    zorder=4,
  )
  for step, rate, high in zip(step_T, rate_T, high_T, strict=True):
    axis.annotate(
      f'{rate:.0%}',
      (step, max(rate, high)),
      textcoords='offset points',
      xytext=(0, 6),
      ha='center',
      color=colour,
      fontweight='bold',
    )
  if _has(rows, ('solve_rate_greedy',)):
    axis.plot(
      *history.series(rows, 'solve_rate_greedy'),
      linestyle='none',
      marker='D',
      markersize=5,
      markerfacecolor='none',
      color=_COLOURS[2],
      label='held-out tasks, greedy',
      zorder=4,
    )


def _bounds(row: Mapping[str, Any]) -> tuple[float, float]:
  """The interval of a solve rate: logged, else of its tasks, else empty."""
  rate = row['solve_rate']
  if row.get('low') is not None and row.get('high') is not None:
    return row['low'], row['high']
  return (
    estimates.interval(rate, row['tasks']) if row.get('tasks') else (rate,) * 2
  )


def learning_curve_svg(past: history.History) -> markupsafe.Markup | None:
  """The learning curve for a page."""
  with matplotlib.rc_context(_style(_PAGE_INK)):
    drawing = draw_learning_curve(past)
    return None if drawing is None else _as_svg(drawing)


def learning_curve_png(past: history.History) -> bytes | None:
  """The learning curve as a picture of its own, on white."""
  with matplotlib.rc_context(_style(_INK)):
    drawing = draw_learning_curve(past)
    if drawing is None:
      return None
    stream = io.BytesIO()
    drawing.savefig(stream, format='png', dpi=160, facecolor='white')
    return stream.getvalue()


def running_mean(value_T: np.ndarray, window: int) -> np.ndarray:
  """Means of `window` values each; shorter by all but one of them."""
  return np.convolve(value_T, np.ones(window) / window, mode='valid')


def loss_curves_png(
  losses: Mapping[str, np.ndarray], reference: str, window: int
) -> bytes:
  """Losses over steps by name, and how far each is from the reference's.

  Both are means of `window` steps.
  """
  smooth_T = {
    name: running_mean(loss_T, window) for name, loss_T in losses.items()
  }
  with matplotlib.rc_context(_style(_INK)):
    drawing = figure.Figure(figsize=(7.9, 3.2), layout='constrained')
    left, right = drawing.subplots(1, 2)
    for colour, (name, loss_T) in zip(_COLOURS, smooth_T.items(), strict=False):
      step_T = np.arange(len(loss_T)) + window
      gap_T = loss_T / smooth_T[reference] - 1
      left.plot(step_T, loss_T, color=colour, linewidth=1.4, label=name)
      right.plot(step_T, gap_T, color=colour, linewidth=1.4, label=name)
    for axis, title in (
      (left, f'loss, nats per token (mean of {window} steps)'),
      (right, f'relative to {reference}'),
    ):
      _finish(axis, percent=axis is right)
      axis.set_title(title, fontsize=9)
      axis.set_xlabel('step')
    left.legend(loc='best')
    stream = io.BytesIO()
    drawing.savefig(stream, format='png', dpi=160, facecolor='white')
  return stream.getvalue()
