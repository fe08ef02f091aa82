"""The tool that is a terminal: one shell that lives as long as the episode."""

from __future__ import annotations

from composer_jax import trajectory
from composer_jax.tools import workspace as workspace_lib


def run_terminal(
  workspace: workspace_lib.Workspace, command: str, seconds: int
) -> workspace_lib.Answer:
  """Runs a command in the shell; what it said and how it ended."""
  limit = min(seconds, workspace.config.terminal_seconds)
  result = workspace.shell().exec(command, seconds=limit)
  said = [result.output.removesuffix('\n')] * bool(result.output)
  status = trajectory.Status.ERROR
  if result.timed_out:
    said.append(f'timed out after {limit:g} s')
    status = trajectory.Status.TIMEOUT
  elif result.exit_code == 0:
    status = trajectory.Status.OK
  elif result.exit_code is not None:
    said.append(f'[exit status {result.exit_code}]')
  return workspace_lib.Answer(
    text='\n'.join(said),
    status=status,
    exit_code=result.exit_code,
    dropped_bytes=result.dropped_bytes,
  )
