"""The tool that runs the visible tests."""

from __future__ import annotations

from composer_jax import trajectory
from composer_jax.tools import sandbox
from composer_jax.tools import workspace as workspace_lib

# A run that was stopped counts as a property of the code, not of a busy
# machine, once it has computed for this share of its time.
_BUSY = 0.5


def run_tests(workspace: workspace_lib.Workspace) -> workspace_lib.Answer:
  """Runs the task's test command on the files as they are."""
  task, cache = workspace.task, workspace.cache
  if cache is None:
    return _answer(_run(workspace), task.test_seconds)
  key = workspace_lib.digest(workspace.box.files(), tuple(task.test_command))
  result = cache.get(key)
  if result is None:
    result = _run(workspace)
    busy = result.cpu_seconds >= _BUSY * task.test_seconds
    if result.exit_code is not None or (result.timed_out and busy):
      cache.put(key, result)
  return _answer(result, task.test_seconds)


def _run(workspace: workspace_lib.Workspace) -> sandbox.RunResult:
  task = workspace.task
  return workspace.box.exec(task.test_command, seconds=task.test_seconds)


def _answer(result: sandbox.RunResult, limit: float) -> workspace_lib.Answer:
  status, text = trajectory.Status.ERROR, result.output.removesuffix('\n')
  if result.timed_out:
    status = trajectory.Status.TIMEOUT
    text = f'{text}\ntimed out after {limit:g} s'.lstrip('\n')
  elif result.exit_code == 0:
    status = trajectory.Status.OK
  return workspace_lib.Answer(
    text=text,
    status=status,
    exit_code=result.exit_code,
    dropped_bytes=result.dropped_bytes,
  )
