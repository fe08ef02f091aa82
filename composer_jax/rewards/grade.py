"""Whether the work is right: the hidden tests, in a box emptied for them.

Guards against code that ends the process early, hangs, or changes its tests.
Not covered: code that searches the grading process for the nonce on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import hashlib
import json
import secrets
from typing import Any, Protocol

from composer_jax import trajectory

_BUSY = 0.5  # A timeout that computed this share of its time is no accident.


class Result(Protocol):
  """How a command ended."""

  exit_code: int | None
  output: str
  cpu_seconds: float
  timed_out: bool


class Box(Protocol):
  """A place to run code in."""

  def reset(self, files: Mapping[str, str]) -> None:
    """Empties the box and writes these files."""

  def exec(
    self, command: Sequence[str], *, seconds: float, stdin: str = ''
  ) -> Result:
    """Runs a command."""


class Cache(Protocol):
  """Verdicts on equal work."""

  def get(self, key: str) -> Any | None:
    """The verdict under this key, or None."""

  def put(self, key: str, result: Any) -> None:
    """Keeps a verdict."""


def grade(
  task: trajectory.Task,
  final_files: Mapping[str, str],
  box: Box,
  cache: Cache | None = None,
) -> bool:
  """Whether `final_files` pass the task's hidden tests.

  The grading command reads a random nonce from its standard input before it
  imports any of the work, and prints it last. So an exit status of 0 alone,
  which the work can cause by itself, proves nothing.

  Args:
    task: what was asked for. Its tests are taken from here, never from the
      work.
    final_files: the work; files that the task lacks, and tests, are ignored.
    box: emptied before use, never after.
    cache: verdicts of earlier calls, shared between threads.
  """
  files = dict(task.files)
  for path, text in final_files.items():
    if path in files and not trajectory.is_test(path):
      files[path] = text
  files.update(task.hidden_files)
  key = _digest(files, task.grade_command)
  if cache is not None:
    known = cache.get(key)
    if known is not None:
      return known
  nonce = secrets.token_hex(8)
  box.reset(files)
  result = box.exec(
    task.grade_command, seconds=task.test_seconds, stdin=nonce + '\n'
  )
  last_line = result.output.strip().rpartition('\n')[2]
  solved = result.exit_code == 0 and last_line == nonce
  busy = result.cpu_seconds >= _BUSY * task.test_seconds
  if cache is not None and (result.exit_code is not None or busy):
    cache.put(key, solved)
  return solved


def _digest(files: Mapping[str, str], command: Sequence[str]) -> str:
  text = json.dumps(['grade', sorted(files.items()), list(command)])
  return hashlib.sha256(text.encode()).hexdigest()
