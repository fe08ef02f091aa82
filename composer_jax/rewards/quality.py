"""How hard a text of Python is to follow, as plain numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_BRANCHES = (
  ast.If,
  ast.IfExp,
  ast.For,
  ast.AsyncFor,
  ast.While,
  ast.ExceptHandler,
  ast.match_case,
)
_BLOCKS = (
  ast.If,
  ast.For,
  ast.AsyncFor,
  ast.While,
  ast.With,
  ast.AsyncWith,
  ast.Try,
  ast.Match,
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Beyond these a reader loses the thread; the usual limits of linters.
LINE_COLUMNS = 100
FUNCTION_LINES = 50
NESTING = 4
PARAMETERS = 6
_ALIKE = frozenset('lOI')  # Names that look like digits (PEP 8).


def complexity(text: str) -> int | None:
  """Cyclomatic complexity (McCabe 1976), summed over the functions.

  A function counts 1 and 1 for each decision in it: branch, loop, handler,
  case, condition of a comprehension, each further operand of `and` and `or`.
  Decisions outside of functions count too. None: the text is no Python.
  """
  tree = _parse(text)
  if tree is None:
    return None
  total = 0
  for node in ast.walk(tree):
    if isinstance(node, (*_BRANCHES, *_FUNCTIONS)):
      total += 1
    elif isinstance(node, ast.BoolOp):
      total += len(node.values) - 1
    elif isinstance(node, ast.comprehension):
      total += 1 + len(node.ifs)
  return total


def strain(text: str) -> int | None:
  """Places that are hard to read; None: the text is no Python.

  Lines longer than 100 columns, functions of more than 50 lines, functions
  with blocks more than 4 deep or more than 6 parameters, names that look like
  digits. Which features matter to readers: Buse and Weimer 2010, "Learning a
  metric for code readability".
  """
  tree = _parse(text)
  if tree is None:
    return None
  total = sum(len(line) > LINE_COLUMNS for line in text.splitlines())
  for node in ast.walk(tree):
    if isinstance(node, _FUNCTIONS):
      total += node.end_lineno - node.lineno + 1 > FUNCTION_LINES
      total += _depth(node) > NESTING
      total += len(list(_parameters(node))) > PARAMETERS
  return total + len(_ALIKE & _defined_names(tree))


def _defined_names(tree: ast.AST) -> set[str]:
  """Names of functions, parameters and variables."""
  names = set()
  for node in ast.walk(tree):
    if isinstance(node, _FUNCTIONS):
      names.add(node.name)
    elif isinstance(node, ast.arg):
      names.add(node.arg)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
      names.add(node.id)
  return names


def _parse(text: str) -> ast.Module | None:
  try:
    return ast.parse(text)
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return None


def _depth(node: ast.AST) -> int:
  """Blocks around the innermost statement; an `elif` is not deeper."""
  deepest = 0
  for child in ast.iter_child_nodes(node):
    if isinstance(child, _FUNCTIONS):
      continue  # Counted as a function of its own.
    chained = (
      isinstance(node, ast.If)
      and node.orelse == [child]
      and isinstance(child, ast.If)
    )
    inside = isinstance(child, _BLOCKS) and not chained
    deepest = max(deepest, inside + _depth(child))
  return deepest


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
  arguments = node.args
  for group in (arguments.posonlyargs, arguments.args, arguments.kwonlyargs):
    yield from (a.arg for a in group if a.arg not in ('self', 'cls'))
