"""What must be there before the first box: archives and libraries."""

from __future__ import annotations

from collections.abc import Sequence
import pathlib
import subprocess
import sys
import tempfile

from composer_jax.tasks import packages as packages_lib
from composer_jax.tasks import source
from composer_jax.tools import libraries


def fetch(package: packages_lib.Package, out: pathlib.Path) -> pathlib.Path:
  """The source archive, downloaded at first use.

  Raises:
    UnfitError: there is none, with what pip says.
  """
  folder = out / 'archives' / f'{package.name}-{package.version}'
  if not folder.exists():
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
      fresh = pathlib.Path(temporary, 'new')
      _pip(
        *('download', '--no-deps', f'--no-binary={package.name}'),
        *('--quiet', f'--dest={fresh}', package.requirement),
      )
      fresh.rename(folder)
  found = sorted(folder.glob('*.tar.gz'))
  if len(found) != 1:
    raise packages_lib.UnfitError(f'{len(found)} archives in {folder}, not one')
  return found[0]


def gather_libraries(
  packages: Sequence[packages_lib.Package], out: pathlib.Path
) -> pathlib.Path:
  """The folder of pytest and of what the packages need, made at first use."""
  needs = sorted({need for package in packages for need in package.needs})
  name = source.digest(' '.join(needs).encode())[:12]
  whole, link = out / f'{source.LIBRARIES}-{name}', out / source.LIBRARIES
  if not whole.exists():
    with tempfile.TemporaryDirectory(dir=out) as temporary:
      fresh = pathlib.Path(temporary, 'new')
      libraries.collect(['pytest'], fresh)
      if needs:
        _pip(
          *('install', '--quiet', '--no-deps', '--no-compile'),
          *('--only-binary=:all:', '--target', str(fresh), *needs),
        )
      libraries.seal(fresh)
      fresh.rename(whole)
  link.unlink(missing_ok=True)
  link.symlink_to(whole.name)
  return whole


def _pip(*arguments: str) -> None:
  command = [sys.executable, '-m', 'pip', '--disable-pip-version-check']
  done = subprocess.run(
    [*command, *arguments], capture_output=True, text=True, check=False
  )
  if done.returncode:
    end = '\n'.join(done.stderr.strip().splitlines()[-3:])
    raise packages_lib.UnfitError(f'pip {arguments[0]} failed: {end}')
