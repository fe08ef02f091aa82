"""Drill for the hand before the head: naming edits that fit the code.

An exercise shows a function and answers with many edits that would apply to it,
none of them run. It teaches what a demonstration shows only once or twice, that
`old` is copied from the file, on far more code than there are problems.
"""

from __future__ import annotations

import random

import numpy as np

from composer_jax import trajectory
from composer_jax.loop import warmstart
from composer_jax.tasks import functions
from composer_jax.tasks import humaneval
from composer_jax.text import chat as chat_lib
from composer_jax.tools import files

_FEWEST_EDITS = 4


def sources(tasks) -> list[str]:
  """Code to practise on: the standard library and the training problems."""
  found = functions.functions()
  found += [task.files[humaneval.SOLUTION_FILE] for task in tasks]
  return [
    text for text in found if len(warmstart.candidates(text)) >= _FEWEST_EDITS
  ]


def make(
  text: str, chat: chat_lib.Chat, rng: random.Random, *, max_tokens: int
) -> trajectory.Trajectory | None:
  """One exercise; None if the function alone is too long."""
  path = humaneval.SOLUTION_FILE
  read = trajectory.ToolCall(
    id='read', name='read_file', arguments={'path': path}
  )
  shown = trajectory.ToolResult(
    call_id='read',
    status=trajectory.Status.OK,
    text=files.fold_docstrings(text),
  )
  token_T = chat.prompt(f'Name edits that apply to {path}.')
  token_T += chat.calls([read]) + chat.results([shown])
  start = len(token_T)
  edits = list(warmstart.candidates(text))
  rng.shuffle(edits)
  answer: list[int] = []
  calls = []
  for edit in edits:
    calls.append(
      trajectory.ToolCall(
        id='edit',
        name='edit_file',
        arguments={
          'path': path,
          'old': edit.old,
          'new': edit.new,
        },
      )
    )
    longer = chat.calls(calls)
    if start + len(longer) > max_tokens:
      break
    answer = longer
  if not answer:
    return None
  token_T = np.asarray(token_T + answer, np.int32)
  sampled_T = np.arange(len(token_T)) >= start
  return trajectory.Trajectory(
    task_id='exercise',
    group=0,
    member=0,
    token_T=token_T,
    sampled_T=sampled_T,
    logprob_T=np.zeros(len(token_T), np.float32),
    version_T=np.where(sampled_T, 0, -1).astype(np.int32),
    route_TLX=np.zeros((len(token_T), 0, 0), np.int8),
    turns=(),
    ending=trajectory.Ending.NO_CALL,
    final_files={},
  )
