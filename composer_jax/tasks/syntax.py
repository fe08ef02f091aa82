"""A Python text, its tokens and its syntax tree, laid over one another."""

import ast
import bisect
from collections.abc import Iterator, Sequence
import dataclasses
import io
import tokenize
from typing import NamedTuple

_LAYOUT = (
  tokenize.NEWLINE,
  tokenize.NL,
  tokenize.INDENT,
  tokenize.DEDENT,
  tokenize.COMMENT,
  tokenize.ENDMARKER,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Token(NamedTuple):
  """One lexical token that is not layout, within its line."""

  text: str
  line: int  # From 1.
  start: int  # Column, after the leading space.
  stop: int
  lead: str  # ' ' or ''; indentation belongs to no token.
  is_string: bool


@dataclasses.dataclass(frozen=True)
class Source:
  """A text with its tokens, tree and the tokens that may change."""

  lines: Sequence[str]
  tokens: Sequence[Token]
  places: Sequence[tuple[int, int]]  # (line, start) of each token.
  tree: ast.Module
  parents: dict[ast.AST, ast.AST]
  editable: set[int] = dataclasses.field(default_factory=set)

  @classmethod
  def parse(cls, text: str) -> 'Source':
    tree = ast.parse(text)
    lines = text.split('\n')
    tokens = _tokens(text, lines)
    parents = {
      child: node
      for node in ast.walk(tree)
      for child in ast.iter_child_nodes(node)
    }
    places = [(t.line, t.start) for t in tokens]
    source = cls(lines, tokens, places, tree, parents)
    _mark_editable(source)
    return source

  def _index(self, line: int, offset: int) -> int:
    """The first token at or after a place of the tree (offset in bytes)."""
    column = len(self.lines[line - 1].encode()[:offset].decode())
    return bisect.bisect_left(self.places, (line, column))

  def first(self, node: ast.AST) -> int:
    return self._index(node.lineno, node.col_offset)

  def last(self, node: ast.AST) -> int:
    return self._index(node.end_lineno, node.end_col_offset)

  def between(self, left: ast.AST, right: ast.AST) -> range:
    """The operator's tokens between two operands."""
    first, last = self.last(left), self.first(right)
    while self.tokens[first].text == ')':
      first += 1
    while self.tokens[last - 1].text == '(':
      last -= 1
    return range(first, last)

  def text(self, span: range) -> str:
    """Tokens joined by single spaces."""
    return ' '.join(self.tokens[i].text for i in span)

  def exact(self, span: range) -> str:
    """The text as written, without leading space; '' over several lines."""
    head, tail = self.tokens[span.start], self.tokens[span.stop - 1]
    if head.line != tail.line:
      return ''
    return self.lines[head.line - 1][head.start : tail.stop]

  def statement(self, line: int) -> range:
    """Lines of the module's statement that holds this line, decorators too.

    Statements that share a line count as one.
    """
    first = last = line
    for node in self.tree.body:
      start = first_line(node)
      if start <= last and node.end_lineno >= first:
        first, last = min(first, start), max(last, node.end_lineno)
    return range(first, last + 1)

  def is_editable(self, span: range) -> bool:
    """Whether these tokens are code that may change, within one line."""
    return self.editable.issuperset(span) and (
      self.tokens[span.start].line == self.tokens[span.stop - 1].line
    )


def first_line(node: ast.stmt) -> int:
  """The line on which a statement begins, with its decorators."""
  decorators = []
  if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
    decorators = node.decorator_list
  return min(part.lineno for part in (*decorators, node))


def walk(tree: ast.AST) -> Iterator[ast.AST]:
  """Like `ast.walk`, but not into f-strings, whose places are unreliable."""
  yield tree
  if not isinstance(tree, ast.JoinedStr):
    for child in ast.iter_child_nodes(tree):
      yield from walk(child)


def _tokens(text: str, lines: Sequence[str]) -> list[Token]:
  tokens = []
  for token in tokenize.generate_tokens(io.StringIO(text).readline):
    if token.type in _LAYOUT:
      continue
    line, start = token.start
    before = lines[line - 1][:start]
    lead = ' ' if before.strip() and before.endswith(' ') else ''
    several = token.end[0] != line
    stop = len(lines[line - 1]) if several else token.end[1]
    is_string = token.type not in (
      tokenize.NAME,
      tokenize.OP,
      tokenize.NUMBER,
    )
    tokens.append(Token(token.string, line, start, stop, lead, is_string))
  return tokens


def _mark_editable(source: Source) -> None:
  """Marks the bodies of functions, then takes out what must stay."""
  kept_out = []
  for node in walk(source.tree):
    if isinstance(node, FUNCTIONS):
      first = source.first(node.body[0])
      source.editable.update(range(first, source.last(node)))
      kept_out.append(range(source.first(node), first))
      kept_out.extend(_spans(source, node.decorator_list))
    elif isinstance(node, ast.AnnAssign):
      kept_out.extend(_spans(source, [node.annotation]))
    elif isinstance(node, ast.Lambda):
      kept_out.extend(_spans(source, node.args.defaults))
    elif isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr)):
      kept_out.extend(_spans(source, [node]))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
      kept_out.extend(_spans(source, [node]))
  for span in kept_out:
    source.editable.difference_update(span)


def _spans(source: Source, nodes: Sequence[ast.AST]) -> list[range]:
  return [range(source.first(node), source.last(node)) for node in nodes]
