"""Drill for the hand before the head: naming edits that fit the code.

An exercise shows a function and answers with many edits that would apply to it,
none of them run. It teaches what a demonstration shows only once or twice, that
`old` is copied from the file, on far more code than there are problems.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import random

import numpy as np

from composer_jax import trajectory
from composer_jax.loop import warmstart
from composer_jax.tasks import functions
from composer_jax.tasks import humaneval
from composer_jax.text import chat as chat_lib
from composer_jax.tools import files

_FEWEST_EDITS = 4


def make(
  tasks: Sequence[trajectory.Task],
  chat: chat_lib.Chat,
  *,
  count: int,
  max_tokens: int,
  seed: int,
) -> list[trajectory.Trajectory]:
  """Exercises on the standard library and on training tasks, half and half."""
  rng = random.Random(seed)
  library = functions.functions()
  problems = [task.files[humaneval.SOLUTION_FILE] for task in tasks]
  made = []
  while len(made) < count:
    text = rng.choice(library if len(made) % 2 else problems)
    if len(warmstart.candidates(text)) >= _FEWEST_EDITS:
      exercise = _exercise(text, chat, rng, max_tokens)
      made += [exercise] * (exercise is not None)
  return made


def _exercise(
  text: str, chat: chat_lib.Chat, rng: random.Random, max_tokens: int
) -> trajectory.Trajectory | None:
  """One exercise; None if there is no room for a single edit."""
  path = humaneval.SOLUTION_FILE
  read = trajectory.ToolCall(
    id='read', name='read_file', arguments={'path': path}
  )
  shown = trajectory.ToolResult(
    call_id='read',
    status=trajectory.Status.OK,
    text=files.fold_docstrings(text).strip('\n'),
  )
  token_T = chat.prompt(f'Name edits that apply to {path}.')
  token_T += chat.calls([read]) + chat.results([shown])
  start = len(token_T)
  edits = list(warmstart.candidates(text))
  rng.shuffle(edits)
  calls = [
    trajectory.ToolCall(
      id='edit', name='edit_file', arguments=dataclasses.asdict(edit)
    )
    for edit in edits
  ]
  while calls and start + len(chat.calls(calls)) > max_tokens:
    calls.pop()
  if not calls:
    return None
  token_T = np.asarray(token_T + chat.calls(calls), np.int32)
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
