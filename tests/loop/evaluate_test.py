import dataclasses
import threading

from absl.testing import absltest

from composer_jax import trajectory
from composer_jax.loop import evaluate
from composer_jax.loop import supervise
from tests import fakes


def task(problem, number):
  provenance = dataclasses.replace(fakes.TASK.provenance, problem=problem)
  return dataclasses.replace(
    fakes.TASK, id=f'{problem}/{number}', provenance=provenance
  )


class ChooseTest(absltest.TestCase):
  def test_spreads_over_the_problems(self):
    tasks = [task('a', i) for i in range(9)] + [task('b', 0), task('c', 0)]
    chosen = evaluate.choose(tasks, 5)
    problems = [t.provenance.problem for t in chosen]
    self.assertCountEqual(problems[:3], 'abc')
    self.assertEqual(problems[3:], ['a', 'a'])
    self.assertLen({t.id for t in chosen}, 5)

  def test_is_the_same_whatever_the_order(self):
    tasks = [task(problem, i) for problem in 'abc' for i in range(4)]
    first = evaluate.choose(tasks, 7)
    self.assertEqual(first, evaluate.choose(tasks[::-1], 7))

  def test_takes_all_if_there_are_fewer(self):
    self.assertLen(evaluate.choose([task('a', 0), task('b', 0)], 9), 2)


class RunTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.crew = supervise.Crew()
    self.addCleanup(self.crew.end)

  def run_all(self, attempt, count=6, threads=3):
    return evaluate.run(
      [fakes.TASK] * count,
      attempt,
      threads=threads,
      label='test',
      crew=self.crew,
    )

  def test_returns_attempts_in_the_order_of_the_tasks(self):
    later = threading.Event()

    def attempt(task, index):
      if index == 0:
        later.wait(10)  # Ends after the others.
      elif index == 5:
        later.set()
      return fakes.sequence([1], [1], group=index)

    self.assertEqual([e.group for e in self.run_all(attempt)], [*range(6)])

  def test_what_our_faults_lost_is_left_out(self):
    def attempt(task, index):
      if index % 2:
        raise trajectory.InfrastructureError('no box')
      return fakes.sequence([1], [1], group=index)

    with self.assertLogs(level='WARNING') as logs:
      done = self.run_all(attempt)
    self.assertEqual([e.group for e in done], [0, 2, 4])
    self.assertIn('3 of 6 attempts lost', logs.output[-1])

  def test_an_error_is_raised_and_the_rest_is_not_begun(self):
    begun = []

    def attempt(task, index):
      begun.append(index)
      if index:
        self.crew.stop.wait(0.01)  # All of them take ten seconds.
      raise KeyError('ours')

    with self.assertRaisesRegex(KeyError, 'ours'):
      self.run_all(attempt, count=1000, threads=1)
    self.assertLess(len(begun), 500)

  def test_a_timeout_of_the_attempt_is_its_own_error(self):
    def attempt(task, index):
      raise TimeoutError('of the attempt')

    with self.assertRaisesRegex(TimeoutError, 'of the attempt'):
      self.run_all(attempt, count=1)

  def test_a_stop_is_heard_while_it_waits(self):
    def attempt(task, index):
      self.crew.stop.set()
      self.crew.check()

    with self.assertRaises(supervise.Stopped):
      self.run_all(attempt)


class SeedTest(absltest.TestCase):
  def test_depends_on_every_part_and_its_place(self):
    seeds = [
      evaluate.seed_of(*parts)
      for parts in ((1, 2), (2, 1), (1, 3), (1, 0), (1,), (1, 0, 0))
    ]
    self.assertLen(set(seeds), 6)
    self.assertEqual(evaluate.seed_of(1, 2), seeds[0])
    self.assertTrue(all(0 <= seed < 2**32 for seed in seeds))


if __name__ == '__main__':
  absltest.main()
