"""Runs inside a box: one command, its limits, its output and its end.

Standard library only.
"""

import atexit
import gc
import json
import math
import os
import resource
import select
import signal
import sys
import threading
import time
import traceback
import types

import worker_processes

_WATCH_SECONDS = 0.1  # Between two looks at a tree's memory and size.


class Capture:
  """Output with a bound: the first and the last half of it are kept."""

  def __init__(self, limit):
    self._half = limit // 2
    self._head = bytearray()
    self._tail = bytearray()
    self._total = 0

  def add(self, data):
    self._total += len(data)
    room = self._half - len(self._head)
    self._head += data[:room]
    self._tail += data[room:]
    del self._tail[: max(0, len(self._tail) - self._half)]

  def text(self):
    """The text, and how many bytes of it were dropped."""
    head, tail = (
      part.decode('utf-8', 'replace') for part in (self._head, self._tail)
    )
    dropped = self._total - len(self._head) - len(self._tail)
    if not dropped:
      return bytes(self._head + self._tail).decode('utf-8', 'replace'), 0
    return f'{head}\n[{dropped} bytes dropped]\n{tail}', dropped


def limit(settings, seconds):
  """Sets the limits of a command on this process, for good."""
  limits = {
    resource.RLIMIT_AS: settings['memory_bytes'],
    resource.RLIMIT_FSIZE: settings['file_bytes'],
    resource.RLIMIT_CPU: math.ceil(seconds) + 1,
    resource.RLIMIT_NOFILE: 128,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_MEMLOCK: 1 << 16,
    resource.RLIMIT_SIGPENDING: 1 << 10,
  }
  if settings['count_processes']:
    limits[resource.RLIMIT_NPROC] = settings['processes']
  for name, value in limits.items():
    hard = resource.getrlimit(name)[1]
    if hard != resource.RLIM_INFINITY:
      value = min(value, hard)
    resource.setrlimit(name, (value, value))
  try:
    with open('/proc/self/oom_score_adj', 'w') as file:
      file.write('1000')  # The first to go where this machine runs short.
  except OSError:
    pass  # Where it is not for a user to set.


def run_script(command):
  """Runs `python SCRIPT ARGUMENTS` in this interpreter, then ends it."""
  gc.enable()
  signal.signal(signal.SIGINT, signal.default_int_handler)
  sys.argv = list(command[1:])
  sys.stdin = sys.__stdin__ = open(0, encoding='utf-8')
  sys.stdout = sys.__stdout__ = open(1, 'w', encoding='utf-8')
  sys.stderr = sys.__stderr__ = open(
    2, 'w', encoding='utf-8', errors='backslashreplace', buffering=1
  )
  try:
    execute(command[1])
  except SystemExit as stop:
    leave(stop.code)
  except BaseException:  # The door: whatever the script raised is its output.
    kind, value, trace = sys.exc_info()
    script_only = trace.tb_next.tb_next  # Without our own two frames.
    sys.stdout.flush()
    traceback.print_exception(kind, value, script_only)
    leave(1)
  leave(None)


def execute(script):
  """Runs the file as the main module."""
  try:
    with open(script, 'rb') as file:
      source = file.read()
  except OSError as error:
    sys.stderr.write(f'python: cannot open {script!r}: {error.strerror}\n')
    sys.exit(2)
  main = types.ModuleType('__main__')
  main.__file__ = script
  main.__builtins__ = sys.modules['builtins']
  sys.modules['__main__'] = main
  sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
  exec(compile(source, script, 'exec', dont_inherit=True), main.__dict__)


def leave(code):
  """Ends this process like `sys.exit(code)`, but without the teardown.

  Taking a warm interpreter apart costs more than a small script. Threads are
  waited for, exit functions run and output is flushed; objects that are still
  alive are not finalised.
  """
  if code is not None and not isinstance(code, int):
    sys.stderr.write(f'{code}\n')
    code = 1
  threading._shutdown()
  atexit._run_exitfuncs()
  try:
    sys.stdout.flush()
  except (OSError, ValueError):
    code = 120
  os._exit((code or 0) & 0xFF)


