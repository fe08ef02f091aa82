"""Which tasks to draw, by what attempts at them have shown.

A task teaches where it is sometimes solved: with solve rate p the reward of an
attempt has variance p (1 - p), which is what a group's advantages are made of.
So a task is drawn by the p (1 - p) expected of it ("learnability", Foster and
Foerster 2025, arXiv 2502.12272), and difficulty follows the policy.

A task's own attempts count the less the longer ago they were; those at other
tasks of its level stand in for what it lacks. What is solved every time rests
and is tried again later; what is never solved is retired, with the reason.

When a step is drawn. Learner step s may begin under policy s - max_lag, when
the outcomes of steps before s - max_lag are known and no others are certain to
be. So the tasks of step s are drawn at that very moment, from these outcomes
alone, and kept in the state until s is trained. Hence draws do not depend on
which episode ends first; a run without lag repeats bit by bit; and a run that
is resumed from the state attempts the very tasks that were in flight.

Everything here is pure: a `State` goes in and another comes out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np

from composer_jax import trajectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class CurriculumConfig:
  """When a task is drawn, rests, and is given up."""

  enabled: bool = False  # Else each task once per pass, in random order.
  explore: float = 0.1  # Share of the draws that are uniform.
  sharpness: float = 2.0  # Draws go by this power of p (1 - p).
  half_life: float = 10.0  # Learner steps after which an attempt counts half.
  prior_attempts: float = 4.0  # Weight of a task's level, in attempts.
  solved_in_row: int = 8  # Attempts, all solved, after which a task rests.
  rest_steps: int = 40  # Learner steps.
  give_up_after: int = 64  # Attempts, none ever solved: retired.
  lost_groups: int = 3  # Groups in a row without any attempt: retired.

  def __post_init__(self):
    if not 0 <= self.explore <= 1:
      raise ValueError(f'explore={self.explore} is a share, 0 to 1')
    if min(self.sharpness, self.half_life, self.prior_attempts) <= 0:
      raise ValueError(
        f'sharpness={self.sharpness}, half_life={self.half_life} and'
        f' prior_attempts={self.prior_attempts} must be > 0'
      )
    counts = (
      self.solved_in_row,
      self.rest_steps,
      self.give_up_after,
      self.lost_groups,
    )
    if min(counts) < 1:
      raise ValueError(
        'solved_in_row, rest_steps, give_up_after and lost_groups must be >= 1,'
        f' got {counts}'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statistics:
  """What the attempts at one task have shown."""

  attempts: int = 0
  solved: int = 0
  recent_attempts: float = 0.0  # Decayed, as of `seen`.
  recent_solved: float = 0.0
  in_row: int = 0  # Attempts up to now that were all solved.
  lost: int = 0  # Groups up to now of which no attempt came back.
  seen: int = 0  # Learner steps done when it was last recorded.
  rests_until: int = 0  # Learner step.
  retired: str = ''  # Why it is not drawn: until attempts come back.


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
  """What a run has to remember."""

  step: int  # Learner steps recorded.
  tasks: Mapping[str, Statistics]  # By id; those never tried are absent.
  # Ids of the tasks of step `step`, of the one after it, and so on.
  drawn: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Course:
  """What does not change in a run."""

  tasks: tuple[trajectory.Task, ...]
  config: CurriculumConfig
  seed: int
  groups: int  # Groups in a learner step.
  max_lag: int  # Steps that are drawn ahead.

  def __post_init__(self):
    if len(self.by_id) != len(self.tasks) or not self.tasks:
      raise ValueError(
        f'{len(self.tasks)} tasks have {len(self.by_id)} different ids'
      )

  @functools.cached_property
  def by_id(self) -> dict[str, trajectory.Task]:
    return {task.id: task for task in self.tasks}

  @functools.cached_property
  def levels(self) -> np.ndarray:
    return np.asarray([level(task) for task in self.tasks])


def level(task: trajectory.Task) -> int:
  """How hard a task looks before anybody has tried it; from 0.

  One more for each further bug and file, for each doubling of the lines that
  the fix adds, and if the visible tests do not notice.
  """
  depth = max(1, task.difficulty.lines).bit_length() - 1
  further = len(task.provenance.bugs) - 1 + task.difficulty.files - 1
  return max(0, further) + depth + (not task.provenance.visible_fails)


def start(course: Course) -> State:
  """Nothing recorded; the first steps are drawn."""
  state = State(step=0, tasks={}, drawn=())
  for _ in range(course.max_lag + 1):
    state = _draw(state, course)
  return state


def task_of(state: State, course: Course, group: int) -> trajectory.Task:
  """The task of a group that is still to be trained.

  Raises:
    trajectory.InfrastructureError: the group was closed in the meantime.
    ValueError: the group is further ahead than `max_lag`.
  """
  step, place = divmod(group, course.groups)
  if step < state.step:
    raise trajectory.InfrastructureError(
      f'group {group} was closed before this attempt began'
    )
  if step >= state.step + len(state.drawn):
    raise ValueError(
      f'group {group} of step {step} is not drawn at step {state.step} with'
      f' max_lag {course.max_lag}'
    )
  return course.by_id[state.drawn[step - state.step][place]]


def record(
  state: State, course: Course, outcomes: Sequence[tuple[int, int]]
) -> State:
  """Ends a learner step, and draws the one that may now begin.

  Args:
    state: before.
    course: of the run.
    outcomes: (attempts that came back, how many solved it) of each group of
      the step, in order.
  """
  if len(outcomes) != course.groups:
    raise ValueError(f'{len(outcomes)} outcomes of {course.groups} groups')
  tasks, step = dict(state.tasks), state.step + 1
  for task_id, (attempts, solved) in zip(state.drawn[0], outcomes, strict=True):
    if not 0 <= solved <= attempts:
      raise ValueError(f'{task_id}: {solved} of {attempts} attempts solved')
    before = tasks.get(task_id, Statistics())
    tasks[task_id] = _noted(before, attempts, solved, step, course.config)
  return _draw(State(step=step, tasks=tasks, drawn=state.drawn[1:]), course)


def _noted(
  before: Statistics,
  attempts: int,
  solved: int,
  step: int,
  config: CurriculumConfig,
) -> Statistics:
  """The statistics after one more group."""
  if not attempts:
    lost = before.lost + 1
    given_up = lost >= config.lost_groups and not before.retired
    return dataclasses.replace(
      before,
      lost=lost,
      rests_until=step + config.rest_steps,
      retired=f'no attempt came back in {lost} groups'
      if given_up
      else before.retired,
    )
  left = _left(step - before.seen, config)
  total = before.attempts + attempts
  in_row = before.in_row + attempts if solved == attempts else 0
  rests = in_row >= config.solved_in_row
  dead = not before.solved + solved and total >= config.give_up_after
  return Statistics(
    attempts=total,
    solved=before.solved + solved,
    recent_attempts=left * before.recent_attempts + attempts,
    recent_solved=left * before.recent_solved + solved,
    in_row=in_row,
    seen=step,
    rests_until=step + config.rest_steps if rests else 0,
    retired=f'never solved in {total} attempts' if dead else '',
  )


def _left(steps: int | np.ndarray, config: CurriculumConfig):
  """What an attempt counts after so many learner steps."""
  return 0.5 ** (steps / config.half_life)


def solve_rates(state: State, course: Course) -> tuple[np.ndarray, np.ndarray]:
  """(solved, failed) expected of each task, as counts of attempts.

  The parameters of a beta distribution of its solve rate: its own attempts,
  and `prior_attempts` at the rate of its level. A level's rate begins at 1/2
  and comes back to it when it is not tried.
  """
  config = course.config
  known = [state.tasks.get(t.id, Statistics()) for t in course.tasks]
  left = _left(state.step - np.asarray([s.seen for s in known]), config)
  tried = left * np.asarray([s.recent_attempts for s in known])
  solved = left * np.asarray([s.recent_solved for s in known])
  alive = np.asarray([not s.retired for s in known])
  count = lambda x: np.bincount(course.levels, weights=x * alive)
  rate = ((count(solved) + 1) / (count(tried) + 2))[course.levels]
  prior = config.prior_attempts
  return solved + prior * rate, tried - solved + prior * (1 - rate)


def weights(state: State, course: Course) -> np.ndarray:
  """How likely each task is drawn, up to a factor; 0 if it must not be.

  The expected p (1 - p) to the power of `sharpness`.
  """
  solved, failed = solve_rates(state, course)
  total = solved + failed
  signal = solved * failed / (total * (total + 1))
  signal **= course.config.sharpness
  return np.where(_active(state, course), signal, 0.0)


def _active(state: State, course: Course) -> np.ndarray:
  """Which tasks may be drawn.

  When there are none, those that rest are woken.

  Raises:
    ValueError: every task is retired.
  """
  known = [state.tasks.get(t.id, Statistics()) for t in course.tasks]
  alive = np.asarray([not s.retired for s in known])
  if not alive.any():
    raise ValueError(
      f'all {len(known)} tasks are retired, such as {course.tasks[0].id}:'
      f' {known[0].retired}; give easier tasks or raise'
      ' curriculum.give_up_after'
    )
  awake = alive & np.asarray([s.rests_until <= state.step for s in known])
  return awake if awake.any() else alive


def _draw(state: State, course: Course) -> State:
  """The state with one more step drawn, from what is recorded now.

  No task stands twice among the steps drawn as long as there are others.
  """
  step = state.step + len(state.drawn)
  rng = np.random.default_rng((course.seed, step))
  active, weight = _active(state, course), weights(state, course)
  waiting = {task_id for ids in state.drawn for task_id in ids}
  free = active & np.asarray([t.id not in waiting for t in course.tasks])
  chosen = []
  for _ in range(course.groups):
    pool = free if free.any() else active
    share = np.where(pool, weight, 0.0)
    share = (1 - course.config.explore) * share / share.sum()
    share += course.config.explore * pool / pool.sum()
    index = int(rng.choice(len(share), p=share / share.sum()))
    free = free & (np.arange(len(share)) != index)
    chosen.append(course.tasks[index].id)
  return dataclasses.replace(state, drawn=(*state.drawn, tuple(chosen)))


def summary(state: State, course: Course) -> dict[str, float]:
  """Numbers about the step that is trained next.

  `curriculum_rate` is the solve rate expected of what is drawn, and
  `curriculum_level_N` the share of level N in it.
  """
  known = state.tasks.values()
  resting = sum(s.rests_until > state.step and not s.retired for s in known)
  gone = sum(bool(s.retired) for s in known)
  place = {task.id: index for index, task in enumerate(course.tasks)}
  drawn = [place[task_id] for task_id in state.drawn[0]]
  solved, failed = solve_rates(state, course)
  values = {
    'curriculum_active': len(course.tasks) - resting - gone,
    'curriculum_resting': resting,
    'curriculum_never_solved': sum(
      bool(s.retired) and not s.lost for s in known
    ),
    'curriculum_lost': sum(bool(s.retired and s.lost) for s in known),
    'curriculum_rate': float((solved / (solved + failed))[drawn].mean()),
    'curriculum_level': float(course.levels[drawn].mean()),
  }
  for found in np.unique(course.levels):
    share = float((course.levels[drawn] == found).mean())
    values[f'curriculum_level_{found}'] = share
  return values


def retired(state: State) -> dict[str, str]:
  """Ids of the retired tasks, with the reasons."""
  return {
    task_id: known.retired
    for task_id, known in state.tasks.items()
    if known.retired
  }


def to_json(state: State) -> dict[str, Any]:
  """Plain values that `from_json` takes."""
  return {
    'step': state.step,
    'tasks': {
      task_id: dataclasses.asdict(known)
      for task_id, known in state.tasks.items()
    },
    'drawn': [list(ids) for ids in state.drawn],
  }


def from_json(value: Mapping[str, Any]) -> State:
  return State(
    step=value['step'],
    tasks={
      task_id: Statistics(**known) for task_id, known in value['tasks'].items()
    },
    drawn=tuple(tuple(ids) for ids in value['drawn']),
  )
