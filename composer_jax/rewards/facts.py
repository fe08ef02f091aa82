"""Step one of a reward: plain numbers about one episode, measured once.

They are kept on the trajectory. Whatever prices are put on them later, nothing
needs to run again (`shaping.rescore`). A fact that could not be measured is
missing, never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from composer_jax import trajectory
from composer_jax.rewards import calls
from composer_jax.rewards import grade
from composer_jax.rewards import guards
from composer_jax.rewards import quality
from composer_jax.rewards import style
from composer_jax.rewards import tidiness
from composer_jax.rewards import work as work_lib

GUARD = 'guard_'  # Prefix of the facts that say whether a guard fired.


def measure(
  episode: trajectory.Trajectory,
  task: trajectory.Task,
  work: work_lib.Work,
  verdict: grade.Verdict,
) -> dict[str, float]:
  """All facts of a finished episode, by name.

  Of the verdict `solved` (0 or 1), `fraction` and `regressed` (shares of the
  tests to mend that pass, of those to keep that fail). Of the work
  `complexity_excess` and `strain_excess` over the known fix, the sizes
  `diff_lines` and `gold_lines`, `lint_added`, `style_conformity` (0 to 1), and
  the counts `stray_files`, `debug_marks`, `todo_marks`, `open_todos`. Of the
  last word `silent` and `false_claim` (0 or 1). `guard_<name>` (0 or 1) of
  each guard.
  """
  facts = {**_tests(task, verdict), **_said(episode, work)}
  for measured in (lambda: _quality(work), lambda: _tidiness(episode, work)):
    try:
      facts |= measured()
    except RecursionError:  # Code nested deeper than Python can follow.
      pass
  for name, guard in guards.GUARDS.items():
    facts[GUARD + name] = _fires(guard, episode, task, work)
  return {name: float(value) for name, value in facts.items()}


def _fires(guard, episode, task, work) -> bool:
  """Whether a guard fires; it does on code too deep to be looked into."""
  try:
    return guard(episode, task, work)
  except RecursionError:
    return True


def _tests(task: trajectory.Task, verdict: grade.Verdict) -> dict[str, float]:
  facts = {'solved': verdict.solved}
  if task.fail_to_pass:
    facts['fraction'] = verdict.fraction
  if task.pass_to_pass:
    facts['regressed'] = verdict.regressions / len(task.pass_to_pass)
  return facts


def _quality(work: work_lib.Work) -> dict[str, float]:
  before, after = _tested(work.before), _tested(work.after)
  code = work.changed_code
  facts = {
    'diff_lines': work_lib.diff_size(before, after),
    'style_conformity': style.conformity(
      {path: text for path, text in before.items() if path.endswith('.py')},
      {path: after[path] for path in code},
      {path: work.added(path) for path in code},
    ),
    'complexity_excess': _excess(quality.complexity, work),
    'strain_excess': _excess(quality.strain, work),
  }
  if work.gold is not None:
    facts['gold_lines'] = work_lib.diff_size(before, _tested(work.gold))
  if work.lint_before is not None and work.lint_after is not None:
    facts['lint_added'] = sum(work.lint_after.values()) - sum(
      work.lint_before.values()
    )
  return facts


def _tested(files: Mapping[str, str]) -> dict[str, str]:
  """Without the tests."""
  return {p: t for p, t in files.items() if not trajectory.is_test(p)}


def _excess(count: Callable[[str], int | None], work: work_lib.Work) -> int:
  """How much more the work has than the known fix, over all code.

  Without a known fix, than it found. Files that are no Python on either side
  are left out: they cannot be right.
  """
  after = _tested(work.after)
  other = _tested(work.before if work.gold is None else work.gold)
  excess = 0
  for path in {*after, *other}:
    if path.endswith('.py') and after.get(path) != other.get(path):
      ours, theirs = count(after.get(path, '')), count(other.get(path, ''))
      if ours is not None and theirs is not None:
        excess += ours - theirs
  return excess


def _tidiness(
  episode: trajectory.Trajectory, work: work_lib.Work
) -> dict[str, float]:
  return {
    'stray_files': len(
      tidiness.stray_files(work.before, work.after, work.gold or {})
    ),
    'debug_marks': _marks(tidiness.debug_marks, work),
    'todo_marks': _marks(tidiness.todo_marks, work),
    'open_todos': calls.open_todos(episode),
  }


def _marks(
  count: Callable[[str, Collection[int]], int], work: work_lib.Work
) -> int:
  """Marks on added lines; none in a file that has them by its nature."""
  total = 0
  for path in work.changed_code:
    marks = count(work.after[path], work.added(path))
    if marks and not any(count(t, _all_lines(t)) for t in work.given(path)):
      total += marks
  return total


def _all_lines(text: str) -> range:
  return range(1, text.count('\n') + 2)


def _said(
  episode: trajectory.Trajectory, work: work_lib.Work
) -> dict[str, float]:
  passed = calls.last_tests(episode) is trajectory.Status.OK
  return {
    'silent': not work.message.strip(),
    'false_claim': tidiness.claims_tests(work.message) and not passed,
  }
