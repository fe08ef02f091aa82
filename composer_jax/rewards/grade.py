"""Whether the work is right: the hidden tests, in a box emptied for them.

Guards against code that ends the process early, hangs, changes its tests, or
puts itself between the tests and what they import. Not covered: code that
searches the grading process for the nonce on purpose.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
import dataclasses
import hashlib
import io
import json
import pathlib
import re
import secrets
import sys
import tarfile
from typing import Any, Protocol

from composer_jax import trajectory

_BUSY = 0.5  # A timeout that computed this share of its time is no accident.
_PASSED = 'passed'
# What pytest is made of. A module of that name at the root of the work would be
# imported in its place, as would one of the standard library.
_RUNNER_MODULES = frozenset(
  ('pytest', '_pytest', 'py', 'pluggy', 'iniconfig', 'packaging', 'pygments')
)
# What Python or pytest execute without being asked to.
_STARTUP = frozenset(
  ('sitecustomize.py', 'usercustomize.py', '.pytest.ini', 'pytest.toml')
)
# Read without Python's parser, which is not safe to share between threads.
_IMPORT = re.compile(r'^\s*import\s+(.+)', re.M)
_MODULE = re.compile(r'(?:^|,)\s*(\w+)')
_FROM = re.compile(r'^\s*from\s+(\w+)', re.M)
_HIDDEN_FOLDERS = frozenset(('', '.', '..', '.git', '__pycache__'))
_CODE_FOLDERS = frozenset(('src', 'lib'))  # Roots of imports, by convention.


class Result(Protocol):
  """How a command ended."""

  exit_code: int | None
  output: str
  seconds: float
  cpu_seconds: float
  timed_out: bool
  report: str  # What the test runner wrote to its own channel.


class Box(Protocol):
  """A place to run code in."""

  def reset(self, files: Mapping[str, str], tree: bytes = b'') -> None:
    """Empties the box, unpacks the tar `tree`, and writes these files."""

  def exec(
    self,
    command: Sequence[str],
    *,
    seconds: float,
    stdin: str = '',
    report: bool = False,
  ) -> Result:
    """Runs a command."""


class Cache(Protocol):
  """Verdicts on equal work."""

  def get(self, key: str) -> Any | None:
    """The verdict under this key, or None."""

  def put(self, key: str, result: Any) -> None:
    """Keeps a verdict."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
  """What the hidden tests say of one piece of work.

  `passed` and `failed` share out the tests that the task names; one that was
  skipped, or that the runner never reported, has failed.
  """

  solved: bool  # All that the task asks for, and nothing broken.
  fraction: float  # Of the tests to mend, those that pass.
  passed: tuple[str, ...] = ()
  failed: tuple[str, ...] = ()
  regressions: int = 0  # Tests that passed before the work and fail after it.
  seconds: float = 0.0  # Wall clock of the grading command.


def grade(
  task: trajectory.Task,
  final_files: Mapping[str, str],
  box: Box,
  cache: Cache | None = None,
  *,
  tree: bytes = b'',
  removed: Collection[str] = (),
) -> Verdict:
  """What the task's hidden tests say of `final_files`.

  The grading command reads a random nonce from its standard input before it
  imports any of the work. Where the task names tests, their outcomes come from
  a report that carries the nonce, on a channel of its own; otherwise the
  command prints the nonce last. So neither an exit status of 0 nor a report
  that the work writes by itself proves anything.

  Args:
    task: what was asked for. Its tests are taken from here, never from the
      work.
    final_files: the work: files that it changed or added. Those that
      `admissible` refuses are ignored.
    box: emptied before use, never after.
    cache: verdicts of earlier calls, shared between threads.
    tree: the task's snapshot, a tar.
    removed: paths that the work removed; tests among them stay.
  """
  files, tree = assemble(task, final_files, tree, removed)
  key = _digest(task, files, tree)
  if cache is not None:
    known = cache.get(key)
    if known is not None:
      return known
  nonce = secrets.token_hex(8)
  box.reset(files, tree)
  result = box.exec(
    task.grade_command,
    seconds=task.test_seconds,
    stdin=nonce + '\n',
    report=bool(task.fail_to_pass),
  )
  if task.fail_to_pass:
    verdict = _by_name(task, result, nonce)
  else:
    last_line = result.output.strip().rpartition('\n')[2]
    solved = result.exit_code == 0 and last_line == nonce
    verdict = Verdict(
      solved=solved, fraction=float(solved), seconds=result.seconds
    )
  busy = result.cpu_seconds >= _BUSY * task.test_seconds
  if cache is not None and (result.exit_code is not None or busy):
    cache.put(key, verdict)
  return verdict


def assemble(
  task: trajectory.Task,
  final_files: Mapping[str, str],
  tree: bytes = b'',
  removed: Collection[str] = (),
) -> tuple[dict[str, str], bytes]:
  """(files, tree) to lay down: the task, the work over it, hidden files last.

  A path that the work removed is gone from both. A file of the work that
  stands where others have a folder, or below one that is a file, is ignored.
  """
  names = _names(tree)
  known = names | set(task.files)
  foreign = _foreign(task, known, tree)
  gone = {path for path in removed if not trajectory.is_test(path)}
  standing = (known - gone) | set(task.hidden_files)
  folders = {folder for path in standing for folder in _folders(path)}
  files = dict(task.files)
  for path, text in final_files.items():
    blocked = path in folders or not standing.isdisjoint(_folders(path))
    if not blocked and admissible(path, known=known, foreign=foreign):
      files[path] = text
  files = {path: text for path, text in files.items() if path not in gone}
  files.update(task.hidden_files)
  return files, _without(tree, gone) if gone & names else tree


