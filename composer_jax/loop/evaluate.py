"""Solve rates by hidden tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent import futures
import hashlib

from absl import logging
import numpy as np
import tqdm

from composer_jax import trajectory
from composer_jax.loop import supervise

# (task, place in the list) → graded trajectory.
Attempt = Callable[[trajectory.Task, int], trajectory.Trajectory]


def choose(
  tasks: Sequence[trajectory.Task], count: int
) -> list[trajectory.Task]:
  """`count` tasks, taken from the problems in turn, the same in every run."""
  by_problem = {}
  for task in sorted(tasks, key=lambda t: hashlib.md5(t.id.encode()).digest()):
    by_problem.setdefault(task.provenance.problem, []).append(task)
  chosen = []
  while by_problem and len(chosen) < count:
    for problem in list(by_problem):
      chosen.append(by_problem[problem].pop())
      if not by_problem[problem]:
        del by_problem[problem]
  return chosen[:count]


def seed_of(*parts: int) -> int:
  """A 32-bit seed that depends on every part and on how many there are."""
  # Zeros at the end would not count.
  return int(np.random.SeedSequence((*parts, 1)).generate_state(1)[0])


def run(
  tasks: Sequence[trajectory.Task],
  attempt: Attempt,
  *,
  threads: int,
  label: str,
  crew: supervise.Crew,
) -> list[trajectory.Trajectory]:
  """One graded attempt per task; those lost by our fault are left out."""
  done, failed = [], 0
  with futures.ThreadPoolExecutor(threads) as executor:
    waiting = [executor.submit(attempt, t, i) for i, t in enumerate(tasks)]
    try:
      for future in tqdm.tqdm(waiting, desc=label, mininterval=0.5):
        try:
          done.append(_result(future, crew))
        except trajectory.InfrastructureError as error:
          failed += 1
          logging.warning('%s: attempt lost: %s', label, error)
    finally:  # After an error, none of the rest is begun.
      executor.shutdown(cancel_futures=True)
  if failed:
    logging.warning('%s: %d of %d attempts lost', label, failed, len(tasks))
  return done


def _result(future: futures.Future, crew: supervise.Crew):
  while not future.done():
    crew.check()
    futures.wait([future], timeout=1.0)
  return future.result()
