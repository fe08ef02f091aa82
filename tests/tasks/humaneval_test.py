import ast
import dataclasses

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.tasks import humaneval
from tests.tasks import process

PROBLEMS = {p.id: p for p in humaneval.problems()}
SECONDS = 20.0


def grade(problem: humaneval.Problem, solution: str) -> tuple[int | None, str]:
  files = {'solution.py': solution, 'grade.py': problem.grader}
  return process.run(files, humaneval.GRADE_COMMAND, 'nonce 7\n', SECONDS)


class HumanEvalTest(parameterized.TestCase):
  def test_has_all_problems_whole(self):
    self.assertLen(PROBLEMS, 164)
    for problem in PROBLEMS.values():
      ast.parse(problem.solution)
      ast.parse(problem.grader)

  def test_splits_by_problem_about_seven_to_three(self):
    heldout = sum(p.split == 'heldout' for p in PROBLEMS.values())
    self.assertEqual(heldout, 52)

  def test_twins_stay_on_one_side(self):
    first, second = (PROBLEMS[f'HumanEval/{i}'] for i in (56, 61))
    self.assertEqual(first.name, second.name)
    self.assertEqual(first.split, second.split)

  def test_split_does_not_depend_on_names_and_constants(self):
    problem = PROBLEMS['HumanEval/56']
    renamed = problem.solution.replace('depth', 'height').replace('<', '[')
    renamed = renamed.replace('if height [ 0', 'if height < 0')
    twin = dataclasses.replace(problem, solution=renamed)
    self.assertEqual(twin.split, problem.split)

  @parameterized.parameters('HumanEval/0', 'HumanEval/32', 'HumanEval/50')
  def test_grader_echoes_the_nonce_last_for_the_reference(self, name):
    code, output = grade(PROBLEMS[name], PROBLEMS[name].solution)
    self.assertEqual((code, output.splitlines()[-1]), (0, 'nonce 7'))

  @parameterized.parameters(
    'def has_close_elements(a, b): return True',
    'raise SystemExit(0)',
    'import os; os._exit(0)',
    'def has_close_elements(a, b): raise SystemExit(0)',
    'import sys; print(sys.stdin.read())',
  )
  def test_grader_keeps_the_nonce_from_wrong_code(self, solution):
    _, output = grade(PROBLEMS['HumanEval/0'], solution)
    self.assertNotIn('nonce 7', output)

  def test_grader_uses_its_own_copy_of_given_functions(self):
    problem = PROBLEMS['HumanEval/32']
    always_zero = problem.solution.replace(
      'return sum([coeff', 'return 0 * sum([coeff'
    )
    code, _ = grade(problem, always_zero)
    self.assertEqual(code, 1)

  def test_mutants_are_distinct_and_spread_over_kinds(self):
    problem = PROBLEMS['HumanEval/1']
    mutants = humaneval.mutants(problem, 3)
    kinds = {m.kind for m in mutants}
    self.assertEqual(kinds, {'constant', 'comparison', 'called'})
    everything = humaneval.mutants(problem, 1000)
    self.assertEqual(everything[:3], mutants)
    trees = {
      ast.dump(ast.parse(m.edit.apply(problem.solution))) for m in everything
    }
    self.assertLen(trees, len(everything))

  def test_task_shows_the_bug_but_not_the_grader(self):
    problem = PROBLEMS['HumanEval/2']
    mutation = humaneval.mutants(problem, 1)[0]
    task = humaneval.task(
      problem,
      mutation,
      tests='assert 1\n',
      visible_fails=True,
      test_command=('python', 'test_solution.py'),
      test_seconds=2.0,
    )
    self.assertEqual(set(task.files), {'solution.py', 'test_solution.py'})
    self.assertEqual(set(task.hidden_files), {'grade.py'})
    self.assertEqual(
      task.provenance.fix[0].apply(task.files['solution.py']),
      problem.solution,
    )
    self.assertEqual(task.provenance.problem, 'HumanEval/2')


if __name__ == '__main__':
  absltest.main()
