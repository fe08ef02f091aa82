"""Runs inside a box: one bash that lives across calls. Standard library only.

The handler of a session holds the master of a terminal that only says which
group of processes is in the foreground; commands see `/dev/null` and pipes.

  handler ── stdin pipe: `source CALL 'command'`, then `printf STATUS` ──▶ bash
          ◀── output pipe: whatever holds it, also jobs in the background ──┘
          ◀── status pipe: one number for every call, closed to commands ───┘

A call ends with its status, not with its output: a job in the background may
hold the pipe; what it says is part of a later call's output.
"""

import fcntl
import json
import os
import resource
import select
import shlex
import signal
import socket
import struct
import termios
import time

import worker_commands
import worker_processes

CALL = '/opt/box/shell_call.sh'
_OUTPUT, _STATUS = 60, 61  # Descriptors in bash.
_WATCH_SECONDS = 0.1
_INTERRUPT_SECONDS = 0.2  # From an interrupt to the kill, and to the next.
_GRACE_SECONDS = 2.0  # From the limit of a call to the end of its shell.
_LONGEST_STATUS = 64  # Bytes of what the status pipe says, kept.
_RESTARTED = '[the shell was restarted]'
_PROLOGUE = 'set +o history +H; PS1= PS2=; unset HISTFILE PROMPT_COMMAND\n'
_TICKS = os.sysconf('SC_CLK_TCK')


class Gone(Exception):
  """Nobody is at the other end of the session any more."""


class Bash:
  """A bash without history, prompt or start files, and its pipes."""

  def __init__(self, settings):
    self._terminal, terminal = os.openpty()
    theirs_in, self.stdin = os.pipe()
    self.output, theirs_out = os.pipe()
    self.status, theirs_status = os.pipe()
    self.pid = os.fork()
    if not self.pid:
      become(settings, terminal, theirs_in, theirs_out, theirs_status)
    for fd in (terminal, theirs_in, theirs_out, theirs_status):
      os.close(fd)
    for fd in (self.stdin, self.output, self.status):
      os.set_blocking(fd, False)
    self.ended = os.pidfd_open(self.pid)
    self._waiting = _PROLOGUE.encode()
    self._said = b''

  def close(self):
    pipes = (self.stdin, self.output, self.status)
    for fd in (*pipes, self._terminal, self.ended):
      os.close(fd)

  def order(self, call, command, number):
    """Queues a command, and a request for its status under `number`."""
    text = command.encode('utf-8', 'replace').replace(b'\0', b'')
    line = (
      # An interrupt may take the first character of what is read after it.
      f'\n\nsource {call} {shlex.quote(text.decode())} </dev/null'
      f' >&{_OUTPUT} 2>&1 {_OUTPUT}>&- {_STATUS}>&-\n'
    )
    self._waiting += line.encode()
    self.order_status(number)

  def order_status(self, number):
    """Queues a request for the status of the last command."""
    line = f'\nprintf "%s\\n" "{number} $?" >&{_STATUS}\n'
    self._waiting += line.encode()

  def status_of(self, number):
    """The status under `number` if the status pipe tells it, else None."""
    try:
      self._said += os.read(self.status, 1 << 12)
    except BlockingIOError:
      pass
    *lines, rest = self._said.split(b'\n')
    self._said = rest[-_LONGEST_STATUS:]
    for line in lines:
      words = line.split()
      if len(words) == 2 and words[0] == str(number).encode():
        return int(words[1])
    return None

  def feed(self):
    """Writes what is queued and fits; whether something is left."""
    try:
      while self._waiting:
        written = os.write(self.stdin, self._waiting[: 1 << 15])
        self._waiting = self._waiting[written:]
    except BlockingIOError:
      pass
    except BrokenPipeError:
      self._waiting = b''
    return bool(self._waiting)

  def resume(self):
    """Lets a bash go on that has stopped itself."""
    try:
      if os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG):
        self._send(signal.SIGCONT)
    except ChildProcessError:
      pass  # It has ended.

  def interrupt(self, *, kill):
    """Ctrl-C for the foreground; with `kill`, the end of it."""
    group = os.tcgetpgrp(self._terminal)
    if kill or group in (0, self.pid):
      self._send(signal.SIGINT)
    if group not in (0, self.pid):
      try:
        os.killpg(group, signal.SIGKILL if kill else signal.SIGINT)
      except ProcessLookupError:
        pass

  def _send(self, number):
    try:
      signal.pidfd_send_signal(self.ended, number)
    except ProcessLookupError:
      pass

  def available(self):
    """What the output pipe holds now, and no more: it may be in a flood."""
    answer = fcntl.ioctl(self.output, termios.FIONREAD, bytes(4))
    size = struct.unpack('i', answer)[0]
    return os.read(self.output, size) if size else b''

  def cpu_seconds(self):
    """Of bash and of all that it has waited for."""
    try:
      with open(f'/proc/{self.pid}/stat', 'rb') as file:
        fields = file.read().rsplit(b')', 1)[1].split()
    except OSError:
      return 0.0
    return sum(map(int, fields[11:15])) / _TICKS


