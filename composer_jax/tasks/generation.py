"""HumanEval as it was meant: write the function (Chen et al. 2021).

The policy sees the prompt in a file whose function has no body yet; the hidden
tests grade what it writes.
"""

from collections.abc import Sequence

from composer_jax import trajectory
from composer_jax.tasks import definitions
from composer_jax.tasks import delete
from composer_jax.tasks import humaneval

KIND = 'generation'


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
