"""The functions and methods of a module, and where their lines are."""

import ast
from collections.abc import Iterator
import dataclasses

from composer_jax.tasks import syntax


@dataclasses.dataclass(frozen=True, kw_only=True)
class Function:
  """An outermost function, or a method; what is nested in it belongs to it.

  Lines count from 1. `code` are those after the docstring, empty where they
  share a line with something else.
  """

  name: str  # 'function' or 'Class.method'.
  lines: range  # With decorators.
  code: range
  indent: str
  header: str  # From `def` to the colon, as written.
  docstring: str
  calls: frozenset[str]  # Names that it calls, plain or as attributes.
  trivial: bool  # Nothing but `pass`, `...` or a `raise`.

  @property
  def owner(self) -> str:
    return self.name.rpartition('.')[0]


def functions(text: str) -> list[Function]:
  """All of them in the order of their lines.

  Raises:
    SyntaxError: `text` is not Python.
  """
  lines = text.split('\n')
  return [
    _function(lines, owner, node)
    for owner, node in _outermost(ast.parse(text), '')
  ]


def _outermost(
  node: ast.AST, owner: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
  for child in ast.iter_child_nodes(node):
    if isinstance(child, syntax.FUNCTIONS):
      yield owner, child
    elif isinstance(child, ast.ClassDef):
      yield from _outermost(child, f'{owner}{child.name}.')
    elif isinstance(child, ast.stmt):
      yield from _outermost(child, owner)


def _function(
  lines: list[str], owner: str, node: ast.FunctionDef | ast.AsyncFunctionDef
) -> Function:
  docstring = ast.get_docstring(node, clean=False)
  body = node.body[1:] if docstring is not None else node.body
  code = range(0)
  if body:
    start = syntax.first_line(body[0])
    above = node.body[0].end_lineno if docstring is not None else node.lineno
    indent = lines[start - 1][: body[0].col_offset]
    if start > above and not indent.strip():
      code = range(above + 1, node.end_lineno + 1)
      if docstring is None:
        code = range(_below_header(node, start), node.end_lineno + 1)
  first_body = syntax.first_line(node.body[0])
  header = '\n'.join(lines[node.lineno - 1 : first_body - 1])
  return Function(
    name=owner + node.name,
    lines=range(syntax.first_line(node), node.end_lineno + 1),
    code=code,
    indent=' ' * node.body[0].col_offset,
    header=header,
    docstring=docstring or '',
    calls=frozenset(_calls(node)),
    trivial=all(map(_is_trivial, body)),
  )


def _below_header(
  node: ast.FunctionDef | ast.AsyncFunctionDef, start: int
) -> int:
  """The first line that surely belongs to the body: comments stay above."""
  return max(start, node.lineno + 1)


def _calls(node: ast.AST) -> Iterator[str]:
  for part in ast.walk(node):
    match part:
      case ast.Call(func=ast.Name(id=name)):
        yield name
      case ast.Call(func=ast.Attribute(attr=name)):
        yield name


def _is_trivial(node: ast.stmt) -> bool:
  constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
  return constant or isinstance(node, (ast.Pass, ast.Raise))
