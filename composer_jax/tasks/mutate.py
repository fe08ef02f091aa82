"""Single edits of Python functions that look like slips of the hand.

Sites are located in the syntax tree and spliced in the text, so everything
else in the file stays as it was. The set is closed: the inverse of every
mutation of a text is itself one of the mutations of the mutated text, which
makes the candidate repairs of a buggy file `mutations(buggy)`.

Docstrings, annotations, imports, decorators, f-strings and the headers of
functions are left alone. Not covered: wrong variable names, missing lines.
"""

import ast
import bisect
from collections.abc import Iterator
import dataclasses
import itertools
from typing import NamedTuple

from composer_jax import trajectory
from composer_jax.tasks import syntax

# Each table is symmetric: if a leads to b then b leads to a.
COMPARISONS = {
  '<': ('<=', '>'),
  '<=': ('<', '>='),
  '>': ('>=', '<'),
  '>=': ('>', '<='),
  '==': ('!=',),
  '!=': ('==',),
  'in': ('not in',),
  'not in': ('in',),
  'is': ('is not',),
  'is not': ('is',),
}
ARITHMETIC = {
  '+': ('-', '*'),
  '-': ('+',),
  '*': ('+', '/', '**'),
  '/': ('*', '//'),
  '//': ('/', '%'),
  '%': ('//',),
  '**': ('*',),
}
AUGMENTED = {
  '+=': ('-=', '*='),
  '-=': ('+=',),
  '*=': ('+=',),
  '/=': ('//=',),
  '//=': ('/=', '%='),
  '%=': ('//=',),
}
BOOLEAN = {'and': ('or',), 'or': ('and',)}
TRUTH = {'True': ('False',), 'False': ('True',)}
JUMPS = {'break': ('continue',), 'continue': ('break',)}
CALLED = {
  'min': ('max',),
  'max': ('min',),
  'any': ('all',),
  'all': ('any',),
  'append': ('extend',),
  'extend': ('append',),
  'upper': ('lower',),
  'lower': ('upper',),
  'isupper': ('islower',),
  'islower': ('isupper',),
  'isdigit': ('isalpha',),
  'isalpha': ('isdigit',),
  'startswith': ('endswith',),
  'endswith': ('startswith',),
  'ceil': ('floor',),
  'floor': ('ceil',),
}
SYMMETRIC_CALLS = ('min', 'max')  # The order of their arguments is no slip.
LARGEST_CONSTANT = 12
LONGEST_ARGUMENT = 5  # Tokens of an argument that changes places.
LONG_DISPLAY = 3  # Constants in longer lists are data, not slips.


@dataclasses.dataclass(frozen=True)
class Mutation:
  """One edit and the name of the slip that it imitates."""

  kind: str
  edit: trajectory.Edit


def mutations(text: str, path: str) -> list[Mutation]:
  """Every mutation of `text`, by place; the order is deterministic.

  Both directions apply: `m.edit.inverse().apply(m.edit.apply(text)) == text`,
  and each mutant parses. `old` and `new` are as few lexical tokens of one line
  as make them unique in the file, the first with the space before it if it has
  one. Left out are mutations of lines that have a twin, before or after.

  Raises:
    SyntaxError: `text` is not Python.
  """
  source = syntax.Source.parse(text)
  sites = {
    site
    for node in syntax.walk(source.tree)
    for find in _FINDERS.get(type(node), ())
    for site in find(source, node)
  }
  sites.update(_negations(source))
  found = []
  for site in sorted(sites, key=lambda s: (s.first, s.last, s.new)):
    if not source.is_editable(
      range(site.first, max(site.last, site.first + 1))
    ):
      continue
    edit = _smallest_edit(source, site, path)
    if edit is not None and _parses(source, site, edit.apply(text)):
      found.append(Mutation(site.kind, edit))
  return found


class _Site(NamedTuple):
  """Tokens [first, last) become `new`; first == last inserts before it."""

  kind: str
  first: int
  last: int
  new: str  # With its leading space, if any.


def _swaps(
  source: syntax.Source,
  kind: str,
  span: range,
  table: dict[str, tuple[str, ...]],
) -> Iterator[_Site]:
  lead = source.tokens[span.start].lead
  for new in table.get(source.text(span), ()):
    yield _Site(kind, span.start, span.stop, lead + new)


def _comparisons(source: syntax.Source, node: ast.Compare) -> Iterator[_Site]:
  operands = [node.left, *node.comparators]
  for left, right in itertools.pairwise(operands):
    span = source.between(left, right)
    yield from _swaps(source, 'comparison', span, COMPARISONS)


