"""A scripted agent that repairs repositories by trying small edits in turn.

It sees what the tools say and nothing else: it runs the tests, looks at the
functions in the tracebacks, then at those that the failing tests name, then at
what these call, and tries every small edit of each until the tests pass. No
idea which edit is likely, and none that needs two of them at once.

Needs run_tests, read_file, grep, edit_file and submit. Functions are told by
their indentation: one with a string that reaches the left margin is seen as
ending there.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
import dataclasses
import random
import re
from typing import NamedTuple

from composer_jax import trajectory
from composer_jax.actor import scripted

# (text of a file, its path) → edits of it that are worth a try.
Candidates = Callable[[str, str], Sequence[trajectory.Edit]]

_OK = trajectory.Status.OK
_FAILED = re.compile(r'^(?:FAILED|ERROR) (\S.*)$', re.M)
_FRAME = re.compile(r'^(\S+\.py):(\d+): in .*$((?:\n    .*$)*)', re.M)
_CALLED = re.compile(r'\b([A-Za-z_]\w*)\(')
_FOUND = re.compile(r'^(?:\./)?(\S+?\.py):(\d+):.*?\b(?:def|class) (\w+)', re.M)
_OPENS = re.compile(r'(\s*)(?:async )?(def|class) (\w+)')
_HEADER = re.compile(r'\[lines \d+ to \d+ of (\d+)\]\n')
_CUT = re.compile(r'^\[\d+ characters left out\]$', re.M)
_LINES_AT_ONCE = 200  # Read by one call.
_TESTS_AT_ONCE = 3  # Failing tests that judge an edit before all do.
_NAMES_AT_ONCE = 12  # Functions looked for in one search.
_MESSAGE = 'The visible tests {}.'


class Place(NamedTuple):
  """Lines of a file."""

  path: str
  first: int
  last: int


class Symbol(NamedTuple):
  """A function or class of a file, and its lines."""

  kind: str  # 'def' or 'class'
  name: str
  first: int
  last: int


@dataclasses.dataclass(frozen=True)
class Report:
  """What the tests said."""

  failing: tuple[str, ...]
  frames: tuple[tuple[str, int], ...]  # (path, line), the innermost first.
  names: tuple[str, ...]  # Called in the lines of tests that failed.


def read_report(text: str) -> Report:
  """The failing tests, and where their short tracebacks point."""
  frames, names = [], {}
  for path, line, code in _FRAME.findall(text):
    if trajectory.is_test(path):
      names.update(dict.fromkeys(_CALLED.findall(code)))
    else:
      frames.append((path, int(line)))
  return Report(
    failing=tuple(dict.fromkeys(_FAILED.findall(text))),
    frames=tuple(dict.fromkeys(reversed(frames))),
    names=tuple(names),
  )


def outline(text: str) -> list[Symbol]:
  """The functions and classes of a file, by their indentation."""
  lines = text.split('\n')
  symbols = []
  for number, line in enumerate(lines, 1):
    opening = _OPENS.match(line)
    if opening:
      indent, kind, name = opening.groups()
      last = _end(lines, number, len(indent))
      symbols.append(Symbol(kind, name, number, last))
  return symbols


def _end(lines: Sequence[str], first: int, indent: int) -> int:
  """The last line that is deeper than `indent`, or closes a bracket at it."""
  last = first
  for number, line in enumerate(lines[first:], first + 1):
    if not line.strip():
      continue
    depth = len(line) - len(line.lstrip())
    if depth <= indent and line.lstrip()[0] not in ')]}':
      break
    last = number
  return last


def _places(path: str, symbols: Sequence[Symbol], line: int) -> list[Place]:
  """The function that begins at a line, or the methods of the class."""
  places = []
  for symbol in symbols:
    if symbol.first == line and symbol.kind == 'def':
      places.append(Place(path, symbol.first, symbol.last))
    elif symbol.first == line:
      places += [
        Place(path, inner.first, inner.last)
        for inner in symbols
        if inner.kind == 'def' and symbol.first < inner.first <= symbol.last
      ]
  return places


def repairer(
  *, candidates: Candidates, rng: random.Random, most_edits: int
) -> Callable[[scripted.Script], Iterator[scripted.Calls]]:
  """Tries at most `most_edits` edits, in the order of suspicion, then submits.

  Within a function the order is random.
  """

  def turns(script: scripted.Script) -> Iterator[scripted.Calls]:
    repair = _Repair(script, candidates, rng, most_edits)
    solved = yield from repair.run()
    message = _MESSAGE.format('pass' if solved else 'still fail')
    while True:
      yield [('submit', {'message': message})]

  return turns


class _Repair:
  """One episode: what was read, what was tried. Its methods yield turns."""

  def __init__(self, script, candidates, rng, most_edits):
    self._script = script
    self._candidates = candidates
    self._rng = rng
    self._left = most_edits
    self._texts: dict[str, str] = {}  # '' where a file cannot be read.
    self._asked: set[str] = set()
    self._undo: scripted.Calls = []
    self._tests: dict[str, list[str]] = {}  # What judges an edit.

  def run(self) -> Generator[scripted.Calls, None, bool]:
    """Whether the tests pass in the end."""
    yield [('run_tests', {})]
    if self._script.passed:
      return True
    report = read_report(self._script.results[-1].text)
    if report.failing:
      self._tests = {'tests': list(report.failing[:_TESTS_AT_ONCE])}
    waiting = collections.deque((yield from self._framed(report.frames)))
    waiting += yield from self._named(report.names)
    seen = set()
    while waiting and self._left:
      place = waiting.popleft()
      if place not in seen:
        seen.add(place)
        if (yield from self._try_all(place)):
          return True
        waiting += yield from self._named(self._called(place))
    if self._undo:
      yield self._undo
    return False

  def _framed(
    self, frames: Iterable[tuple[str, int]]
  ) -> Generator[scripted.Calls, None, list[Place]]:
    """The functions that these lines are in."""
    places = []
    for path, line in frames:
      text = yield from self._read(path)
      around = [s for s in outline(text) if s.first <= line <= s.last]
      if around:
        innermost = around[-1]
        places.append(Place(path, innermost.first, innermost.last))
    return places

  def _named(
    self, names: Iterable[str]
  ) -> Generator[scripted.Calls, None, list[Place]]:
    """The functions of these names, and the methods of such classes."""
    fresh = [name for name in names if name not in self._asked]
    fresh = fresh[:_NAMES_AT_ONCE]
    if not fresh:
      return []
    self._asked.update(fresh)
    pattern = rf'^\s*(async )?(def|class) ({"|".join(fresh)})\b'
    yield [('grep', {'pattern': pattern, 'glob': '*.py'})]
    found = _FOUND.findall(self._script.results[-1].text)
    found = [one for one in found if one[2] in fresh]  # Cut lines name others.
    places = []
    for path, line, _ in sorted(found, key=lambda one: fresh.index(one[2])):
      if not trajectory.is_test(path):
        text = yield from self._read(path)
        places += _places(path, outline(text), int(line))
    return places

  def _called(self, place: Place) -> list[str]:
    lines = self._texts[place.path].split('\n')[place.first - 1 : place.last]
    return list(dict.fromkeys(_CALLED.findall('\n'.join(lines))))

  def _read(self, path: str) -> Generator[scripted.Calls, None, str]:
    """The text of a file, asked for in pieces and once only."""
    if path not in self._texts:
      lines, length = [], 1
      while len(lines) < length:
        first = len(lines) + 1
        piece = yield from self._lines(path, first, first + _LINES_AT_ONCE - 1)
        if piece is None:
          lines = []
          break
        lines += piece[0]
        length = piece[1]
      self._texts[path] = '\n'.join(lines)
    return self._texts[path]

  def _lines(
    self, path: str, first: int, last: int
  ) -> Generator[scripted.Calls, None, tuple[list[str], int] | None]:
    """(these lines, lines of the file); None if they cannot be read whole."""
    yield [('read_file', {'path': path, 'first': first, 'last': last})]
    text = self._script.results[-1].text
    header = _HEADER.match(text)
    if header is None:
      return None
    length = int(header[1])
    if not _CUT.search(text):
      return text[header.end() :].split('\n'), length
    last = min(last, length)
    if first == last:
      return None
    middle = (first + last) // 2
    above = yield from self._lines(path, first, middle)
    below = yield from self._lines(path, middle + 1, last)
    if above is None or below is None:
      return None
    return above[0] + below[0], length

  def _try_all(self, place: Place) -> Generator[scripted.Calls, None, bool]:
    """Whether one of the edits of a function makes the tests pass."""
    text = self._texts[place.path]
    edits = [
      edit
      for edit in self._candidates(text, place.path)
      if place.first
      <= text.count('\n', 0, text.index(edit.old)) + 1
      <= place.last
    ]
    for edit in self._rng.sample(edits, len(edits)):
      if not self._left:
        break
      self._left -= 1
      if (yield from self._try(edit)):
        return True
    return False

  def _try(
    self, edit: trajectory.Edit
  ) -> Generator[scripted.Calls, None, bool]:
    change = ('edit_file', dataclasses.asdict(edit))
    yield [*self._undo, change, ('run_tests', self._tests)]
    self._undo = []
    if self._script.results[-2].status is not _OK:
      return False
    if self._script.passed and self._tests:
      yield [('run_tests', {})]
    if self._script.passed:
      return True
    self._undo = [('edit_file', dataclasses.asdict(edit.inverse()))]
    return False
