"""What an episode started from, handed in, and might have handed in."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping
import dataclasses
import difflib
import io
import pathlib
import tarfile

from composer_jax import trajectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
  """Texts by path; a path of the one that another lacks is no file there.

  All of them may leave out files that nobody touched, as long as they agree.
  """

  before: Mapping[str, str]  # As the episode found them.
  after: Mapping[str, str]  # As it handed them in.
  gold: Mapping[str, str] | None = None  # As the smallest known fix would.
  lint_before: Mapping[str, int] | None = None  # Findings; None: not measured.
  lint_after: Mapping[str, int] | None = None
  message: str = ''  # What the policy said as it handed the work in.

  @property
  def changed(self) -> tuple[str, ...]:
    """Paths whose text differs, in order."""
    paths = {*self.before, *self.after}
    return tuple(
      sorted(p for p in paths if self.before.get(p) != self.after.get(p))
    )

  @property
  def changed_code(self) -> tuple[str, ...]:
    """Changed Python files, tests apart, that are still there."""
    return tuple(
      path
      for path in self.changed
      if path.endswith('.py')
      and path in self.after
      and not trajectory.is_test(path)
    )

  def added(self, path: str) -> frozenset[int]:
    """Numbers, from 1, of the lines of `after` that `before` lacks."""
    return added_lines(self.before.get(path, ''), self.after.get(path, ''))

  def given(self, path: str) -> tuple[str, ...]:
    """What the file was, and what a known fix would make of it."""
    texts = [self.before.get(path, '')]
    if self.gold is not None:
      texts.append(self.gold.get(path, ''))
    return tuple(texts)


def found(
  tree: bytes, files: Mapping[str, str], paths: Collection[str]
) -> dict[str, str]:
  """What an episode finds at these paths: `files` over `tree`, a tar.

  A path where there is nothing, or no text, is missing.
  """
  texts = {path: files[path] for path in paths if path in files}
  if tree:
    with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
      for member in archive:
        path = str(pathlib.PurePosixPath(member.name))
        if member.isreg() and path in paths and path not in files:
          try:
            texts[path] = archive.extractfile(member).read().decode()
          except UnicodeDecodeError:
            pass
  return texts


def fixed(
  before: Mapping[str, str], fix: Iterable[trajectory.Edit]
) -> dict[str, str]:
  """The files after the known fix; a file that it empties is gone.

  Raises:
    ValueError: an edit does not apply to these files.
  """
  files = dict(before)
  for edit in fix:
    files[edit.path] = edit.apply(files.get(edit.path, ''))
    if not files[edit.path]:
      del files[edit.path]
  return files


def handed_in(
  before: Mapping[str, str],
  final_files: Mapping[str, str],
  removed: Collection[str] = (),
) -> dict[str, str]:
  """The files at the end, given those that were written and those removed."""
  files = {**before, **final_files}
  return {path: text for path, text in files.items() if path not in removed}


def added_lines(old: str, new: str) -> frozenset[int]:
  """Numbers, from 1, of the lines of `new` that a line diff inserts."""
  return frozenset(
    number + 1
    for tag, _, _, start, stop in _opcodes(old, new)
    if tag != 'equal'
    for number in range(start, stop)
  )


def diff_size(old: Mapping[str, str], new: Mapping[str, str]) -> int:
  """Lines removed plus lines added, as a patch counts them."""
  return sum(
    (stop - start) + (new_stop - new_start)
    for path in {*old, *new}
    for tag, start, stop, new_start, new_stop in _opcodes(
      old.get(path, ''), new.get(path, '')
    )
    if tag != 'equal'
  )


def same_code(old: str, new: str) -> bool:
  """Whether two texts are equal but for blanks and comments."""
  if old == new:
    return True
  try:
    return ast.dump(ast.parse(old)) == ast.dump(ast.parse(new))
  except (SyntaxError, ValueError, RecursionError):
    return False


def _opcodes(old: str, new: str):
  if old == new:
    return []
  lines = old.splitlines(), new.splitlines()
  return difflib.SequenceMatcher(None, *lines, autojunk=False).get_opcodes()
