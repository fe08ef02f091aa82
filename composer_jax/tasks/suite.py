"""What the tests of a package say about its correct code, and whom they touch.

Answers are those of `trial_runner.py`. A test is trusted if it passes in every
run of the correct code, quickly. Those that are not are deselected by name, and
with them, as pytest has it, every test whose name begins alike.

Which tests a change can reach is read from a trace: those that executed the
changed function. All of them where it also ran outside of single tests (on
import, in a fixture that several share), and always those that start processes,
which a trace does not follow. What a test does not execute cannot change it,
but through a cache that outlives a test, or a look at the source text.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import math
from typing import Any

from composer_jax import trajectory
from composer_jax.tasks import packages

SLOW_SECONDS = 4.0  # A test beyond that is left out.
FEWEST_TESTS = 5
LEAST_SHARE = 0.6  # Of a suite that must pass.
MOST_FAILING = 0.3  # Of the trusted tests may fail for a task.
FAILURE_SECONDS = 0.05  # Of the processor, to show one failure in a long file.
_OUTSIDE = -1  # See trial_runner.Tracer.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite:
  """The trusted tests of a package."""

  seconds: Mapping[str, float]  # Of every trusted test.
  excluded: Mapping[str, str]  # Test or test file: why it is not trusted.
  cpu: float  # Processor seconds of a run of all.
  reached: Mapping[str, frozenset[str]]  # 'path:line' of code: tests.
  everywhere: frozenset[str]  # Tests that may execute anything.
  outside: frozenset[str]  # 'path:line' of code that ran outside of tests.

  @property
  def tests(self) -> frozenset[str]:
    return frozenset(self.seconds)

  def reaching(self, path: str, lines: Sequence[range]) -> frozenset[str]:
    """The tests that code on these lines of a file can change."""
    places = [f'{path}:{line}' for span in lines for line in span]
    if not self.outside.isdisjoint(places):
      return self.tests
    reached = (self.reached[place] for place in places if place in self.reached)
    found = frozenset().union(*reached)
    return found | self.everywhere if found else found

  def files(self, tests: Iterable[str]) -> tuple[str, ...]:
    """The files in which these tests are."""
    return tuple(sorted({test.partition('::')[0] for test in tests}))

  def deselections(self, files: Iterable[str]) -> tuple[str, ...]:
    """Arguments of pytest that leave out what is not trusted in these files."""
    files = frozenset(files)
    return tuple(
      f'--deselect={test}'
      for test in sorted(self.excluded)
      if test.partition('::')[0] in files
    )

  def limit(self, tests: Iterable[str]) -> int:
    """Processor seconds beyond which broken code hangs in these tests.

    Five times those of correct code, and what pytest takes to show failures.
    """
    tests = list(tests)
    slowest = sum(self.seconds[test] for test in tests)
    failures = self.most_failing(len(tests)) * FAILURE_SECONDS
    return math.ceil(5 * min(slowest, self.cpu) + failures) + 3

  def most_failing(self, reached: int) -> int:
    """How many of so many tests may fail for a task."""
    return min(reached, int(MOST_FAILING * len(self.seconds)))


def of_answers(answers: Sequence[Mapping[str, Any] | None]) -> Suite:
  """The suite, from runs of all tests on correct code; the first is traced.

  Raises:
    UnfitError: there are too few tests to trust, with the reason.
  """
  if any(answer is None for answer in answers):
    raise packages.UnfitError(
      'its tests hang, or end the process that runs them'
    )
  excluded = _excluded(answers)
  first, *others = answers
  names = set().union(*(answer['tests'] for answer in answers))
  seconds = {
    test: max(answer['seconds'].get(test, 0.0) for answer in others or [first])
    for test in sorted(names)
    if '::' in test and not test.startswith(tuple(excluded) or ('\0',))
  }
  if len(seconds) < max(FEWEST_TESTS, LEAST_SHARE * len(names)):
    some = '; '.join(f'{t}: {r}' for t, r in list(excluded.items())[:3])
    raise packages.UnfitError(
      f'{len(seconds)} of {len(names)} tests can be trusted ({some})'
    )
  order = first['order']
  reached, outside = {}, set()
  for place, indices in first['executed'].items():
    if trajectory.is_test(place.rpartition(':')[0]):
      continue
    reached[place] = frozenset(
      order[i] for i in indices if i != _OUTSIDE and order[i] in seconds
    )
    if _OUTSIDE in indices:
      outside.add(place)
  processes = {order[i] for i in first['processes'] if i != _OUTSIDE}
  return Suite(
    seconds=seconds,
    excluded=excluded,
    cpu=max(answer['cpu'] for answer in others or [first]),
    reached=reached,
    everywhere=frozenset(processes & set(seconds)),
    outside=frozenset(outside),
  )


def _excluded(answers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
  excluded = {}
  for test in sorted(set().union(*(answer['tests'] for answer in answers))):
    outcomes = {answer['tests'].get(test, 'missing') for answer in answers}
    slowest = min(answer['seconds'].get(test, 0.0) for answer in answers)
    if '::' not in test:
      excluded[test] = 'does not import'
    elif len(outcomes) > 1:
      excluded[test] = 'flaky'
    elif outcomes != {'passed'}:
      excluded[test] = outcomes.pop()
    elif slowest > SLOW_SECONDS:
      excluded[test] = 'slow'
  return excluded


def to_json(suite: Suite) -> dict[str, Any]:
  return {
    'seconds': dict(suite.seconds),
    'excluded': dict(suite.excluded),
    'cpu': suite.cpu,
    'reached': {place: sorted(tests) for place, tests in suite.reached.items()},
    'everywhere': sorted(suite.everywhere),
    'outside': sorted(suite.outside),
  }


def from_json(record: Mapping[str, Any]) -> Suite:
  return Suite(
    seconds=record['seconds'],
    excluded=record['excluded'],
    cpu=record['cpu'],
    reached={p: frozenset(tests) for p, tests in record['reached'].items()},
    everywhere=frozenset(record['everywhere']),
    outside=frozenset(record['outside']),
  )
