from absl.testing import absltest
from absl.testing import parameterized

from composer_jax import trajectory
from composer_jax.tasks import generation
from composer_jax.tasks import humaneval
from tests.tasks import process


class PassAtKTest(parameterized.TestCase):
  @parameterized.parameters(
    (5, 2, 1, 2 / 5),
    (5, 2, 2, 1 - 3 / 10),
    (5, 0, 3, 0.0),
    (5, 3, 3, 1.0),
    (10, 3, 5, 1 - 21 / 252),
  )
  def test_by_counting(self, attempts, passed, k, expected):
    found = generation.pass_at_k(attempts, passed, k)
    self.assertAlmostEqual(found, expected, places=6)

  def test_equals_the_product_of_the_paper(self):
    n, c, k = 40, 7, 9
    product = 1.0
    for i in range(n - c + 1, n + 1):
      product *= 1 - k / i
    self.assertAlmostEqual(generation.pass_at_k(n, c, k), 1 - product)

  @parameterized.parameters((3, 1, 4), (3, 4, 1), (3, 1, 0))
  def test_refuses_what_has_no_meaning(self, attempts, passed, k):
    with self.assertRaisesRegex(ValueError, f'pass@{k}'):
      generation.pass_at_k(attempts, passed, k)

  def test_problems_count_alike(self):
    found = generation.mean_pass_at_k([(2, 2), (100, 0)], 1)
    self.assertEqual(found, 0.5)


class TaskTest(absltest.TestCase):
  def test_the_solution_passes_and_the_empty_function_fails(self):
    for problem in (humaneval.problems()[i] for i in (0, 32, 38)):
      task = generation.task(problem, test_command=('python', 'x'))
      text = task.files[humaneval.SOLUTION_FILE]
      self.assertIn('raise NotImplementedError', text)
      for edit in task.provenance.fix:
        mended = edit.apply(text)
      self.assertEqual(mended, problem.solution)
      for solution, passes in ((text, False), (mended, True)):
        code, output = process.run(
          {humaneval.SOLUTION_FILE: solution, **task.hidden_files},
          task.grade_command,
          'nonce\n',
          20.0,
        )
        passed = code == 0 and output.splitlines()[-1:] == ['nonce']
        self.assertEqual(passed, passes, problem.id)

  def test_every_problem_makes_one(self):
    tasks = [
      generation.task(p, test_command=('x',)) for p in humaneval.problems()
    ]
    self.assertLen({task.id for task in tasks}, 164)
    self.assertEqual({task.split for task in tasks}, {'heldout'})
    self.assertIsInstance(tasks[0], trajectory.Task)


if __name__ == '__main__':
  absltest.main()