def _booleans(source: syntax.Source, node: ast.BoolOp) -> Iterator[_Site]:
  for left, right in itertools.pairwise(node.values):
    span = source.between(left, right)
    yield from _swaps(source, 'boolean', span, BOOLEAN)


def _arithmetic(source: syntax.Source, node: ast.BinOp) -> Iterator[_Site]:
  span = source.between(node.left, node.right)
  if not _joins_text(source, span):
    yield from _swaps(source, 'arithmetic', span, ARITHMETIC)


def _augmented(source: syntax.Source, node: ast.AugAssign) -> Iterator[_Site]:
  span = source.between(node.target, node.value)
  if not _joins_text(source, span):
    yield from _swaps(source, 'augmented', span, AUGMENTED)


def _joins_text(source: syntax.Source, span: range) -> bool:
  """Whether an operator stands beside a string or before a list display.

  Decided by the neighbouring tokens, which no other mutation regroups.
  """
  before, after = source.tokens[span.start - 1], source.tokens[span.stop]
  return before.is_string or after.is_string or after.text == '['


def _constants(source: syntax.Source, node: ast.Constant) -> Iterator[_Site]:
  first = source.first(node)
  span = range(first, first + 1)
  if isinstance(node.value, bool):
    yield from _swaps(source, 'truth', span, TRUTH)
  elif isinstance(node.value, int) and source.text(span).isdecimal():
    parent = source.parents[node]
    if isinstance(parent, ast.Dict):
      return
    if isinstance(parent, (ast.List, ast.Tuple, ast.Set)):
      if len(parent.elts) >= LONG_DISPLAY:
        return
    negative = isinstance(parent, ast.UnaryOp) and (
      isinstance(parent.op, ast.USub)
    )
    outer = source.parents[parent] if negative else parent
    kind = 'constant'
    if isinstance(outer, (ast.Slice, ast.Subscript)):
      kind = 'index'
    for value in (node.value - 1, node.value + 1):
      if int(negative) <= min(value, node.value) and (
        max(value, node.value) <= LARGEST_CONSTANT
      ):
        new = source.tokens[first].lead + str(value)
        yield _Site(kind, first, first + 1, new)


def _slices(source: syntax.Source, node: ast.Slice) -> Iterator[_Site]:
  """`[x:]` and `[:x]`."""
  if node.step is None and (node.lower is None) != (node.upper is None):
    bound = node.lower or node.upper
    span = range(source.first(bound), source.last(bound))
    whole = range(source.first(node), source.last(node))
    text, old = source.exact(span), source.exact(whole)
    swapped = {text + ':': ':' + text, ':' + text: text + ':'}
    if text and len(span) <= 2 and old in swapped:
      new = source.tokens[whole.start].lead + swapped[old]
      yield _Site('slice', whole.start, whole.stop, new)


def _calls(source: syntax.Source, node: ast.Call) -> Iterator[_Site]:
  opening = source.last(node.func)
  span = range(opening - 1, opening)
  yield from _swaps(source, 'called', span, CALLED)
  arguments = _arguments(source, node)
  if source.text(span) not in SYMMETRIC_CALLS:
    for left, right in itertools.pairwise(arguments):
      yield from _exchange(source, left, right)
  if source.text(span) == 'range' and arguments:
    yield from _bounds(source, arguments[:2][-1])


def _arguments(source: syntax.Source, node: ast.Call) -> list[range]:
  """Token spans of the positional arguments; none if any is unpacked."""
  if any(isinstance(argument, ast.Starred) for argument in node.args):
    return []
  spans, depth, start = [], 0, source.last(node.func) + 1
  for i in range(start, source.last(node)):
    text = source.tokens[i].text
    if depth == 0 and text in (',', ')'):
      if i > start:
        spans.append(range(start, i))
      start = i + 1
    depth += (text in '([{') - (text in ')]}') if len(text) == 1 else 0
  return spans[: len(node.args)]


def _exchange(
  source: syntax.Source, left: range, right: range
) -> Iterator[_Site]:
  if max(len(left), len(right)) > LONGEST_ARGUMENT:
    return
  one, other = source.exact(left), source.exact(right)
  if one and other and one != other:
    lead = source.tokens[left.start].lead
    gap = source.tokens[right.start].lead
    new = f'{lead}{other},{gap}{one}'
    old = source.exact(range(left.start, right.stop))
    if old == f'{one},{gap}{other}':
      yield _Site('arguments', left.start, right.stop, new)