def become(settings, terminal, stdin, output, status):
  """Turns this fork into bash; never returns."""
  os.setsid()
  fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
  null = os.open(os.devnull, os.O_WRONLY)
  for source, target in (
    (stdin, 0),
    (null, 1),
    (null, 2),
    (output, _OUTPUT),
    (status, _STATUS),
  ):
    os.dup2(source, target)
  os.closerange(3, _OUTPUT)
  os.closerange(_STATUS + 1, 1024)
  worker_processes.prctl(worker_processes.SET_DUMPABLE, 1)
  worker_processes.prctl(worker_processes.SET_PDEATHSIG, signal.SIGKILL)
  os.chdir(settings['repo'])
  worker_commands.limit(settings, settings['shell_cpu_seconds'])
  worker_processes.restrict(settings['filter'])
  for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these.
    signal.signal(number, signal.SIG_DFL)
  command = ['bash', '--norc', '--noprofile', '--noediting', '-i']
  try:
    os.execvp(command[0], command)
  except OSError as error:
    os.write(_OUTPUT, f'bash: {error.strerror}\n'.encode())
    os._exit(127)


class Session:
  """Calls in turn, in a bash that is started anew when it ended."""

  def __init__(self, settings, connection):
    self._settings = settings
    self._connection = connection
    self._bash = None
    self._lost = False  # A bash ended, and no call has been told.
    self._number = 0
    self._statuses = {}
    self._limits = worker_processes.Watch(settings)
    self._capture = worker_commands.Capture(settings['output_bytes'])

  def serve(self):
    """Answers calls until the other end is closed."""
    waiting = b''
    while True:
      while b'\n' not in waiting:
        self._idle()
        chunk = self._connection.recv(1 << 16)
        if not chunk:
          raise Gone
        waiting += chunk
      line, waiting = waiting.split(b'\n', 1)
      request = json.loads(line)
      reply = self._call(request['command'], request['seconds'])
      self._connection.sendall(json.dumps(reply).encode() + b'\n')

  def _idle(self):
    """Waits for a call, and watches over what runs in the background."""
    while True:
      ready = self._wait(_WATCH_SECONDS if self._has_jobs() else None)
      if self._connection.fileno() in ready:
        return
      reason = self._excess()
      if self._bash and (reason or self._bash.ended in ready):
        self._end()
        self._lost = True
        if reason:
          self._capture.add(f'[killed: {reason}]\n'.encode())

  def _call(self, command, seconds):
    """Runs one command: what the host makes a RunResult of."""
    if self._bash is None:
      self._bash = Bash(self._settings)
    told, self._lost = self._lost, False
    cpu, started = self._cpu_seconds(), time.monotonic()
    self._number += 1
    call = self._settings['programs'].get(CALL, CALL)
    self._bash.order(call, command, self._number)
    exit_code, reason = self._follow(started + seconds)
    timed_out = reason == 'time'
    note = ''
    if exit_code is None:
      pid = self._bash.pid
      self._end()
      if reason:
        killed = '' if timed_out else f'\n[killed: {reason}]'
        note = f'{killed}\n{_RESTARTED}'
      else:
        exit_code = os.waitstatus_to_exitcode(self._statuses.pop(pid))
        self._lost = True
    text, dropped = self._capture.text()
    self._capture = worker_commands.Capture(self._settings['output_bytes'])
    return {
      'exit_code': None if timed_out else exit_code,
      'output': f'{_RESTARTED}\n' * told + text + note,
      'seconds': time.monotonic() - started,
      'cpu_seconds': max(0.0, self._cpu_seconds() - cpu),
      'timed_out': timed_out,
      'dropped_bytes': dropped,
    }

  def _follow(self, deadline):
    """Waits for the call's status or its limit: (status, why it was ended).

    No status means that bash has ended or must end.
    """
    bash, reason = self._bash, ''
    watch = time.monotonic() + _WATCH_SECONDS
    interrupt, interrupts = deadline, 0
    while True:
      now = time.monotonic()
      if now >= watch:
        bash.resume()
        if excess := self._excess():
          return None, excess
        watch = now + _WATCH_SECONDS
      if now >= deadline + _GRACE_SECONDS:
        return None, reason
      if now >= interrupt:
        reason = 'time'
        bash.interrupt(kill=interrupts > 0)
        bash.order_status(self._number)  # The first request may be lost.
        interrupts += 1
        interrupt = now + _INTERRUPT_SECONDS
      ready = self._wait(max(0.0, min(watch, interrupt) - now), bash.status)
      if bash.status in ready:
        status = bash.status_of(self._number)
        if status is not None:
          self._capture.add(bash.available())
          return status, reason
      if bash.ended in ready:
        return None, reason
      if self._connection.fileno() in ready:
        raise Gone

  def _wait(self, seconds, *more):
    """The descriptors that are ready; output is read."""
    poller = select.poll()
    for fd in (self._connection.fileno(), *more):
      poller.register(fd, select.POLLIN)
    if self._bash:
      poller.register(self._bash.output, select.POLLIN)
      poller.register(self._bash.ended, select.POLLIN)
      if self._bash.feed():
        poller.register(self._bash.stdin, select.POLLOUT)
    limit = None if seconds is None else 1000 * seconds
    ready = {fd for fd, _ in poller.poll(limit)}
    if self._bash and self._bash.output in ready:
      self._capture.add(self._bash.available())
    return ready

  def _has_jobs(self):
    return len(worker_processes.descendants(os.getpid())) > 1

  def _excess(self):
    """Which limit the whole tree exceeds, if any; collects what ended."""
    worker_processes.reap(self._statuses)
    return self._limits.excess()

  def _cpu_seconds(self):
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    live = self._bash.cpu_seconds() if self._bash else 0.0
    return usage.ru_utime + usage.ru_stime + live

  def _end(self):
    """Ends bash and all that it started."""
    clean = worker_processes.kill_descendants(self._statuses)
    self._capture.add(self._bash.available())
    self._bash.close()
    self._bash = None
    if not clean:
      raise Gone


def handle(settings, session):
  """Serves one session until its end; never returns."""
  signal.signal(signal.SIGCHLD, signal.SIG_DFL)
  worker_processes.prctl(worker_processes.SET_CHILD_SUBREAPER, 1)
  worker_processes.prctl(worker_processes.SET_PDEATHSIG, signal.SIGKILL)
  try:
    with socket.socket(fileno=session) as connection:
      Session(settings, connection).serve()
  except (Gone, OSError):
    pass
  worker_processes.kill_descendants({})
  os._exit(0)
