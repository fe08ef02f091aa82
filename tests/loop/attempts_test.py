import dataclasses
import os
import threading

from absl.testing import absltest

from composer_jax import trajectory
from composer_jax.loop import attempts
from composer_jax.loop import supervise
from tests import fakes


def task(name):
  return dataclasses.replace(fakes.TASK, id=name)


def episode(one):
  done = fakes.sequence([1, 2], [0, 1], rewards={'solved': 1.0})
  return dataclasses.replace(done, task_id=one.task.id, member=one.member)


class Case(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.directory = self.create_tempdir().full_path
    self.crew = supervise.Crew()
    self.addCleanup(self.crew.end)
    self.now = 0.0

  def journal(self):
    return attempts.Journal(self.directory, clock=lambda: self.now)

  def kept(self):
    return sorted((e.task_id, e.member) for e in self.journal())

  def files(self):
    return sorted(os.listdir(self.directory))


class PlanTest(absltest.TestCase):
  def test_every_task_is_tried_once_before_any_is_tried_again(self):
    planned = attempts.plan([task('a'), task('b')], 2)
    self.assertEqual(
      [one.key for one in planned], [('a', 0), ('b', 0), ('a', 1), ('b', 1)]
    )


class JournalTest(Case):
  def test_an_empty_one_holds_nothing(self):
    self.assertEmpty(self.kept())

  def test_writes_when_asked_and_nothing_twice(self):
    journal = self.journal()
    journal.add(episode(attempts.Attempt(task('a'), 0)))
    self.assertEmpty(self.kept())
    journal.flush()
    journal.flush()
    self.assertEqual(self.kept(), [('a', 0)])
    self.assertLen(self.files(), 1)

  def test_writes_by_itself_what_has_waited_long(self):
    journal = self.journal()
    journal.add(episode(attempts.Attempt(task('a'), 0)))
    self.now = 29.0
    journal.add(episode(attempts.Attempt(task('a'), 1)))
    self.assertEmpty(self.kept())
    self.now = 30.0
    journal.add(episode(attempts.Attempt(task('a'), 2)))
    self.assertLen(self.kept(), 3)
    self.now = 45.0  # The next one has not waited.
    journal.add(episode(attempts.Attempt(task('a'), 3)))
    self.assertLen(self.kept(), 3)

  def test_a_later_one_goes_on_and_overwrites_nothing(self):
    for member in range(3):
      journal = self.journal()
      journal.add(episode(attempts.Attempt(task('a'), member)))
      journal.flush()
    self.assertEqual(self.kept(), [('a', 0), ('a', 1), ('a', 2)])


class RunTest(Case):
  def run_all(self, attempt, count=6, threads=2):
    return attempts.run(
      attempts.plan([task(f't{i:02}') for i in range(count)], 1),
      attempt,
      self.journal(),
      threads=threads,
      label='test',
      crew=self.crew,
    )

  def test_every_attempt_is_kept(self):
    self.assertEqual(self.run_all(episode), 0)
    self.assertEqual(self.kept(), [(f't{i:02}', 0) for i in range(6)])

  def test_what_our_faults_lost_is_counted_and_not_kept(self):
    def attempt(one):
      if one.task.id in ('t01', 't04'):
        raise trajectory.InfrastructureError('no box')
      return episode(one)

    with self.assertLogs(level='WARNING'):
      self.assertEqual(self.run_all(attempt), 2)
    self.assertLen(self.kept(), 4)

  def test_many_faults_in_a_row_end_it_and_what_is_done_is_kept(self):
    begun = []

    def attempt(one):
      begun.append(one)
      self.crew.stop.wait(0.01)  # All of them take five seconds.
      if one.task.id >= 't03':
        raise trajectory.InfrastructureError('nobody there')
      return episode(one)

    with self.assertLogs(level='WARNING'):
      with self.assertRaisesRegex(
        trajectory.InfrastructureError, '10 attempts in a row.*nobody there'
      ):
        self.run_all(attempt, count=500, threads=1)
    self.assertLen(self.kept(), 3)
    self.assertLess(len(begun), 400)

  def test_faults_that_are_not_in_a_row_do_not(self):
    def attempt(one):
      if int(one.task.id[1:]) % 2:
        raise trajectory.InfrastructureError('now and then')
      return episode(one)

    with self.assertLogs(level='WARNING'):
      self.assertEqual(self.run_all(attempt, count=40, threads=1), 20)

  def test_an_error_of_ours_is_raised_and_what_is_done_is_kept(self):
    def attempt(one):
      if one.task.id == 't02':
        raise ValueError('wrong key')
      return episode(one)

    with self.assertRaisesRegex(ValueError, 'wrong key'):
      self.run_all(attempt, threads=1)
    self.assertContainsSubset([('t00', 0), ('t01', 0)], self.kept())

  def test_a_stop_is_heard_and_what_is_done_is_kept_before_the_rest_ends(self):
    kept, held = [], threading.Event()

    def attempt(one):
      if one.task.id == 't02':
        self.crew.stop.set()
        held.wait(10)  # Under way, and in no hurry.
      return episode(one)

    class Journal(attempts.Journal):
      def flush(self):
        super().flush()
        kept.extend(self)
        held.set()

    with self.assertRaises(supervise.Stopped):
      attempts.run(
        attempts.plan([task(f't{i:02}') for i in range(6)], 1),
        attempt,
        Journal(self.directory),
        threads=1,
        label='test',
        crew=self.crew,
      )
    self.assertEqual([e.task_id for e in kept[:2]], ['t00', 't01'])
    self.assertIn(('t02', 0), self.kept())  # Nothing had killed it.
    self.assertNotIn(('t05', 0), self.kept())


if __name__ == '__main__':
  absltest.main()
