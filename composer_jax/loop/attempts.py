"""Attempts that are made once each, whatever interrupts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
import pathlib
import queue
import time
from typing import NamedTuple

from absl import logging
import tqdm

from composer_jax import trajectory
from composer_jax.loop import behaviour
from composer_jax.loop import supervise
from composer_jax.replay import record

_MOST_WAITING = 64  # Finished attempts that are in memory only.
_LONGEST_WAITING_S = 30.0
_MOST_LOST = 10  # In a row; then the fault is no accident.


class Attempt(NamedTuple):
  """The `member`-th attempt at a task."""

  task: trajectory.Task
  member: int

  @property
  def key(self) -> tuple[str, int]:
    return self.task.id, self.member


def plan(tasks: Sequence[trajectory.Task], attempts: int) -> list[Attempt]:
  """Every task once, then every task again: an early stop is fair to all."""
  return [Attempt(t, member) for member in range(attempts) for t in tasks]


class Journal:
  """Finished attempts, in memory for half a minute and then on disk."""

  def __init__(
    self,
    directory: str,
    *,
    clock: Callable[[], float] = time.monotonic,
  ):
    self._directory = pathlib.Path(directory)
    self._clock = clock
    self._waiting: list[trajectory.Trajectory] = []
    self._since = 0.0
    names = [path.stem for path in self._directory.glob('*.array_record')]
    self._next = 1 + max(map(int, names), default=-1)

  def __iter__(self) -> Iterator[trajectory.Trajectory]:
    """Those on disk."""
    if self._next:
      source = record.TrajectorySource(self._directory)
      for index in range(len(source)):
        yield source[index]

  def add(self, episode: trajectory.Trajectory) -> None:
    if not self._waiting:
      self._since = self._clock()
    self._waiting.append(episode)
    waited = self._clock() - self._since
    if len(self._waiting) >= _MOST_WAITING or waited >= _LONGEST_WAITING_S:
      self.flush()

  def flush(self) -> None:
    """Writes what waits, as one file that appears whole."""
    if self._waiting:
      record.write_step(self._directory, self._next, self._waiting)
      self._next += 1
      self._waiting = []


def run(
  waiting: Sequence[Attempt],
  attempt: Callable[[Attempt], trajectory.Trajectory],
  journal: Journal,
  *,
  threads: int,
  label: str,
  crew: supervise.Crew,
) -> int:
  """Makes the attempts and writes them down as they end.

  Returns:
    How many were lost by a fault of ours.

  Raises:
    trajectory.InfrastructureError: many in a row were lost.
    supervise.Stopped: asked to; what ended before the process does is kept.
  """
  ended: queue.SimpleQueue[futures.Future] = queue.SimpleQueue()
  executor = futures.ThreadPoolExecutor(threads)
  try:
    for one in waiting:
      executor.submit(attempt, one).add_done_callback(ended.put)
    return _collect(ended, len(waiting), journal, label=label, crew=crew)
  finally:  # After an error, none of the rest is begun.
    executor.shutdown(wait=False, cancel_futures=True)
    _keep(ended, journal)  # While waiting for the rest, it may be killed.
    executor.shutdown()
    _keep(ended, journal)


def _keep(ended: queue.SimpleQueue[futures.Future], journal: Journal) -> None:
  """Writes down what ended well and was not collected any more."""
  while not ended.empty():
    future = ended.get()
    if not future.cancelled() and future.exception() is None:
      journal.add(future.result())
  journal.flush()


def _collect(
  ended: queue.SimpleQueue[futures.Future],
  count: int,
  journal: Journal,
  *,
  label: str,
  crew: supervise.Crew,
) -> int:
  """Writes `count` attempts down; returns how many of them were lost."""
  lost = in_a_row = solved = 0
  bar = tqdm.tqdm(total=count, desc=label, mininterval=0.5)
  with bar:
    while bar.n < count:
      crew.check()
      try:
        future = ended.get(timeout=1.0)
      except queue.Empty:
        continue
      try:
        episode = future.result()
      except trajectory.InfrastructureError as error:
        lost, in_a_row = lost + 1, in_a_row + 1
        logging.warning('%s: attempt lost: %s', label, error)
        if in_a_row >= _MOST_LOST:
          raise trajectory.InfrastructureError(
            f'{in_a_row} attempts in a row were lost; the last: {error}'
          ) from error
      else:
        journal.add(episode)
        in_a_row, solved = 0, solved + behaviour.solved(episode)
      bar.set_postfix(solved=solved, lost=lost, refresh=False)
      bar.update()
  return lost
