"""Runs inside a box: reading and writing /repo. Standard library only."""

import errno
import io
import os
import shutil
import stat
import tarfile

import worker_processes

_MOST_FOLDERS = 64  # Around a file that is read back in a snapshot or a copy.


def open_folder(root, folders, make=False):
  """Opens a folder below `root` without following any link."""
  if not all(part not in ('', '.', '..') for part in folders):
    raise OSError(errno.EINVAL, 'not a plain relative path')
  flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
  here = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
  try:
    for folder in folders:
      if make:
        try:
          os.mkdir(folder, 0o755, dir_fd=here)
        except FileExistsError:
          pass
      inner = os.open(folder, flags, dir_fd=here)
      os.close(here)
      here = inner
  except OSError:
    os.close(here)
    raise
  return here


def open_inside(root, path, flags, mode=0o644):
  """Opens a regular file below `root` without following any link."""
  *folders, name = path.split('/')
  if name in ('', '.', '..'):
    raise OSError(errno.EINVAL, 'not a plain relative path')
  here = open_folder(root, folders, bool(flags & os.O_CREAT))
  try:
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
  for path, entry in entries(settings['repo']):
    if not entry.is_file(follow_symlinks=False):
      continue
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
  """Lays down the files, folders and links of the tar archive `fd`."""
  root, folders = settings['repo'], []
  os.lseek(fd, 0, os.SEEK_SET)
  with tarfile.open(fileobj=os.fdopen(fd, 'rb', closefd=False)) as archive:
    for member in archive:
      parts = member.name.split('/')
      if member.isreg():
        unpack_file(root, archive, member)
      elif member.isdir():
        os.close(open_folder(root, parts, make=True))
        folders.append(member)
      elif member.issym():
        here = open_folder(root, parts[:-1], make=True)
        try:
          os.symlink(member.linkname, parts[-1], dir_fd=here)
        finally:
          os.close(here)
  for member in reversed(folders):  # Inner ones first: outer ones may close.
    here = open_folder(root, member.name.split('/'))
    os.utime(here, (member.mtime, member.mtime))
    os.fchmod(here, member.mode & 0o777)
    os.close(here)


def unpack_file(root, archive, member):
  flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
  mode = member.mode & 0o755
  with open(open_inside(root, member.name, flags, mode), 'wb') as file:
    shutil.copyfileobj(archive.extractfile(member), file)
    if member.mtime:
      file.flush()
      os.utime(file.fileno(), (member.mtime, member.mtime))


def pack(settings, fd):
  """Writes the regular files as a tar archive to `fd`, in the order of names.

  Those that cannot be read or are beyond `read_bytes` are left out. More files
  than `tree_files` are an error: nobody is to wait for a million of them.
  """
  most, packed = settings['tree_files'], 0
  with new_archive(fd) as archive:
    for path, entry in entries(settings['repo']):
      if entry.is_file(follow_symlinks=False):
        packed += 1
        if packed > most:
          raise OSError(errno.EFBIG, f'more than {most} files')
        pack_file(settings['repo'], archive, path, settings['read_bytes'])


def copy(settings, fd):
  """Like `pack`, with folders, links, times, and files of any size."""
  with new_archive(fd) as archive:
    for path, entry in entries(settings['repo']):
      if entry.is_file(follow_symlinks=False):
        pack_file(settings['repo'], archive, path, None)
        continue
      member = tarfile.TarInfo(path)
      try:
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
          member.type = tarfile.SYMTYPE
          member.linkname = os.readlink(entry.path)
        elif stat.S_ISDIR(status.st_mode):
          member.type = tarfile.DIRTYPE
        else:
          continue
      except OSError:
        continue  # Removed meanwhile.
      member.mode, member.mtime = status.st_mode & 0o777, int(status.st_mtime)
      archive.addfile(member)


def new_archive(fd):
  return tarfile.open(
    fileobj=os.fdopen(fd, 'wb', closefd=False),
    mode='w',
    format=tarfile.GNU_FORMAT,
    errors='surrogateescape',
  )


def pack_file(root, archive, path, most):
  """Adds a file, with its time, or without it where there is a bound."""
  try:
    inner = open_inside(root, path, os.O_RDONLY)
  except OSError:
    return
  with open(inner, 'rb') as file:
    status = os.fstat(inner)
    if most is not None and status.st_size > most:
      return
    data = file.read(status.st_size)
  member = tarfile.TarInfo(path)
  member.size = len(data)
  member.mode = status.st_mode & 0o755
  member.mtime = int(status.st_mtime) if most is None else 0
  archive.addfile(member, io.BytesIO(data))


def entries(root):
  """Everything below `root`, in order: (path, directory entry).

  What cannot be read, or lies below `_MOST_FOLDERS` folders, is left out:
  every one of them is opened for every file, and there may be ten thousand.
  """
  waiting = [('', root)]
  while waiting:
    prefix, folder = waiting.pop()
    if prefix.count('/') > _MOST_FOLDERS:
      continue
    try:
      with os.scandir(folder) as found:
        inner = sorted(found, key=lambda entry: entry.name)
    except OSError:
      continue
    for entry in inner:
      yield prefix + entry.name, entry
    waiting += [
      (f'{prefix}{entry.name}/', entry.path)
      for entry in reversed(inner)
      if entry.is_dir(follow_symlinks=False)
    ]


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
