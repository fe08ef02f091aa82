"""Numbered directories of named arrays: each is whole, or is not there.

A store is a directory with

  LATEST    the newest announced number, replaced atomically
  12/       an Orbax checkpoint of a flat dictionary, plus our MANIFEST
  .tmp-*    being written or being removed; no reader looks there

MANIFEST is one line of JSON (the digest of every file and of every array) and
one line that is the SHA-256 of the first. Orbax alone calls an empty directory
a checkpoint and loads flipped bits.

A reader holds a shared lock on the MANIFEST while it reads, and pruning passes
over what is locked; the kernel drops the lock of a reader that dies. All this
holds on a local POSIX filesystem, for one writer at a time per store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
from typing import Any

import numpy as np
import orbax.checkpoint as ocp

_MANIFEST = 'MANIFEST'
_LATEST = 'LATEST'
_TEMPORARY = '.tmp-'


class DamagedError(ValueError):
  """What is on disk is not what was written."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
  """Verified content of one number of a store."""

  number: int
  arrays: Mapping[str, np.ndarray]
  metadata: Mapping[str, Any]
  digest: str  # SHA-256 over names, shapes, dtypes and bytes of the arrays.


def write(
  directory: pathlib.Path,
  number: int,
  arrays: Mapping[str, np.ndarray],
  *,
  metadata: Mapping[str, Any],
  keep: int,
) -> str:
  """Writes and announces one snapshot, and prunes all but the last `keep`.

  Killed at any instant, it leaves the previous snapshot announced and whole.

  Returns:
    The digest of the arrays.

  Raises:
    ValueError: `number` is not above every whole snapshot of the store.
    BlockingIOError: a reader holds a damaged snapshot that must give way.
  """
  directory = directory.absolute()
  directory.mkdir(parents=True, exist_ok=True)
  for leftover in directory.glob(f'{_TEMPORARY}*'):
    _delete(leftover)
  _refuse_to_go_back(directory, number)
  temporary = directory / f'{_TEMPORARY}{number}'
  # Orbax has no arrays of size zero; their shape and dtype say everything.
  solid = {name: array for name, array in arrays.items() if array.size}
  _checkpointer().save(temporary, solid)
  rows = {name: _row(array) for name, array in arrays.items()}
  digest = _digest(rows)
  _write_manifest(
    temporary,
    {
      'number': number,
      'digest': digest,
      'arrays': rows,
      'metadata': dict(metadata),
      'files': _file_digests(temporary),
    },
  )
  _flush(temporary)
  os.rename(temporary, directory / str(number))
  _announce(directory, number)
  for old in _numbers(directory)[:-keep]:
    _remove(directory / str(old))
  return digest


def read(directory: pathlib.Path, number: int) -> Snapshot:
  """Reads one snapshot and verifies every file and every array of it.

  Raises:
    FileNotFoundError: it is not there, or is being pruned.
    DamagedError: a digest differs or something is missing.
  """
  path = directory.absolute() / str(number)
  with _lease(path):
    manifest = _read_manifest(path)
    _check_files(path, manifest['files'])
    loaded = _checkpointer().restore(path)
  arrays = {}
  for name, row in manifest['arrays'].items():
    empty = np.zeros(row['shape'], np.dtype(row['dtype']))
    arrays[name] = empty if empty.size == 0 else loaded[name]
    if _row(arrays[name]) != row:
      raise DamagedError(f'{path}: {name} is not the array that was written')
  if manifest['number'] != number:
    raise DamagedError(f'{path} holds number {manifest["number"]}')
  return Snapshot(
    number=number,
    arrays=arrays,
    metadata=manifest['metadata'],
    digest=manifest['digest'],
  )


def read_latest(
  directory: pathlib.Path,
) -> tuple[Snapshot | None, tuple[str, ...]]:
  """The newest whole snapshot, or None, and what was refused as damaged."""
  refused: dict[int, str] = {}
  gone: set[int] = set()
  while True:
    # Listed anew each time: the writer may have moved on meanwhile.
    untried = set(_announced(directory)) - set(refused) - gone
    if not untried:
      return None, tuple(refused.values())
    number = max(untried)
    try:
      return read(directory, number), tuple(refused.values())
    except FileNotFoundError:
      gone.add(number)
    except DamagedError as error:
      refused[number] = str(error)


def latest(directory: pathlib.Path) -> int | None:
  """The newest announced number, unverified; None if there is none."""
  return max(_announced(directory), default=None)


def forget(directory: pathlib.Path, since: int) -> None:
  """Removes every snapshot from number `since` on.

  Raises:
    BlockingIOError: a reader holds one of them.
  """
  directory = directory.absolute()
  for number in reversed(_numbers(directory)):
    if number >= since and not _remove(directory / str(number)):
      raise BlockingIOError(f'{directory / str(number)} is being read')


