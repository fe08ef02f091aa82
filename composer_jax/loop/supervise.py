"""Threads that are watched, and a stop that is always heard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import os
import signal
import threading
import time

from absl import logging

ASKED_EXIT_CODE = 130  # Of a run that a signal ended, as shells have it.


class Stopped(Exception):
  """The run was asked to stop; what was learned is saved."""


class Crew:
  """Named threads; the first that fails stops all, and its error is kept."""

  def __init__(self):
    self.stop = threading.Event()
    self._error: BaseException | None = None
    self._threads: list[threading.Thread] = []
    self._on_stop: list[Callable[[BaseException], None]] = []

  def start(self, name: str, work: Callable[[], None]) -> None:
    """Runs `work` on a thread of its own; it must end soon after `stop`."""
    thread = threading.Thread(
      target=self._guarded, args=(name, work), name=name, daemon=True
    )
    self._threads.append(thread)
    thread.start()

  def on_stop(self, action: Callable[[BaseException], None]) -> None:
    """`action(reason)` lets go who waits; it may be called more than once."""
    self._on_stop.append(action)

  def check(self) -> None:
    """Raises the error of a failed thread, or Stopped; wakes who waits."""
    if not self.stop.is_set():
      return
    self._wake()
    if self._error is not None:
      raise self._error
    raise Stopped

  def end(self, timeout: float = 8.0) -> None:
    """Stops and joins every thread; names those that would not end."""
    self.stop.set()
    self._wake()
    deadline = time.monotonic() + timeout
    for thread in self._threads:
      thread.join(max(0.0, deadline - time.monotonic()))
    alive = [thread.name for thread in self._threads if thread.is_alive()]
    if alive:
      logging.error('Still running after %g s: %s', timeout, ', '.join(alive))

  def _wake(self) -> None:
    reason = self._error or Stopped('the run is ending')
    for action in self._on_stop:
      action(reason)

  def _guarded(self, name: str, work: Callable[[], None]) -> None:
    try:
      work()
    except Exception as error:  # The top of a thread.
      if self.stop.is_set():
        return  # A consequence of stopping.
      logging.exception('Thread %s failed', name)
      if self._error is None:
        self._error = error
      self.stop.set()


@contextlib.contextmanager
def signals(crew: Crew, last_s: float = 9.0) -> Iterator[None]:
  """SIGINT and SIGTERM ask the crew to stop; a second one is not waited for.

  The main thread may hear nothing for long, in a compiler say. After `last_s`
  seconds the process ends all the same, and the last save stands.
  """
  last = threading.Timer(last_s, os._exit, [ASKED_EXIT_CODE])
  last.daemon = True

  def ask(number, frame):
    del frame
    if crew.stop.is_set():
      raise KeyboardInterrupt
    crew.stop.set()
    last.start()
    print(f'\nStopping ({signal.Signals(number).name}), saving ...', flush=True)

  old = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
  try:
    yield
  finally:
    last.cancel()
    for number, handler in old.items():
      signal.signal(number, handler)
