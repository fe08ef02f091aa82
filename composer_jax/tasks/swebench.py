"""Task files in the format of SWE-bench (Jimenez et al., arXiv 2310.06770).

Each instance names a repository, a commit, a patch that mends it, a patch of
its tests, and the tests that it mends or must not break. What reads the
repositories and applies patches is handed in. Left out: environments (the code
must run on what the boxes have), binary files, and tests that a patch removes.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import json
import pathlib
from typing import Any

from composer_jax import trajectory
from composer_jax.tasks import delete
from composer_jax.tasks import packages
from composer_jax.tasks import snapshots

KIND = 'swe-bench'
_LIMIT_SECONDS = 120.0

# apply(files, patch) -> the files after it; ValueError if it does not fit.
Apply = Callable[[Mapping[str, bytes], str], Mapping[str, bytes]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instance:
  """One line of a task file."""

  id: str
  repository: str  # 'owner/name'.
  commit: str
  patch: str
  test_patch: str
  fail_to_pass: tuple[str, ...]
  pass_to_pass: tuple[str, ...]
  statement: str


def read(path: pathlib.Path) -> list[Instance]:
  """The instances of a .json or .jsonl file.

  Raises:
    ValueError: an instance lacks a field, named with the instance.
  """
  text = path.read_text(encoding='utf-8')
  if path.suffix == '.jsonl':
    rows = [json.loads(line) for line in text.splitlines() if line.strip()]
  else:
    rows = json.loads(text)
    rows = list(rows.values()) if isinstance(rows, dict) else rows
  return [_instance(row, number) for number, row in enumerate(rows)]


def _instance(row: Mapping[str, Any], number: int) -> Instance:
  try:
    return Instance(
      id=row['instance_id'],
      repository=row['repo'],
      commit=row['base_commit'],
      patch=row['patch'],
      test_patch=row['test_patch'],
      fail_to_pass=_tests(row['FAIL_TO_PASS']),
      pass_to_pass=_tests(row['PASS_TO_PASS']),
      statement=row['problem_statement'],
    )
  except KeyError as error:
    name = row.get('instance_id', f'number {number}')
    raise ValueError(f'instance {name} has no field {error}') from None


def _tests(value: str | Sequence[str]) -> tuple[str, ...]:
  """Lists come as JSON in a string in some releases."""
  return tuple(json.loads(value) if isinstance(value, str) else value)


def task(
  instance: Instance,
  base: Mapping[str, bytes],
  *,
  apply: Apply,
  runner: Sequence[str],
  licence: str,
  split: str = 'heldout',
) -> tuple[trajectory.Task, bytes]:
  """The task of an instance, and the tree that it starts from.

  The tree is the base commit alone, without any history.

  Args:
    instance: what to mend.
    base: the files of its base commit.
    apply: applies a patch.
    runner: command that runs pytest on the files that follow it.
    licence: of the repository.
    split: 'train' or 'heldout'.

  Raises:
    ValueError: a patch does not apply, or both patches touch the same file.
  """
  before = packages.scrub(base)
  tested = _changes(before, apply(before, instance.test_patch))
  mended = _changes(before, apply(before, instance.patch))
  both = sorted(set(tested) & set(mended))
  if both:
    raise ValueError(f'{instance.id}: both patches touch {both}')
  tests = (*instance.fail_to_pass, *instance.pass_to_pass)
  files = sorted({test.partition('::')[0] for test in tests})
  tree = snapshots.pack(before)
  made = trajectory.Task(
    id=f'{KIND}/{instance.id}',
    prompt=instance.statement,
    files={},
    test_command=(*runner, *(path for path in files if path in before)),
    hidden_files={path: text for path, text in tested.items() if text},
    grade_command=(*runner, *files),
    provenance=trajectory.Provenance(
      package=instance.repository,
      licence=licence,
      problem=instance.repository,
      kind=KIND,
      bugs=tuple(
        _bug(path, text, before.get(path, b'').decode())
        for path, text in sorted(mended.items())
      ),
      visible_fails=False,
    ),
    split=split,
    test_seconds=_LIMIT_SECONDS,
    snapshot=snapshots.name(tree),
    fail_to_pass=instance.fail_to_pass,
    pass_to_pass=instance.pass_to_pass,
  )
  return made, tree


def _changes(
  before: Mapping[str, bytes], after: Mapping[str, bytes]
) -> dict[str, str]:
  """Text files that differ, as they are after; '' where they are gone."""
  return {
    path: after.get(path, b'').decode()
    for path in sorted({*before, *after})
    if before.get(path) != after.get(path)
  }


def _bug(path: str, mended: str, before: str) -> trajectory.Edit:
  """How the mended file becomes the file of the base commit."""
  edit = None
  if mended and before:
    edit = delete.edit_between(mended, before, path)
  return edit or trajectory.Edit(path, mended, before)
