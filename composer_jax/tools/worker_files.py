"""Runs inside a box: reading and writing /repo. Standard library only."""

import errno
import os
import shutil
import stat

import worker_processes


def open_inside(root, path, flags):
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
    fd = os.open(
      name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644, dir_fd=here
    )
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
  for folder, folders, names in os.walk(settings['repo']):
    folders.sort()
    for name in sorted(names):
      path = os.path.relpath(os.path.join(folder, name), settings['repo'])
      if len(found) == settings['read_files']:
        return found
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


def reset(settings, files):
  """Makes the box as new; raises OSError where that is beyond it."""
  if not worker_processes.kill_everything():
    raise OSError(errno.EBUSY, 'processes that cannot be killed')
  try:
    wipe(settings)
  except RecursionError:
    raise OSError(errno.ENOTEMPTY, 'folders nested too deep') from None
  for path, text in files.items():
    write_file(settings, path, text)
