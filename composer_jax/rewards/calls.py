"""What an episode did, read off its calls: the one place that knows the tools.

A call that was refused (invalid, denied, cut) did nothing and is not seen here.
"""

from __future__ import annotations

from collections.abc import Iterator
import re

from composer_jax import trajectory
from composer_jax.rewards import shell

TERMINAL = 'run_terminal'
EDITS = frozenset(('edit_file', 'write_file'))
_UNDO = 'undo'
_TESTS = 'run_tests'
_READS = frozenset(('read_file', 'grep', 'semantic_search'))
_FINAL = 'submit'
_TODO = 'todo'
# Names of arguments, by what they hold.
_PATHS = ('path', 'paths', 'glob')
_TEXTS = ('new', 'text', 'content')
_NEVER_RAN = frozenset(
  (
    trajectory.Status.INVALID,
    trajectory.Status.DENIED,
    trajectory.Status.TRUNCATED,
  )
)
_DONE = frozenset(('done', 'completed', 'cancelled'))
_TEST_PROGRAMS = frozenset(('pytest', 'py.test', 'tox', 'nox', 'unittest'))
# Programs that leave files as they are.
_LOOKING = frozenset(
  'awk basename cat cd command cut date df diff dirname du echo egrep export'
  ' false fgrep file grep head less ls man nl od printf ps pwd realpath rg'
  ' sleep sort stat strings tail test tree true type uniq wc which'.split()
)
_WRITING_FIND = frozenset(('-delete', '-exec', '-execdir', '-ok', '-fprint'))

Step = tuple[trajectory.ToolCall, trajectory.ToolResult]


def steps(episode: trajectory.Trajectory) -> Iterator[Step]:
  """(call, result) of the calls that ran, in the order of the episode."""
  for turn in episode.turns:
    for call, result in zip(turn.calls, turn.results, strict=True):
      if result.status not in _NEVER_RAN:
        yield call, result


def succeeded(result: trajectory.ToolResult) -> bool:
  return result.status is trajectory.Status.OK


def read_paths(episode: trajectory.Trajectory) -> Iterator[str]:
  """What reading tools were pointed at, whether or not it was there."""
  for call, _ in steps(episode):
    if call.name in _READS:
      for name in _PATHS:
        for text in _texts(call.arguments.get(name)):
          if not text.startswith('!'):  # A glob of what is left out.
            yield text


def written(episode: trajectory.Trajectory) -> Iterator[tuple[str, str]]:
  """(path, new text) of the edits that took effect."""
  for call, result in steps(episode):
    path = call.arguments.get('path')
    if call.name in EDITS and succeeded(result) and isinstance(path, str):
      for name in _TEXTS:
        for text in _texts(call.arguments.get(name)):
          yield path, text


def commands(episode: trajectory.Trajectory) -> Iterator[shell.Command]:
  """The simple commands that were given to the terminal."""
  for call, _ in steps(episode):
    if call.name == TERMINAL:
      for line in _texts(call.arguments.get('command')):
        yield from shell.commands(line)


def is_test_run(call: trajectory.ToolCall) -> bool:
  """Whether a call runs tests, by their tool or by the terminal."""
  return call.name == _TESTS or any(
    command.program in _TEST_PROGRAMS
    or (
      command.program.startswith('python')
      and not _TEST_PROGRAMS.isdisjoint(command.arguments[1:2])
    )
    for command in _terminal(call)
  )


def last_tests(episode: trajectory.Trajectory) -> trajectory.Status | None:
  """How the tests of the files as they ended went; None if it ran none."""
  status = None
  for call, result in steps(episode):
    if is_test_run(call):
      status = result.status
      if result.exit_code and succeeded(result):
        status = trajectory.Status.ERROR
    elif call.name in {*EDITS, _UNDO} and succeeded(result):
      status = None
    elif _changes_files(call):
      status = None
  return status


def final_message(episode: trajectory.Trajectory) -> str:
  """What the policy said as it handed the work in."""
  message = ''
  for call, _ in steps(episode):
    if call.name == _FINAL:
      message = ' '.join(_texts(call.arguments.get('message')))
  return message


def open_todos(episode: trajectory.Trajectory) -> int:
  """Items of the last to-do list that were neither done nor dropped."""
  items = []
  for call, result in steps(episode):
    if call.name == _TODO and succeeded(result):
      items = call.arguments.get('items') or items  # Empty: only a look.
  if not isinstance(items, list):
    return 0
  return sum(
    isinstance(item, dict) and item.get('status') not in _DONE for item in items
  )


def _texts(value) -> Iterator[str]:
  """The texts in an argument: it is whatever the policy wrote."""
  if isinstance(value, str):
    yield value
  elif isinstance(value, list):
    yield from (item for item in value if isinstance(item, str))


def _terminal(call: trajectory.ToolCall) -> list[shell.Command]:
  if call.name != TERMINAL:
    return []
  lines = _texts(call.arguments.get('command'))
  return [command for line in lines for command in shell.commands(line)]


def _changes_files(call: trajectory.ToolCall) -> bool:
  """Whether a terminal call may leave other files than it found."""
  return any(
    command.writes or not _only_looks(command) for command in _terminal(call)
  )


def _only_looks(command: shell.Command) -> bool:
  if command.program == 'git':
    return shell.git_verb(command) in ('status', 'diff', 'log', 'show', 'blame')
  if command.program == 'find':
    return _WRITING_FIND.isdisjoint(command.words)
  if command.program == 'sed':
    return not any(re.match('-[a-z]*i|--in', word) for word in command.words)
  return command.program in _LOOKING
