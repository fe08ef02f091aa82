import dataclasses
import json

from absl.testing import absltest

from composer_jax import trajectory
from composer_jax.viewer import scoreboard
from tests import fakes

Status = trajectory.Status


def task(name, *, package='a', kind='constant', failing=0, lines=1):
  edit = trajectory.Edit('f.py', '\n'.join('x' * lines), 'broken')
  provenance = dataclasses.replace(
    fakes.TASK.provenance, package=package, kind=kind, bugs=(edit,)
  )
  tests = tuple(f't.py::test_{index}' for index in range(failing))
  return dataclasses.replace(
    fakes.TASK, id=name, provenance=provenance, fail_to_pass=tests
  )


def score(name, solved, member=0, *, turns=(), usage=None, guards=()):
  episode = fakes.sequence([1, 2, 3], [0, 1, 1], turns=fakes.steps(*turns))
  episode = dataclasses.replace(
    episode, task_id=name, member=member, seconds=2.0
  )
  return scoreboard.score(
    episode, solved=solved, guards=guards, usage=usage or {}
  )


def summarise(tasks, scores, k=1, lost=0):
  return scoreboard.summarise(tasks, scores, k=k, lost=lost, seed=0)


class RateTest(absltest.TestCase):
  def test_tasks_weigh_the_same_however_often_they_were_tried(self):
    scores = [score('one', True)] + [score('two', False, i) for i in range(3)]
    row = summarise([task('one'), task('two')], scores)['all']
    self.assertEqual(row['pass_1'], 0.5)
    self.assertEqual((row['tasks'], row['attempts'], row['solved']), (2, 4, 1))

  def test_the_interval_counts_tasks_and_not_attempts(self):
    tasks = [task('one'), task('two')]
    scores = [score(t.id, t.id == 'one', i) for t in tasks for i in range(50)]
    low, high = summarise(tasks, scores)['all']['pass_1_interval']
    self.assertLess(low, 0.10)
    self.assertGreater(high, 0.90)

  def test_pass_at_k_is_of_tasks_that_have_k_attempts(self):
    tasks = [task('one'), task('two'), task('three')]
    scores = [score('one', i == 0, i) for i in range(4)]
    scores += [score('two', False, i) for i in range(2)]
    scores += [score('three', True)]  # Its second attempt was lost.
    row = summarise(tasks, scores, k=2, lost=1)['all']
    self.assertAlmostEqual(row['pass_k'], (0.5 + 0.0) / 2)
    self.assertEqual(row['pass_k_tasks'], 2)
    self.assertAlmostEqual(row['pass_1'], (0.25 + 0 + 1) / 3)

  def test_a_task_without_attempts_is_unknown_and_not_unsolved(self):
    row = summarise([task('one'), task('two')], [score('one', True)])['all']
    self.assertEqual(row['pass_1'], 1.0)
    self.assertEqual(row['tasks'], 2)
    row = summarise([task('one')], [], lost=1)['all']
    self.assertIsNone(row['pass_1'])
    self.assertIsNone(row['pass_k'])


class GroupTest(absltest.TestCase):
  def test_rates_by_package_kind_and_difficulty(self):
    tasks = [
      task('one', package='a', kind='negation', failing=1, lines=1),
      task('two', package='a', kind='constant', failing=3, lines=5),
      task('three', package='b', kind='constant', failing=4, lines=6),
      task('four', package='b', kind='constant', failing=10, lines=21),
      task('five', package='b', kind='constant', failing=0, lines=20),
    ]
    scores = [score(t.id, t.id in ('one', 'four')) for t in tasks]
    groups = summarise(tasks, scores)['groups']
    rates = {
      name: {
        label: (row['tasks'], row['pass_1']) for label, row in rows.items()
      }
      for name, rows in groups.items()
    }
    self.assertEqual(
      rates,
      {
        'package': {'a': (2, 0.5), 'b': (3, 1 / 3)},
        'kind': {'constant': (4, 0.25), 'negation': (1, 1.0)},
        'failing tests': {
          'unknown': (1, 0.0),
          '1': (1, 1.0),
          '2 to 3': (1, 0.0),
          '4 to 9': (1, 0.0),
          '10 and more': (1, 1.0),
        },
        'lines of the fix': {
          '1': (1, 1.0),
          '2 to 5': (1, 0.0),
          '6 to 20': (2, 0.0),
          '21 and more': (1, 1.0),
        },
      },
    )
    self.assertEqual(
      list(groups['failing tests']),
      ['unknown', '1', '2 to 3', '4 to 9', '10 and more'],
    )


TURNS = (
  [('grep', {}, Status.OK), ('', {}, Status.INVALID)],
  [('grep', {}, Status.ERROR), ('grep', {}, Status.TIMEOUT)],
  [('grep', {}, Status.DENIED), ('submit', {}, Status.OK)],
)


class CostTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    scores = [
      score('one', True, turns=TURNS, usage={'dollars': 0.5}, guards=('x',)),
      score('one', True, 1, turns=TURNS[2:], usage={'dollars': 0.1}),
    ]
    self.summary = summarise([task('one')], scores, k=2, lost=3)

  def test_tools_are_counted_and_what_went_wrong_with_them(self):
    self.assertEqual(
      self.summary['tools'],
      {
        '(unreadable)': {'calls': 0.5, 'failed': 0.0, 'refused': 1.0},
        'grep': {'calls': 2.5, 'failed': 0.4, 'refused': 0.4},
        'submit': {'calls': 1.0, 'failed': 0.0, 'refused': 0.0},
      },
    )

  def test_costs_are_means_over_the_attempts(self):
    cost = self.summary['cost']
    self.assertAlmostEqual(cost.pop('dollars'), 0.3)
    self.assertEqual(
      cost,
      {'submitted': 1, 'turns': 2, 'tokens': 3, 'sampled': 2, 'seconds': 2},
    )
    self.assertEqual(self.summary['guards'], {'x': 0.5})

  def test_the_summary_is_json_and_reads_as_a_table(self):
    self.assertEqual(json.loads(json.dumps(self.summary))['all']['pass_k'], 1.0)
    lines = scoreboard.text(self.summary).split('\n')
    self.assertEqual(
      lines[1].split(),
      'all 1 2 100.0% 20.7% to 100.0% 100.0% 100.0% to 100.0%'.split(),
    )
    (grep,) = [line for line in lines if 'grep' in line]
    self.assertEqual(grep.split(), ['grep', '2.50', '40.0%', '40.0%'])
    self.assertIn('3 attempts lost', lines[-1])
    self.assertLess(max(map(len, lines)), 100)

  def test_one_attempt_each_needs_no_second_rate(self):
    summary = summarise([task('one')], [])
    header, everything, *_ = scoreboard.text(summary).split('\n')
    self.assertEqual(header.count('pass@'), 1)
    self.assertEqual(everything.split(), ['all', '1', '0', '-'])


if __name__ == '__main__':
  absltest.main()
