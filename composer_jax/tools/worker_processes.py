"""Runs inside a box: finding and ending processes. Standard library only."""

import ctypes
import os
import resource
import signal
import time

SET_PDEATHSIG, SET_DUMPABLE, SET_CHILD_SUBREAPER = 1, 4, 36
SET_NO_NEW_PRIVS = 38
_SET_SECCOMP, _DROP_BOUNDING = 22, 24
_CAPSET = {'x86_64': 126, 'aarch64': 91}
_CAPABILITY_VERSION = 0x20080522
_CAPABILITIES = 64
_FILTER_MODE = 2
_KILL_SECONDS = 5.0  # After which a tree that will not die is reported.
_PAGE = resource.getpagesize()


def prctl(option, value):
  ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def bound_capabilities():
  """Takes all capabilities out of what a program of this box could gain."""
  libc = ctypes.CDLL(None)
  for number in range(_CAPABILITIES):  # Those that there are not are refused.
    libc.prctl(_DROP_BOUNDING, number, 0, 0, 0)


def drop_capabilities():
  """Gives up all capabilities, for good with `bound_capabilities`."""
  number = _CAPSET.get(os.uname().machine)
  if number is not None:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    ctypes.CDLL(None).syscall(number, header, (ctypes.c_uint32 * 6)())


class _Program(ctypes.Structure):
  """struct sock_fprog."""

  _fields_ = [('length', ctypes.c_ushort), ('steps', ctypes.c_char_p)]


def restrict(steps):
  """Installs a seccomp filter for this process and all its children."""
  if not steps:
    return
  filter_ = _Program(len(steps) // 8, steps)
  libc = ctypes.CDLL(None, use_errno=True)
  libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0)
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


def used_inodes(folder):
  status = os.statvfs(folder)
  return status.f_files - status.f_ffree


class Watch:
  """Limits of this process's tree that the kernel does not keep.

  What was there before counts against nobody.
  """

  def __init__(self, settings):
    self._processes = settings['processes']
    self._bytes = settings['tree_bytes']
    self._inodes = {
      folder: max(settings['inodes'], used_inodes(folder))
      for folder in settings['counted']
    }

  def excess(self):
    """Which limit is exceeded, if any."""
    tree = descendants(os.getpid())
    if len(tree) > self._processes:
      return f'more than {self._processes} processes'
    if sum(tree.values()) > self._bytes:
      return f'more than {self._bytes} bytes of memory'
    for folder, most in self._inodes.items():
      if used_inodes(folder) > most:
        return f'more than {most} files in {folder}'
    return ''


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