def become(settings, request, *files):
  """Turns this fork into the command; never returns normally.

  Its first file descriptors are `files`: input, output, errors, report.
  """
  os.setsid()
  for target, source in enumerate(files):
    os.dup2(source, target)
  os.closerange(len(files), 1024)
  if request['report']:
    os.environ['BOX_REPORT'] = str(len(files) - 1)
  worker_processes.prctl(worker_processes.SET_DUMPABLE, 1)
  worker_processes.prctl(worker_processes.SET_PDEATHSIG, signal.SIGKILL)
  programs = settings['programs']
  command = [programs.get(part, part) for part in request['command']]
  os.chdir(settings['repo'])
  limit(settings, request['seconds'])
  worker_processes.restrict(settings['filter'])
  if command[0] == 'python' and command[1:] and command[1][:1] != '-':
    run_script(command)
  for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these.
    signal.signal(number, signal.SIG_DFL)
  try:
    os.execvp(command[0], command)
  except OSError as error:
    os.write(2, f'{command[0]}: {error.strerror}\n'.encode())
    os._exit(127)


def supervise(settings, child, output, seconds):
  """Waits for the child or a limit: (captured output, why it was ended)."""
  capture = Capture(settings['output_bytes'])
  limits = worker_processes.Watch(settings)
  ended = os.pidfd_open(child)
  poller = select.poll()
  poller.register(output, select.POLLIN)
  poller.register(ended, select.POLLIN)
  now = time.monotonic()
  deadline, watch = now + seconds, now + _WATCH_SECONDS
  while now < deadline:
    until = min(deadline, watch) - now
    ready = {fd for fd, _ in poller.poll(max(0, until) * 1000)}
    if output in ready:
      data = os.read(output, 1 << 16)
      capture.add(data)
      if not data:
        poller.unregister(output)
    elif ended in ready:
      return capture, ''
    now = time.monotonic()
    if now >= watch:
      if excess := limits.excess():
        return capture, excess
      watch = time.monotonic() + _WATCH_SECONDS
  return capture, 'time'


def drain(output, capture):
  os.set_blocking(output, False)
  try:
    while data := os.read(output, 1 << 16):
      capture.add(data)
  except BlockingIOError:
    pass  # Somebody still holds the other end; reported as stuck.


def handle(settings, connection, request):
  """Runs one command and answers; in the command's own fork, becomes it."""
  signal.signal(signal.SIGCHLD, signal.SIG_DFL)
  worker_processes.prctl(worker_processes.SET_CHILD_SUBREAPER, 1)
  worker_processes.prctl(worker_processes.SET_PDEATHSIG, signal.SIGKILL)
  stdin = os.memfd_create('stdin')
  with open(stdin, 'wb', closefd=False) as file:
    file.write(request['stdin'].encode('utf-8', 'replace'))
  os.lseek(stdin, 0, os.SEEK_SET)
  report = [os.memfd_create('report')] * request['report']
  output, theirs = os.pipe()
  started = time.monotonic()
  child = os.fork()
  if not child:
    connection.close()
    become(settings, request, stdin, theirs, theirs, *report)
  os.close(theirs)
  capture, reason = supervise(settings, child, output, request['seconds'])
  seconds = time.monotonic() - started
  statuses = {}
  clean = worker_processes.kill_descendants(statuses)
  drain(output, capture)
  text, dropped = capture.text()
  if reason not in ('', 'time'):
    text += f'\n[killed: {reason}]'
  usage = resource.getrusage(resource.RUSAGE_CHILDREN)
  exit_code = None
  if reason != 'time' and child in statuses:
    exit_code = os.waitstatus_to_exitcode(statuses[child])
  reply = {
    'exit_code': exit_code,
    'output': text,
    'seconds': seconds,
    'cpu_seconds': usage.ru_utime + usage.ru_stime,
    'timed_out': reason == 'time',
    'dropped_bytes': dropped,
    'stuck': not clean,
    'report': ''.join(
      os.pread(fd, settings['read_bytes'], 0).decode('utf-8', 'replace')
      for fd in report
    ),
  }
  try:
    connection.sendall(json.dumps(reply).encode())
  except OSError:
    pass  # Nobody waits for it any more.
  os._exit(0)
