"""Where a task's bug lies: what scripted agents look at, and small policies.

A policy with room for a few hundred tokens cannot search a repository. It is
told which lines to read; everything else it has to find out by itself.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
import dataclasses
import functools
import textwrap
import threading
from typing import NamedTuple

from composer_jax import trajectory
from composer_jax.tasks import mutate

_MOST_LINES = 24  # Of a function that are pointed at.

# CPython 3.11 counts the parser's recursion depth in one place for all threads,
# and fails with SystemError when two of them parse at once.
PARSER = threading.Lock()


class Focus(NamedTuple):
  """Lines of a file, counted from 1; (1, 0) is the whole of it."""

  path: str
  first: int = 1
  last: int = 0

  @property
  def arguments(self) -> dict[str, str | int]:
    """What `read_file` takes to show them."""
    if not self.last:
      return {'path': self.path}
    return {'path': self.path, 'first': self.first, 'last': self.last}

  def of(self, text: str) -> str:
    """These lines of the file's text."""
    lines = text.split('\n')
    return '\n'.join(lines[self.first - 1 : self.last or len(lines)])


def find(task: trajectory.Task) -> Focus:
  """The whole file of a small task, the broken function of a repository."""
  bug = task.provenance.bugs[-1]
  if not task.snapshot:
    return Focus(bug.path)
  text = task.files[bug.path]
  line = _line(text, bug.inverse())
  first, last = _function(text, line)
  if last - first >= _MOST_LINES:
    first = max(first, min(line - _MOST_LINES // 2, last - _MOST_LINES + 1))
    last = first + _MOST_LINES - 1
  return Focus(bug.path, first, last)


@functools.lru_cache(maxsize=4096)
def candidates(text: str, focus: Focus) -> tuple[trajectory.Edit, ...]:
  """The single edits of these lines that a scripted agent considers."""
  with PARSER:
    found = mutate.mutations(text, focus.path)
  last = focus.last or text.count('\n') + 1
  return tuple(
    mutation.edit
    for mutation in found
    if focus.first <= _line(text, mutation.edit) <= last
  )


def point(task: trajectory.Task) -> trajectory.Task:
  """The task with a prompt that says no more than where to look."""
  path, first, last = find(task)
  lines = f', lines {first} to {last}' if last else ''
  return dataclasses.replace(task, prompt=f'Repair {path}{lines}.')


def originals(tasks: Sequence[trajectory.Task]) -> list[str]:
  """The broken functions, or small files, as they were before; each once."""
  texts = {}
  for task in tasks:
    bug = task.provenance.bugs[-1]
    text = task.files[bug.path]
    for edit in task.provenance.fix:
      if edit.path == bug.path:
        text = edit.apply(text)
    if task.snapshot:
      text = Focus(bug.path, *_function(text, _line(text, bug))).of(text)
    texts[textwrap.dedent(text)] = None
  return list(texts)


def _line(text: str, edit: trajectory.Edit) -> int:
  """The line in which an edit begins that applies to the text."""
  return text.count('\n', 0, text.index(edit.old)) + 1


def _function(text: str, line: int) -> tuple[int, int]:
  """First and last line of the innermost function around a line."""
  with PARSER:
    tree = ast.parse(text)
  around = [
    (node.lineno, node.end_lineno)
    for node in ast.walk(tree)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    and node.lineno <= line <= node.end_lineno
  ]
  return max(around, default=(line, line))