def admissible(
  path: str, *, known: Collection[str] = (), foreign: Collection[str] = ()
) -> bool:
  """Whether a file of the work may enter the grading box.

  Tests and what configures them never may. A file that is not `known` must not
  run unasked (`sitecustomize.py`, `.pth`, an entry point in package metadata)
  nor be imported in place of something else: at the root, or below `src` or
  `lib`, it must not have the name of a module of the standard library, of
  pytest, or of `foreign` ones.
  """
  parts = path.split('/')
  if trajectory.is_test(path) or not _HIDDEN_FOLDERS.isdisjoint(parts):
    return False
  if path in known:
    return True
  if parts[-1] in _STARTUP or parts[-1].endswith('.pth'):
    return False
  if any(part.endswith(('.dist-info', '.egg-info')) for part in parts):
    return False
  module = _module(path)
  return not any(
    module in names
    for names in (sys.stdlib_module_names, _RUNNER_MODULES, foreign)
  )


def _module(path: str) -> str:
  """Name under which `import` finds this file or the package it is in."""
  parts = path.split('/')
  root = parts[1] if parts[0] in _CODE_FOLDERS and parts[1:] else parts[0]
  return root.partition('.')[0]


def _foreign(
  task: trajectory.Task, known: Collection[str], tree: bytes
) -> set[str]:
  """Modules that the tests import from outside the work.

  A new file of that name would be imported in place of, say, hypothesis. The
  known fix may create what it needs.
  """
  ours = {*known, *task.hidden_files}
  ours.update(edit.path for edit in task.provenance.fix)
  names = set(map(_module, ours))
  tests = {**_tests(tree), **task.files, **task.hidden_files}
  return {
    name
    for path, text in tests.items()
    if path in task.hidden_files or trajectory.is_test(path)
    if path.endswith('.py')
    for name in _imported(text)
    if name not in names
  }


def _tests(tree: bytes) -> dict[str, str]:
  """The files of tests in a tar, those in Python."""
  if not tree:
    return {}
  with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
    return {
      member.name: archive.extractfile(member).read().decode('utf-8', 'replace')
      for member in archive
      if member.isreg() and member.name.endswith('.py')
      if trajectory.is_test(member.name)
    }


def _imported(text: str) -> Iterator[str]:
  """Top-level names of the modules that a text imports."""
  for line in _IMPORT.findall(text):
    yield from _MODULE.findall(line)
  yield from _FROM.findall(text)


def _by_name(task: trajectory.Task, result: Result, nonce: str) -> Verdict:
  """A report that lacks the nonce, or cannot be read, reports no test."""
  outcomes = {} if result.timed_out else _outcomes(result.report, nonce)
  good = {name for name, outcome in outcomes.items() if outcome == _PASSED}
  named = (*task.fail_to_pass, *task.pass_to_pass)
  mended = sum(name in good for name in task.fail_to_pass)
  failed = tuple(name for name in named if name not in good)
  return Verdict(
    solved=not failed,
    fraction=mended / len(task.fail_to_pass),
    passed=tuple(name for name in named if name in good),
    failed=failed,
    regressions=sum(name not in good for name in task.pass_to_pass),
    seconds=result.seconds,
  )


def _outcomes(report: str, nonce: str) -> Mapping[str, Any]:
  try:
    content = json.loads(report)
  except (ValueError, RecursionError):
    return {}
  if not isinstance(content, dict) or content.get('nonce') != nonce:
    return {}
  tests = content.get('tests')
  return tests if isinstance(tests, dict) else {}


def _folders(path: str) -> Iterator[str]:
  """`a` and `a/b` of `a/b/c`."""
  parts = path.split('/')
  return ('/'.join(parts[:i]) for i in range(1, len(parts)))


def _names(tree: bytes) -> set[str]:
  """Paths of the files in a tar."""
  if not tree:
    return set()
  with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
    return {
      str(pathlib.PurePosixPath(member.name))
      for member in archive
      if not member.isdir()
    }


def _without(tree: bytes, gone: Collection[str]) -> bytes:
  """The tar without these paths; equal input gives equal bytes."""
  buffer = io.BytesIO()
  with (
    tarfile.open(fileobj=io.BytesIO(tree)) as old,
    tarfile.open(fileobj=buffer, mode='w') as new,
  ):
    for member in old:
      if str(pathlib.PurePosixPath(member.name)) not in gone:
        content = old.extractfile(member) if member.isreg() else None
        new.addfile(member, content)
  return buffer.getvalue()


def _digest(
  task: trajectory.Task, files: Mapping[str, str], tree: bytes
) -> str:
  text = json.dumps(
    [
      'grade',
      sorted(files.items()),
      list(task.grade_command),
      task.fail_to_pass,
      task.pass_to_pass,
      hashlib.sha256(tree).hexdigest(),
    ]
  )
  return hashlib.sha256(text.encode()).hexdigest()
