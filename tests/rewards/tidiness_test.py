from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.rewards import tidiness


class ClaimTest(parameterized.TestCase):
  @parameterized.parameters(
    'All tests pass.',
    'Fixed the sign. The tests are passing now',
    'I ran the test suite and it is green.',
    'Done, it passes all 12 tests',
    'I could not reproduce it at first; now every test passes.',
    'Verified.',
    'There is no doubt about it. The tests succeeded.',
    'The visible tests passed, but I would like more of them.',
  )
  def test_is_a_claim(self, message):
    self.assertTrue(tidiness.claims_tests(message))

  @parameterized.parameters(
    'The tests do not pass.',
    "I haven't run the tests.",
    'The tests should pass now.',
    'I could not run the tests.',
    'Two tests fail.',
    'Run the tests to see for yourself.',
    'Please check that the tests pass.',
    'If the tests pass, merge it.',
    'The change is untested.',
    'Fixed the password check of the contest.',
    'Fixed the sign.',
    '',
  )
  def test_is_no_claim(self, message):
    self.assertFalse(tidiness.claims_tests(message))


class StrayTest(parameterized.TestCase):
  @parameterized.parameters(
    ('a.py.orig', 'x'),
    ('out.log', 'x'),
    ('b/c.rej', 'x'),
    ('backup~', 'x'),
    ('nohup.out', 'x'),
    ('try_it.py', 'x = 1'),
  )
  def test_is_left_behind(self, path, text):
    after = {'a.py': 'import other', path: text}
    self.assertEqual(tidiness.stray_files(['a.py'], after, []), [path])
    self.assertEmpty(tidiness.stray_files(['a.py'], after, [path]))
    self.assertEmpty(tidiness.stray_files(['a.py', path], after, []))

  @parameterized.parameters(
    'other.py', 'pkg/other.py', 'tests/test_b.py', 'pkg/__init__.py', 'NEWS.md'
  )
  def test_belongs_to_the_work(self, path):
    after = {'a.py': 'import other', path: ''}
    self.assertEmpty(tidiness.stray_files(['a.py'], after, []))


class MarksTest(absltest.TestCase):
  def test_counts_prints_and_debuggers_of_the_given_lines(self):
    text = 'print(1)\nbreakpoint()\nimport pdb; pdb.set_trace()\nx.print(1)\n'
    self.assertEqual(tidiness.debug_marks(text, [1, 2, 3, 4]), 3)
    self.assertEqual(tidiness.debug_marks(text, [2]), 1)
    self.assertEqual(
      tidiness.debug_marks('# print(1)\ns = "print(1)"', [1, 2]), 0
    )
    self.assertEqual(tidiness.debug_marks('print(', [1]), 0)

  def test_counts_what_comments_leave_to_do(self):
    text = 'x = 1  # TODO: more\n# a FIXME\ny = "# TODO"\n# done\n# mastodon\n'
    self.assertEqual(tidiness.todo_marks(text, range(1, 6)), 2)
    self.assertEqual(tidiness.todo_marks(text, [2]), 1)


if __name__ == '__main__':
  absltest.main()
