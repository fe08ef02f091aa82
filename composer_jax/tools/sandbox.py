"""Runs code of the policy in boxes: isolated, limited, warm.

A box is one bubblewrap process around a warm Python worker (`worker.py`). What
is in it sees no network and nothing of this machine but `/usr` and Python, both
read-only, and can write only to `/repo` and `/tmp`, which live in memory. It
ends with the process that made it, and needs no folder on disk.

Levels, strongest first, see `probe`: as root every box has its own user id;
as an ordinary user a user namespace stands in for that; 'weak' is a plain
subprocess with limits. Weak is no security boundary: code can read files,
reach the network, and write wherever the user can.

Not covered: Linux only; a module in /repo that is named like one of the
standard library does not shadow it when the worker has imported that already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
import contextlib
import dataclasses
import errno
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

from composer_jax.tools import isolation

ASSERT_RUNNER = isolation.ASSERT_RUNNER
Level = isolation.Level
SandboxConfig = isolation.SandboxConfig
SandboxError = isolation.SandboxError

_ACCEPT_WEAK = '--set sandbox.allow_weak=true'
_WEAK_PREFIX = 'composer_jax-box-'
_REPLY_BYTES = 32 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunResult:
  """How a command ended."""

  exit_code: int | None  # Negative: a signal. None: no exit of its own.
  output: str  # Standard output and error, head and tail if too long.
  seconds: float  # Wall clock.
  cpu_seconds: float  # Of all its processes together.
  timed_out: bool
  dropped_bytes: int
  report: str = ''  # What it wrote there, if it was asked for a report.


class Box:
  """One isolated place with files, in which commands run.

  Any thread may use it, several at once. Operations on files raise OSError
  where the file is at fault (missing, a link, too large) and SandboxError where
  the box is. A box that died is `not alive`; `reset` starts it anew.

  Whoever starts a box must outlive it as a *thread*: the kernel ends a box with
  the thread that made it. A `BoxPool` sees to that.
  """

  def __init__(
    self,
    level: Level,
    config: SandboxConfig,
    popen: isolation.Popen = isolation.popen,
  ):
    self.level = level
    self._config = config
    self._popen = popen
    self._folder = ''  # Of a weak box.
    self._closed = False
    self._stopping = threading.Lock()
    self._process: subprocess.Popen[bytes] | None = None
    self._start()

  def __enter__(self) -> Box:
    return self

  def __exit__(self, *unused) -> None:
    self.close()

  @property
  def alive(self) -> bool:
    process = self._process
    return process is not None and process.poll() is None

  def ping(self) -> None:
    """Raises SandboxError unless the box answers."""
    self._ask({'operation': 'ping'})

  def reset(self, files: Mapping[str, str], tree: bytes = b'') -> None:
    """Ends all that runs and empties the box; lays down `tree`, then `files`.

    Args:
      files: texts by path.
      tree: a tar archive, as `snapshot` makes it; its regular files only.
    """
    request = {'operation': 'reset', 'files': dict(files)}
    with _memory_file(tree) as file:
      fds = [file] if tree else []
      if self.alive:
        try:
          self._ask_file(request, fds)
          return
        except (OSError, SandboxError):
          pass  # The last user left what cannot be cleaned: a new one, then.
      self._stop()
      self._start()
      try:
        self._ask_file(request, fds)
      except OSError as error:
        raise SandboxError(f'cannot fill a new box: {error}') from error

  def snapshot(self) -> bytes:
    """The regular files below /repo as a tar archive; equal trees, equal bytes.

    Modes are kept, times and owners are not.
    """
    with _memory_file(b'') as file:
      self._ask_file({'operation': 'snapshot'}, [file])
      return os.pread(file, os.fstat(file).st_size, 0)

  def write(self, path: str, text: str) -> None:
    """Writes a file below /repo, making its folders."""
    self._ask_file({'operation': 'write', 'path': path, 'text': text})

  def read(self, path: str) -> str:
    """The text of a regular file below /repo."""
    return self._ask_file({'operation': 'read', 'path': path})['text']

  def files(self) -> dict[str, str]:
    """Regular files below /repo; those beyond the config's bounds left out."""
    return self._ask_file({'operation': 'files'})['files']

  def exec(
    self,
    command: Sequence[str],
    *,
    seconds: float,
    stdin: str = '',
    report: bool = False,
  ) -> RunResult:
    """Runs `command` in /repo; nothing that it started outlives it.

    `python SCRIPT ...` runs in a fork of the warm interpreter, without
    site-packages. Code that brings the box down is told by `exit_code` None.
    With `report`, the command may write to the file descriptor that the
    variable BOX_REPORT names, apart from its output.
    """
    if not self.alive:
      raise SandboxError('the box is dead: reset it first')
    request = {
      'operation': 'run',
      'command': list(command),
      'seconds': seconds,
      'stdin': stdin,
      'report': report,
    }
    started = time.monotonic()
    try:
      reply = self._ask(request, seconds)
    except SandboxError:
      if self._closed:
        raise
      self._recover()
      return RunResult(
        exit_code=None,
        output='[the command ended its own supervision]',
        seconds=time.monotonic() - started,
        cpu_seconds=0.0,
        timed_out=False,
        dropped_bytes=0,
      )
    if reply.pop('stuck'):
      self._stop()
    return RunResult(**reply)

  def close(self) -> None:
    """Ends the box and all in it; returns once they are gone."""
    self._closed = True
    self._stop()

  def _start(self) -> None:
    if self._closed:
      raise SandboxError('the box is closed')
    self._control, theirs = socket.socketpair(
      socket.AF_UNIX, socket.SOCK_SEQPACKET
    )
    self._control.settimeout(self._config.answer_seconds)
    with theirs:
      try:
        if self.level is Level.WEAK:
          prefix = f'{_WEAK_PREFIX}{os.getpid()}-'
          self._folder = tempfile.mkdtemp(prefix=prefix)
        self._process = isolation.start(
          self.level, self._config, theirs, self._popen, self._folder
        )
      except (OSError, SandboxError) as error:
        self._control.close()
        raise SandboxError(f'cannot start a box: {error}') from error
    try:
      self.ping()
    except SandboxError as error:
      reason = self._stop().strip().splitlines()[-1:]
      raise SandboxError(f'{error}: {"".join(reason)}') from error

  def _stop(self) -> str:
    """Ends the process; what it had written to standard error."""
    with self._stopping:
      process, self._process = self._process, None
    if process is None:
      return ''
    self._control.close()  # The worker's sign to end itself and its like.
    try:
      _, errors = process.communicate(timeout=2)
    except subprocess.TimeoutExpired:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
      # Standard error ends with the last process that holds it: the worker.
      try:
        _, errors = process.communicate(timeout=self._config.answer_seconds)
      except subprocess.TimeoutExpired as error:
        raise SandboxError('a box does not end when killed') from error
    if self._folder:  # In case that the worker could not.
      _remove(self._folder)
    return errors.decode('utf-8', 'replace')

  def _recover(self) -> None:
    """After a command that ended its handler: clean up, or let the box go."""
    try:
      clean = self._ask({'operation': 'kill'})['clean']
    except SandboxError:
      clean = False
    if not clean:
      self._stop()

  def _ask_file(
    self, request: Mapping[str, object], fds: Sequence[int] = ()
  ) -> dict:
    """`_ask`, with the worker's OSError raised here."""
    reply = self._ask(request, fds=fds)
    if 'errno' in reply:
      raise OSError(
        reply['errno'] or errno.EIO, reply['reason'], request.get('path')
      )
    return reply

  def _ask(
    self,
    request: Mapping[str, object],
    seconds: float = 0.0,
    fds: Sequence[int] = (),
  ) -> dict:
    """Sends a request over a connection of its own; the reply.

    Args:
      request: what the worker reads as JSON.
      seconds: how long the worker may take by right.
      fds: open files that go with it, at most one.

    Raises:
      SandboxError: if no whole reply came within that and `answer_seconds`.
    """
    deadline = time.monotonic() + seconds + self._config.answer_seconds
    ours, theirs = socket.socketpair()
    try:
      with ours:
        with theirs:
          socket.send_fds(self._control, [b'+'], [theirs.fileno(), *fds])
        ours.settimeout(self._config.answer_seconds)
        ours.sendall(json.dumps(request).encode())
        ours.shutdown(socket.SHUT_WR)
        return json.loads(_receive(ours, deadline))
    except (OSError, ValueError) as error:
      raise SandboxError(f'the box does not answer: {error}') from error


