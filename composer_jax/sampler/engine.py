"""Slots, admission and new weights between two decode steps.

An episode holds one slot for all its turns, so a turn feeds only what is new.
New weights take effect between two steps while sequences are in flight: every
live slot is fed again under the new weights, so the cache never mixes versions
and each token's log-probability is that of its own version on its whole past.

The engine owns no thread: `step` is called by whoever runs it.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from concurrent import futures
import contextlib
import dataclasses
import threading

import jax
import numpy as np

from composer_jax import trajectory
from composer_jax.model import config as model_config
from composer_jax.model import serving
from composer_jax.model import transformer
from composer_jax.sampler import decode


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplerConfig:
  """Shapes of the engine."""

  slots: int = 64  # Sequences held at once.
  max_tokens: int = 384  # Longest sequence, prompt included.
  decode_rows: int = 16  # Sequences decoded in one batch, `slots` at most.
  decode_steps: int = 4  # Tokens between two looks at the queue.
  prefill_rows: int = 8  # Sequences fed in one prefill.
  prefill_chunks: tuple[int, ...] = (32, 128)  # Tokens fed at once, ascending.

  def __post_init__(self):
    if not self.prefill_chunks or list(self.prefill_chunks) != sorted(
      set(self.prefill_chunks)
    ):
      raise ValueError(f'prefill_chunks must ascend: {self.prefill_chunks}')
    if self.prefill_chunks[-1] > self.max_tokens:
      raise ValueError(
        f'prefill_chunks={self.prefill_chunks} exceed'
        f' max_tokens={self.max_tokens}'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """Continue `history_T` in the session's slot."""

  session: int
  history_T: np.ndarray
  max_new: int
  seed: int
  temperature: float = 1.0


@dataclasses.dataclass
class _Slot:
  """A sequence being worked on; owned by the engine's thread."""

  session: int
  token_T: list[int] = dataclasses.field(default_factory=list)
  fed: int = 0  # Tokens whose keys and values are in the cache.
  routes: np.ndarray | None = None
  request: Request | None = None
  future: futures.Future | None = None
  logprob_T: list[float] = dataclasses.field(default_factory=list)
  version_T: list[int] = dataclasses.field(default_factory=list)

  def before(self, position: int) -> list[int]:
    """The P tokens before `position`, the nearest last."""
    count = transformer.CONTEXT
    known = self.token_T[max(0, position - count) : position]
    return [transformer.NO_TOKEN] * (count - len(known)) + known


def _unpacked(weights: trajectory.Weights, model) -> trajectory.Weights:
  params = serving.unpack(weights.params, model)
  return dataclasses.replace(weights, params=params)


