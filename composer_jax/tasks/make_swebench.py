"""Loads SWE-bench-style task files from local files and git repositories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import pathlib
import subprocess
import tempfile

from composer_jax import trajectory
from composer_jax.tasks import snapshots
from composer_jax.tasks import swebench


def load(
  path: pathlib.Path,
  repositories: pathlib.Path,
  *,
  runner: Sequence[str],
  licence: str,
) -> tuple[tuple[trajectory.Task, ...], dict[str, bytes]]:
  """The tasks of a .json or .jsonl file, and the trees they start from.

  Args:
    path: of the task file.
    repositories: a clone, or a folder of clones, see `find_repository`.
    runner: command that runs pytest in a box on the files that follow it.
    licence: of the repositories.

  Raises:
    ValueError: an instance that makes no task, with the reason.
  """
  tasks, trees = [], {}
  for instance in swebench.read(path):
    clone = find_repository(repositories, instance.repository)
    task, tree = swebench.task(
      instance,
      archive(clone, instance.commit),
      apply=apply,
      runner=runner,
      licence=licence,
    )
    tasks.append(task)
    trees[task.snapshot] = tree
  return tuple(tasks), trees


def find_repository(folder: pathlib.Path, name: str) -> pathlib.Path:
  """The clone of 'owner/name' in `folder`, or the folder itself.

  It is looked for as 'owner/name', 'owner__name' and 'name'.
  """
  short = name.rpartition('/')[2]
  places = [folder / part for part in (name, name.replace('/', '__'), short)]
  for place in (*places, folder):
    if (place / '.git').exists() or (place / 'objects').is_dir():
      return place
  raise ValueError(f'no clone of {name} in {folder}')


def archive(repository: pathlib.Path, commit: str) -> dict[str, bytes]:
  """The regular files of a commit."""
  command = ('archive', '--format=tar', commit)
  return snapshots.unpack(_git(command, repository))


def apply(files: Mapping[str, bytes], patch: str) -> dict[str, bytes]:
  """The files after a patch, which git applies in a folder of its own."""
  if not patch.strip():
    return dict(files)
  with tempfile.TemporaryDirectory() as temporary:
    folder = pathlib.Path(temporary)
    for path, data in files.items():
      place = folder / path
      place.parent.mkdir(parents=True, exist_ok=True)
      place.write_bytes(data)
    _git(('apply', '--whitespace=nowarn', '-'), folder, patch.encode())
    return {
      str(place.relative_to(folder)): place.read_bytes()
      for place in folder.rglob('*')
      if place.is_file() and not place.is_symlink()
    }


def _git(
  arguments: Sequence[str], folder: pathlib.Path, stdin: bytes = b''
) -> bytes:
  done = subprocess.run(
    ['git', *arguments],
    cwd=folder,
    input=stdin,
    capture_output=True,
    check=False,
    env={
      'PATH': '/usr/bin:/bin',
      'GIT_CEILING_DIRECTORIES': str(folder.parent),
    },
  )
  if done.returncode:
    reason = done.stderr.decode('utf-8', 'replace').strip()
    raise ValueError(f'git {arguments[0]} failed in {folder}: {reason}')
  return done.stdout
