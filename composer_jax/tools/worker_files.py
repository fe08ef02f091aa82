"""Runs inside a box: reading and writing /repo. Standard library only."""

import errno
import io
import os
import shutil
import stat
import tarfile

import worker_processes


def open_inside(root, path, flags, mode=0o644):
  """Opens a regular file below `root` without following any link."""
  *folders, name = path.split('/')
  if not all(part not in ('', '.', '..') for part in (*folders, name)):
    raise OSError(errno.EINVAL, 'not a plain relative path')
  here = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
  try:
    for folder in folders:
      if flags & os.O_CREAT:
        try:
          os.mkdir(folder, dir_fd=here)
        except FileExistsError:
          pass
      inner = os.open(
        folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here
      )
      os.close(here)
      here = inner
    fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode, dir_fd=here)
  finally:
    os.close(here)
  if not stat.S_ISREG(os.fstat(fd).st_mode):
    os.close(fd)
    raise OSError(errno.EINVAL, 'not a regular file')
  return fd


def read_file(settings, path):
  with open(open_inside(settings['repo'], path, os.O_RDONLY), 'rb') as file:
    data = file.read(settings['read_bytes'] + 1)
  if len(data) > settings['read_bytes']:
    raise OSError(errno.EFBIG, f'larger than {settings["read_bytes"]} bytes')
  return data.decode('utf-8', 'replace')


def write_file(settings, path, text):
  flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
  with open(open_inside(settings['repo'], path, flags), 'wb') as file:
    file.write(text.encode('utf-8', 'replace'))


def all_files(settings):
  """{path: text} of the regular files; too large or unreadable ones left out.

  At most `read_files` of them, and `read_bytes` in each.
  """
  found = {}
  for path in paths(settings):
    if len(found) == settings['read_files']:
      break
    try:
      found[path] = read_file(settings, path)
    except OSError:
      pass
  return found


def wipe(settings):
  for folder in settings['wiped']:
    for entry in os.scandir(folder):
      if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path)
      else:
        os.unlink(entry.path)


def unpack(settings, fd):
  """Writes the regular files of the tar archive `fd`."""
  flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
  os.lseek(fd, 0, os.SEEK_SET)
  with tarfile.open(fileobj=os.fdopen(fd, 'rb', closefd=False)) as archive:
    for member in archive:
      if member.isreg():
        inner = open_inside(
          settings['repo'], member.name, flags, member.mode & 0o755
        )
        with open(inner, 'wb') as file:
          shutil.copyfileobj(archive.extractfile(member), file)


def pack(settings, fd):
  """Writes the regular files as a tar archive to `fd`, in the order of names.

  Those that cannot be read or are beyond `read_bytes` are left out.
  """
  with tarfile.open(
    fileobj=os.fdopen(fd, 'wb', closefd=False),
    mode='w',
    format=tarfile.GNU_FORMAT,
  ) as archive:
    for path in paths(settings):
      try:
        inner = open_inside(settings['repo'], path, os.O_RDONLY)
      except OSError:
        continue
      with open(inner, 'rb') as file:
        data = file.read(settings['read_bytes'] + 1)
      if len(data) > settings['read_bytes']:
        continue
      member = tarfile.TarInfo(path)
      member.size = len(data)
      member.mode = (
        os.stat(
          os.path.join(settings['repo'], path), follow_symlinks=False
        ).st_mode
        & 0o755
      )
      archive.addfile(member, io.BytesIO(data))


def paths(settings):
  """Paths of everything that is no folder, below the repository, in order."""
  for folder, folders, names in os.walk(settings['repo']):
    folders.sort()
    for name in sorted(names):
      yield os.path.relpath(os.path.join(folder, name), settings['repo'])


def reset(settings, files, trees):
  """Makes the box as new; raises OSError where that is beyond it."""
  if not worker_processes.kill_everything():
    raise OSError(errno.EBUSY, 'processes that cannot be killed')
  try:
    wipe(settings)
  except RecursionError:
    raise OSError(errno.ENOTEMPTY, 'folders nested too deep') from None
  for fd in trees:
    try:
      unpack(settings, fd)
    except tarfile.TarError as error:
      raise OSError(errno.EINVAL, f'not a tar archive: {error}') from None
  for path, text in files.items():
    write_file(settings, path, text)
