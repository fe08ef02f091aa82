"""Finding files and lines, in a real box."""

from absl.testing import absltest
from absl.testing import parameterized

from tests.tools import harness

Status = harness.Status
call = harness.call


class ListDirTest(harness.ToolTest):
  def list(self, **arguments):
    return self.answer(call('list_dir', **arguments))[0]

  def test_one_level_is_listed_in_order(self):
    self.assertEqual(self.list(), (Status.OK, 'README.md\npkg/\ntests/'))

  def test_deeper_levels_are_listed_when_asked_for(self):
    self.assertEqual(
      self.list(depth=2),
      (
        Status.OK,
        'README.md\npkg/\npkg/__init__.py\npkg/sums.py\ntests/\n'
        'tests/test_sums.py',
      ),
    )

  def test_a_folder_may_be_named(self):
    for path in ('pkg', './pkg/', '/repo/pkg'):
      self.assertEqual(
        self.list(path=path), (Status.OK, '__init__.py\nsums.py')
      )

  def test_caches_are_not_listed(self):
    toolbox = self.toolbox({'pkg/__pycache__/a.pyc': '', '.git/config': ''})
    self.box.exec(['mkdir', 'empty'], seconds=5)
    self.assertEqual(
      self.answer(
        call('list_dir', '1', depth=2),
        call('list_dir', '2', path='empty'),
        toolbox=toolbox,
      ),
      [
        (
          Status.OK,
          'README.md\nempty/\npkg/\npkg/__init__.py\npkg/sums.py\ntests/\n'
          'tests/test_sums.py',
        ),
        (Status.OK, 'nothing in it'),
      ],
    )

  @parameterized.parameters(
    ('no', 'no such folder'),
    ('README.md', 'no such folder'),
    ('-delete', 'no such folder'),
    ('..', '.. is not below /repo'),
    ('/usr', '/usr is not below /repo'),
  )
  def test_what_is_no_folder_of_the_repository_is_an_error(self, path, text):
    self.assertEqual(self.list(path=path), (Status.ERROR, text))


class GrepTest(harness.ToolTest):
  def grep(self, **arguments):
    return self.answer(call('grep', **arguments))[0]

  def test_lines_are_found_in_all_files(self):
    self.assertEqual(
      self.grep(pattern='Adds|result = '),
      (
        Status.OK,
        'README.md:1:Adds numbers up.\n'
        'pkg/sums.py:2:  """Adds up.\n'
        'pkg/sums.py:6:  result = 1',
      ),
    )

  def test_a_file_a_folder_or_a_glob_narrows_it(self):
    for place in ({'path': 'pkg'}, {'path': 'pkg/sums.py'}, {'glob': '*.py'}):
      self.assertEqual(
        self.grep(pattern='Adds', **place),
        (Status.OK, 'pkg/sums.py:2:  """Adds up.'),
      )

  def test_lines_beyond_the_limit_are_counted(self):
    self.assertEqual(
      self.grep(pattern='total', glob='*.py', max=1),
      (
        Status.OK,
        'pkg/__init__.py:1:from pkg.sums import total\n[5 more lines]',
      ),
    )

  def test_a_text_that_looks_like_a_path_stays_as_it_is(self):
    toolbox = self.toolbox({'a.sh': 'run ./a.sh\n'})
    self.assertEqual(
      self.answer(call('grep', pattern='run'), toolbox=toolbox),
      [(Status.OK, 'a.sh:1:run ./a.sh')],
    )

  def test_no_match_is_no_error(self):
    self.assertEqual(self.grep(pattern='--zz'), (Status.OK, 'no match'))

  @parameterized.parameters(
    ({'pattern': '('}, 'unclosed group'),
    ({'pattern': 'a', 'path': 'no'}, 'No such file'),
    ({'pattern': 'a', 'glob': '['}, 'unclosed character class'),
    ({'pattern': 'a', 'path': '../..'}, '../.. is not below /repo'),
  )
  def test_what_cannot_be_searched_is_an_error(self, arguments, text):
    status, said = self.grep(**arguments)
    self.assertIs(status, Status.ERROR)
    self.assertIn(text, said)


class SemanticSearchTest(harness.ToolTest):
  def test_the_part_that_a_question_is_about_comes_first(self):
    [(status, text)] = self.answer(
      call('semantic_search', query='what adds all the numbers up?')
    )
    self.assertIs(status, Status.OK)
    self.assertStartsWith(text, 'pkg/sums.py:1-9  total\n')

  def test_no_more_parts_are_shown_than_asked_for(self):
    [(_, text)] = self.answer(call('semantic_search', query='total', limit=1))
    self.assertLen([x for x in text.split('\n') if x[0] != ' '], 1)

  def test_edits_are_found_and_what_they_replaced_is_not(self):
    new = 'def blend_colours(a, b):\n  return a + b\n'
    _, _, (_, found), (_, gone) = self.answer(
      call('write_file', '1', path='pkg/paint.py', text=new),
      call('write_file', '2', path='pkg/sums.py', text=''),
      call('semantic_search', '3', query='blend colours', limit=1),
      call('semantic_search', '4', query='adds up total', limit=50),
    )
    self.assertStartsWith(found, 'pkg/paint.py:1-2  blend_colours')
    self.assertNotIn('pkg/sums.py', gone)

  def test_nothing_found_is_said(self):
    self.assertEqual(
      self.answer(call('semantic_search', query='zebra')),
      [(Status.OK, 'no match')],
    )


if __name__ == '__main__':
  absltest.main()
