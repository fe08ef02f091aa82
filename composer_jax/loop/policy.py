"""The sampler in service: its thread, its subscription, its sessions."""

from __future__ import annotations

from concurrent import futures
import contextlib
import itertools
import time
from typing import Any

from absl import logging
import numpy as np

from composer_jax import trajectory
from composer_jax.checkpoint import weights as weights_lib
from composer_jax.loop import evaluate
from composer_jax.loop import supervise
from composer_jax.sampler import engine as engine_lib

_POLL_S = 0.02  # Between two looks for new weights.
_ANSWER_S = 120.0  # For one turn; then the attempt counts as our fault.


class Policy:
  """Runs an engine and keeps it at the newest published weights."""

  def __init__(
    self,
    engine: engine_lib.Engine,
    directory: str,
    like: Any,
    crew: supervise.Crew,
  ):
    self._engine = engine
    self._directory = directory
    self._like = like
    self._crew = crew
    self._sessions = itertools.count()
    self.versions_taken = 0
    crew.on_stop(engine.fail)
    crew.start('sampler', self._decode)
    crew.start('subscriber', self._subscribe)

  @property
  def version(self) -> int:
    return self._engine.version

  @property
  def tokens_sampled(self) -> int:
    return self._engine.tokens_sampled

  def wait_for(self, version: int, timeout: float = 60.0) -> None:
    """Until the sampler uses that version.

    Raises:
      TimeoutError: it does not arrive; supervise.Stopped if the run ends.
    """
    deadline = time.monotonic() + timeout
    while self._engine.version < version:
      self._crew.check()
      if time.monotonic() > deadline:
        raise TimeoutError(
          f'the sampler is at version {self._engine.version}, {version} has'
          f' not arrived in {timeout:g} s'
        )
      time.sleep(_POLL_S / 4)

  @contextlib.contextmanager
  def session(self, *, seed: int, temperature: float):
    """Holds a slot for one episode; yields a player for Environment.attempt.

    Each context of the episode draws random numbers of its own: those of the
    first come from `seed` itself.
    """
    session = next(self._sessions)
    contexts, past_T = 0, np.zeros(0, np.int32)

    def sample(history_T: np.ndarray, max_new: int) -> trajectory.Sample:
      nonlocal contexts, past_T
      # The random number of a token is one of its seed and its position.
      contexts += not np.array_equal(history_T[: len(past_T)], past_T)
      past_T = history_T.copy()
      request = engine_lib.Request(
        session=session,
        history_T=history_T,
        max_new=max_new,
        seed=evaluate.seed_of(seed, contexts) if contexts else seed,
        temperature=temperature,
      )
      try:
        return self._engine.submit(request).result(timeout=_ANSWER_S)
      except futures.TimeoutError as error:
        raise trajectory.InfrastructureError(
          f'the sampler did not answer in {_ANSWER_S:g} s'
        ) from error

    try:
      yield lambda call_tools: (sample, call_tools)
    finally:
      self._engine.release(session)

  def _decode(self) -> None:
    while not self._crew.stop.is_set():
      if not self._engine.step():
        self._engine.wait(0.05)

  def _subscribe(self) -> None:
    seen = self._engine.version  # The newest looked at; it may be damaged.
    while not self._crew.stop.wait(_POLL_S):
      newest = weights_lib.latest(self._directory)
      if newest is None or newest <= seen:
        continue
      seen = newest
      loaded = weights_lib.load_latest(self._directory, self._like)
      for reason in loaded.refused:
        logging.warning('Weights refused: %s', reason)
      if loaded.weights and loaded.weights.version > self._engine.version:
        self._engine.set_weights(loaded.weights)
        self.versions_taken += 1
        self.wait_for(loaded.weights.version)
