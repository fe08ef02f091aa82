"""Agents without a model: the ceiling and the floor of an evaluation.

Written as scripts (see `scripted.Script`), so they act on the same episode as
a policy does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import random
import re
from typing import Any

from composer_jax import trajectory
from composer_jax.actor import scripted

Turns = Callable[[scripted.Script], Iterator[scripted.Calls]]
# A tool as a function definition of the usual chat interfaces.
Schema = Mapping[str, Any]

_PATH = re.compile(r'[\w.-]+(?:/[\w.-]+)*\.[A-Za-z]\w*|[\w.-]+/')
_WORD = re.compile(r'[A-Za-z_]\w{2,}')
_COMMANDS = (
  'ls',
  'pwd',
  'cat *.py | head',
  'python -m pytest -q',
  'git status',
)
_KNOWN_LINES = 400  # Of what the tools said, the latest.
_OPTIONAL = 0.25  # Chance that an argument which may be left out is given.
_NUMBERS = (1, 40)  # Where the schema sets no limits.
_LONGEST_LIST = 2


def oracle(
  fix: Sequence[trajectory.Edit], *, tools: Sequence[str], message: str = ''
) -> Turns:
  """Knows the fix: applies it, runs the tests, submits. The only one who does.

  Args:
    fix: edits in order; one of an empty `old` creates its file.
    tools: that are allowed.
    message: said with the submission, unless empty.
  """

  def turns(script: scripted.Script) -> Iterator[scripted.Calls]:
    del script
    yield [_applied(edit) for edit in fix]
    if 'run_tests' in tools:
      yield [('run_tests', {})]
    while True:
      yield [('submit', {'message': message} if message else {})]

  return turns


def _applied(edit: trajectory.Edit) -> tuple[str, dict]:
  if edit.old:
    return 'edit_file', dataclasses.asdict(edit)
  return 'write_file', {'path': edit.path, 'text': edit.new}


def random_caller(
  prompt: str, schemas: Sequence[Schema], rng: random.Random
) -> Turns:
  """Calls tools at random, with arguments that their schemas allow.

  Paths, lines and words are drawn from what it was told: by the prompt, then
  by the tools. The floor: what is solved without any thought.
  """

  def turns(script: scripted.Script) -> Iterator[scripted.Calls]:
    seen = _Seen(rng)
    seen.hear(prompt)
    while True:
      schema = rng.choice(schemas)
      yield [(schema['name'], seen.arguments(schema['parameters']))]
      for result in script.results:
        seen.hear(result.text)

  return turns


class _Seen:
  """What there is to talk about, and arguments made of it."""

  def __init__(self, rng: random.Random):
    self._rng = rng
    self._paths: dict[str, None] = {}  # In the order of appearance.
    self._lines: list[str] = []

  def hear(self, text: str) -> None:
    self._paths.update(dict.fromkeys(_PATH.findall(text)))
    self._lines += [line for line in text.split('\n') if line.strip()]
    del self._lines[:-_KNOWN_LINES]

  def arguments(self, schema: Schema) -> dict[str, Any]:
    """A value for each property that has to be there, and for some others."""
    required = schema.get('required', ())
    return {
      name: self._value(name, kind)
      for name, kind in schema.get('properties', {}).items()
      if name in required or self._rng.random() < _OPTIONAL
    }

  def _value(self, name: str, schema: Schema) -> Any:
    if 'enum' in schema:
      return self._rng.choice(schema['enum'])
    match schema['type']:
      case 'boolean':
        return self._rng.random() < 0.5
      case 'integer' | 'number':
        low = schema.get('minimum', _NUMBERS[0])
        return self._rng.randint(
          low, schema.get('maximum', max(low, _NUMBERS[1]))
        )
      case 'array':
        least = schema.get('minItems', 0)
        most = schema.get('maxItems', max(least, _LONGEST_LIST))
        count = self._rng.randint(least, min(most, least + _LONGEST_LIST))
        return [self._value(name, schema['items']) for _ in range(count)]
      case 'object':
        return self.arguments(schema)
    most = schema.get('maxLength')
    return self._text(name)[:most]

  def _text(self, name: str) -> str:
    """A text that fits the name of the argument."""
    if name == 'command':
      return self._rng.choice(_COMMANDS)
    if name in ('path', 'paths', 'glob', 'tests') and self._paths:
      return self._rng.choice(list(self._paths))
    line = self._rng.choice(self._lines or ['x'])
    if name in ('old', 'new', 'text', 'content'):
      return line
    return self._rng.choice(_WORD.findall(line) or ['x'])
