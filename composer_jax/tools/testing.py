"""The tool that runs the visible tests."""

from __future__ import annotations

import collections
from collections.abc import Sequence
import json

from composer_jax import trajectory
from composer_jax.tools import isolation
from composer_jax.tools import sandbox
from composer_jax.tools import workspace as workspace_lib

# A run that was stopped counts as a property of the code, not of a busy
# machine, once it has computed for this share of its time.
_BUSY = 0.5
_PYTEST = ('python', isolation.PYTEST_RUNNER)
_OUTCOMES = ('passed', 'failed', 'error', 'skipped')
_TRACEBACKS = 5  # Shown; of more failures, the names.
_TRACEBACK_CHARS = 600  # Of one; its end is kept.
_NAMES = 30  # Failures that are named.

Answer = workspace_lib.Answer
Status = trajectory.Status


def run_tests(
  workspace: workspace_lib.Workspace, tests: Sequence[str]
) -> Answer:
  """Runs the task's test command, or some of its tests, on the files."""
  task, cache = workspace.task, workspace.cache
  command = tuple(task.test_command)
  if tests and command[:2] != _PYTEST:
    return Answer(
      text='the tests here run all together: leave `tests` out',
      status=Status.ERROR,
    )
  if tests:
    options = [word for word in command[2:] if word.startswith('-')]
    command = (*_PYTEST, *options, *map(_node, tests))
  # What a terminal did may show elsewhere than in the files.
  tree = None
  if cache is not None and not workspace.used_terminal:
    tree = workspace.snapshot()
  if tree is None:
    return _run(workspace, command)[0]
  key = workspace_lib.digest(tree, (*command, str(task.test_seconds)))
  answer = cache.get(key)
  if answer is None:
    answer, repeats = _run(workspace, command)
    if repeats:
      cache.put(key, answer)
  return answer


def _node(test: str) -> str:
  """The test as pytest names it; never an option."""
  path, colons, name = test.partition('::')
  path = workspace_lib.relative(path)
  return ('./' if path.startswith('-') else '') + path + colons + name


def _run(
  workspace: workspace_lib.Workspace, command: Sequence[str]
) -> tuple[Answer, bool]:
  """The answer, and whether equal files would bring it again."""
  limit, named = workspace.task.test_seconds, command[:2] == _PYTEST
  result = workspace.box.exec(command, seconds=limit, report=named)
  busy = result.cpu_seconds >= _BUSY * limit
  repeats = result.exit_code is not None or (result.timed_out and busy)
  text, status = result.output.removesuffix('\n'), Status.ERROR
  if result.timed_out:
    status = Status.TIMEOUT
    text = f'{text}\ntimed out after {limit:g} s'.lstrip('\n')
  elif named:
    text, well = _summary(result)
    status = Status.OK if well else Status.ERROR
  elif result.exit_code == 0:
    status = Status.OK
  answer = Answer(
    text=text,
    status=status,
    exit_code=result.exit_code,
    dropped_bytes=result.dropped_bytes,
  )
  return answer, repeats


def _summary(result: sandbox.RunResult) -> tuple[str, bool]:
  """What pytest's report says, and whether all is well."""
  report = _parse(result.report)
  if report is None:
    said = [result.output.strip('\n'), '[the tests ended without a report]']
    return '\n'.join(filter(None, said)), False
  tests, errors = report
  counts = collections.Counter(tests.values())
  lines = [', '.join(f'{counts[o]} {o}' for o in _OUTCOMES if counts[o])]
  bad = [name for name, o in tests.items() if o in ('failed', 'error')]
  for name in bad[:_TRACEBACKS]:
    trace = errors.get(name, '')[-_TRACEBACK_CHARS:].strip('\n')
    lines += [f'{tests[name].upper()} {name}', *([trace] if trace else [])]
  for name in bad[_TRACEBACKS:_NAMES]:
    lines.append(f'{tests[name].upper()} {name}')
  if len(bad) > _NAMES:
    lines.append(f'[{len(bad) - _NAMES} more]')
  if result.exit_code and not bad:  # Nothing collected, or a name unknown.
    lines.append(result.output.strip('\n'))
  return '\n'.join(filter(None, lines)), result.exit_code == 0 and not bad


def _parse(report: str) -> tuple[dict[str, str], dict[str, str]] | None:
  """(outcomes, tracebacks) by test; None if the tested code broke it."""
  try:
    fields = json.loads(report)
    tests, errors = fields['tests'], fields['errors']
  except (ValueError, KeyError, TypeError, RecursionError):
    return None
  for texts in (tests, errors):
    if not isinstance(texts, dict):
      return None
    if not all(isinstance(text, str) for text in texts.values()):
      return None
  return tests, errors