def _bounds(source: syntax.Source, stop: range) -> Iterator[_Site]:
  """One more or one less in the stop of a range."""
  steps = ('+ 1', '- 1')
  tail = range(stop.stop - 2, stop.stop)
  closing = source.tokens[stop.stop]
  if closing.lead or closing.line != source.tokens[stop.stop - 1].line:
    return
  if len(stop) < 3 or source.text(tail) not in steps:
    for step in steps:
      yield _Site('bound', stop.stop, stop.stop, ' ' + step)
  elif source.exact(tail) in steps and source.tokens[tail.start].lead:
    again = range(tail.start - 2, tail.start)
    if len(stop) < 5 or source.text(again) not in steps:
      yield _Site('bound', tail.start, tail.stop, '')


def _negations(source: syntax.Source) -> Iterator[_Site]:
  """`not` at the start of a condition that holds no comparison."""
  for i in range(1, len(source.tokens)):
    head = source.tokens[i]
    if source.tokens[i - 1].text not in ('if', 'elif', 'while', 'and', 'or'):
      continue
    if not head.lead or i - 1 not in source.editable:
      continue
    negated = head.text == 'not'
    start = i + negated
    if source.tokens[start].text == 'not' or _compares(source, start):
      continue
    if not negated:
      yield _Site('negation', i, i, ' not')
    elif source.tokens[start].lead:
      yield _Site('negation', i, i + 1, '')


def _compares(source: syntax.Source, start: int) -> bool:
  """Whether the condition that starts here compares, outside inner brackets."""
  depth = 0
  while source.tokens[start].text == '(':
    start += 1
  for token in source.tokens[start:]:
    if token.text in ('(', '[', '{'):
      depth += 1
    elif token.text in (')', ']', '}'):
      depth -= 1
    if depth < 0:
      return False
    if depth == 0 and token.text in (
      ':',
      'and',
      'or',
      'else',
      'if',
      'for',
      ',',
    ):
      return False
    if depth == 0 and token.text in COMPARISONS:
      return True
  return False


def _jumps(source: syntax.Source, node: ast.AST) -> Iterator[_Site]:
  span = range(source.first(node), source.last(node))
  yield from _swaps(source, 'jump', span, JUMPS)


_FINDERS = {
  ast.Compare: (_comparisons,),
  ast.BoolOp: (_booleans,),
  ast.BinOp: (_arithmetic,),
  ast.AugAssign: (_augmented,),
  ast.Constant: (_constants,),
  ast.Slice: (_slices,),
  ast.Call: (_calls,),
  ast.Break: (_jumps,),
  ast.Continue: (_jumps,),
}


def _smallest_edit(
  source: syntax.Source, site: _Site, path: str
) -> trajectory.Edit | None:
  """Widens the site, right before left, until both directions are unique.

  Never beyond the line: None if the whole line, before or after, has a twin in
  the file. Both directions widen alike, so that the set stays closed.
  """
  head = source.tokens[site.first]
  text = '\n'.join(source.lines)
  above = sum(len(line) + 1 for line in source.lines[: head.line - 1])
  begin = end = above + head.start - len(head.lead)
  if site.last > site.first:
    end = above + source.tokens[site.last - 1].stop
  mutated = text[:begin] + site.new + text[end:]
  low = bisect.bisect_left(source.places, (head.line, 0))
  high = bisect.bisect_left(source.places, (head.line + 1, 0))
  # An insertion and its inverse widen alike: to the right at least.
  least = int(site.first == site.last or not site.new)
  for size in range(least, high - low + 1):
    for right in range(size, least - 1, -1):
      first, last = site.first - (size - right), site.last + right
      if first < low or last > high:
        continue
      start = above + source.tokens[first].start
      start -= len(source.tokens[first].lead)
      stop = above + source.tokens[last - 1].stop
      old, new = text[start:stop], text[start:begin] + site.new + text[end:stop]
      if _only_at(text, old, start) and _only_at(mutated, new, start):
        return trajectory.Edit(path, old, new)
  return None


def _only_at(text: str, part: str, start: int) -> bool:
  """Unlike `text.count(part) == 1`, sees occurrences that overlap."""
  return text.find(part) == start and text.rfind(part) == start


def _parses(source: syntax.Source, site: _Site, text: str) -> bool:
  """Whether the statement of the module that was mutated still parses."""
  lines = source.statement(source.tokens[site.first].line)
  part = text.split('\n')[lines.start - 1 : lines.stop - 1]
  try:
    ast.parse('\n'.join(part))
  except SyntaxError:
    return False
  return True
