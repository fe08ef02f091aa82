"""Runs the asserts of a test file one by one, and reports compactly.

Standard library only: this file runs inside a box, as
`python /opt/box/assert_runner.py test_solution.py`. It prints `3 passed`, or

    2 of 3 failed
    assert f([1, 2]) == 3
    got 4

with the first failure alone, and exits with 0 or 1. Everything but the asserts
at the top level of the file (imports, definitions) is executed as it stands.
"""

import ast
import os
import sys

_WIDTH = 80  # Characters of a reported line.
_LEFT = '_left_operand'


def cut(text):
  """The text on one line of at most `_WIDTH` characters."""
  line = ' '.join(text.split())
  return line if len(line) <= _WIDTH else line[: _WIDTH - 3] + '...'


def describe(error):
  """`IndexError: list index out of range`."""
  message = str(error)
  name = type(error).__name__
  return f'{name}: {message}' if message else name


def evaluate(node, namespace):
  expression = ast.fix_missing_locations(ast.Expression(node))
  return eval(compile(expression, '<assert>', 'eval'), namespace)


def check(node, namespace):
  """What was got instead, or None if the assert holds.

  Of a comparison the left side is what was got; of anything else, the value.
  """
  try:
    test = node.test
    if isinstance(test, ast.Compare):
      got = evaluate(test.left, namespace)
      left = ast.copy_location(ast.Name(_LEFT, ast.Load()), test.left)
      test = ast.Compare(left, test.ops, test.comparators)
      holds = evaluate(test, {**namespace, _LEFT: got})
    else:
      holds = got = evaluate(test, namespace)
    return None if holds else f'got {got!r}'
  except (
    BaseException
  ) as error:  # The door: the tested code may raise anything.
    return f'raised {describe(error)}'


def run(path):
  """The lines of the report, and whether all is well."""
  with open(path, encoding='utf-8') as file:
    source = file.read()
  namespace = {'__name__': '__main__', '__file__': path}
  total, failures = 0, []
  try:
    for node in ast.parse(source, path).body:
      if isinstance(node, ast.Assert):
        total += 1
        got = check(node, namespace)
        if got is not None:
          failures.append((ast.get_source_segment(source, node), got))
      else:
        exec(compile(ast.Module([node], []), path, 'exec'), namespace)
  except BaseException as error:  # The door, as above.
    return [cut(f'cannot run {path}: {describe(error)}')], False
  if failures:
    statement, got = failures[0]
    counts = f'{len(failures)} of {total} failed'
    return [counts, cut(statement), cut(got)], False
  return [f'{total} passed'], True


if __name__ == '__main__':
  sys.path[0] = os.getcwd()
  report, well = run(sys.argv[1])
  print('\n'.join(report))
  sys.exit(0 if well else 1)
