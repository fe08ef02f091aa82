"""HumanEval as it was meant: write the function (Chen et al. 2021).

The policy sees the prompt in a file whose function has no body yet; the hidden
tests grade what it writes. Success over several attempts is measured by pass@k.
"""

from collections.abc import Sequence
import math

from composer_jax import trajectory
from composer_jax.tasks import definitions
from composer_jax.tasks import delete
from composer_jax.tasks import humaneval

KIND = 'generation'


def pass_at_k(attempts: int, passed: int, k: int) -> float:
  """Probability that one of k attempts passes, from more than k attempts.

  The unbiased estimator 1 - C(n - c, k) / C(n, k) of Chen et al. 2021, arXiv
  2107.03374, eq. 1.

  Args:
    attempts: n, those that were made.
    passed: c, those of them that passed.
    k: how many attempts count as one try.
  """
  if not (1 <= k <= attempts and 0 <= passed <= attempts):
    raise ValueError(
      f'pass@{k} of {passed} in {attempts}: needs 1 <= k <= attempts and'
      ' 0 <= passed <= attempts'
    )
  return 1.0 - math.comb(attempts - passed, k) / math.comb(attempts, k)


def mean_pass_at_k(results: Sequence[tuple[int, int]], k: int) -> float:
  """The mean of pass@k over problems, given as (attempts, passed)."""
  if not results:
    raise ValueError('pass@k of no problems')
  return sum(pass_at_k(n, c, k) for n, c in results) / len(results)


def task(
  problem: humaneval.Problem, *, test_command: Sequence[str], tests: str = ''
) -> trajectory.Task:
  """The problem with an empty function; all of them are held out.

  Args:
    problem: of HumanEval.
    test_command: of the visible tests.
    tests: what the policy sees as `humaneval.TEST_FILE`; none: no such file.
  """
  known = {f.name: f for f in definitions.functions(problem.solution)}
  stub = delete.without_bodies(problem.solution, [known[problem.name]])
  edit = delete.edit_between(problem.solution, stub, humaneval.SOLUTION_FILE)
  if edit is None:
    raise ValueError(f'{problem.id}: nothing to write in {problem.name}')
  files = {humaneval.SOLUTION_FILE: stub}
  if tests:
    files[humaneval.TEST_FILE] = tests
  return trajectory.Task(
    id=f'{problem.id}/{KIND}',
    prompt=(
      f'Write the body of `{problem.name}` in {humaneval.SOLUTION_FILE}, as its'
      ' docstring asks.'
    ),
    files=files,
    test_command=tuple(test_command),
    hidden_files={humaneval.GRADE_FILE: problem.grader},
    grade_command=humaneval.GRADE_COMMAND,
    provenance=trajectory.Provenance(
      package=humaneval.PACKAGE,
      licence=humaneval.LICENCE,
      problem=problem.id,
      kind=KIND,
      bugs=(edit,),
      visible_fails=bool(tests),
    ),
    split='heldout',
  )
