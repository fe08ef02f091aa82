"""Trees of files as tar archives that are named by what is in them."""

from collections.abc import Mapping
import hashlib
import io
import tarfile


def pack(files: Mapping[str, bytes]) -> bytes:
  """A tar archive; equal files give equal bytes.

  Regular files of mode 0644 in the order in which a walk meets them, without
  times and owners: what a box gives back if it was filled with them.
  """
  memory = io.BytesIO()
  with tarfile.open(
    fileobj=memory, mode='w', format=tarfile.GNU_FORMAT
  ) as archive:
    for path in sorted(files, key=_place):
      member = tarfile.TarInfo(path)
      member.size = len(files[path])
      member.mode = 0o644
      archive.addfile(member, io.BytesIO(files[path]))
  return memory.getvalue()


def _place(path: str) -> list[tuple[int, str]]:
  """Of each folder first its files, then what is below."""
  *folders, name = path.split('/')
  return [*((1, folder) for folder in folders), (0, name)]


def unpack(tree: bytes) -> dict[str, bytes]:
  """The regular files by path."""
  with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
    return {
      member.name: archive.extractfile(member).read()
      for member in archive
      if member.isreg()
    }


def texts(tree: bytes) -> dict[str, str]:
  """The files that are UTF-8 with plain line ends, by path."""
  found = {}
  for path, data in unpack(tree).items():
    try:
      text = data.decode('utf-8')
    except UnicodeDecodeError:
      continue
    if '\r' not in text:
      found[path] = text
  return found


def name(tree: bytes) -> str:
  return hashlib.sha256(tree).hexdigest()
