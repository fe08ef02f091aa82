import dataclasses
import os
import pathlib
from unittest import mock

from absl.testing import absltest

from composer_jax import trajectory
from composer_jax.tasks import snapshots
from composer_jax.tasks import source

KEY = source.digest(b'data', b'code')


def make_task(number: int) -> trajectory.Task:
  return trajectory.Task(
    id=f'toy/{number}',
    prompt='Repair é.',
    files={'solution.py': f'x = {number}\n'},
    test_command=('python', 't.py'),
    hidden_files={'grade.py': 'pass\n'},
    grade_command=('python', 'grade.py'),
    provenance=trajectory.Provenance(
      package='toy',
      licence='MIT',
      problem='toy',
      kind='constant',
      bugs=(trajectory.Edit('solution.py', '1', '2'),),
      visible_fails=True,
    ),
    split='train',
    test_seconds=3.5,
  )


TASKS = tuple(map(make_task, range(5)))


class SetTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(self.create_tempdir().full_path, 'a', 'tasks')

  def test_comes_back_equal(self):
    source.write(self.path, TASKS, KEY)
    self.assertEqual(source.read(self.path, KEY), TASKS)
    self.assertEqual(os.listdir(self.path.parent), ['tasks'])

  def test_missing_or_stale_is_none(self):
    self.assertIsNone(source.read(self.path, KEY))
    source.write(self.path, TASKS, KEY)
    self.assertIsNone(source.read(self.path, source.digest(b'other')))

  def test_another_format_is_stale(self):
    source.write(self.path, TASKS, KEY)
    with mock.patch.object(source, 'FORMAT', source.FORMAT + 1):
      self.assertIsNone(source.read(self.path, KEY))
      self.assertNotEqual(source.digest(b'data', b'code'), KEY)

  def test_digest_tells_parts_apart(self):
    self.assertNotEqual(source.digest(b'ab', b'c'), source.digest(b'a', b'bc'))

  def test_write_that_dies_leaves_the_old_set_and_nothing_else(self):
    source.write(self.path, TASKS, KEY)
    bad = dataclasses.replace(TASKS[1], files={'a': b'no json'})
    with self.assertRaises(TypeError):
      source.write(self.path, [TASKS[0], bad], KEY)
    self.assertEqual(source.read(self.path, KEY), TASKS)
    self.assertEqual(os.listdir(self.path.parent), ['tasks'])

  def test_builds_once(self):
    build = mock.Mock(return_value=TASKS)
    for _ in range(2):
      self.assertEqual(source.cached(self.path, KEY, build), TASKS)
    build.assert_called_once_with()


class FolderTest(absltest.TestCase):
  """A set with the trees that its tasks start from."""

  def setUp(self):
    super().setUp()
    self.folder = pathlib.Path(self.create_tempdir().full_path)
    self.tree = snapshots.pack({'a.py': b'x = 1'})
    self.name = snapshots.name(self.tree)
    tasks = [dataclasses.replace(TASKS[0], snapshot=self.name), TASKS[1]]
    self.tasks = tuple(tasks)
    source.write(self.folder / source.TASKS, tasks, KEY)
    source.write_bytes(source.tree_path(self.folder, self.name), self.tree)

  def test_comes_back_with_its_trees(self):
    self.assertEqual(
      source.read_set(self.folder), (self.tasks, {self.name: self.tree})
    )

  def test_a_missing_or_damaged_tree_is_refused(self):
    place = source.tree_path(self.folder, self.name)
    for damage in (lambda: place.write_bytes(b'x'), place.unlink):
      damage()
      with self.assertRaisesRegex(ValueError, 'missing or damaged'):
        source.read_set(self.folder)

  def test_no_set_or_another_format_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'make it with'):
      source.read_set(self.folder / 'nowhere')
    with mock.patch.object(source, 'FORMAT', source.FORMAT + 1):
      with self.assertRaisesRegex(ValueError, 'make it again'):
        source.read_set(self.folder)


class OrderTest(absltest.TestCase):
  def test_each_pass_is_another_permutation(self):
    stream = source.order(TASKS, seed=0)
    passes = [
      tuple(stream[i].id for i in range(start, start + 5))
      for start in range(0, 50, 5)
    ]
    for ids in passes:
      self.assertCountEqual(ids, [t.id for t in TASKS])
    self.assertGreater(len(set(passes)), 5)

  def test_index_alone_resumes_it(self):
    first, second = (source.order(TASKS, seed=3) for _ in range(2))
    whole = [first[i].id for i in range(20)]
    self.assertEqual([second[i].id for i in range(13, 20)], whole[13:])

  def test_seed_changes_it(self):
    one, other = (source.order(TASKS, seed=s) for s in (0, 1))
    self.assertNotEqual(
      [one[i].id for i in range(20)], [other[i].id for i in range(20)]
    )

  def test_refuses_no_tasks(self):
    with self.assertRaisesRegex(ValueError, 'at least one'):
      source.order((), seed=0)


if __name__ == '__main__':
  absltest.main()