class Engine:
  """A batch of sequences over one set of weights."""

  def __init__(
    self,
    config: SamplerConfig,
    model: model_config.ModelConfig,
    weights: trajectory.Weights,
    *,
    stop_id: int,
  ):
    self._config = config
    self._model = model
    self._weights = _unpacked(weights, model)
    self._stop_id = stop_id
    # One slot more than sequences: for the rows that a batch has to spare.
    self._cache = transformer.init_cache(
      config.slots + 1, config.max_tokens, model
    )
    self._slots: list[_Slot | None] = [None] * config.slots
    self._lock = threading.Lock()
    self._work = threading.Event()
    self._waiting = collections.deque()
    self._released = collections.deque()
    self._next_weights: trajectory.Weights | None = None
    self._failure: BaseException | None = None
    self.tokens_sampled = 0
    self.tokens_fed = 0

  @property
  def version(self) -> int:
    return self._weights.version

  @property
  def digest(self) -> str:
    return self._weights.digest

  def submit(self, request: Request) -> futures.Future:
    """A future Sample. Any thread; one request per session at a time."""
    room = self._config.max_tokens - len(request.history_T)
    if room < 1 or request.max_new < 1:
      raise ValueError(
        f'nothing can be sampled: history {len(request.history_T)} of'
        f' {self._config.max_tokens} tokens, max_new {request.max_new}'
      )
    request = dataclasses.replace(request, max_new=min(request.max_new, room))
    future = futures.Future()
    with self._lock:
      if self._failure is not None:
        raise trajectory.InfrastructureError('the sampler stopped') from (
          self._failure
        )
      self._waiting.append((request, future))
    self._work.set()
    return future

  def release(self, session: int) -> None:
    """The session is over: its slot is free, what it waits for is dropped."""
    with self._lock:
      self._released.append(session)
    self._work.set()

  def set_weights(self, weights: trajectory.Weights) -> None:
    """Takes effect before the next step; only newer versions are taken.

    Args:
      weights: what `serving.ship` gave.
    """
    with self._lock:
      newest = (self._next_weights or self._weights).version
      if weights.version <= newest:
        raise ValueError(
          f'version {weights.version} is not newer than {newest}'
        )
      self._next_weights = _unpacked(weights, self._model)
    self._work.set()

  def wait(self, seconds: float) -> None:
    """Until there may be work to do, at most so long."""
    self._work.wait(seconds)

  def fail(self, error: BaseException) -> None:
    """Ends every request, waiting or running, with `error`."""
    with self._lock:
      self._failure = error
      pending = [future for _, future in self._waiting]
      self._waiting.clear()
    pending += [s.future for s in self._slots if s is not None and s.future]
    for future in pending:
      with contextlib.suppress(futures.InvalidStateError):  # It has ended.
        future.set_exception(error)

  def step(self) -> bool:
    """Feeds what is pending, samples a few tokens; False when idle."""
    self._work.clear()
    self._swap()
    self._admit()
    self._prefill()
    return self._decode()

  def _swap(self) -> None:
    with self._lock:
      weights, self._next_weights = self._next_weights, None
    if weights is None:
      return
    self._weights = weights
    for slot in self._slots:
      if slot is not None:
        slot.fed = 0

  def _admit(self) -> None:
    with self._lock:  # To the end: `fail` must find every request.
      released = set(self._released)
      self._released.clear()
      waiting = list(self._waiting)
      self._waiting.clear()
      for index, slot in enumerate(self._slots):
        if slot is not None and slot.session in released:
          self._slots[index] = None
      index_of = {s.session: i for i, s in enumerate(self._slots) if s}
      free = [i for i, slot in enumerate(self._slots) if slot is None]
      for request, future in waiting:
        if request.session in released:
          future.cancel()
          continue
        if request.session not in index_of and not free:
          self._waiting.append((request, future))
          continue
        if request.session not in index_of:
          index_of[request.session] = free.pop(0)
          self._slots[index_of[request.session]] = _Slot(request.session)
        self._start(self._slots[index_of[request.session]], request, future)

  def _start(self, slot: _Slot, request: Request, future) -> None:
    history = request.history_T.tolist()
    same = 0
    for old, new in zip(slot.token_T, history, strict=False):
      if old != new:
        break
      same += 1
    # The last token is always fed again: its logits are what is sampled from.
    slot.fed = min(slot.fed, same, len(history) - 1)
    slot.token_T = history
    routes = np.full(
      (
        len(history) + request.max_new,
        self._model.layers,
        self._model.experts_per_token,
      ),
      trajectory.UNKNOWN_ROUTE,
      np.int8,
    )
    if slot.routes is not None:
      routes[: slot.fed] = slot.routes[: slot.fed]
    slot.routes, slot.request, slot.future = routes, request, future
    slot.logprob_T, slot.version_T = [], []

  def _prefill(self) -> None:
    """Feeds everything but the last token of each running sequence."""
    while True:
      by_chunk = collections.defaultdict(list)
      for index, slot in enumerate(self._slots):
        if slot is None or slot.request is None:
          continue
        pending = len(slot.token_T) - 1 - slot.fed
        if pending > 0:
          by_chunk[self._chunk(pending)].append(index)
      if not by_chunk:
        return
      for chunk, indices in by_chunk.items():
        for first in range(0, len(indices), self._config.prefill_rows):
          self._feed(indices[first : first + self._config.prefill_rows], chunk)

  def _chunk(self, pending: int) -> int:
    """The smallest chunk that holds `pending`, else the largest."""
    for chunk in self._config.prefill_chunks:
      if pending <= chunk:
        return chunk
    return self._config.prefill_chunks[-1]

  def _feed(self, indices: Sequence[int], chunk: int) -> None:
    rows = self._config.prefill_rows
    slot_R = np.full(rows, self._config.slots, np.int32)
    token_RT = np.zeros((rows, chunk), np.int32)
    start_R = np.zeros(rows, np.int32)
    before_RP = np.full(
      (rows, transformer.CONTEXT), transformer.NO_TOKEN, np.int32
    )
    counts = []
    for row, index in enumerate(indices):
      slot = self._slots[index]
      # Near the end of the cache some tokens are fed again: a chunk must fit.
      start = min(slot.fed, self._config.max_tokens - chunk)
      part = slot.token_T[start : len(slot.token_T) - 1][:chunk]
      slot_R[row], start_R[row] = index, start
      before_RP[row] = slot.before(start)
      token_RT[row, : len(part)] = part
      counts.append(len(part))
    self._cache, route_RTLX = decode.prefill(
      self._weights.params,
      self._cache,
      slot_R,
      token_RT,
      before_RP,
      start_R,
      config=self._model,
    )
    route_RTLX = np.asarray(route_RTLX)
    for row, (index, count) in enumerate(zip(indices, counts, strict=True)):
      slot, start = self._slots[index], start_R[row]
      slot.routes[start : start + count] = route_RTLX[row, :count]
      slot.fed = start + count
      self.tokens_fed += count

  def _decode(self) -> bool:
    running = [
      i
      for i, slot in enumerate(self._slots)
      if slot is not None and slot.request is not None
    ]
    if not running:
      return False
    if self._all_at_once:
      self._sample(dict(zip(running, running, strict=True)))
    else:
      for first in range(0, len(running), self._config.decode_rows):
        part = running[first : first + self._config.decode_rows]
        self._sample(dict(enumerate(part)))
    return True

  @property
  def _all_at_once(self) -> bool:
    """Every slot has its own row, so none is moved about."""
    return self._config.decode_rows >= self._config.slots

  def _sample(self, index_of: Mapping[int, int]) -> None:
    """Decodes a few tokens of some slots, given the slot of each row."""
    self._cache, steps = decode.decode(
      self._weights.params,
      self._cache,
      self._rows(index_of),
      steps=self._config.decode_steps,
      stop_id=self._stop_id,
      config=self._model,
    )
    steps = jax.tree.map(np.asarray, steps)
    for row, index in index_of.items():
      slot, count = self._slots[index], int(steps.count_B[row])
      slot.routes[slot.fed : slot.fed + count] = steps.route_BTLX[row, :count]
      slot.fed += count
      slot.token_T.extend(steps.token_BT[row, :count].tolist())
      slot.logprob_T.extend(steps.logprob_BT[row, :count].tolist())
      slot.version_T.extend([self.version] * count)
      self.tokens_sampled += count
      self._finish(slot)

  def _rows(self, index_of: Mapping[int, int]) -> decode.Rows:
    slots, size = self._config.slots, self._config.decode_rows
    if self._all_at_once:
      size = slots + 1
    rows = decode.Rows(
      slot_B=None if self._all_at_once else np.full(size, slots, np.int32),
      token_B=np.zeros(size, np.int32),
      before_BP=np.full(
        (size, transformer.CONTEXT), transformer.NO_TOKEN, np.int32
      ),
      start_B=np.zeros(size, np.int32),
      remaining_B=np.zeros(size, np.int32),
      seed_B=np.zeros(size, np.uint32),
      temperature_B=np.ones(size, np.float32),
    )
    if self._all_at_once:
      for index, slot in enumerate(self._slots):
        if slot is not None:
          rows.start_B[index] = slot.fed  # Leftovers of idle rows land here.
    for row, index in index_of.items():
      slot = self._slots[index]
      if not self._all_at_once:
        rows.slot_B[row] = index
      rows.start_B[row] = slot.fed
      rows.token_B[row] = slot.token_T[-1]
      rows.before_BP[row] = slot.before(len(slot.token_T) - 1)
      rows.remaining_B[row] = slot.request.max_new - len(slot.logprob_T)
      rows.seed_B[row] = slot.request.seed & 0xFFFFFFFF
      rows.temperature_B[row] = slot.request.temperature
    return rows

  def _finish(self, slot: _Slot) -> None:
    new = len(slot.logprob_T)
    stopped = slot.token_T[-1] == self._stop_id
    if not stopped and new < slot.request.max_new:
      return
    sample = trajectory.Sample(
      token_T=np.asarray(slot.token_T[-new:], np.int32),
      logprob_T=np.asarray(slot.logprob_T, np.float32),
      version_T=np.asarray(slot.version_T, np.int32),
      route_TLX=slot.routes[: len(slot.token_T)].copy(),
      finished=stopped,
    )
    future, slot.request, slot.future = slot.future, None, None
    with contextlib.suppress(futures.InvalidStateError):  # It has failed.
      future.set_result(sample)
