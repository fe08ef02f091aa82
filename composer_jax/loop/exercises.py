"""Drill for the hand before the head: naming edits that fit the code.

An exercise shows lines of real code, drawn from many functions and with some
names exchanged, and answers with edits that would apply to them; none is run.
No two are alike, so nothing can be learned by heart: what is left to learn is
to copy `old` from what is shown.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
import dataclasses
import keyword
import random
import re

import numpy as np

from composer_jax import trajectory
from composer_jax.loop import focus as focus_lib
from composer_jax.tasks import functions
from composer_jax.tasks import mutate
from composer_jax.text import chat as chat_lib
from composer_jax.tools import files

_LINES = (3, 9)  # Of an exercise, at least and at most.
_EDITABLE = 0.7  # Chance that a line is drawn from those with edits.
_LONGEST_LINE = 70  # Characters.
_MOST_MISSES = 1000  # In a row.
_RENAMED = 0.25  # Chance that a name is exchanged.
_LONGEST_NAME = 14  # Characters, of those put in.
_NAME = re.compile(r'[A-Za-z_]\w*')
_KEPT = {*keyword.kwlist, *dir(builtins), 'self', *mutate.CALLED}


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
  paths = sorted({focus_lib.find(task).path for task in tasks})
  # The problems, being fewer, weigh as much as the library.
  library = functions.functions()
  texts = focus_lib.originals(tasks) * 3 + library
  lines = [line for text in texts for line in _lines(text)]
  editable = [line for line in lines if line.edits]
  names = sorted(
    {
      name
      for text in library
      for name in _NAME.findall(text)
      if name not in _KEPT and len(name) <= _LONGEST_NAME
    }
  )
  made = misses = 0
  while made < count:
    drawn = [
      rng.choice(editable if rng.random() < _EDITABLE else lines)
      for _ in range(rng.randint(*_LINES))
    ]
    drawn = _rename(drawn, names, rng)
    path = paths[made % len(paths)]
    exercise = _exercise(path, drawn, chat, rng, max_tokens)
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
  edits = focus_lib.candidates(text, focus_lib.Focus(''))
  return [
    _Line(line, tuple(edit for edit in edits if edit.old in line))
    for line in files.fold_docstrings(text).strip('\n').split('\n')
    if len(line) <= _LONGEST_LINE
  ]


def _rename(
  lines: Sequence[_Line], names: Sequence[str], rng: random.Random
) -> list[_Line]:
  """The lines, each name in them kept or exchanged everywhere.

  Else what is seldom in the training tasks would be left to be copied for the
  first time on a task that was held out.
  """
  renamed: dict[str, str] = {}

  def exchange(match: re.Match[str]) -> str:
    name = match[0]
    if name not in renamed:
      renamed[name] = name
      new = rng.choice(names)
      if name not in _KEPT and rng.random() < _RENAMED:
        if new not in renamed.values():
          renamed[name] = new
    return renamed[name]

  def rename(text: str) -> str:
    return _NAME.sub(exchange, text)

  return [
    _Line(
      rename(line.text),
      tuple(
        dataclasses.replace(edit, old=rename(edit.old), new=rename(edit.new))
        for edit in line.edits
        if rename(edit.old) != rename(edit.new)
      ),
    )
    for line in lines
  ]


def _exercise(
  path: str,
  lines: Sequence[_Line],
  chat: chat_lib.Chat,
  rng: random.Random,
  max_tokens: int,
) -> trajectory.Trajectory | None:
  """One exercise; None if no edit is unique or has room."""
  text = '\n'.join(line.text for line in lines)
  edits = [
    dataclasses.replace(edit, path=path)
    for line in lines
    for edit in line.edits
    if text.count(edit.old) == 1
  ]
  read = trajectory.ToolCall(
    id='read', name='read_file', arguments={'path': path}
  )
  shown = trajectory.ToolResult(
    call_id='read',
    status=trajectory.Status.OK,
    text=text,
  )
  token_T = chat.prompt(f'{path}: name edits that apply.')
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
