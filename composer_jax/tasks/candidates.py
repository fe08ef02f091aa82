"""What might become tasks: one package's code, broken in many ways.

Candidates come spread over the functions, so that the first hundred already
touch a hundred of them.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
import hashlib
import itertools

from composer_jax import trajectory
from composer_jax.tasks import definitions
from composer_jax.tasks import delete
from composer_jax.tasks import mutate

DELETED = 'deleted function'
DELETED_CLASS = 'deleted class'
DELETED_CIRCLE = 'deleted functions'
SEVERAL = 'several bugs'
DELETIONS = (DELETED, DELETED_CLASS, DELETED_CIRCLE)
FEWEST_CHARACTERS = 20  # Of a line by which a function is recognised.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
  """Correct code and how it is broken."""

  kind: str
  path: str
  names: tuple[str, ...]  # Functions that are broken.
  lines: tuple[range, ...]  # Where these are in the correct code.
  bugs: tuple[trajectory.Edit, ...]

  @functools.cached_property
  def key(self) -> str:
    return hashlib.sha256(repr((self.kind, self.bugs)).encode()).hexdigest()

  def broken(self, text: str) -> str:
    """The broken file."""
    for bug in self.bugs:
      text = bug.apply(text)
    return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """Which candidates there are."""

  per_function: int = 4  # Mutations of one function, each of another kind.
  together: int = 3  # Bugs in one task at most.
  several_percent: int = 15  # Tasks with several bugs, of those with one.


def of_module(
  path: str,
  text: str,
  wanted: Mapping[str, definitions.Function],
  config: Config,
) -> list[list[Candidate]]:
  """Lists of candidates, one list for each function, class or circle.

  Args:
    path: of the module.
    text: its correct code.
    wanted: functions by name that may be broken.
    config: how many.
  """
  lists = [
    list(itertools.islice(found, config.per_function))
    for found in _mutants(path, text, wanted)
  ]
  functions = list(wanted.values())
  groups = [
    *((DELETED, [f]) for f in functions if delete.is_feature(f)),
    *((DELETED_CLASS, m) for m in delete.classes(functions).values()),
    *((DELETED_CIRCLE, m) for m in delete.circles(functions).values()),
  ]
  seen = set()
  for kind, members in groups:
    names = frozenset(member.name for member in members)
    deletion = _deletion(kind, path, text, members)
    if deletion is not None and names not in seen:
      seen.add(names)
      lists.append([deletion])
  return lists


def _mutants(
  path: str, text: str, wanted: Mapping[str, definitions.Function]
) -> Iterator[list[Candidate]]:
  """Of each function one of every kind, in an order drawn by lot."""
  found: dict[str, list[Candidate]] = {name: [] for name in wanted}
  owner = {line: f for f in wanted.values() for line in f.lines}
  for mutation in mutate.mutations(text, path):
    place = text.find(mutation.edit.old)
    function = owner.get(text.count('\n', 0, place) + 1)
    if function is not None:
      found[function.name].append(
        Candidate(
          kind=mutation.kind,
          path=path,
          names=(function.name,),
          lines=(function.lines,),
          bugs=(mutation.edit,),
        )
      )
  for members in found.values():
    members.sort(key=lambda candidate: candidate.key)
    yield list({c.kind: c for c in reversed(members)}.values())[::-1]


def _deletion(
  kind: str, path: str, text: str, members: Sequence[definitions.Function]
) -> Candidate | None:
  edit = delete.edit_between(text, delete.without_bodies(text, members), path)
  if edit is None:
    return None
  return Candidate(
    kind=kind,
    path=path,
    names=tuple(member.name for member in members),
    lines=tuple(member.lines for member in members),
    bugs=(edit,),
  )


def spread(lists: Sequence[Sequence[Candidate]]) -> list[Candidate]:
  """The first of each list, then the second of each, ..., by lot within."""
  ranked = [
    (rank, candidate.key, candidate)
    for members in lists
    for rank, candidate in enumerate(members)
  ]
  return [candidate for _, _, candidate in sorted(ranked, key=lambda r: r[:2])]


def several(
  tested: Sequence[Candidate], texts: Mapping[str, str], config: Config
) -> list[Candidate]:
  """Bugs of one module put together, each of which makes a task alone.

  Taken from `tested` by lot; two or more in different functions.
  """
  by_path: dict[str, list[Candidate]] = {}
  for candidate in sorted(tested, key=lambda c: c.key):
    if candidate.kind not in DELETIONS and len(candidate.bugs) == 1:
      by_path.setdefault(candidate.path, []).append(candidate)
  wanted = len(tested) * config.several_percent // 100
  lists = [
    _combinations(members, texts[path], config.together)
    for path, members in by_path.items()
  ]
  return spread([list(found) for found in lists])[:wanted]


def _combinations(
  members: Sequence[Candidate], text: str, most: int
) -> Iterator[Candidate]:
  sizes = itertools.cycle(range(2, most + 1))
  waiting = list(members)
  while waiting:
    chosen, rest = [], []
    size = next(sizes)
    for candidate in waiting:
      fits = candidate.names[0] not in {c.names[0] for c in chosen}
      (chosen if fits and len(chosen) < size else rest).append(candidate)
    waiting = rest
    if len(chosen) < 2:
      return
    combined = Candidate(
      kind=SEVERAL,
      path=chosen[0].path,
      names=tuple(c.names[0] for c in chosen),
      lines=tuple(c.lines[0] for c in chosen),
      bugs=tuple(c.bugs[0] for c in chosen),
    )
    if mends(combined, text):
      yield combined


def mends(candidate: Candidate, text: str) -> bool:
  """Whether the bugs apply one after the other, and back; and it parses."""
  try:
    broken = candidate.broken(text)
    ast.parse(broken)
    for bug in reversed(candidate.bugs):
      broken = bug.inverse().apply(broken)
  except (ValueError, SyntaxError):
    return False
  return broken == text


def tell(text: str, function: definitions.Function) -> str:
  """The line by which the code of a function is recognised; '' if none is."""
  lines = text.split('\n')[function.code.start - 1 : function.code.stop - 1]
  longest = max((line.strip() for line in lines), key=len, default='')
  return longest if len(longest) >= FEWEST_CHARACTERS else ''


def squeezed(texts: Iterable[str]) -> str:
  """All texts in one, without indentation."""
  lines = (line.strip() for text in texts for line in text.split('\n'))
  return '\n'.join(lines)


def stands_twice(whole: str, text: str, function: definitions.Function) -> bool:
  """Whether the code of a function in `text` is there twice in all texts.

  Short code does not count: it is no secret.

  Args:
    whole: all texts of the tree, squeezed.
    text: the module.
    function: one of its functions.
  """
  first, last = function.code.start, function.code.stop
  code = squeezed(['\n'.join(text.split('\n')[first - 1 : last - 1])])
  return len(code) >= 2 * FEWEST_CHARACTERS and whole.count(code) > 1
