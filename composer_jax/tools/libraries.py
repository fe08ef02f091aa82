"""Python packages for boxes: a folder with what they need and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import compileall
from importlib import metadata
import os
import pathlib
import py_compile
import shutil
import tempfile

from packaging import requirements


def collect(names: Sequence[str], folder: str | os.PathLike[str]) -> None:
  """Copies installed distributions, and all that they require, to `folder`.

  They are compiled there, so that a box, which cannot write, need not. The
  folder appears whole or not at all; one that is there is left as it is.

  Raises:
    ValueError: one of them is not installed here.
  """
  folder = pathlib.Path(folder)
  if folder.exists():
    return
  folder.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(
    prefix=f'{folder.name}.', dir=folder.parent
  ) as temporary:
    fresh = pathlib.Path(temporary, 'new')
    fresh.mkdir()
    for distribution in _closure(names):
      _copy(distribution, fresh)
    seal(fresh)
    try:
      fresh.rename(folder)
    except OSError:
      if not folder.exists():  # Else another process was faster.
        raise


def seal(folder: str | os.PathLike[str]) -> None:
  """Compiles what is in a folder of packages, for readers of every user."""
  compileall.compile_dir(
    str(folder),
    quiet=2,
    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    stripdir=str(folder),
  )
  for path in [pathlib.Path(folder), *pathlib.Path(folder).rglob('*')]:
    path.chmod(0o755 if path.is_dir() else 0o644 | path.stat().st_mode & 0o111)


def _closure(names: Sequence[str]) -> Iterator[metadata.Distribution]:
  waiting, seen = list(names), set()
  while waiting:
    requirement = requirements.Requirement(waiting.pop())
    name = requirement.name.lower().replace('_', '-')
    if name in seen:
      continue
    if requirement.marker and not requirement.marker.evaluate({'extra': ''}):
      continue
    seen.add(name)
    try:
      distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
      raise ValueError(
        f'{name} is not installed here; boxes need it: pip install {name}'
      ) from None
    yield distribution
    waiting += distribution.requires or ()


def _copy(distribution: metadata.Distribution, folder: pathlib.Path) -> None:
  """Its files, but for scripts, which name this interpreter, and caches."""
  for file in distribution.files or ():
    if '..' in file.parts or '__pycache__' in file.parts:
      continue
    target = folder.joinpath(*file.parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(str(file.locate()), target)
