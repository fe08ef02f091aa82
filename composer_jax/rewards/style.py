"""Whether new lines look as if the file's own author had written them."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
import dataclasses
import io
import re
import tokenize

_QUOTES = re.compile(r'[A-Za-z]*(\'\'\'|"""|\'|")')
_CAMEL = re.compile(r'_*[a-z]+[A-Z]')
_SNAKE = re.compile(r'_*[a-z][a-z0-9]*_[a-z]')
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_LEAST = 3  # Occurrences in the surroundings that make a habit.


@dataclasses.dataclass(frozen=True)
class Habit:
  """How often one way was taken where there was a choice."""

  taken: int = 0
  chances: int = 0

  @property
  def share(self) -> float:
    return self.taken / self.chances if self.chances else 0.0

  def __add__(self, other: Habit) -> Habit:
    return Habit(self.taken + other.taken, self.chances + other.chances)


def habits(
  text: str, lines: Collection[int] | None = None, columns: int = 79
) -> dict[str, Habit]:
  """Habits of a text, or of its lines with these numbers (from 1).

  `double_quotes` among short strings, `tabs` among indented lines, `odd_indent`
  among lines indented by blanks (not a multiple of four), `long_lines` of more
  than `columns`, `camel_case` among names of several words, `typed` among
  parameters and results. What the text cannot tell (it is no Python) is
  missing.
  """

  def here(number: int) -> bool:
    return lines is None or number in lines

  found = {}

  def note(name: str, taken: bool) -> None:
    found[name] = found.get(name, Habit()) + Habit(int(taken), 1)

  for number, line in enumerate(text.splitlines(), 1):
    if not here(number) or not line.strip():
      continue
    note('long_lines', len(line) > columns)
    indent = line[: len(line) - len(line.lstrip())]
    if indent:
      note('tabs', '\t' in indent)
      if '\t' not in indent:
        note('odd_indent', len(indent) % 4 != 0)
  for number, double in _quoted(text):
    if here(number):
      note('double_quotes', double)
  for number, name, taken in _named(text):
    if here(number):
      note(name, taken)
  return found


def conformity(
  before: Mapping[str, str],
  after: Mapping[str, str],
  added: Mapping[str, Collection[int]],
) -> float:
  """How much the added lines keep to the habits around them, from 0 to 1.

  1 minus the difference of the shares, averaged over the habits of which both
  the surroundings and the added lines show something, then over the files,
  weighed by their added lines. The surroundings are the file itself or, of a
  new file, all others. 1 where there is nothing to compare.

  Idea: Allamanis, Barr, Bird, Sutton 2014, "Learning natural coding
  conventions"; here plain shares.

  Args:
    before: Python files by path.
    after: the same later.
    added: by path, the numbers of the lines that are new in `after`.
  """
  everywhere = '\n'.join(before.values())
  total = weight = 0.0
  for path, lines in added.items():
    around = before.get(path) or everywhere
    columns = max(79, _most_columns(around))
    old = habits(around, columns=columns)
    new = habits(after[path], lines, columns=columns)
    alike = [
      1 - abs(old[name].share - habit.share)
      for name, habit in new.items()
      if name in old and old[name].chances >= _LEAST
    ]
    if alike and lines:
      total += len(lines) * sum(alike) / len(alike)
      weight += len(lines)
  return total / weight if weight else 1.0


def _most_columns(text: str) -> int:
  """The length that 19 of 20 lines keep to."""
  lengths = sorted(len(line) for line in text.splitlines() if line.strip())
  return lengths[len(lengths) * 19 // 20] if lengths else 0


def _quoted(text: str) -> Iterator[tuple[int, bool]]:
  """(line, whether in double quotes) of strings that could be in either."""
  if '\0' in text:  # No Python; CPython 3.12's tokenizer fails on it.
    return
  try:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
      if token.type == tokenize.STRING and not {'"', "'"} <= set(token.string):
        quotes = _QUOTES.match(token.string)[1]
        if len(quotes) == 1:
          yield token.start[0], quotes == '"'
  except (tokenize.TokenError, SyntaxError):
    return


def _named(text: str) -> Iterator[tuple[int, str, bool]]:
  """(line, habit, whether taken) of names and annotations."""
  try:
    nodes = list(ast.walk(ast.parse(text)))
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return
  for node in nodes:
    name = ''
    if isinstance(node, _FUNCTIONS):
      name = node.name
      yield node.lineno, 'typed', node.returns is not None
    elif isinstance(node, ast.arg) and node.arg not in ('self', 'cls'):
      name = node.arg
      yield node.lineno, 'typed', node.annotation is not None
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
      name = node.id
    if _CAMEL.match(name) or _SNAKE.match(name):
      yield node.lineno, 'camel_case', bool(_CAMEL.match(name))
