"""Task sets on disk, and the endless stream that a run draws from.

A set is one ArrayRecord file: a header, then one task per record, as JSON.
The file appears whole or not at all, and carries the key of what it was made
from, so that a set made from something else is seen to be stale. The trees that
its tasks start from lie beside it, each under the name of its content.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import tempfile
from typing import Any

from array_record.python import array_record_module
import grain

from composer_jax import trajectory
from composer_jax.tasks import snapshots

FORMAT = 2
TASKS = 'tasks.array_record'
SNAPSHOTS = 'snapshots'
LIBRARIES = 'libraries'  # What the boxes of these tasks must see.


def digest(*parts: bytes) -> str:
  """A key for `write`: differs if any part or the format does."""
  state = hashlib.sha256(str(FORMAT).encode())
  for part in parts:
    state.update(hashlib.sha256(part).digest())
  return state.hexdigest()


def write(
  path: pathlib.Path, tasks: Sequence[trajectory.Task], key: str
) -> None:
  """Writes the set under a temporary name, then renames it."""
  with _appearing(path) as name:
    writer = array_record_module.ArrayRecordWriter(name, 'group_size:64')
    header = {'format': FORMAT, 'key': key, 'tasks': len(tasks)}
    writer.write(json.dumps(header).encode())
    for task in tasks:
      writer.write(json.dumps(to_json(task)).encode())
    writer.close()


def write_bytes(path: pathlib.Path, data: bytes) -> None:
  """Writes a file that appears whole or not at all."""
  with _appearing(path) as name:
    pathlib.Path(name).write_bytes(data)


@contextlib.contextmanager
def _appearing(path: pathlib.Path) -> Iterator[str]:
  """A temporary name for a file that is renamed when it is whole."""
  path.parent.mkdir(parents=True, exist_ok=True)
  handle, name = tempfile.mkstemp(prefix=f'{path.name}.', dir=path.parent)
  os.close(handle)
  try:
    yield name
    os.replace(name, path)
  finally:
    pathlib.Path(name).unlink(missing_ok=True)


def read(path: pathlib.Path, key: str) -> tuple[trajectory.Task, ...] | None:
  """The set under `path`, or None if there is none made from this key."""
  if not path.exists():
    return None
  header, records = _records(path)
  if header['format'] != FORMAT or header['key'] != key:
    return None
  return tuple(map(from_json, records))


def _records(path: pathlib.Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
  reader = array_record_module.ArrayRecordReader(str(path))
  header, *records = map(json.loads, reader.read_all())
  reader.close()
  if header['tasks'] != len(records):
    raise ValueError(
      f'{path}: {len(records)} of {header["tasks"]} tasks; delete the file'
    )
  return header, records


def read_set(
  folder: str | os.PathLike[str],
) -> tuple[tuple[trajectory.Task, ...], dict[str, bytes]]:
  """The tasks in a folder, and the trees that they start from, by name.

  Raises:
    ValueError: there is no set, or of another format, or a tree is not what its
      name says.
  """
  path = pathlib.Path(folder, TASKS)
  if not path.exists():
    raise ValueError(
      f'no {TASKS} in {folder}: make it with composer_jax.tasks.make'
    )
  header, records = _records(path)
  if header['format'] != FORMAT:
    raise ValueError(
      f'{path} has format {header["format"]}, not {FORMAT}: make it again'
    )
  tasks = tuple(map(from_json, records))
  trees = {}
  for name in sorted({task.snapshot for task in tasks if task.snapshot}):
    tree = tree_path(folder, name)
    trees[name] = tree.read_bytes() if tree.exists() else b''
    if snapshots.name(trees[name]) != name:
      raise ValueError(f'{tree} is missing or damaged: make the set again')
  return tasks, trees


def tree_path(folder: str | os.PathLike[str], name: str) -> pathlib.Path:
  """Where the tree of that name lies."""
  return pathlib.Path(folder, SNAPSHOTS, f'{name}.tar')


def cached(
  path: pathlib.Path,
  key: str,
  build: Callable[[], Sequence[trajectory.Task]],
) -> tuple[trajectory.Task, ...]:
  """Reads the set; builds and writes it if it is missing or stale."""
  tasks = read(path, key)
  if tasks is None:
    tasks = tuple(build())
    write(path, tasks, key)
  return tasks


def order(
  tasks: Sequence[trajectory.Task], seed: int
) -> grain.MapDataset[trajectory.Task]:
  """An endless stream, shuffled anew in each pass over the tasks.

  `stream[i]` depends on nothing but the tasks, the seed and i: the integer i
  is all that a run must remember to resume.
  """
  if not tasks:
    raise ValueError('a stream needs at least one task')
  return grain.MapDataset.source(tasks).seed(seed).shuffle().repeat()


def to_json(task: trajectory.Task) -> dict[str, Any]:
  record = {
    field.name: _plain(getattr(task, field.name))
    for field in dataclasses.fields(task)
  }
  record['provenance'] = dataclasses.asdict(task.provenance)
  return record


def _plain(value: Any) -> Any:
  return dict(value) if isinstance(value, Mapping) else value


def from_json(record: dict[str, Any]) -> trajectory.Task:
  provenance = dict(record['provenance'])
  bugs = tuple(trajectory.Edit(**bug) for bug in provenance.pop('bugs'))
  fields = record | {
    'test_command': tuple(record['test_command']),
    'grade_command': tuple(record['grade_command']),
    'fail_to_pass': tuple(record['fail_to_pass']),
    'pass_to_pass': tuple(record['pass_to_pass']),
    'provenance': trajectory.Provenance(bugs=bugs, **provenance),
  }
  return trajectory.Task(**fields)
