"""Runs code of the policy in boxes: isolated, limited, warm.

A box is one bubblewrap process around a warm Python worker (`worker.py`). What
is in it sees no network and nothing of this machine but `/usr` and Python, both
read-only, and can write only to `/repo` and `/tmp`, which live in memory. It
ends with the process that made it, and writes nothing to disk.

Levels, strongest first, see `probe`: as root every box has its own user id;
as an ordinary user a user namespace stands in for that; without bubblewrap,
`unshare` and `entrance.py` make the same box; 'weak' is a plain subprocess with
limits. Weak is no security boundary: code can read files, reach the network,
and write wherever the user can.

Not covered: Linux only. Memory is watched, not accounted: between two looks a
tree can take what its cores can fill, and memory that processes share without
touching it is bound by `processes` times `memory_bytes` alone. A module in
/repo that is named like one of the standard library does not shadow it when the
worker has imported that already.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
import contextlib
import os
import subprocess
import threading

from composer_jax.tools import box as box_lib
from composer_jax.tools import isolation

ASSERT_RUNNER = isolation.ASSERT_RUNNER
Box = box_lib.Box
Level = isolation.Level
RunResult = box_lib.RunResult
SandboxConfig = isolation.SandboxConfig
SandboxError = isolation.SandboxError
Shell = box_lib.Shell
reap_stale = box_lib.reap_stale

_ACCEPT_WEAK = '--set sandbox.allow_weak=true'


# --- Which level is possible here --------------------------------------------


def levels() -> tuple[Level, ...]:
  """Those to try on this machine, strongest first."""
  first = (Level.BWRAP_ROOT,) if os.geteuid() == 0 else ()
  return (*first, Level.BWRAP_USER, Level.UNSHARE, Level.WEAK)


def why_not(level: Level, config: SandboxConfig) -> str:
  """Runs something in a box of this level; why that failed, or ''."""
  try:
    with Box(level, config) as box:
      box.reset({'hello.py': 'print("hello")'})
      result = box.exec(['python', 'hello.py'], seconds=config.answer_seconds)
      return '' if result.output == 'hello\n' else f'it said {result.output!r}'
  except SandboxError as error:
    return str(error)


def probe(config: SandboxConfig) -> Level:
  """The strongest level at which a box really runs on this machine.

  Raises:
    SandboxError: if only weak boxes run and they were not asked for.
  """
  *isolated, weak = levels()
  reasons = []
  for level in isolated:
    reason = why_not(level, config)
    if not reason:
      return level
    reasons.append(f'{level.value}: {reason}')
  if not config.allow_weak:
    raise SandboxError(
      f'no isolated sandbox here ({"; ".join(reasons)}). To run the code'
      f' that the model writes without isolation, add {_ACCEPT_WEAK}'
    )
  reason = why_not(weak, config)
  if reason:
    raise SandboxError(f'not even a weak sandbox runs here: {reason}')
  return weak


# --- Many boxes --------------------------------------------------------------


class BoxPool:
  """At most `size` boxes, made when first wanted, each lent to one user.

  Boxes are started by one thread that lives as long as the pool, because the
  kernel ends a box with the thread that made it.
  """

  def __init__(self, size: int, config: SandboxConfig, level: Level):
    if size < 1:
      raise ValueError(f'a pool needs at least one box, got {size}')
    reap_stale()
    self._size = size
    self._config = config
    self._level = level
    self._free = threading.BoundedSemaphore(size)
    self._lock = threading.Lock()
    self._idle: list[Box] = []
    self._boxes: set[Box] = set()
    self._closed = False
    self._starter = futures.ThreadPoolExecutor(1, 'start-box')

  def __enter__(self) -> BoxPool:
    return self

  def __exit__(self, *unused) -> None:
    self.close()

  @contextlib.contextmanager
  def box(self) -> Iterator[Box]:
    """Lends a box that answers; reset it before use.

    Raises:
      SandboxError: if none came free within `wait_seconds`, or none could be
        started, or the pool is closed.
    """
    if not self._free.acquire(timeout=self._config.wait_seconds):
      raise SandboxError(
        f'none of {self._size} boxes came free within'
        f' {self._config.wait_seconds:g} s'
      )
    try:
      box = self._take()
      try:
        yield box
      finally:
        self._give_back(box)
    finally:
      self._free.release()

  @contextlib.contextmanager
  def fork(self, box: Box) -> Iterator[Box]:
    """Lends another box with the files that `box` has now."""
    with self.box() as other:
      box.copy_to(other)
      yield other

  def close(self) -> None:
    """Ends all boxes, also those in use; their users get a SandboxError."""
    with self._lock:
      self._closed = True
      boxes, self._boxes, self._idle = self._boxes, set(), []
    for box in boxes:
      box.close()
    self._starter.shutdown()

  def _take(self) -> Box:
    with self._lock:
      self._refuse_if_closed()
      box = self._idle.pop() if self._idle else None
    if box is not None:
      try:
        box.ping()
        return box
      except SandboxError:
        self._forget(box)
    box = Box(self._level, self._config, self._popen)
    with self._lock:
      if not self._closed:
        self._boxes.add(box)
        return box
    box.close()
    raise SandboxError('the pool of boxes is closed')

  def _give_back(self, box: Box) -> None:
    with self._lock:
      if self._closed:
        return
      if box.alive:
        self._idle.append(box)
        return
    self._forget(box)

  def _forget(self, box: Box) -> None:
    with self._lock:
      self._boxes.discard(box)
    box.close()

  def _refuse_if_closed(self) -> None:
    if self._closed:
      raise SandboxError('the pool of boxes is closed')

  def _popen(self, launch: isolation.Launch) -> subprocess.Popen[bytes]:
    """`isolation.popen` in the thread that may start boxes."""
    try:
      starting = self._starter.submit(isolation.popen, launch)
    except RuntimeError as error:  # Shut down meanwhile.
      raise SandboxError('the pool of boxes is closed') from error
    return starting.result()
