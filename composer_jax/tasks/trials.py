"""From a candidate to a task: which verdicts count, what is shown, what hidden.

A candidate becomes a task if it breaks some of the trusted tests, but not too
many, in every run alike, and neither hangs nor keeps a test file from being
read. Its grading command runs the files of all tests that it can reach; tests
that fail there are what the work must mend, the others what it must not break.
"""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
import hashlib
import math
from typing import Any

from composer_jax import trajectory
from composer_jax.tasks import candidates as candidates_lib
from composer_jax.tasks import definitions
from composer_jax.tasks import excerpts
from composer_jax.tasks import packages
from composer_jax.tasks import suite as suite_lib

_EMPTY_FILE = '# The tests that were here are not shown.\n'
_CLOCK = 20  # Seconds on the clock allowed for one of processor time.
_LEAST_SECONDS = 5.0  # Limit of a task's commands.
# Shares of the tasks whose failing tests are all shown, shown in part, and
# hidden with the rest of their files; the others hide all that fail.
_ALL_SHOWN, _SOME_SHOWN, _FILES_HIDDEN = 15, 65, 80


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
  """A package with its tree and what its tests say."""

  package: packages.Package
  licence: str
  snapshot: str
  texts: Mapping[str, str]
  suite: suite_lib.Suite
  runner: tuple[str, ...]  # Command that runs pytest in a box.
  split: str

  def command(self, files: Collection[str]) -> tuple[str, ...]:
    """Runs the trusted tests of these files."""
    return (
      *self.runner,
      *self.package.paths,
      *self.suite.deselections(files),
      *files,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parts:
  """What of the failing tests is shown."""

  files: Mapping[str, str]  # Test files as the policy sees them.
  hidden_files: Mapping[str, str]  # The same as they are.
  hidden: frozenset[str]  # Functions of failing tests that are not shown.
  shown: tuple[str, ...]  # Test files that the visible command runs.


def quick_job(
  subject: Subject, candidate: candidates_lib.Candidate
) -> dict[str, Any]:
  """A job of the trial runner: the tests that the candidate can reach."""
  suite = subject.suite
  tests = suite.reaching(candidate.path, candidate.lines)
  files = suite.files(tests)
  enough = suite.most_failing(len(tests)) + 1  # Then it breaks too much.
  return job(
    {candidate.path: candidate.broken(subject.texts[candidate.path])},
    [f'--maxfail={enough}', *suite.deselections(files), *files],
    subject.package,
    only=sorted(tests),
    cpu=suite.limit(tests),
  )


def job(
  files: Mapping[str, str],
  arguments: Sequence[str],
  package: packages.Package,
  *,
  cpu: int,
  only: Sequence[str] | None = None,
  trace: bool = False,
) -> dict[str, Any]:
  """A job of the trial runner; a busy machine may take long for it."""
  return {
    'files': dict(files),
    'arguments': list(arguments),
    'paths': [package.path] if package.path else [],
    'only': only,
    'cpu': cpu,
    'wall': _CLOCK * cpu,
    'trace': trace,
  }


def failing(tests: Mapping[str, str]) -> frozenset[str]:
  return frozenset(t for t, o in tests.items() if o in ('failed', 'error'))


def objection(subject: Subject, answer: Mapping[str, Any] | None) -> str:
  """Why a candidate with this answer makes no task; '' if it may."""
  if answer is None:
    return 'hangs'
  failed = failing(answer['tests'])
  if any('::' not in test for test in failed):
    return 'does not import'
  if not failed:
    return 'unnoticed'
  tests = subject.suite.tests
  if len(failed) > subject.suite.most_failing(len(tests)):
    return 'breaks too much'
  return ''


def parts(
  subject: Subject,
  candidate: candidates_lib.Candidate,
  failed: Collection[str],
) -> Parts:
  """Draws what is shown of the failing tests; the same every time.

  Tests that a class inherits are shown unless their whole file is hidden.
  """
  texts = subject.texts
  by_function = sorted({excerpts.function_of(test) for test in failed})
  lot = int(candidate.key, 16)
  by_function.sort(
    key=lambda f: hashlib.sha256(f'{candidate.key} {f}'.encode()).digest()
  )
  files = graded_files(subject, candidate)
  broken_files = sorted({path for path, _ in by_function})
  draw = lot % 100
  hidden, emptied = by_function, []
  if draw < _ALL_SHOWN:
    hidden = []
  elif draw < _SOME_SHOWN and len(by_function) > 1:
    hidden = by_function[: 1 + lot // 100 % (len(by_function) - 1)]
  elif draw >= _FILES_HIDDEN and len(broken_files) < len(files):
    emptied = [path for path in broken_files if path in texts]
  spelled = {
    path: excerpts.written(texts.get(path, '')) for path in broken_files
  }
  hidden = [(path, name) for path, name in hidden if name in spelled[path]]
  reduced = {path: _EMPTY_FILE for path in emptied}
  for path in sorted({path for path, _ in hidden} - set(emptied)):
    names = {name for file, name in hidden if file == path}
    reduced[path] = excerpts.without(texts[path], names)
  return Parts(
    files=reduced,
    hidden_files={path: texts[path] for path in reduced},
    hidden=frozenset('::'.join(function) for function in hidden),
    shown=tuple(path for path in files if path not in emptied),
  )


def task(
  subject: Subject,
  candidate: candidates_lib.Candidate,
  *,
  shown: Parts,
  visible: Mapping[str, Any],
  failed: Collection[str],
  gold: Mapping[str, str],
  cpu: float,
) -> trajectory.Task:
  """The task of a candidate that passed its trials.

  Args:
    subject: the package.
    candidate: how it is broken.
    shown: what is shown of its tests.
    visible: answer of the trial runner to the visible tests on broken code.
    failed: what fails of the tests that grade it.
    gold: outcomes of the grading command on correct code.
    cpu: processor seconds of that.
  """
  path = candidate.path
  passed = {test for test, outcome in gold.items() if outcome == 'passed'}
  shows = len(failed) * suite_lib.FAILURE_SECONDS
  limit = max(_LEAST_SECONDS, float(math.ceil(5 * (cpu + shows))))
  return trajectory.Task(
    id=f'{subject.package.name}/{candidate.key[:12]}',
    prompt=_prompt(subject, candidate, visible),
    files={path: candidate.broken(subject.texts[path]), **shown.files},
    test_command=subject.command(shown.shown),
    hidden_files=shown.hidden_files,
    grade_command=subject.command(graded_files(subject, candidate)),
    provenance=trajectory.Provenance(
      package=subject.package.requirement,
      licence=subject.licence,
      problem=subject.package.name,
      kind=candidate.kind,
      bugs=candidate.bugs,
      visible_fails=bool(failing(visible['tests'])),
    ),
    split=subject.split,
    test_seconds=limit,
    snapshot=subject.snapshot,
    fail_to_pass=tuple(sorted(failed)),
    pass_to_pass=tuple(sorted(passed & subject.suite.tests - set(failed))),
  )


def _prompt(
  subject: Subject,
  candidate: candidates_lib.Candidate,
  visible: Mapping[str, Any],
) -> str:
  if candidate.kind in candidates_lib.DELETIONS:
    return _feature_request(subject, candidate)
  return _bug_report(subject, candidate, visible)


def _feature_request(
  subject: Subject, candidate: candidates_lib.Candidate
) -> str:
  known = {
    f.name: f for f in definitions.functions(subject.texts[candidate.path])
  }
  names = ', '.join(f'`{name}`' for name in candidate.names)
  lines = [
    f'Implement {names} in {candidate.path}: the body is missing'
    ' (`raise NotImplementedError`).'
  ]
  for name in candidate.names:
    lines += ['', known[name].header]
    summary = known[name].docstring.strip().partition('\n\n')[0]
    if summary:
      lines.append(f'{known[name].indent}"""{summary}"""')
  files = ', '.join(graded_files(subject, candidate))
  lines += ['', f'Tests: {files}. There are more than are shown.']
  return '\n'.join(lines)


def _bug_report(
  subject: Subject,
  candidate: candidates_lib.Candidate,
  visible: Mapping[str, Any],
) -> str:
  """The first test that is seen to fail, or else the function."""
  bugs = 'a bug' if len(candidate.bugs) == 1 else f'{len(candidate.bugs)} bugs'
  failed = sorted(failing(visible['tests']))
  head = f'{subject.package.name} has {bugs}.'
  if not failed:
    names = ', '.join(f'`{name}`' for name in candidate.names)
    return (
      f'{head} Users report wrong results of {names} in {candidate.path}; no'
      ' test shows it yet. Repair it.'
    )
  reason = _reason(visible['errors'].get(failed[0], ''))
  more = f' and {len(failed) - 1} more tests' if len(failed) > 1 else ''
  return '\n'.join(
    filter(None, (f'{head} {failed[0]}{more} failed:', reason, 'Repair it.'))
  )


def _reason(error: str) -> str:
  """The lines of a traceback that say what was wrong."""
  lines = [line[1:].strip() for line in error.split('\n') if line[:2] == 'E ']
  return '\n'.join(f'  {line}' for line in lines[:3])


def graded_files(
  subject: Subject, candidate: candidates_lib.Candidate
) -> tuple[str, ...]:
  """The test files that grade a candidate: of all tests that it can reach."""
  suite = subject.suite
  return suite.files(suite.reaching(candidate.path, candidate.lines))


def graded_job(
  subject: Subject, candidate: candidates_lib.Candidate
) -> dict[str, Any]:
  """A job of the trial runner: all trusted tests of the files that grade."""
  suite, files = subject.suite, graded_files(subject, candidate)
  return job(
    {candidate.path: candidate.broken(subject.texts[candidate.path])},
    [*suite.deselections(files), *files],
    subject.package,
    cpu=suite.limit(suite.tests),
  )


def visible_job(
  subject: Subject, candidate: candidates_lib.Candidate, shown: Parts
) -> dict[str, Any]:
  """A job of the trial runner: the visible tests of a broken file."""
  suite = subject.suite
  broken = candidate.broken(subject.texts[candidate.path])
  return job(
    {candidate.path: broken, **shown.files},
    [*suite.deselections(shown.shown), *shown.shown],
    subject.package,
    cpu=suite.limit(suite.tests),
  )


def objection_to_repeats(
  quick: Mapping[str, Any],
  graded: Mapping[str, Any] | None,
  visible: Mapping[str, Any] | None,
) -> str:
  """Why a sound candidate with these further answers makes no task, or ''."""
  if graded is None or visible is None:
    return 'hangs'
  if failing(graded['tests']) != failing(quick['tests']):
    return 'flaky'
  if any('::' not in test for test in failing(visible['tests'])):
    return 'visible tests do not import'
  return ''
