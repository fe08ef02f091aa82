import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from composer_jax import trajectory
from tests import fakes


class EditTest(absltest.TestCase):
  def test_text_that_overlaps_itself_occurs_twice(self):
    edit = trajectory.Edit('solution.py', 'x*x', 'x+x')
    self.assertEqual(edit.apply('a = x*x'), 'a = x+x')
    with self.assertRaisesRegex(ValueError, 'occurs 2 times'):
      edit.apply('a = x*x*x')

  def test_an_empty_text_is_a_file_to_be_made(self):
    edit = trajectory.Edit('new.py', '', 'x = 1')
    self.assertEqual(edit.apply(''), 'x = 1')
    self.assertEqual(edit.inverse().apply('x = 1'), '')
    with self.assertRaisesRegex(ValueError, 'occurs 4 times'):
      edit.apply('abc')


class IsTestTest(parameterized.TestCase):
  @parameterized.parameters(
    'test_a.py', 'pkg/a_test.py', 'pkg/tests/data.txt', 'conftest.py', 'tox.ini'
  )
  def test_tests_are_known_by_their_names(self, path):
    self.assertTrue(trajectory.is_test(path))

  @parameterized.parameters(
    'a.py', 'pkg/attest.py', 'contest.py', 'latest/a.py'
  )
  def test_what_only_sounds_like_a_test_is_none(self, path):
    self.assertFalse(trajectory.is_test(path))


class TaskTest(absltest.TestCase):
  def test_a_hidden_file_may_replace_a_shorter_test_and_nothing_else(self):
    shown = {'a.py': 'x = 1', 'test_a.py': 'def test_x(): pass\n'}
    whole = {'test_a.py': 'def test_x(): pass\ndef test_y(): pass\n'}
    dataclasses.replace(fakes.TASK, files=shown, hidden_files=whole)
    for hidden in ({'test_a.py': shown['test_a.py']}, {'a.py': 'x = 2'}):
      with self.assertRaisesRegex(ValueError, str([*hidden])[1:-1]):
        dataclasses.replace(fakes.TASK, files=shown, hidden_files=hidden)

  def test_difficulty_counts_what_the_known_fix_adds(self):
    bugs = (
      trajectory.Edit('a.py', 'x = 1\ny = 2', 'pass'),
      trajectory.Edit('b.py', '+', '-'),
    )
    task = dataclasses.replace(
      fakes.TASK,
      provenance=dataclasses.replace(fakes.TASK.provenance, bugs=bugs),
      fail_to_pass=('tests/test_a.py::test_x',),
    )
    self.assertEqual(task.difficulty, (1, 2, 3))
    self.assertEqual(
      [edit.path for edit in task.provenance.fix], ['b.py', 'a.py']
    )


class TrajectoryTest(parameterized.TestCase):
  def test_parts_cover_the_stream(self):
    done = dataclasses.replace(fakes.sequence([1] * 6, [1] * 6), starts=(0, 2))
    self.assertEqual(done.parts, (slice(0, 2), slice(2, 6)))

  def test_contexts_are_the_parts_with_the_turns_and_the_reward_of_each(self):
    done = fakes.sequence(
      [*range(10, 16)],
      [0, 1, 0, 0, 1, 1],
      logprob=-np.arange(1.0, 7),
      version=np.arange(6),
      route=np.arange(6, dtype=np.int8).reshape(6, 1, 1),
      turns=[
        trajectory.Turn(start=1, stop=2, calls=(), results=()),
        trajectory.Turn(start=4, stop=6, calls=(), results=()),
      ],
      rewards={'solved': 1.0},
      starts=(0, 3),
    )
    first, second = done.contexts()
    self.assertEqual(first.token_T.tolist(), [10, 11, 12])
    self.assertEqual(second.token_T.tolist(), [13, 14, 15])
    self.assertEqual(second.sampled_T.tolist(), [False, True, True])
    self.assertEqual(second.logprob_T.tolist(), [0, -5, -6])
    self.assertEqual(second.version_T.tolist(), [-1, 4, 5])
    self.assertEqual(second.route_TLX[:, 0, 0].tolist(), [3, 4, 5])
    self.assertEqual([(t.start, t.stop) for t in first.turns], [(1, 2)])
    self.assertEqual([(t.start, t.stop) for t in second.turns], [(1, 3)])
    self.assertEqual([c.starts for c in (first, second)], [(0,), (0,)])
    self.assertEqual([c.reward for c in (first, second)], [1.0, 1.0])

  @parameterized.parameters(((),), ((1,),), ((0, 0),), ((0, 6),), ((0, 3, 2),))
  def test_parts_that_cover_nothing_or_not_all_are_refused(self, starts):
    with self.assertRaisesRegex(ValueError, 'parts of 6 tokens start at'):
      dataclasses.replace(fakes.sequence([1] * 6, [1] * 6), starts=starts)


if __name__ == '__main__':
  absltest.main()
