"""Tools on files: read, edit, undo, search."""

from __future__ import annotations

import re

from composer_jax import trajectory
from composer_jax.tools import isolation
from composer_jax.tools import workspace as workspace_lib

_GREP_SECONDS = 5.0
_GREP_COLUMNS = 200
_OPENING = re.compile(r'(\s*[rR]?)("""|\'\'\')')

Answer = workspace_lib.Answer
Workspace = workspace_lib.Workspace


def read_file(workspace: Workspace, path: str, full: bool) -> Answer:
  """The text; docstrings folded to one line unless `full`."""
  try:
    text = workspace.box.read(path)
  except OSError as error:
    return _error(f'{path}: {error.strerror}')
  if not full:
    text = fold_docstrings(text)
  return Answer(text=text.strip('\n'))


def fold_docstrings(text: str) -> str:
  """Shows each string that fills several lines as one, as editors do.

  Works line by line, not on the syntax tree: a file that an edit broke is still
  shown folded.
  """
  lines = text.split('\n')
  shown, i = [], 0
  while i < len(lines):
    line, last = lines[i], _last_line(lines, i)
    if last > i:
      indent, quotes = _OPENING.match(line).groups()
      line = f'{indent}{quotes}...{quotes}'
    shown.append(line)
    i = last + 1
  return '\n'.join(shown)


def edit_file(workspace: Workspace, path: str, old: str, new: str) -> Answer:
  """Replaces `old`, which occurs once in the file, by `new`."""
  if path not in workspace.editable:
    return Answer(
      text=f'only {", ".join(workspace.editable)} can be edited',
      status=trajectory.Status.DENIED,
    )
  try:
    before = workspace.box.read(path)
    after = trajectory.Edit(path, old, new).apply(before)
    workspace.write(path, after)
  except ValueError as error:
    return _error(str(error))
  except OSError as error:
    return _error(f'{path}: {error.strerror}')
  workspace.edits.append((path, before))
  return Answer(text='ok')


def undo(workspace: Workspace) -> Answer:
  """Takes the last edit back that was not yet taken back."""
  if not workspace.edits:
    return _error('nothing to undo')
  path, before = workspace.edits.pop()
  try:
    workspace.write(path, before)
  except OSError as error:
    return _error(f'{path}: {error.strerror}')
  return Answer(text='ok')


def grep(workspace: Workspace, pattern: str) -> Answer:
  """The lines that match a regular expression, as `path:line:text`."""
  result = workspace.box.exec(
    [
      isolation.RIPGREP,
      *('--no-config', '--line-number', '--no-heading', '--sort=path'),
      f'--max-columns={_GREP_COLUMNS}',
      f'--regexp={pattern}',
      '.',
    ],
    seconds=_GREP_SECONDS,
  )
  if result.timed_out:
    return Answer(text='timed out', status=trajectory.Status.TIMEOUT)
  if result.exit_code == 1:
    return Answer(text='no match', exit_code=1)
  status = trajectory.Status.ERROR
  if result.exit_code == 0:
    status = trajectory.Status.OK
  return Answer(
    text=result.output.removesuffix('\n').replace('./', ''),
    status=status,
    exit_code=result.exit_code,
    dropped_bytes=result.dropped_bytes,
  )


def submit(workspace: Workspace) -> Answer:
  """Ends the episode."""
  workspace.submitted = True
  return Answer(text='submitted')


def _error(text: str) -> Answer:
  return Answer(text=text, status=trajectory.Status.ERROR)


def _last_line(lines: list[str], first: int) -> int:
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