@contextlib.contextmanager
def _memory_file(data: bytes) -> Iterator[int]:
  """A file that holds `data`; its descriptor."""
  fd = os.memfd_create('tree')
  try:
    with open(fd, 'wb', closefd=False) as file:
      file.write(data)
    yield fd
  finally:
    os.close(fd)


def _receive(connection: socket.socket, deadline: float) -> bytes:
  """Everything up to the end of the stream; TimeoutError at the deadline."""
  reply = bytearray()
  while True:
    connection.settimeout(max(0.001, deadline - time.monotonic()))
    chunk = connection.recv(1 << 16)
    if not chunk:
      return bytes(reply)
    reply += chunk
    if len(reply) > _REPLY_BYTES:
      raise ValueError(f'a reply of more than {_REPLY_BYTES} bytes')


# --- Which level is possible here --------------------------------------------


def _try_level(level: Level, config: SandboxConfig) -> str:
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
  levels = [Level.BWRAP_USER]
  if os.geteuid() == 0:
    levels.insert(0, Level.BWRAP_ROOT)
  reasons = []
  for level in levels:
    reason = _try_level(level, config)
    if not reason:
      return level
    reasons.append(f'{level.value}: {reason}')
  if not config.allow_weak:
    raise SandboxError(
      f'no isolated sandbox here ({"; ".join(reasons)}). To run the code'
      f' that the model writes without isolation, add {_ACCEPT_WEAK}'
    )
  reason = _try_level(Level.WEAK, config)
  if reason:
    raise SandboxError(f'not even a weak sandbox runs here: {reason}')
  return Level.WEAK


def _remove(folder: str | pathlib.Path) -> None:
  """Removes a weak box's folder, and what its code had locked in there."""
  for parent, names, _ in os.walk(folder):
    for name in names:
      path = os.path.join(parent, name)
      if not os.path.islink(path):
        os.chmod(path, 0o700)
  shutil.rmtree(folder, ignore_errors=True)


def reap_stale() -> None:
  """Removes the folders that weak boxes of killed runs left behind."""
  here = pathlib.Path(tempfile.gettempdir())
  for folder in here.glob(f'{_WEAK_PREFIX}*-*'):
    pid = folder.name[len(_WEAK_PREFIX) :].split('-', 1)[0]
    if pid.isdigit() and not os.path.exists(f'/proc/{pid}'):
      _remove(folder)


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
