"""One box: files, commands, shell sessions, copies of itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import errno
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time

from composer_jax.tools import isolation

Level = isolation.Level
SandboxConfig = isolation.SandboxConfig
SandboxError = isolation.SandboxError

_PREFIX = 'composer_jax-box-'
_REPLY_BYTES = 32 << 20
_SUPERVISION = '[the command ended its own supervision]'
_RESTARTED = '[the shell was restarted]'


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
    self._folder = ''  # Where there is no bubblewrap.
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

  @property
  def pid(self) -> int:
    """Of the process around the box."""
    if self._process is None:
      raise SandboxError('the box is dead: reset it first')
    return self._process.pid

  def ping(self) -> None:
    """Raises SandboxError unless the box answers."""
    self._ask({'operation': 'ping'})

  def reset(self, files: Mapping[str, str], tree: bytes = b'') -> None:
    """Ends all that runs and empties the box; lays down `tree`, then `files`.

    Args:
      files: texts by path.
      tree: a tar archive, as `snapshot` makes it; files, folders, links.
    """
    with _memory_file(tree) as file:
      self._refill(files, [file] if tree else [])

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
      return _unsupervised(started)
    if reply.pop('stuck'):
      self._stop()
    return RunResult(**reply)

  def shell(self) -> Shell:
    """A bash that lives across calls, until it, or the box, is closed."""
    return Shell(self)

  def fork(self) -> Box:
    """A new box with the files that are below /repo now; see `copy_to`."""
    other = Box(self.level, self._config, self._popen)
    try:
      self.copy_to(other)
    except (OSError, SandboxError):
      other.close()
      raise
    return other

  def copy_to(self, other: Box) -> None:
    """Resets `other` to the files, folders and links that are below /repo now.

    With modes and times; but for what its own user cannot read, and for
    sockets, pipes and whatever runs.
    """
    with _memory_file(b'') as file:
      self._ask_file({'operation': 'copy'}, [file])
      other._refill({}, [file])

  def close(self) -> None:
    """Ends the box and all in it; returns once they are gone."""
    self._closed = True
    self._stop()

  def _refill(self, files: Mapping[str, str], trees: Sequence[int]) -> None:
    """`reset`, from open files; in a new process if the old one is spoilt."""
    request = {'operation': 'reset', 'files': dict(files)}
    if self.alive:
      try:
        self._ask_file(request, trees)
        return
      except (OSError, SandboxError):
        pass  # The last user left what cannot be cleaned: a new one, then.
    self._stop()
    self._start()
    try:
      self._ask_file(request, trees)
    except OSError as error:
      raise SandboxError(f'cannot fill a new box: {error}') from error

  def _start(self) -> None:
    if self._closed:
      raise SandboxError('the box is closed')
    self._control, theirs = socket.socketpair(
      socket.AF_UNIX, socket.SOCK_SEQPACKET
    )
    self._control.settimeout(self._config.answer_seconds)
    with theirs:
      try:
        if self.level in (Level.WEAK, Level.UNSHARE):
          prefix = f'{_PREFIX}{os.getpid()}-'
          self._folder = tempfile.mkdtemp(prefix=prefix)
        self._process = isolation.start(
          self.level, self._config, theirs, self._popen, self._folder
        )
      except (OSError, SandboxError) as error:
        self._control.close()
        self._remove_folder()
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
    self._remove_folder()
    return errors.decode('utf-8', 'replace')

  def _remove_folder(self) -> None:
    """In case that the worker could not."""
    folder, self._folder = self._folder, ''
    if folder:
      _remove(folder)

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


class Shell:
  """A session of bash in a box: state and background jobs live across calls.

  One call at a time; more threads wait for one another. Commands read nothing
  (`/dev/null`). A call ends with its command, also where a job in the
  background goes on; what that prints is part of a later call's output. The
  session ends with `close`, and with a reset or the end of its box; a later
  call then starts another one and says so.
  """

  def __init__(self, box: Box):
    self._box = box
    self._lock = threading.Lock()
    self._closed = False
    self._connection = self._open()

  def __enter__(self) -> Shell:
    return self

  def __exit__(self, *unused) -> None:
    self.close()

  @property
  def alive(self) -> bool:
    """Whether the session that the last call used is still there."""
    if self._connection.fileno() < 0 or not self._box.alive:
      return False
    hung_up = select.poll()
    hung_up.register(self._connection, select.POLLRDHUP)
    return not hung_up.poll(0)

  def exec(self, command: str, *, seconds: float) -> RunResult:
    """Runs `command`; after `seconds` it is interrupted, then killed.

    Only a shell that does not heed that is ended, with all its jobs; the
    output of that call, or of the next one, then says that it was restarted.
    """
    with self._lock:
      if self._closed:
        raise SandboxError('the shell is closed')
      if not self._box.alive:
        raise SandboxError('the box is dead: reset it first')
      told = ''
      if not self.alive:
        self._connection.close()
        self._connection = self._open()
        told = f'{_RESTARTED}\n'
      started = time.monotonic()
      try:
        reply = self._call(command, seconds)
      except (OSError, ValueError) as error:
        self._connection.close()
        if self._box._closed or self._closed:
          raise SandboxError('the shell is closed') from error
        self._box._recover()
        return _unsupervised(started, f'\n{_RESTARTED}')
      return RunResult(**reply | {'output': told + reply['output']})

  def close(self) -> None:
    """Ends the session and all that it started."""
    self._closed = True
    with contextlib.suppress(OSError):
      self._connection.shutdown(socket.SHUT_RDWR)
    self._connection.close()

  def _open(self) -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
      try:
        self._box._ask({'operation': 'shell'}, fds=[theirs.fileno()])
      except SandboxError:
        ours.close()
        raise
    return ours

  def _call(self, command: str, seconds: float) -> dict:
    """Raises OSError or ValueError if no whole reply came in time."""
    request = {'command': command, 'seconds': seconds}
    deadline = time.monotonic() + seconds + self._box._config.answer_seconds
    self._connection.settimeout(self._box._config.answer_seconds)
    self._connection.sendall(json.dumps(request).encode() + b'\n')
    reply = bytearray()
    while not reply.endswith(b'\n'):
      self._connection.settimeout(max(0.001, deadline - time.monotonic()))
      chunk = self._connection.recv(1 << 16)
      if not chunk:
        raise ConnectionResetError('the session ended')
      reply += chunk
    return json.loads(reply)


def _unsupervised(started: float, note: str = '') -> RunResult:
  """What is known of a command that ended its handler, or the box."""
  return RunResult(
    exit_code=None,
    output=_SUPERVISION + note,
    seconds=time.monotonic() - started,
    cpu_seconds=0.0,
    timed_out=False,
    dropped_bytes=0,
  )


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


def _remove(folder: str | pathlib.Path) -> None:
  """Removes a box's folder, and what its code had locked in there.

  By programs that do not mind how deep it is.
  """
  for command in (['chmod', '-R', 'u+rwX'], ['rm', '-rf']):
    subprocess.run([*command, '--', folder], stderr=subprocess.DEVNULL)


def reap_stale() -> None:
  """Removes the folders that boxes of killed runs left behind."""
  here = pathlib.Path(tempfile.gettempdir())
  for folder in here.glob(f'{_PREFIX}*-*'):
    pid = folder.name[len(_PREFIX) :].split('-', 1)[0]
    if pid.isdigit() and not os.path.exists(f'/proc/{pid}'):
      _remove(folder)
