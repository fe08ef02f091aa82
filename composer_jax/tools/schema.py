"""What a tool takes: one description for the model, for people, for the door.

`json_schema` is what chat interfaces want, `bind` holds a call to it, and
`documentation` shows it to people.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

from composer_jax.tools import workspace as workspace_lib

_NAMES = {
  str: 'string',
  int: 'integer',
  float: 'number',
  bool: 'boolean',
  list: 'array',
  dict: 'object',
}
# What `least` and `most` bound, as JSON schema calls it.
_BOUNDS = {
  str: ('minLength', 'maxLength'),
  int: ('minimum', 'maximum'),
  float: ('minimum', 'maximum'),
  list: ('minItems', 'maxItems'),
}


@dataclasses.dataclass(frozen=True)
class Parameter:
  """One argument of a tool, or what an argument is made of."""

  type: type  # One of those in `_NAMES`.
  description: str
  default: Any = None  # None: it must be given.
  _: dataclasses.KW_ONLY
  least: int | None = None  # Of a number; of a text or a list, its length.
  most: int | None = None
  choices: tuple[str, ...] = ()  # All that a string may be.
  # What a list, and what an object holds.
  items: Parameter | None = None
  fields: Mapping[str, Parameter] = dataclasses.field(default_factory=dict)

  @property
  def required(self) -> bool:
    return self.default is None

  @property
  def type_name(self) -> str:
    return _NAMES[self.type]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolSpec:
  """One tool. `run` takes a workspace, then the arguments in their order."""

  name: str
  description: str
  run: Callable[..., workspace_lib.Answer]
  parameters: Mapping[str, Parameter]
  mutates: bool  # Calls before and after it must not overlap with it.


def json_schema(spec: ToolSpec) -> dict[str, Any]:
  """The tool as a function definition of the usual chat interfaces."""
  return {
    'name': spec.name,
    'description': spec.description,
    'parameters': _object(spec.parameters),
  }


def _object(fields: Mapping[str, Parameter]) -> dict[str, Any]:
  return {
    'type': 'object',
    'properties': {name: _value(field) for name, field in fields.items()},
    'required': [name for name, field in fields.items() if field.required],
    'additionalProperties': False,
  }


def _value(parameter: Parameter) -> dict[str, Any]:
  described = {'description': parameter.description}
  if parameter.type is dict:
    return _object(parameter.fields) | described
  value: dict[str, Any] = {'type': parameter.type_name} | described
  if parameter.choices:
    value['enum'] = list(parameter.choices)
  limits = parameter.least, parameter.most
  for name, limit in zip(_BOUNDS.get(parameter.type, ()), limits, strict=False):
    if limit is not None:
      value[name] = limit
  if parameter.items is not None:
    value['items'] = _value(parameter.items)
  if not parameter.required:
    default = parameter.default
    value['default'] = list(default) if parameter.type is list else default
  return value


def bind(spec: ToolSpec, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
  """The arguments in order; ValueError that says what is expected."""
  try:
    _check_fields(spec.parameters, arguments, '')
  except ValueError as error:
    raise ValueError(f'{error}; expected {usage(spec)}') from None
  return tuple(
    arguments.get(name, parameter.default)
    for name, parameter in spec.parameters.items()
  )


def usage(spec: ToolSpec) -> str:
  """`edit_file(path: string, old: string, new: string)`."""
  parts = (
    f'{name}: {parameter.type_name}{"" if parameter.required else "?"}'
    for name, parameter in spec.parameters.items()
  )
  return f'{spec.name}({", ".join(parts)})'


def _check_fields(
  fields: Mapping[str, Parameter], values: Mapping[str, Any], prefix: str
) -> None:
  for name in values:
    if name not in fields:
      raise ValueError(f'unknown argument {prefix + name!r}')
  for name, field in fields.items():
    if name in values:
      _check(field, values[name], prefix + name)
    elif field.required:
      raise ValueError(f'no argument {prefix + name!r}')


def _check(parameter: Parameter, value: Any, name: str) -> None:
  """Raises ValueError unless the value is what the parameter says."""
  kinds = {parameter.type, int} if parameter.type is float else {parameter.type}
  if type(value) not in kinds:  # A bool is an int, yet no number.
    raise ValueError(f'{name!r} is no {parameter.type_name}')
  if parameter.choices and value not in parameter.choices:
    raise ValueError(f'{name!r} is none of {", ".join(parameter.choices)}')
  if parameter.type is str and '\0' in value:
    raise ValueError(f'{name!r} holds a zero character')
  _check_bounds(parameter, value, name)
  if parameter.items is not None:
    for index, item in enumerate(value):
      _check(parameter.items, item, f'{name}[{index}]')
  if parameter.type is dict:
    _check_fields(parameter.fields, value, f'{name}.')


def _check_bounds(parameter: Parameter, value: Any, name: str) -> None:
  least, most = parameter.least, parameter.most
  if least is None and most is None:
    return
  size, unit = value, ''
  if parameter.type in (str, list):
    size = len(value)
    unit = ' characters' if parameter.type is str else ' items'
  # Written so that what is not a number fails.
  if least is not None and not size >= least:
    raise ValueError(f'{name!r} is {size}{unit}, less than {least}')
  if most is not None and not size <= most:
    raise ValueError(f'{name!r} is {size}{unit}, more than {most}')
