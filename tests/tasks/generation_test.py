from absl.testing import absltest

from composer_jax import trajectory
from composer_jax.tasks import generation
from composer_jax.tasks import humaneval
from tests.tasks import process


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
