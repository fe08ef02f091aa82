"""Demonstrations recorded in real episodes, and training on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
import random

import grain
import numpy as np

from composer_jax import trajectory
from composer_jax.actor import scripted
from composer_jax.learner import batch as batch_lib
from composer_jax.loop import environment
from composer_jax.loop import focus as focus_lib
from composer_jax.text import chat as chat_lib


def corpus(observations: Iterable[str]) -> Iterator[str]:
  """What the tokenizer learns from: every distinct line, once.

  The mutants of a problem share most of their lines; counted each time they
  would fill the vocabulary with the names of a few problems.
  """
  seen = set()
  for text in observations:
    for line in text.split('\n'):
      if line not in seen:
        seen.add(line)
        yield '\n' + line


def demonstrate(
  task: trajectory.Task,
  env: environment.Environment,
  chat: chat_lib.Chat,
  *,
  config: scripted.DemonstrationConfig,
  seed: int,
) -> trajectory.Trajectory:
  """One recorded episode of the scripted demonstrator."""
  focus = focus_lib.find(task)
  turns = scripted.demonstrator(
    read=focus.arguments,
    text=task.files[focus.path],
    fix=task.provenance.fix[0],
    candidates=lambda text: focus_lib.candidates(text, focus),
    rng=random.Random(seed),
    config=config,
  )
  return env.attempt(task, scripted_player(turns, chat))


def enumerate_edits(
  task: trajectory.Task,
  env: environment.Environment,
  chat: chat_lib.Chat,
  *,
  seed: int,
) -> trajectory.Trajectory:
  """One episode of the enumerating yardstick."""
  focus = focus_lib.find(task)
  turns = scripted.enumerator(
    read=focus.arguments,
    text=task.files[focus.path],
    candidates=lambda text: focus_lib.candidates(text, focus),
    rng=random.Random(seed),
  )
  return env.attempt(task, scripted_player(turns, chat))


def scripted_player(turns, chat: chat_lib.Chat) -> environment.Player:
  def play(call_tools):
    script = scripted.Script(turns, chat, call_tools)
    return script.sample, script.call_tools

  return play


def batches(
  sources: Sequence[grain.sources.RandomAccessDataSource],
  shares: Sequence[float],
  *,
  rows: int,
  length: int,
  seed: int,
  route_shape: tuple[int, int],
) -> grain.DatasetIterator[batch_lib.Batch]:
  """An endless, resumable stream of packed micro-batches.

  The sources are mixed in these shares. Order depends on the seed alone;
  `get_state` and `set_state` of the iterator resume it. Sequences stay whole: a
  row holds as many as fit.
  """
  packed = grain.experimental.FirstFitPackIterDataset(
    grain.MapDataset.mix(
      [
        grain.MapDataset.source(source)
        .seed(seed)
        .shuffle()
        .repeat()
        .map(_features)
        for source in sources
      ],
      shares,
    ).to_iter_dataset(),
    length_struct={'token': length, 'sampled': length},
    num_packing_bins=rows,
  )

  def to_batch(rows_of):
    shape = rows_of['token'].shape
    return batch_lib.Batch(
      token_BT=rows_of['token'],
      segment_BT=rows_of['token_segment_ids'].astype(np.int32),
      position_BT=rows_of['token_positions'].astype(np.int32),
      sampled_BT=rows_of['sampled'] != 0,
      behaviour_BT=np.zeros(shape, np.float32),
      advantage_BT=np.zeros(shape, np.float32),
      route_BTLX=np.full(
        (*shape, *route_shape), trajectory.UNKNOWN_ROUTE, np.int8
      ),
    )

  return iter(packed.batch(rows, drop_remainder=True).map(to_batch))


def _features(episode: trajectory.Trajectory) -> dict[str, np.ndarray]:
  return {
    'token': episode.token_T,
    'sampled': episode.sampled_T.astype(np.int32),
  }
