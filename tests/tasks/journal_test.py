import pathlib

from absl.testing import absltest

from composer_jax.tasks import journal


class JournalTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.path = pathlib.Path(self.create_tempdir().full_path, 'a', 'journal')

  def test_entries_are_there_when_it_is_opened_again(self):
    journal.Journal(self.path).append({'key': 'a', 'x': 'é'})
    self.assertEqual(
      journal.Journal(self.path).entries, {'a': {'key': 'a', 'x': 'é'}}
    )

  def test_a_line_cut_short_anywhere_is_dropped_and_can_be_written_again(self):
    first = journal.Journal(self.path)
    first.append({'key': 'a'})
    whole = self.path.read_bytes()
    first.append({'key': 'b'})
    both = self.path.read_bytes()
    for length in range(len(whole), len(both)):
      self.path.write_bytes(both[:length])
      opened = journal.Journal(self.path)
      self.assertEqual(set(opened.entries), {'a'})
      opened.append({'key': 'b'})
      self.assertEqual(self.path.read_bytes(), both)

  def test_a_key_is_written_once(self):
    opened = journal.Journal(self.path)
    opened.append({'key': 'a'})
    with self.assertRaisesRegex(ValueError, 'there already'):
      opened.append({'key': 'a'})


if __name__ == '__main__':
  absltest.main()