def _checkpointer() -> ocp.PyTreeCheckpointer:
  return ocp.PyTreeCheckpointer(use_ocdbt=True, use_zarr3=True)


def _numbers(directory: pathlib.Path) -> list[int]:
  if not directory.is_dir():
    return []
  return sorted(int(p.name) for p in directory.iterdir() if p.name.isdecimal())


def _announced(directory: pathlib.Path) -> list[int]:
  """Finished numbers up to LATEST; all of them if LATEST is unreadable."""
  try:
    text = (directory / _LATEST).read_bytes().strip()
  except FileNotFoundError:
    return []
  numbers = _numbers(directory)
  return [n for n in numbers if not text.isdigit() or n <= int(text)]


def _announce(directory: pathlib.Path, number: int) -> None:
  temporary = directory / f'{_TEMPORARY}{_LATEST}'
  temporary.write_text(f'{number}\n')
  _sync(temporary)
  os.replace(temporary, directory / _LATEST)
  _sync(directory)


def _refuse_to_go_back(directory: pathlib.Path, number: int) -> None:
  """Clears the way of damaged or unannounced snapshots, refuses whole ones."""
  announced = set(_announced(directory))
  for other in [n for n in _numbers(directory) if n >= number]:
    if other in announced:
      try:
        read(directory, other)
      except DamagedError:
        pass
      else:
        raise ValueError(
          f'{directory} already holds {other}; {number} must be above it'
        )
    if not _remove(directory / str(other)):
      raise BlockingIOError(f'{directory / str(other)} is being read')


def _row(array: np.ndarray) -> dict[str, Any]:
  data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
  return {
    'shape': list(array.shape),
    'dtype': str(array.dtype),
    'sha256': hashlib.sha256(data).hexdigest(),
  }


def _digest(rows: Mapping[str, Any]) -> str:
  return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def _file_digests(path: pathlib.Path) -> dict[str, str]:
  return {
    str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
    for file in sorted(path.rglob('*'))
    if file.is_file()
  }


def _check_files(path: pathlib.Path, digests: Mapping[str, str]) -> None:
  for name, digest in digests.items():
    try:
      content = (path / name).read_bytes()
    except FileNotFoundError as error:
      raise DamagedError(f'{path}: {name} is missing') from error
    if hashlib.sha256(content).hexdigest() != digest:
      raise DamagedError(f'{path}: {name} is not the file that was written')


def _write_manifest(path: pathlib.Path, content: Mapping[str, Any]) -> None:
  body = json.dumps(content, sort_keys=True).encode()
  seal = hashlib.sha256(body).hexdigest().encode()
  (path / _MANIFEST).write_bytes(body + b'\n' + seal + b'\n')


def _read_manifest(path: pathlib.Path) -> dict[str, Any]:
  body, _, seal = (path / _MANIFEST).read_bytes().partition(b'\n')
  if hashlib.sha256(body).hexdigest().encode() + b'\n' != seal:
    raise DamagedError(f'{path}: the manifest is not the one written')
  return json.loads(body)


@contextlib.contextmanager
def _lease(path: pathlib.Path) -> Iterator[None]:
  """Keeps `path` from being pruned while the context lasts."""
  try:
    manifest = open(path / _MANIFEST, 'rb')
  except FileNotFoundError as error:
    if path.is_dir():
      raise DamagedError(f'{path} has no manifest') from error
    raise
  with manifest:
    try:
      fcntl.flock(manifest, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
      raise FileNotFoundError(f'{path} is being removed') from error
    # Removed between open and lock? Then the lock is on a dead file.
    if os.stat(path / _MANIFEST).st_ino != os.fstat(manifest.fileno()).st_ino:
      raise FileNotFoundError(f'{path} was replaced')
    yield


def _remove(path: pathlib.Path) -> bool:
  """Removes a snapshot unless a reader holds it; says whether it is gone."""
  trash = path.with_name(f'{_TEMPORARY}removed-{path.name}')
  with contextlib.ExitStack() as stack:
    if (path / _MANIFEST).is_file():
      manifest = stack.enter_context(open(path / _MANIFEST, 'rb'))
      try:
        fcntl.flock(manifest, fcntl.LOCK_EX | fcntl.LOCK_NB)
      except BlockingIOError:
        return False
    if trash.exists():
      shutil.rmtree(trash)
    os.rename(path, trash)
  shutil.rmtree(trash)
  return True


def _delete(path: pathlib.Path) -> None:
  if path.is_dir():
    shutil.rmtree(path)
  else:
    path.unlink()


def _flush(path: pathlib.Path) -> None:
  """Puts a finished directory, with all that is in it, on the disk."""
  for item in path.rglob('*'):
    _sync(item)
  _sync(path)


def _sync(path: pathlib.Path) -> None:
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)
