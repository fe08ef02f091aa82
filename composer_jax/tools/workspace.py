"""What a tool works on, and what it answers."""

from __future__ import annotations

import collections
from collections.abc import Mapping
import dataclasses
import hashlib
import json
import threading
from typing import Any

from composer_jax import trajectory
from composer_jax.tools import sandbox


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolsConfig:
  """Which tools there are, and how much they say."""

  allowed: tuple[str, ...] = (
    'read_file',
    'edit_file',
    'undo',
    'run_tests',
    'submit',
  )
  text_chars: int = 2000  # Of one result; more is cut out of its middle.
  cache_tests: bool = True  # Equal code and tests are run once.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
  """What a tool answers; `registry` makes a ToolResult of it."""

  text: str
  status: trajectory.Status = trajectory.Status.OK
  exit_code: int | None = None
  dropped_bytes: int = 0


class ResultCache:
  """Results of runs whose inputs were equal. Any thread may use it."""

  def __init__(self, size: int = 65536):
    self._size = size
    self._lock = threading.Lock()
    self._results: collections.OrderedDict[str, Any] = collections.OrderedDict()
    self.hits = 0
    self.misses = 0

  def get(self, key: str) -> Any | None:
    """The result under `key`, or None; counted as a hit or a miss."""
    with self._lock:
      if key not in self._results:
        self.misses += 1
        return None
      self.hits += 1
      self._results.move_to_end(key)
      return self._results[key]

  def put(self, key: str, result: Any) -> None:
    """Keeps a result; beyond `size` the least recently used one goes."""
    with self._lock:
      self._results[key] = result
      self._results.move_to_end(key)
      if len(self._results) > self._size:
        self._results.popitem(last=False)


class Workspace:
  """One task in one box: the files as they stand, and the edits so far.

  The box is the truth about the files. What the tools wrote is remembered too,
  so that a box which the policy's code brought down is filled again.
  """

  def __init__(
    self,
    task: trajectory.Task,
    box: sandbox.Box,
    cache: ResultCache | None = None,
  ):
    self.task = task
    self.box = box
    self.cache = cache
    self.edits: list[tuple[str, str]] = []  # (path, text before), in order.
    self.submitted = False
    self._written = dict(task.files)
    box.reset(self._written)

  @property
  def editable(self) -> tuple[str, ...]:
    return tuple(p for p in self.task.files if not trajectory.is_test(p))

  def revive(self) -> None:
    """Starts a dead box again, with the files as the tools left them."""
    if not self.box.alive:
      self.box.reset(self._written)

  def write(self, path: str, text: str) -> None:
    self.box.write(path, text)
    self._written[path] = text

  def final_files(self) -> dict[str, str]:
    """The editable files as they are now; one that was removed is missing."""
    self.revive()
    files = {}
    for path in self.editable:
      try:
        files[path] = self.box.read(path)
      except OSError:
        pass
    return files


def digest(files: Mapping[str, str], command: tuple[str, ...]) -> str:
  """A key for what a command prints, given the files it can see."""
  text = json.dumps([sorted(files.items()), list(command)])
  return hashlib.sha256(text.encode()).hexdigest()
