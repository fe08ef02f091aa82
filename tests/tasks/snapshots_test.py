from absl.testing import absltest

from composer_jax.tasks import snapshots

FILES = {'b.py': b'1', 'a/z.py': b'2', 'a.txt': b'\xff', 'a/b/c.py': b'x\r\n'}


class SnapshotTest(absltest.TestCase):
  def test_comes_back_equal(self):
    self.assertEqual(snapshots.unpack(snapshots.pack(FILES)), FILES)

  def test_equal_files_give_equal_bytes(self):
    other = dict(sorted(FILES.items()))
    self.assertEqual(snapshots.pack(FILES), snapshots.pack(other))

  def test_the_name_tells_trees_apart(self):
    trees = [snapshots.pack(FILES), snapshots.pack({**FILES, 'b.py': b'2'})]
    self.assertNotEqual(*map(snapshots.name, trees))

  def test_texts_are_those_that_an_edit_can_keep(self):
    self.assertEqual(
      snapshots.texts(snapshots.pack(FILES)), {'b.py': '1', 'a/z.py': '2'}
    )


if __name__ == '__main__':
  absltest.main()
