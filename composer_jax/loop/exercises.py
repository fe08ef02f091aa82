"""Drill for the hand before the head: naming edits that fit the code.

An exercise shows lines of real code, drawn from many functions, and answers
with edits that would apply to them; none is run. No two are alike, so nothing
can be learned by heart: what is left to learn is to copy `old` from what is
shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
import random

import numpy as np

from composer_jax import trajectory
from composer_jax.loop import warmstart
from composer_jax.tasks import functions
from composer_jax.tasks import humaneval
from composer_jax.text import chat as chat_lib
from composer_jax.tools import files

_LINES = (3, 9)  # Of an exercise, at least and at most.
_EDITABLE = 0.7  # Chance that a line is drawn from those with edits.
_LONGEST_LINE = 70  # Characters.
_MOST_MISSES = 1000  # In a row.


@dataclasses.dataclass(frozen=True)
class _Line:
  """A line of code, and the edits that apply to it where it stands."""

  text: str
  edits: tuple[trajectory.Edit, ...]


def make(
  tasks: Sequence[trajectory.Task],
  chat: chat_lib.Chat,
  *,
  count: int,
  max_tokens: int,
  seed: int,
) -> Iterator[trajectory.Trajectory]:
  """Exercises on lines of the standard library and of training tasks.

  Raises:
    ValueError: hardly any fit into `max_tokens`.
  """
  rng = random.Random(seed)
  originals = dict.fromkeys(
    task.provenance.bug.inverse().apply(task.files[humaneval.SOLUTION_FILE])
    for task in tasks
  )
  # The problems, being fewer, weigh as much as the library.
  texts = [*originals] * 3 + functions.functions()
  lines = [line for text in texts for line in _lines(text)]
  editable = [line for line in lines if line.edits]
  made = misses = 0
  while made < count:
    drawn = [
      rng.choice(editable if rng.random() < _EDITABLE else lines)
      for _ in range(rng.randint(*_LINES))
    ]
    exercise = _exercise(drawn, chat, rng, max_tokens)
    if exercise is not None:
      yield exercise
      made, misses = made + 1, 0
      continue
    misses += 1
    if misses > _MOST_MISSES:
      raise ValueError(
        f'{misses} exercises in a row had no edit that fits in {max_tokens}'
        ' tokens; raise model.vocab_size'
      )


def _lines(text: str) -> list[_Line]:
  edits = warmstart.candidates(text)
  return [
    _Line(line, tuple(edit for edit in edits if edit.old in line))
    for line in files.fold_docstrings(text).strip('\n').split('\n')
    if len(line) <= _LONGEST_LINE
  ]


def _exercise(
  lines: Sequence[_Line],
  chat: chat_lib.Chat,
  rng: random.Random,
  max_tokens: int,
) -> trajectory.Trajectory | None:
  """One exercise; None if no edit is unique or has room."""
  text = '\n'.join(line.text for line in lines)
  edits = [
    edit for line in lines for edit in line.edits if text.count(edit.old) == 1
  ]
  path = humaneval.SOLUTION_FILE
  read = trajectory.ToolCall(
    id='read', name='read_file', arguments={'path': path}
  )
  shown = trajectory.ToolResult(
    call_id='read',
    status=trajectory.Status.OK,
    text=text,
  )
  token_T = chat.prompt(f'Name edits that apply to {path}.')
  token_T += chat.calls([read]) + chat.results([shown])
  start = len(token_T)
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
