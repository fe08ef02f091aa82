"""The tools as people read of them; the model is told the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from composer_jax.tools import catalog
from composer_jax.tools import schema

_HEAD = """# Tools

What the policy can call. This page is rendered from `catalog.py`, which is also
what the model is told; `documentation.markdown()` gives it.

Calls of one turn that change nothing run side by side; one that changes
something waits for those before it. Results come in call order. A call that
does not fit the schema is answered with what was expected, and runs nothing."""


def chat_tools(names: Sequence[str]) -> list[dict[str, Any]]:
  """The `tools` of a request to an OpenAI-compatible chat interface."""
  return [
    {'type': 'function', 'function': schema.json_schema(catalog.TOOLS[name])}
    for name in names
  ]


def markdown() -> str:
  """A page on all the tools."""
  sections = [_section(spec) for spec in catalog.TOOLS.values()]
  return '\n\n'.join([_HEAD, *sections]) + '\n'


def _section(spec: schema.ToolSpec) -> str:
  effect = 'Changes something.' if spec.mutates else 'Changes nothing.'
  lines = [f'## {spec.name}', '', f'{spec.description} {effect}']
  if spec.parameters:
    lines += ['', '| argument | type | default | meaning |', '| --- ' * 4 + '|']
    lines += _rows(spec.parameters, '')
  return '\n'.join(lines)


def _rows(
  parameters: Mapping[str, schema.Parameter], prefix: str
) -> Iterator[str]:
  for name, parameter in parameters.items():
    kind = parameter.type_name
    item = parameter.items
    if item is not None:
      kind = f'{kind} of {item.type_name}s'
    kind = ' '.join(filter(None, [kind, _limits(parameter)]))
    default = 'required' if parameter.required else _default(parameter)
    yield f'| `{prefix}{name}` | {kind} | {default} | {parameter.description} |'
    if item is not None:
      yield from _rows(item.fields, f'{prefix}{name}[].')


def _default(parameter: schema.Parameter) -> str:
  if parameter.default in ('', ()):
    return 'empty'
  if parameter.type is bool:
    return f'`{str(parameter.default).lower()}`'
  return f'`{parameter.default}`'


def _limits(parameter: schema.Parameter) -> str:
  if parameter.choices:
    return '(' + ', '.join(f'`{c}`' for c in parameter.choices) + ')'
  least, most = parameter.least, parameter.most
  if parameter.type is str and most is None:
    return '(not empty)' if least else ''
  unit = ' characters' if parameter.type is str else ''
  if most is None:
    return '' if least is None else f'(at least {least})'
  if least is None:
    return f'(at most {most}{unit})'
  return f'({least} to {most}{unit})'
