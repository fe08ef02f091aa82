"""What is left of a test file when some of its tests are hidden."""

import ast
from collections.abc import Collection, Iterator

from composer_jax.tasks import syntax


def function_of(test: str) -> tuple[str, str]:
  """The file and the qualified function of a node id, parameters left out."""
  path, _, rest = test.partition('::')
  return path, rest.partition('[')[0].replace('::', '.')


def written(text: str) -> frozenset[str]:
  """The functions that a test file spells out; inherited ones are not."""
  return frozenset(name for name, _ in _tests(ast.parse(text), ''))


def without(text: str, names: Collection[str]) -> str:
  """The file without these tests, whose names are 'test_x' or 'Class.test_x'.

  Comments right above a test go with it. A class that is left empty gets a
  `pass`.

  Raises:
    ValueError: one of them is not written down in this file.
  """
  lines = text.split('\n')
  tree = ast.parse(text)
  found = {name: node for name, node in _tests(tree, '') if name in names}
  missing = set(names) - set(found)
  if missing:
    raise ValueError(f'not written down in the test file: {sorted(missing)}')
  gone = set()
  for node in found.values():
    first = syntax.first_line(node)
    while first > 1 and lines[first - 2].lstrip().startswith('#'):
      first -= 1
    gone.update(range(first, node.end_lineno + 1))
  emptied = {}
  for node in ast.walk(tree):
    if isinstance(node, (ast.ClassDef, ast.If, ast.For, ast.With, ast.Try)):
      if node.lineno not in gone and all(
        _is_gone(child, gone) for child in node.body
      ):
        emptied[node.body[0].lineno] = ' ' * node.body[0].col_offset + 'pass'
  kept = []
  for number, line in enumerate(lines, 1):
    if number in emptied:
      kept.append(emptied[number])
    if number not in gone:
      kept.append(line)
  shorter = '\n'.join(kept)
  ast.parse(shorter)
  return shorter


def _is_gone(node: ast.stmt, gone: set[int]) -> bool:
  return gone.issuperset(range(syntax.first_line(node), node.end_lineno + 1))


def _tests(node: ast.AST, owner: str) -> Iterator[tuple[str, ast.stmt]]:
  for child in ast.iter_child_nodes(node):
    if isinstance(child, syntax.FUNCTIONS):
      yield owner + child.name, child
    elif isinstance(child, ast.ClassDef):
      yield from _tests(child, f'{owner}{child.name}.')
    elif isinstance(child, ast.stmt):
      yield from _tests(child, owner)
