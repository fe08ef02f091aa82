"""Runs inside a box: finding and ending processes. Standard library only."""

import ctypes
import os
import resource
import signal
import time

SET_PDEATHSIG, SET_DUMPABLE, SET_CHILD_SUBREAPER = 1, 4, 36
_SET_SECCOMP, _SET_NO_NEW_PRIVS = 22, 38
_FILTER_MODE = 2
_KILL_SECONDS = 5.0  # After which a tree that will not die is reported.
_PAGE = resource.getpagesize()


def prctl(option, value):
  ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class _Program(ctypes.Structure):
  """struct sock_fprog."""

  _fields_ = [('length', ctypes.c_ushort), ('steps', ctypes.c_char_p)]


def restrict(steps):
  """Installs a seccomp filter for this process and all its children."""
  if not steps:
    return
  filter_ = _Program(len(steps) // 8, steps)
  libc = ctypes.CDLL(None, use_errno=True)
  libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
  if libc.prctl(_SET_SECCOMP, _FILTER_MODE, ctypes.byref(filter_), 0, 0):
    raise OSError(ctypes.get_errno(), 'cannot install a seccomp filter')


def descendants(root):
  """{pid: resident bytes} of all living processes below `root`."""
  children, resident = {}, {}
  for name in os.listdir('/proc'):
    if not name.isdigit():
      continue
    try:
      with open(f'/proc/{name}/stat', 'rb') as file:
        fields = file.read().rsplit(b')', 1)[1].split()
    except (OSError, IndexError):
      continue  # Ended meanwhile.
    pid = int(name)
    children.setdefault(int(fields[1]), []).append(pid)
    if fields[0] not in b'ZX':
      resident[pid] = int(fields[21]) * _PAGE
  found, stack = {}, [root]
  while stack:
    for pid in children.get(stack.pop(), ()):
      stack.append(pid)
      if pid in resident:
        found[pid] = resident[pid]
  return found


def send(pids, number):
  for pid in pids:
    try:
      os.kill(pid, number)
    except ProcessLookupError:
      pass


def reap(statuses):
  """Collects ended children; False once there is no child left."""
  try:
    while True:
      pid, status = os.waitpid(-1, os.WNOHANG)
      if not pid:
        return True
      statuses[pid] = status
  except ChildProcessError:
    return False


def kill_descendants(statuses):
  """Ends every descendant of this subreaper; False if some would not end.

  They are stopped before they are killed: a process that forks faster than it
  can be killed soon consists of stopped processes only.
  """
  deadline = time.monotonic() + _KILL_SECONDS
  while reap(statuses):
    if time.monotonic() > deadline:
      return False
    stopped = set()
    while fresh := set(descendants(os.getpid())) - stopped:
      send(fresh, signal.SIGSTOP)
      stopped |= fresh
      if time.monotonic() > deadline:
        break
    send(stopped, signal.SIGKILL)
    time.sleep(0.0005)
  return True


def kill_everything():
  """Ends all processes of the box but this one."""
  if os.getpid() != 1:
    return kill_descendants({})
  deadline = time.monotonic() + _KILL_SECONDS
  while reap({}):
    try:
      os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
      pass
    if time.monotonic() > deadline:
      return False
    time.sleep(0.0005)
  return True
