"""Keeps the repair tasks whose verdicts can be trusted.

A problem is used if its reference solution passes the visible and the hidden
tests, and a mutant if it fails the hidden ones, every time that they are run,
and without hanging. Nothing here starts a process, owns a thread or reads a
clock: whatever runs code, runs functions in parallel and tells the time is
handed in.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
import dataclasses
import enum
import pathlib
import statistics

from composer_jax import trajectory
from composer_jax.tasks import examples
from composer_jax.tasks import humaneval
from composer_jax.tasks import mutate
from composer_jax.tasks import source

# run(files, command, stdin, seconds) -> exit code (None: timed out), output.
Run = Callable[
  [Mapping[str, str], Sequence[str], str, float], tuple[int | None, str]
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """How hard to look."""

  problems: int = 0  # Used, from the first on; 0 = all.
  runs: int = 3  # Verdicts that must agree.
  per_problem: int = 12  # Tasks kept of one problem at most.
  tried_per_problem: int = 24  # Mutants tried of one problem at most.
  limit_seconds: float = 2.0  # Of either command, in the task too.
  least_seconds: float = 1.5  # Mutants get this even on a busy machine.
  slowdown: float = 5.0  # A mutant hangs beyond this multiple of correct code.


class Outcome(enum.Enum):
  """How one run of tests ended."""

  PASSED = 'passed'
  FAILED = 'failed'
  HUNG = 'hung'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
  """The tasks, and why problems and mutants were rejected (reason: count)."""

  tasks: tuple[trajectory.Task, ...]
  problems: Mapping[str, int]
  mutants: Mapping[str, int]


def visible_outcome(exit_code: int | None) -> Outcome:
  if exit_code is None:
    return Outcome.HUNG
  return Outcome.FAILED if exit_code else Outcome.PASSED


def hidden_outcome(exit_code: int | None, output: str, nonce: str) -> Outcome:
  """Passed only if the last line is the nonce: an early exit is no pass."""
  if exit_code is None:
    return Outcome.HUNG
  passed = exit_code == 0 and output.splitlines()[-1:] == [nonce]
  return Outcome.PASSED if passed else Outcome.FAILED


def objection_to_problem(
  visible: Sequence[Outcome], hidden: Sequence[Outcome]
) -> str:
  """Why correct code with these outcomes makes no task; '' if it does."""
  outcomes = {*visible, *hidden}
  if Outcome.HUNG in outcomes:
    return 'slow'
  if len(set(visible)) > 1 or len(set(hidden)) > 1:
    return 'flaky'
  return '' if outcomes == {Outcome.PASSED} else 'reference fails'


def objection_to_mutant(
  visible: Sequence[Outcome], hidden: Sequence[Outcome]
) -> str:
  """Why a mutant with these outcomes makes no task; '' if it does.

  The visible tests may pass: they are only a part of what is wanted.
  """
  if Outcome.HUNG in (*visible, *hidden):
    return 'hangs'
  if len(set(visible)) > 1 or len(set(hidden)) > 1:
    return 'flaky'
  return 'unnoticed' if Outcome.PASSED in hidden else ''


def key(test_command: Sequence[str], config: Config) -> str:
  """Names what `build` makes of all problems: data, code and settings."""
  code = sorted(pathlib.Path(__file__).parent.glob('*.py'))
  settings = repr((tuple(test_command), config)).encode()
  parts = (path.read_bytes() for path in code)
  return source.digest(humaneval.data(), settings, *parts)


def build(
  problems: Sequence[humaneval.Problem],
  *,
  run: Run,
  executor: futures.Executor,
  clock: Callable[[], float],
  test_command: Sequence[str],
  config: Config,
) -> Report:
  """Validated tasks in the order of the problems.

  Every stage hands all its work to `executor` and waits. Mutants that the
  first run rejects are not run again.

  Args:
    problems: What to plant bugs in.
    run: Runs a command in a fresh folder with these files. Called in parallel.
    executor: Runs `run`.
    clock: Seconds; measures correct code.
    test_command: Of the visible tests in `humaneval.TEST_FILE`.
    config: Limits.

  Raises:
    trajectory.InfrastructureError: from `run`; never counted as a verdict.
  """
  bench = _Bench(run, clock, tuple(test_command), config)
  tests = executor.map(bench.visible_tests, problems)
  shown = list(zip(problems, tests, strict=True))
  rejected = collections.Counter('no example' for _, test in shown if not test)
  shown = [(problem, test) for problem, test in shown if test]
  subjects = []
  for (problem, test), (objection, seconds) in zip(
    shown, executor.map(bench.check_problem, shown), strict=True
  ):
    rejected[objection] += bool(objection)
    if not objection:
      subjects.extend(_mutants(problem, test, seconds, config))
  objections = collections.Counter()
  tasks = _tasks(bench, subjects, executor, objections)
  return Report(
    tasks=tasks,
    problems={reason: n for reason, n in rejected.items() if n},
    mutants={reason: n for reason, n in objections.items() if n},
  )


@dataclasses.dataclass(frozen=True)
class _Mutant:
  """One mutant on trial."""

  problem: humaneval.Problem
  mutation: mutate.Mutation
  tests: str
  seconds: float  # Limit of either run.


@dataclasses.dataclass(frozen=True)
class _Bench:
  """What the executor runs."""

  run: Run
  clock: Callable[[], float]
  test_command: tuple[str, ...]
  config: Config

  def visible_tests(self, problem: humaneval.Problem) -> str:
    """The text of the visible tests; '' if no example holds."""
    variants = examples.asserts(problem.solution, problem.name)
    files = {
      humaneval.SOLUTION_FILE: problem.solution,
      examples.PROBE_FILE: examples.probe(problem.name, variants),
    }
    command = ('python', examples.PROBE_FILE)
    code, output = self.run(files, command, '', self.config.limit_seconds)
    if code != 0:
      return ''
    lines = examples.select(variants, output)
    return examples.test_file(problem.name, lines) if lines else ''

  def check_problem(
    self, shown: tuple[humaneval.Problem, str]
  ) -> tuple[str, float]:
    """The objection to a problem, and the seconds of its slowest test."""
    problem, tests = shown
    visible, hidden, seconds = [], [], []
    limit = self.config.limit_seconds
    for i in range(self.config.runs):
      start = self.clock()
      visible.append(self._visible(problem.solution, tests, limit))
      middle = self.clock()
      hidden.append(self._hidden(problem, problem.solution, limit, i))
      seconds.extend((middle - start, self.clock() - middle))
    return objection_to_problem(visible, hidden), max(seconds)

  def try_mutant(
    self, subject: _Mutant, number: int
  ) -> tuple[Outcome, Outcome]:
    """One visible and one hidden outcome."""
    text = subject.mutation.edit.apply(subject.problem.solution)
    hidden = self._hidden(subject.problem, text, subject.seconds, number)
    if hidden is Outcome.HUNG:  # Rejected, whatever the visible tests say.
      return hidden, hidden
    return self._visible(text, subject.tests, subject.seconds), hidden

  def _visible(self, text: str, tests: str, seconds: float) -> Outcome:
    files = {humaneval.SOLUTION_FILE: text, humaneval.TEST_FILE: tests}
    code, _ = self.run(files, self.test_command, '', seconds)
    return visible_outcome(code)

  def _hidden(
    self, problem: humaneval.Problem, text: str, seconds: float, number: int
  ) -> Outcome:
    nonce = f'{problem.id} run {number}'
    files = {
      humaneval.SOLUTION_FILE: text,
      humaneval.GRADE_FILE: problem.grader,
    }
    command = humaneval.GRADE_COMMAND
    return hidden_outcome(
      *self.run(files, command, nonce + '\n', seconds), nonce
    )


def _mutants(
  problem: humaneval.Problem, tests: str, seconds: float, config: Config
) -> list[_Mutant]:
  limit = max(config.least_seconds, config.slowdown * seconds)
  limit = min(limit, config.limit_seconds)
  return [
    _Mutant(problem, mutation, tests, limit)
    for mutation in humaneval.mutants(problem, config.tried_per_problem)
  ]


def _tasks(
  bench: _Bench,
  subjects: Sequence[_Mutant],
  executor: futures.Executor,
  objections: collections.Counter[str],
) -> tuple[trajectory.Task, ...]:
  """Tries all once, keeps some of each problem, tries these again."""
  config = bench.config
  first = executor.map(bench.try_mutant, subjects, [0] * len(subjects))
  tried = [(s, [pair]) for s, pair in zip(subjects, first, strict=True)]
  tried = _capped(_sound(tried, objections), config.per_problem, objections)
  for number in range(1, config.runs):
    again = executor.map(
      bench.try_mutant, [s for s, _ in tried], [number] * len(tried)
    )
    for (_, pairs), pair in zip(tried, again, strict=True):
      pairs.append(pair)
  return tuple(
    humaneval.task(
      subject.problem,
      subject.mutation,
      tests=subject.tests,
      visible_fails=pairs[0][0] is Outcome.FAILED,
      test_command=bench.test_command,
      test_seconds=config.limit_seconds,
    )
    for subject, pairs in _sound(tried, objections)
  )


_Tried = list[tuple[_Mutant, list[tuple[Outcome, Outcome]]]]


def _sound(tried: _Tried, objections: collections.Counter[str]) -> _Tried:
  sound = []
  for subject, pairs in tried:
    objection = objection_to_mutant(*zip(*pairs, strict=True))
    objections[objection] += bool(objection)
    if not objection:
      sound.append((subject, pairs))
  return sound


def _capped(
  tried: _Tried, most: int, objections: collections.Counter[str]
) -> _Tried:
  """The first `most` of each problem; they come spread over the kinds."""
  taken = collections.Counter()
  kept = []
  for subject, pairs in tried:
    taken[subject.problem.id] += 1
    if taken[subject.problem.id] > most:
      objections['enough of this problem'] += 1
    else:
      kept.append((subject, pairs))
  return kept


def describe(report: Report) -> str:
  """Counts by split and kind, candidates per file, and the rejections."""
  tasks = report.tasks
  splits = collections.Counter(task.split for task in tasks)
  kinds = collections.Counter(task.provenance.kind for task in tasks)
  seen = sum(task.provenance.visible_fails for task in tasks)
  candidates = statistics.median(
    len(mutate.mutations(text, humaneval.SOLUTION_FILE))
    for task in tasks
    for text in [task.files[humaneval.SOLUTION_FILE]]
  )
  return '\n'.join(
    (
      f'{len(tasks)} tasks: {_counts(splits)}',
      f'visible tests notice {seen / len(tasks):.1%}',
      f'median of {candidates:g} candidate repairs per file',
      f'kinds: {_counts(kinds)}',
      f'problems rejected: {_counts(report.problems)}',
      f'mutants rejected: {_counts(report.mutants)}',
    )
  )


def _counts(counts: Mapping[str, int]) -> str:
  ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
  return ', '.join(f'{n} {name}' for name, n in ordered)
