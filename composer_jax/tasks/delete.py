"""Features taken out of a module: bodies become `raise NotImplementedError`.

Signatures, decorators and docstrings stay, so that the module still imports and
says what is missing.
"""

from collections.abc import Mapping, Sequence

from composer_jax import trajectory
from composer_jax.tasks import definitions

STUB = 'raise NotImplementedError'
FEWEST_LINES = 2  # Of a body that is worth writing again.
MOST_TOGETHER = 4  # Functions that call each other.


def is_feature(function: definitions.Function) -> bool:
  """Whether there is something to write again."""
  return len(function.code) >= FEWEST_LINES and not function.trivial


def without_bodies(text: str, functions: Sequence[definitions.Function]) -> str:
  """The text with these bodies replaced."""
  lines = text.split('\n')
  for function in sorted(functions, key=lambda f: -f.code.start):
    first, last = function.code.start, function.code.stop - 1
    lines[first - 1 : last] = [function.indent + STUB]
  return '\n'.join(lines)


def edit_between(before: str, after: str, path: str) -> trajectory.Edit | None:
  """The edit of whole lines that leads from one text to the other.

  It takes in lines above and below until it is unique in both directions; None
  if it never is, as where the texts are equal.
  """
  old, new = before.split('\n'), after.split('\n')
  shortest = min(len(old), len(new))
  first = next((i for i in range(shortest) if old[i] != new[i]), shortest)
  same = 0
  while same < shortest - first and old[-1 - same] == new[-1 - same]:
    same += 1
  while before != after:
    pair = ['\n'.join(lines[first : len(lines) - same]) for lines in (old, new)]
    if all(pair):
      edit = trajectory.Edit(path, *pair)
      if leads(edit, before, after):
        return edit
    if not first and not same:
      return None
    first, same = max(0, first - 1), max(0, same - 1)
  return None


def leads(edit: trajectory.Edit, before: str, after: str) -> bool:
  """Whether the edit leads from one text to the other, and back."""
  try:
    return edit.apply(before) == after and edit.inverse().apply(after) == before
  except ValueError:
    return False


def classes(
  functions: Sequence[definitions.Function],
) -> dict[str, list[definitions.Function]]:
  """Classes with several features, and these."""
  owned: dict[str, list[definitions.Function]] = {}
  for function in functions:
    if function.owner and is_feature(function):
      owned.setdefault(function.owner, []).append(function)
  return {name: members for name, members in owned.items() if len(members) > 1}


def circles(
  functions: Sequence[definitions.Function],
) -> dict[str, list[definitions.Function]]:
  """For each feature those that it calls in its own module, and itself.

  Callers lead to what they call, breadth first, `MOST_TOGETHER` at most; one
  that calls none is left out. Methods are followed by their bare names within
  their class, functions by theirs.
  """
  known: Mapping[tuple[str, str], definitions.Function] = {
    (f.owner, f.name.rpartition('.')[2]): f for f in functions if is_feature(f)
  }
  found = {}
  for function in known.values():
    circle = [function]
    for member in circle:
      for called in sorted(member.calls):
        for owner in dict.fromkeys((member.owner, '')):
          other = known.get((owner, called))
          if other is not None and other not in circle:
            circle.append(other)
            break
      del circle[MOST_TOGETHER:]
    if len(circle) > 1:
      found[function.name] = circle
  return found
