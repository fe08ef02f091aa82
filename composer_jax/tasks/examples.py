"""Asserts out of the examples that a docstring shows.

Docstrings state examples in many ways (`>>> f(1)` and a line below,
`f(1) == 2`, `f(1) => 2`, `f(1) returns 2`, `For x = 1 the output should be
2`, `Input: 1` and `Output: 2` below). What is read here may be wrong, as may
the docstring itself, so only examples that hold for correct code should be
kept: `probe` is the script that tells.
"""

import ast
from collections.abc import Iterator, Sequence
import re
import textwrap

PROBE_FILE = 'probe.py'
LONGEST_LINE = 100
MOST_LINES = 6
TOLERANCE = 1e-6
_SEPARATOR = re.compile(
  r'^\s*(?:,?\s*(?:should\s+return|#\s*returns|returns)\b'
  r'|(?:#\s*)?(?:==>|=>|->|➞|→|==|=)|(?=\s[\[({\'"]))\s*'
)
_SENTENCE = re.compile(
  r'^For\s+(?P<arguments>\w+\s*=.*?),?\s*(?:the sum of digits will be \d+\s*)?'
  r'the (?:output|result) should be (?P<expected>.*)$'
)
_INPUT = re.compile(r'^Input:\s*(?P<arguments>\S.*)$')
_OUTPUT = re.compile(r'^Output:\s*(?P<expected>\S.*)$')
_CALL = re.compile(r'(?<![\w.])([A-Za-z_]\w*)\(')
_NAMES = {'true': 'True', 'false': 'False'}


def asserts(text: str, name: str) -> tuple[tuple[str, ...], ...]:
  """The examples in the docstring of function `name` of module `text`.

  Returns:
    One tuple for each example: assert lines from the strictest to the most
    lenient. A number with a fraction also has a line with a tolerance.
  """
  lines = [line.strip() for line in _docstring(text, name).split('\n')]
  found = list(_read(lines, name))
  if not found:  # Some docstrings call the function by another name.
    found = list(_read([_CALL.sub(f'{name}(', l) for l in lines], name))
  unique = dict.fromkeys(found)
  return tuple(_variants(call, expected) for call, expected in unique)


def probe(name: str, variants: Sequence[Sequence[str]]) -> str:
  """A script that prints, per example, the first line that holds or -1."""
  return textwrap.dedent(f"""\
      from solution import {name}
      for lines in {[list(lines) for lines in variants]!r}:
        holds = -1
        for i, line in enumerate(lines):
          try:
            exec(line)
          except Exception:
            continue
          holds = i
          break
        print(holds)
      """)


def select(variants: Sequence[Sequence[str]], probed: str) -> tuple[str, ...]:
  """The lines that hold according to the output of `probe`, at most MOST_LINES.

  Lines over LONGEST_LINE are left out; if there are no others the shortest of
  them stays.

  Raises:
    ValueError: the output does not belong to these examples.
  """
  answers = probed.split()
  if len(answers) != len(variants):
    raise ValueError(f'{len(answers)} answers for {len(variants)} examples')
  kept = [
    lines[int(answer)]
    for lines, answer in zip(variants, answers, strict=True)
    if int(answer) >= 0
  ]
  short = [line for line in kept if len(line) <= LONGEST_LINE]
  return tuple((short or sorted(kept, key=len)[:1])[:MOST_LINES])


def test_file(name: str, lines: Sequence[str]) -> str:
  return '\n'.join([f'from solution import {name}', '', *lines, ''])


def _docstring(text: str, name: str) -> str:
  """All string statements of the function: some stand below an import."""
  for node in ast.parse(text).body:
    if isinstance(node, ast.FunctionDef) and node.name == name:
      return '\n'.join(
        statement.value.value
        for statement in node.body
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
      )
  raise ValueError(f'no function {name} in the text')


def _read(lines: Sequence[str], name: str) -> Iterator[tuple[str, str]]:
  for i, line in enumerate(lines):
    below = _until_blank(lines[i + 1 :])
    pair = (
      _doctest(line, below, name)
      or _arrow(line, name)
      or _sentence(line, lines[i + 1 :], name)
    )
    if pair:
      yield pair


def _until_blank(lines: Sequence[str]) -> str:
  block = []
  for line in lines:
    if not line or line.startswith('>>>'):
      break
    block.append(line)
  return '\n'.join(block)


def _doctest(line: str, below: str, name: str) -> tuple[str, str] | None:
  """`>>> f(1)` with its result below, none for None."""
  if not line.startswith('>>>'):
    return None
  call = _expression(line[3:])
  if not isinstance(call, ast.Call) or name not in _names(call):
    return None
  expected = _literal(below) if below else 'None'
  return (ast.unparse(call), expected) if expected else None


def _arrow(line: str, name: str) -> tuple[str, str] | None:
  """`f(1) == 2` with any of the separators in use."""
  begin = re.search(rf'(?<![\w.]){name}\(', line)
  if not begin:
    return None
  for closing in re.finditer(r'\)', line):
    call = _expression(line[begin.start() : closing.end()])
    if not isinstance(call, ast.Call):
      continue
    rest = line[closing.end() :]
    separator = _SEPARATOR.match(rest)
    expected = _literal(rest[separator.end() :]) if separator else ''
    return (ast.unparse(call), expected) if expected else None
  return None


def _sentence(
  line: str, below: Sequence[str], name: str
) -> tuple[str, str] | None:
  """`For x = 1 the output should be 2`, or Input and Output lines."""
  match = _SENTENCE.match(line) or _INPUT.match(line)
  if not match:
    return None
  call = _expression(f'{name}({match["arguments"]})')
  outcome = match.groupdict().get('expected')
  if outcome is None:
    output = _OUTPUT.match(next((l for l in below if l), ''))
    outcome = output['expected'] if output else ''
  expected = _literal(outcome)
  return (ast.unparse(call), expected) if call and expected else None


def _expression(text: str) -> ast.expr | None:
  try:
    return ast.parse(text.strip(), mode='eval').body
  except (SyntaxError, ValueError):
    return None


def _names(tree: ast.AST) -> set[str]:
  return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


def _literal(text: str) -> str:
  """The longest literal at the start of the text (behind a sum), or ''.

  In `8 - 2 = 6` the literal is 6.
  """
  text = re.split(r'(?<=[\d)])\s=\s(?=\S)', text.strip())[-1]
  text = text.removesuffix('.')  # Of the sentence.
  for end in range(len(text), 0, -1):
    part = text[:end].strip()
    try:
      value = ast.literal_eval(_NAMES.get(part, part))
    except (SyntaxError, ValueError):
      continue
    return repr(value)
  return ''


def _variants(call: str, expected: str) -> tuple[str, ...]:
  equal = f'assert {call} == {expected}'
  if isinstance(ast.literal_eval(expected), float):
    return equal, f'assert abs({call} - {expected}) < {TOLERANCE}'
  return (equal,)
