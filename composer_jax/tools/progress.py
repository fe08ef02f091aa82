"""Tools for the policy's own order of work: todo, submit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from composer_jax.tools import workspace as workspace_lib

STATES = ('open', 'done', 'cancelled')
_MARKS = {'open': '[ ]', 'done': '[x]', 'cancelled': '[-]'}


def todo(
  workspace: workspace_lib.Workspace, items: Sequence[Mapping[str, str]]
) -> workspace_lib.Answer:
  """Puts `items` in the place of the list, if there are any; shows it."""
  if items:
    workspace.todos = list(items)
  lines = [f'{_MARKS[i["status"]]} {i["text"]}' for i in workspace.todos]
  return workspace_lib.Answer(text='\n'.join(lines) or 'the list is empty')


def submit(
  workspace: workspace_lib.Workspace, message: str
) -> workspace_lib.Answer:
  """Ends the episode."""
  workspace.submitted = True
  workspace.message = message
  return workspace_lib.Answer(text='submitted')
