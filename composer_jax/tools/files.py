"""Tools on files: read, write, edit, undo."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import re

from composer_jax import trajectory
from composer_jax.tools import workspace as workspace_lib

_OPENING = re.compile(r'(\s*[rR]?)("""|\'\'\')')
_NO_CHARACTER = '\ufffd'  # What invalid UTF-8 is read as.

Answer = workspace_lib.Answer
Workspace = workspace_lib.Workspace


def read_file(
  workspace: Workspace,
  path: str,
  first: int,
  last: int,
  full: bool,
  numbers: bool,
) -> Answer:
  """The text; docstrings folded to one line unless `full` or a range."""
  path = workspace_lib.relative(path)
  try:
    text = workspace.box.read(path)
  except OSError as error:
    return _error(f'{path}: {error.strerror}')
  if '\0' in text:
    return _error(f'{path} is no text: {len(text)} characters with zeros')
  lines = text.split('\n')
  length = len(lines) - (lines[-1] == '')
  header = ''
  if (first, last) == (1, 0):
    shown = list(enumerate(lines, 1) if full else _folded(lines))
  elif first > length or 0 < last < first:
    return _error(f'{path} has {length} lines; none from {first} to {last}')
  else:
    stop = min(last or length, length)
    shown = list(enumerate(lines[:stop], 1))[first - 1 :]
    header = f'[lines {first} to {stop} of {length}]\n'
  if numbers:
    if shown[-1] == (len(lines), ''):
      shown.pop()  # After the last line there is no other.
    width = len(str(length))
    return Answer(
      text=header + '\n'.join(f'{n:{width}}\t{line}' for n, line in shown)
    )
  body = '\n'.join(line for _, line in shown)
  return Answer(text=header + body if header else body.strip('\n'))


def fold_docstrings(text: str) -> str:
  """Shows each string that fills several lines as one, as editors do.

  Works line by line, not on the syntax tree: a file that an edit broke is still
  shown folded.
  """
  return '\n'.join(line for _, line in _folded(text.split('\n')))


def write_file(workspace: Workspace, path: str, text: str) -> Answer:
  """Makes a file, or replaces all that it holds."""
  path = workspace_lib.relative(path)
  refusal = workspace.refusal(path)
  if refusal:
    return Answer(text=refusal, status=trajectory.Status.DENIED)
  try:
    before = workspace.box.read(path)
  except FileNotFoundError:
    before = None
  except OSError as error:
    return _error(f'{path}: {error.strerror}')
  return _replace(workspace, path, before, text)


def edit_file(workspace: Workspace, path: str, old: str, new: str) -> Answer:
  """Replaces `old`, which occurs once in the file, by `new`."""
  path = workspace_lib.relative(path)
  refusal = workspace.refusal(path)
  if refusal:
    return Answer(text=refusal, status=trajectory.Status.DENIED)
  try:
    before = workspace.box.read(path)
    after = trajectory.Edit(path, old, new).apply(before)
  except ValueError as error:
    return _error(str(error))
  except OSError as error:
    return _error(f'{path}: {error.strerror}')
  return _replace(workspace, path, before, after)


def undo(workspace: Workspace) -> Answer:
  """Takes the last write or edit back that was not yet taken back."""
  if not workspace.edits:
    return _error('nothing to undo')
  path, before = workspace.edits.pop()
  try:
    if before is None:
      workspace.remove(path)
    else:
      workspace.write(path, before)
  except OSError as error:
    return _error(f'{path}: {error.strerror}')
  return Answer(text='ok')


def _replace(
  workspace: Workspace, path: str, before: str | None, after: str
) -> Answer:
  if before is not None and _NO_CHARACTER in before:
    return _error(f'{path} is not valid UTF-8: it would be damaged')
  try:
    workspace.write(path, after)
  except OSError as error:
    return _error(f'{path}: {error.strerror}')
  workspace.edits.append((path, before))
  return Answer(text='ok')


def _error(text: str) -> Answer:
  return Answer(text=text, status=trajectory.Status.ERROR)


def _folded(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
  """(number, line) where each string of several lines is one line."""
  i = 0
  while i < len(lines):
    line, last = lines[i], _last_line(lines, i)
    if last > i:
      indent, quotes = _OPENING.match(line).groups()
      line = f'{indent}{quotes}...{quotes}'
    yield i + 1, line
    i = last + 1


def _last_line(lines: Sequence[str], first: int) -> int:
  """Index of the line that ends the string which starts line `first`.

  `first` itself where no string starts, or where it ends on that line, never,
  or with code behind it.
  """
  opening = _OPENING.match(lines[first])
  if opening is None or opening[2] in lines[first][opening.end() :]:
    return first
  for i in range(first + 1, len(lines)):
    _, end, rest = lines[i].partition(opening[2])
    if end:
      return i if not rest.strip() else first
  return first
