"""Cuts files into the pieces that a search finds: one per symbol.

Python is cut along its syntax tree, which tree-sitter builds for broken code
too. Each function or method is a piece, with its decorators and the comment
right above it; what stands inside a function stays in its piece. The other
lines of a class or a module are pieces of that class or module. So each line of
a Python file that is not blank lies in exactly one piece. Other files are cut
into overlapping windows of lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import functools
import itertools
import pathlib
import re

import tree_sitter
import tree_sitter_python

_WINDOW_LINES = 40  # Of a piece that is no symbol.
_WINDOW_STEP = 30  # Between the starts of windows over text.
_MARGIN = re.compile(r'(@|def\b|async\s+def\b|class\b)')
_DEFINITIONS = ('function_definition', 'class_definition')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunk:
  """A run of lines of one file, and what it is called.

  Attributes:
    path: Of the file.
    name: Dotted from the top of the file, `Class.method`; the name of the file
      for lines that belong to no symbol.
    first_line: Counted from 1.
    last_line: Inclusive.
    text: The lines, without a newline at their end.
    signature: The line with `def` or `class`; elsewhere the first line.
    doc: First line of the docstring, or empty.
  """

  path: str
  name: str
  first_line: int
  last_line: int
  text: str
  signature: str
  doc: str = ''


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Symbol:
  """A function or class: where it stands, in lines from 0, end exclusive."""

  name: str
  is_class: bool
  first: int
  end: int
  definition: int
  doc: str


def chunk(path: str, text: str) -> list[Chunk]:
  """The pieces of a file, in the order of their first lines."""
  lines = text.split('\n')
  if path.endswith(('.py', '.pyi')):
    pieces = _chunk_python(path, lines)
  else:
    pieces = _windows(path, lines)
  return sorted(pieces, key=lambda piece: (piece.first_line, piece.last_line))


def _windows(path: str, lines: Sequence[str]) -> Iterator[Chunk]:
  stop = max(1, len(lines) - _WINDOW_LINES + _WINDOW_STEP)
  for first in range(0, stop, _WINDOW_STEP):
    yield from _piece(path, lines, first, first + _WINDOW_LINES)


def _chunk_python(path: str, lines: Sequence[str]) -> Iterator[Chunk]:
  """One piece per function; the lines left over belong to their owner."""
  owners: list[_Symbol | None] = [None] * len(lines)
  for symbol in _symbols(lines):  # An outer class comes before its methods.
    for i in range(symbol.first, symbol.end):
      owners[i] = symbol
  first = 0
  for end in range(1, len(lines) + 1):
    if end < len(lines) and owners[end] is owners[first]:
      continue
    symbol = owners[first]
    if symbol is not None and not symbol.is_class:
      yield from _piece(path, lines, first, end, symbol)
    else:
      for start in range(first, end, _WINDOW_LINES):
        stop = min(end, start + _WINDOW_LINES)
        yield from _piece(path, lines, start, stop, symbol)
    first = end


def _piece(
  path: str,
  lines: Sequence[str],
  first: int,
  end: int,
  symbol: _Symbol | None = None,
) -> Iterator[Chunk]:
  """The lines as a piece, blank ones at its ends cut off; or none."""
  filled = [i for i in range(first, min(end, len(lines))) if lines[i].strip()]
  if not filled:
    return
  first, last = filled[0], filled[-1]
  name, signature, doc = pathlib.PurePosixPath(path).name, lines[first], ''
  if symbol is not None:
    name, signature = symbol.name, lines[symbol.definition]
    if first <= symbol.definition:  # Not where a class goes on.
      doc = symbol.doc
  yield Chunk(
    path=path,
    name=name,
    first_line=first + 1,
    last_line=last + 1,
    text='\n'.join(lines[first : last + 1]),
    signature=signature.strip(),
    doc=doc,
  )


def _symbols(lines: Sequence[str]) -> Iterator[_Symbol]:
  """Functions and classes that stand in no function, outer ones first."""
  root = _parse(lines)
  if not root.has_error:
    yield from _walk(root, 0)
    return
  # An open bracket would swallow the rest of the file: in a broken file each
  # definition at the margin is parsed by itself.
  starts = [i for i in range(1, len(lines)) if _starts(lines, i)]
  for first, end in itertools.pairwise([0, *starts, len(lines)]):
    yield from _walk(_parse(lines[first:end]), first)


def _starts(lines: Sequence[str], i: int) -> bool:
  """Whether a definition at the margin starts here, with its decorators."""
  if not _MARGIN.match(lines[i]):
    return False
  return not lines[i - 1].startswith('@')


def _parse(lines: Sequence[str]) -> tree_sitter.Node:
  parser = tree_sitter.Parser(_language())  # Two threads must not share one.
  return parser.parse('\n'.join(lines).encode('utf-8', 'replace')).root_node


def _walk(root: tree_sitter.Node, offset: int) -> Iterator[_Symbol]:
  """Keeps its own stack: code nested a thousand deep is no reason to fail."""
  stack = [(root, '')]
  while stack:
    node, prefix = stack.pop()
    if node.type in _DEFINITIONS:
      symbol = _symbol(node, prefix, offset)
      yield symbol
      if not symbol.is_class:
        continue
      prefix = f'{symbol.name}.'
    stack += [(child, prefix) for child in node.named_children]


def _symbol(node: tree_sitter.Node, prefix: str, offset: int) -> _Symbol:
  outer = node
  if node.parent is not None and node.parent.type == 'decorated_definition':
    outer = node.parent
  first, above = outer.start_point.row, outer.prev_sibling
  while (
    above is not None
    and above.type == 'comment'
    and above.start_point == (first - 1, outer.start_point.column)
  ):
    first, above = above.start_point.row, above.prev_sibling
  name = node.child_by_field_name('name')
  return _Symbol(
    name=prefix + (_text(name) or '?'),
    is_class=node.type == 'class_definition',
    first=offset + first,
    end=offset + node.end_point.row + (node.end_point.column > 0),
    definition=offset + node.start_point.row,
    doc=_doc(node),
  )


def _doc(node: tree_sitter.Node) -> str:
  """First line of the docstring that has words in it."""
  body = node.child_by_field_name('body')
  if body is None or not body.named_children:
    return ''
  statement = body.named_children[0]
  if statement.type != 'expression_statement' or not statement.named_children:
    return ''
  string = statement.named_children[0]
  if string.type != 'string':
    return ''
  content = [c for c in string.named_children if c.type == 'string_content']
  words = ''.join(_text(part) for part in content).strip()
  return words.split('\n')[0].strip()


def _text(node: tree_sitter.Node | None) -> str:
  if node is None or node.text is None:
    return ''
  return node.text.decode('utf-8', 'replace')


@functools.cache
def _language() -> tree_sitter.Language:
  return tree_sitter.Language(tree_sitter_python.language())
