import io
import tarfile

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax import trajectory
from composer_jax.rewards import work


class DiffTest(parameterized.TestCase):
  @parameterized.parameters(
    ('a\nb\nc\n', 'a\nb\nc\n', set(), 0),
    ('a\nb\nc\n', 'a\nx\nc\n', {2}, 2),
    ('a\nc\n', 'a\nb\nc\n', {2}, 1),
    ('a\nb\nc\n', 'a\nc\n', set(), 1),
    ('', 'a\nb\n', {1, 2}, 2),
    ('a\nb\n', '', set(), 2),
    ('a\n' + 'x\n' * 300, 'b\n' + 'x\n' * 300, {1}, 2),
  )
  def test_golden(self, old, new, added, size):
    self.assertEqual(work.added_lines(old, new), added)
    self.assertEqual(work.diff_size({'a': old}, {'a': new}), size)

  def test_a_file_that_comes_or_goes_is_all_diff(self):
    self.assertEqual(work.diff_size({'a': 'x\ny\n'}, {'b': 'x\ny\nz\n'}), 5)


class SameCodeTest(parameterized.TestCase):
  @parameterized.parameters(
    ('x = 1\n', 'x=1  # One.\n\n', True),
    ('x = 1\n', 'x = 2\n', False),
    ('x = (\n', 'x = (\n', True),
    ('x = (\n', 'x = ( \n', False),
  )
  def test_looks_past_blanks_and_comments(self, old, new, same):
    self.assertEqual(work.same_code(old, new), same)


class FilesTest(absltest.TestCase):
  def test_an_episode_finds_its_files_over_the_tree(self):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode='w') as archive:
      for name, data in (
        ('./a', b'1'),
        ('b', b'2'),
        ('c', b'\xff'),
        ('d', b'3'),
      ):
        member = tarfile.TarInfo(name)
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    tree = buffer.getvalue()
    self.assertEqual(
      work.found(tree, {'b': 'new', 'x': ''}, ['a', 'b', 'c', 'e']),
      {'a': '1', 'b': 'new'},
    )
    self.assertEqual(work.found(b'', {'b': 'new'}, ['a', 'b']), {'b': 'new'})

  def test_the_known_fix_applies_in_order(self):
    fix = (
      trajectory.Edit('a', 'x', 'y'),
      trajectory.Edit('a', 'y', 'z'),
      trajectory.Edit('b', 'gone', ''),
      trajectory.Edit('c', '', 'new'),
    )
    before = {'a': 'x', 'b': 'gone'}
    self.assertEqual(work.fixed(before, fix), {'a': 'z', 'c': 'new'})
    self.assertEqual(before, {'a': 'x', 'b': 'gone'})
    with self.assertRaisesRegex(ValueError, 'occurs 0 times'):
      work.fixed({}, fix)

  def test_what_was_handed_in_lies_over_what_was_found(self):
    self.assertEqual(
      work.handed_in({'a': '1', 'b': '2'}, {'b': '3', 'c': '4'}, ['a']),
      {'b': '3', 'c': '4'},
    )

  def test_changed_code_is_python_that_is_there_and_no_test(self):
    before = {'a.py': '1', 'b.py': '2', 'c.py': '3', 'test_d.py': '4'}
    after = {'a.py': '1', 'b.py': '', 'test_d.py': '5', 'e.py': '', 'f.md': ''}
    found = work.Work(before=before, after=after)
    self.assertEqual(
      found.changed, ('b.py', 'c.py', 'e.py', 'f.md', 'test_d.py')
    )
    self.assertEqual(found.changed_code, ('b.py', 'e.py'))


if __name__ == '__main__':
  absltest.main()
