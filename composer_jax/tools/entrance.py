"""Builds what a box sees where there is no bubblewrap; becomes its worker.

Runs as process 1 of new namespaces, which `unshare` has made, and with the
rights of their root, which it gives up. Standard library only.

The plan, an argument as JSON, lists `steps` below the new `root` and the
`command` with its `environment`. Nothing of the old root can be reached after.
"""

import ctypes
import json
import os
import socket
import sys

import worker_processes

_PIVOT_ROOT = {'x86_64': 155, 'aarch64': 41}
_MOUNT_SETATTR = 442
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_PROGRAMS = 1, 2, 4, 8
_BIND, _RECURSIVE = 4096, 16384  # Of mount(2).
_AT_RECURSIVE, _DETACH = 0x8000, 2
_DEVICES = ('null', 'zero', 'full', 'random', 'urandom', 'tty')
_DEVICE_LINKS = {
  'fd': '/proc/self/fd',
  'stdin': '/proc/self/fd/0',
  'stdout': '/proc/self/fd/1',
  'stderr': '/proc/self/fd/2',
  'ptmx': 'pts/ptmx',
}
_LIBC = ctypes.CDLL(None, use_errno=True)


def checked(result, what):
  if result == -1:
    error = ctypes.get_errno()
    raise OSError(error, f'{what}: {os.strerror(error)}')


def mount(source, target, kind, flags=0, options=''):
  words = (source, target, kind)
  source, target, kind = (os.fsencode(word) for word in words)
  result = _LIBC.mount(
    source, target, kind, ctypes.c_ulong(flags), options.encode()
  )
  checked(result, f'mount on {target.decode()}')


def restrict(target, attributes, *, inner=True):
  """Adds attributes to a mount; those that it has stay."""
  wanted = (ctypes.c_uint64 * 4)(attributes)
  result = _LIBC.syscall(
    _MOUNT_SETATTR,
    -1,
    os.fsencode(target),
    _AT_RECURSIVE if inner else 0,
    wanted,
    ctypes.sizeof(wanted),
  )
  checked(result, f'restrict {target}')


def folder(root, path):
  os.makedirs(root + path, 0o755, exist_ok=True)


def link(root, target, path):
  os.symlink(target, root + path)


def place(root, source, path):
  """Something to mount on."""
  if os.path.isdir(source):
    folder(root, path)
  elif not os.path.exists(root + path):
    folder(root, os.path.dirname(path))
    os.close(os.open(root + path, os.O_CREAT | os.O_WRONLY, 0o444))


def bind(root, source, path):
  """Shows a file or folder of this machine, to be read only."""
  place(root, source, path)
  mount(source, root + path, '', _BIND | _RECURSIVE)
  restrict(root + path, _READ_ONLY | _NO_SUID | _NO_DEVICES)


def empty(root, path):
  """Hides a folder."""
  mount('tmpfs', root + path, 'tmpfs', _NO_SUID | _NO_DEVICES, 'mode=755')
  restrict(root + path, _READ_ONLY)


def memory(root, path, size, inodes):
  """A folder that can be written to."""
  folder(root, path)
  options = f'mode=1777,size={size},nr_inodes={inodes}'
  mount('tmpfs', root + path, 'tmpfs', _NO_SUID | _NO_DEVICES, options)


def copy(root, source, path, mode):
  with open(source, 'rb') as old, open(root + path, 'wb') as new:
    new.write(old.read())
  os.chmod(root + path, mode)


def kernel(root, settings, secrets):
  """/proc, its settings read-only, its secrets closed."""
  with open('/proc/sys/user/max_user_namespaces', 'w') as file:
    file.write('0')  # Below this one.
  folder(root, '/proc')
  flags = _NO_SUID | _NO_DEVICES | _NO_PROGRAMS
  mount('proc', f'{root}/proc', 'proc', flags)
  for path in settings:
    bind(root, root + path, path)
  for path in secrets:
    bind(root, '/dev/null', path)


def devices(root):
  folder(root, '/dev')
  mount('tmpfs', f'{root}/dev', 'tmpfs', _NO_SUID | _NO_PROGRAMS, 'mode=755')
  for name in _DEVICES:
    place(root, f'/dev/{name}', f'/dev/{name}')
    mount(f'/dev/{name}', f'{root}/dev/{name}', '', _BIND)
    restrict(f'{root}/dev/{name}', _NO_SUID | _NO_PROGRAMS)
  for name, target in _DEVICE_LINKS.items():
    link(root, target, f'/dev/{name}')
  folder(root, '/dev/pts')
  flags = _NO_SUID | _NO_PROGRAMS
  options = 'newinstance,ptmxmode=0666,mode=620'
  mount('devpts', f'{root}/dev/pts', 'devpts', flags, options)
  folder(root, '/dev/shm')
  restrict(f'{root}/dev', _READ_ONLY, inner=False)


_STEPS = {
  step.__name__: step
  for step in (folder, link, bind, empty, memory, copy, kernel, devices)
}


def enter(root):
  """Makes `root` the root, and lets go of the old one."""
  restrict(root, _READ_ONLY, inner=False)
  os.chdir(root)
  number = _PIVOT_ROOT[os.uname().machine]
  checked(_LIBC.syscall(number, b'.', b'.'), 'pivot_root')
  checked(_LIBC.umount2(b'.', _DETACH), 'umount')


def main():
  plan = json.loads(sys.argv[1])
  root = plan['root']
  os.umask(0o022)
  mount('tmpfs', root, 'tmpfs', _NO_SUID | _NO_DEVICES, 'mode=755')
  for step, *arguments in plan['steps']:
    _STEPS[step](root, *arguments)
  enter(root)
  socket.sethostname('box')
  os.chdir('/repo')
  worker_processes.bound_capabilities()
  worker_processes.prctl(worker_processes.SET_NO_NEW_PRIVS, 1)
  worker_processes.drop_capabilities()
  command = plan['command']
  os.execve(command[0], command, plan['environment'])


if __name__ == '__main__':
  main()
