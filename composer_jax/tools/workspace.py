"""What a tool works on, and what it answers."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import functools
import hashlib
import io
import json
import posixpath
import tarfile
import threading
from typing import Any

from composer_jax import trajectory
from composer_jax.tools import sandbox

_ROOT = '/repo/'
_REMOVE_SECONDS = 5.0
_FILE_BYTES = 512  # What a file counts besides its text, in `work_bytes`.


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolsConfig:
  """Which tools there are, how often each, and how much they say."""

  allowed: tuple[str, ...] = (
    'read_file',
    'edit_file',
    'undo',
    'run_tests',
    'submit',
  )
  rates: tuple[str, ...] = ()  # 'run_tests=20': most calls in one episode.
  text_chars: int = 2000  # Of one result; more is cut out of its middle.
  tool_chars: tuple[str, ...] = ()  # 'read_file=8000': instead of text_chars.
  terminal_seconds: float = 60.0  # Most that a command in the terminal gets.
  cache_tests: bool = True  # Equal code and tests are run once.
  embedding: str = 'auto'  # Of semantic_search: 'none', 'minilm', or 'auto'.
  vectors: str = ''  # Folder for its vectors; empty: they are not kept.
  work_bytes: int = 2 << 20  # Handed in; beyond it files are left out.

  def __post_init__(self):
    _numbers(self.rates, 'tools.rates')
    _numbers(self.tool_chars, 'tools.tool_chars')

  def named(self) -> frozenset[str]:
    """Every tool that is named here."""
    return frozenset((*self.allowed, *self.most_calls(), *self.most_chars()))

  def most_calls(self) -> dict[str, int]:
    """Calls per episode, of the tools that are limited."""
    return _numbers(self.rates, 'tools.rates')

  def most_chars(self) -> dict[str, int]:
    """Characters per result, of the tools that have a limit of their own."""
    return _numbers(self.tool_chars, 'tools.tool_chars')


def _numbers(entries: Sequence[str], field: str) -> dict[str, int]:
  numbers = {}
  for entry in entries:
    name, _, number = entry.partition('=')
    if not number.isdecimal():
      raise ValueError(f'{field}: {entry!r} is not like run_tests=20')
    numbers[name] = int(number)
  return numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
  """What a tool answers; `registry` makes a ToolResult of it."""

  text: str
  status: trajectory.Status = trajectory.Status.OK
  exit_code: int | None = None
  dropped_bytes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
  """What an episode did to the files, told against those it began with."""

  files: Mapping[str, str]  # Changed or new.
  removed: frozenset[str] = frozenset()


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
    config: ToolsConfig,
    cache: ResultCache | None = None,
    tree: bytes = b'',
  ):
    if task.snapshot and not tree:
      raise ValueError(f'{task.id} starts from the tree {task.snapshot!r}')
    self.task = task
    self.box = box
    self.config = config
    self.cache = cache
    self.edits: list[tuple[str, str | None]] = []  # (path, text before).
    self.todos: list[Mapping[str, str]] = []
    self.message = ''  # What the policy said as it handed the work in.
    self.submitted = False
    self._tree = tree
    self._written = dict(task.files)
    self._shell: sandbox.Shell | None = None
    self._reviving = threading.Lock()
    box.reset(self._written, tree)
    self._start = box.snapshot()

  @property
  def used_terminal(self) -> bool:
    """Whether there may be more to the box than its files."""
    return self._shell is not None

  def refusal(self, path: str) -> str:
    """Why a file may not be written; '' if it may."""
    if not self.task.snapshot:
      own = [p for p in self.task.files if not trajectory.is_test(p)]
      return '' if path in own else f'only {", ".join(own)} can be edited'
    if trajectory.is_test(path):
      return f'{path} belongs to the tests, which cannot be edited'
    return ''

  def revive(self) -> str:
    """Starts a dead box again, with the files as the tools left them.

    Returns:
      What the policy should know of it; '' if there is nothing.
    """
    with self._reviving:
      if self.box.alive:
        return ''
      self.box.reset(self._written, self._tree)
      if not self.used_terminal:
        return ''
      return '[the box broke down: what the terminal did is lost]\n'

  def write(self, path: str, text: str) -> None:
    self.box.write(path, text)
    self._written[path] = text

  def remove(self, path: str) -> None:
    """Removes a file that a tool made."""
    self.box.exec(['rm', '-f', f'./{path}'], seconds=_REMOVE_SECONDS)
    self._written.pop(path, None)

  def shell(self) -> sandbox.Shell:
    """The terminal, which starts anew and says so where it has ended."""
    if self._shell is None:
      self._shell = self.box.shell()
    return self._shell

  def close(self) -> None:
    """Ends the terminal, and what runs in it."""
    if self._shell is not None:
      self._shell.close()

  def snapshot(self) -> bytes | None:
    """The tree as it is; None if the policy made it too large to be read."""
    try:
      return self.box.snapshot()
    except OSError:
      return None

  def texts(self) -> tuple[dict[str, str], dict[str, str | None]]:
    """The files that were text at the start, and what has changed since.

    Of a file that is gone, or is no text any more, the change is None. In a
    tree too large to be read, what the tools wrote is what has changed.
    """
    before, now = self._start_texts, self.snapshot()
    if now == self._start:
      return before, {}
    after = before | self._written if now is None else _texts(_contents(now))
    changes = {p: t for p, t in after.items() if before.get(p) != t}
    return before, changes | dict.fromkeys(before.keys() - after.keys())

  @functools.cached_property
  def _start_texts(self) -> dict[str, str]:
    return _texts(_contents(self._start))

  def final_work(self) -> Work:
    """What was done to the files; ends the terminal first.

    What is no text is left out, and so is what comes beyond `work_bytes`, new
    files before others. A file that cannot be read any more, or is too large
    for it, counts as removed. Of a tree too large to be read there is only
    what the tools wrote.
    """
    self.close()
    self.revive()
    now = self.snapshot()
    if now == self._start:
      return Work(files={})
    before = _contents(self._start)
    if now is None:
      written = {
        p: t.encode('utf-8', 'replace') for p, t in self._written.items()
      }
      after = before | written
    else:
      after = _contents(now)
    changed = {path: d for path, d in after.items() if before.get(path) != d}
    files, room = {}, self.config.work_bytes
    for path, text in sorted(
      _texts(changed).items(), key=lambda item: (item[0] not in before, item)
    ):
      size = len(changed[path]) + _FILE_BYTES
      if size <= room:
        files[path] = text
        room -= size
    return Work(files=files, removed=frozenset(before.keys() - after.keys()))


def relative(path: str) -> str:
  """The path as files are named in a task: `./a`, `/repo/a` and `a` are one."""
  return posixpath.normpath(path.removeprefix(_ROOT) or '.')


def _contents(tree: bytes) -> dict[str, bytes]:
  """The files of a tar archive."""
  with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
    return {
      member.name: archive.extractfile(member).read() for member in archive
    }


def _texts(contents: Mapping[str, bytes]) -> dict[str, str]:
  texts = {}
  for path, data in contents.items():
    try:
      path.encode()
      texts[path] = data.decode()
    except UnicodeError:
      pass
  return texts


def digest(tree: bytes, command: Sequence[str]) -> str:
  """A key for what a command prints, given the files that it can see."""
  key = json.dumps([hashlib.sha256(tree).hexdigest(), list(command)])
  return hashlib.sha256(key.encode()).hexdigest()
