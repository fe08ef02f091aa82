"""Runs inside a box: file operations, and one tree of processes per command.

Standard library only. The worker is a warm interpreter: a command `python
SCRIPT ...` runs in a fork of it, so starting one costs a fork instead of an
interpreter. In a bubblewrap box it is process 1, which nothing inside the box
can kill or stop.

Every request comes over a connection of its own, whose file descriptor the host
sends over the control socket (standard input). No address is ever bound, so
there is nothing to find and nothing to clean up; when the host is gone the
control socket ends, and so does the box.

  worker ── fork ──▶ handler (one per command: limits, output, clean-up)
                        └─ fork ──▶ the command, and whatever it starts

The handler of a shell session (`worker_shell.py`) stays for many commands.
"""

import gc
import importlib
import json
import os
import platform
import shutil
import signal
import socket
import sys

import seccomp
import worker_commands
import worker_files
import worker_processes
import worker_shell

_PRELOADED = (
  'ast bisect collections collections.abc copy dataclasses enum functools'
  ' hashlib heapq itertools json math operator random re string sys time'
  ' traceback typing'
).split()


def answer(connection, reply):
  connection.sendall(json.dumps(reply).encode())
  connection.close()


def perform(settings, request, fds):
  """One request that is no command: its reply."""
  operation = request['operation']
  try:
    if operation == 'read':
      return {'text': worker_files.read_file(settings, request['path'])}
    if operation == 'write':
      worker_files.write_file(settings, request['path'], request['text'])
    elif operation == 'files':
      return {'files': worker_files.all_files(settings)}
    elif operation == 'reset':
      worker_files.reset(settings, request['files'], fds)
    elif operation == 'snapshot':
      worker_files.pack(settings, fds[0])
    elif operation == 'copy':
      worker_files.copy(settings, fds[0])
    elif operation == 'kill':
      return {'clean': worker_processes.kill_everything()}
  except OSError as error:
    return {'errno': error.errno, 'reason': error.strerror}
  return {}


def receive(connection):
  """The request on a connection, which the host half-closes after it."""
  connection.settimeout(10)
  chunks = []
  while chunk := connection.recv(1 << 16):
    chunks.append(chunk)
  return json.loads(b''.join(chunks))


def serve(settings, control):
  """Answers requests until the host is gone, then returns None.

  In the fork for a command it returns too: connection, request, open files.
  """
  while True:
    _, fds, _, _ = socket.recv_fds(control, 1, 2, socket.MSG_CMSG_CLOEXEC)
    if not fds:
      return None
    connection, *fds = socket.socket(fileno=fds[0]), *fds[1:]
    try:
      request = receive(connection)
      if request['operation'] not in ('run', 'shell'):
        answer(connection, perform(settings, request, fds))
      elif not os.fork():
        control.close()
        return connection, request, fds
      elif request['operation'] == 'shell':
        answer(connection, {})
    except (OSError, ValueError):
      pass  # The asking thread went away; so does its connection.
    connection.close()
    for fd in fds:
      os.close(fd)


def become_ordinary(settings):
  """Gives up root for this box's own user, and hides from its processes."""
  if settings['uid']:
    worker_processes.bound_capabilities()
    os.setgroups([])
    os.setresgid(*[settings['uid']] * 3)
    os.setresuid(*[settings['uid']] * 3)
    worker_processes.drop_capabilities()
  worker_processes.prctl(worker_processes.SET_NO_NEW_PRIVS, 1)
  worker_processes.prctl(worker_processes.SET_DUMPABLE, 0)
  worker_processes.prctl(worker_processes.SET_CHILD_SUBREAPER, 1)
  if not settings['own_folder']:  # Else it stays to clean up.
    # Bubblewrap asked for this, but a change of user clears it.
    worker_processes.prctl(worker_processes.SET_PDEATHSIG, signal.SIGKILL)


def main():
  settings = json.loads(sys.argv[1])
  control = socket.socket(fileno=os.dup(0))
  null = os.open(os.devnull, os.O_RDWR)
  os.dup2(null, 0)
  os.dup2(null, 1)
  become_ordinary(settings)
  settings['filter'] = seccomp.program(platform.machine())
  del sys.path[0]  # The folder of this file.
  sys.path += settings['libraries']
  for name in _PRELOADED:
    importlib.import_module(name)
  signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Handlers leave no zombies.
  signal.signal(signal.SIGINT, signal.SIG_DFL)  # Process 1 then ignores it.
  gc.collect()
  gc.freeze()
  gc.disable()
  job = serve(settings, control)
  if job:
    connection, request, fds = job
    if request['operation'] == 'shell':
      connection.close()
      worker_shell.handle(settings, *fds)
    worker_commands.handle(settings, connection, request)
  worker_processes.kill_everything()
  if settings['own_folder']:
    shutil.rmtree(settings['own_folder'], ignore_errors=True)


if __name__ == '__main__':
  main()
