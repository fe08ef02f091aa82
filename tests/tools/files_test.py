"""Reading, writing and taking back, in a real box."""

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.tools import files
from tests.tools import harness

Status = harness.Status
call = harness.call


class FoldDocstringsTest(parameterized.TestCase):
  @parameterized.parameters(
    (['"""two', 'lines"""', 'x'], ['"""..."""', 'x']),
    (["  r'''a", '  """', "  '''", '  x'], ["  r'''...'''", '  x']),
    (
      ['def f(:', '  """a', '  b"""', '  return ('],
      ['def f(:', '  """..."""', '  return ('],
    ),
    (['"""a', 'b"""', '', '"""c', 'd"""'], ['"""..."""', '', '"""..."""']),
  )
  def test_string_of_several_lines_becomes_one(self, lines, shown):
    folded = files.fold_docstrings('\n'.join(lines))
    self.assertEqual(folded.split('\n'), shown)

  @parameterized.parameters(
    '"""one"""\nx\n',
    '"""never ends\nx',
    '"""a\nb""".strip()\nx',
    'x = """a\nb"""',
    '\n\nx = 1  # """\n\n',
    '',
  )
  def test_everything_else_is_shown_as_it_is(self, text):
    self.assertEqual(files.fold_docstrings(text), text)


class ReadFileTest(harness.ToolTest):
  def read(self, **arguments):
    [(status, text)] = self.answer(
      call('read_file', path='pkg/sums.py', **arguments)
    )
    return status, text

  def test_a_range_is_shown_as_it_stands_with_its_place(self):
    self.assertEqual(
      self.read(first=2, last=4),
      (
        Status.OK,
        '[lines 2 to 4 of 9]\n  """Adds up.\n\n  All of them.',
      ),
    )

  def test_a_range_may_be_open_or_reach_beyond_the_end(self):
    for last in (0, 99):
      self.assertEqual(
        self.read(first=9, last=last),
        (Status.OK, '[lines 9 to 9 of 9]\n  return result'),
      )

  @parameterized.parameters((10, 0), (5, 4))
  def test_a_range_without_lines_is_an_error(self, first, last):
    self.assertEqual(
      self.read(first=first, last=last),
      (
        Status.ERROR,
        f'pkg/sums.py has 9 lines; none from {first} to {last}',
      ),
    )

  def test_numbers_are_those_of_the_file_though_docstrings_are_folded(self):
    _, text = self.read(numbers=True)
    self.assertEqual(
      text.split('\n')[:3],
      ['1\tdef total(numbers):', '2\t  """..."""', '6\t  result = 1'],
    )

  def test_numbers_stand_in_a_column(self):
    toolbox = self.toolbox({'a.txt': 'x\n' * 10})
    _, text = self.answer(
      call('read_file', path='a.txt', first=9, numbers=True), toolbox=toolbox
    )[0]
    self.assertEqual(text, '[lines 9 to 10 of 10]\n 9\tx\n10\tx')

  @parameterized.parameters('./pkg/sums.py', '/repo/pkg/sums.py')
  def test_other_names_of_the_same_file_are_understood(self, path):
    [(status, _)] = self.answer(call('read_file', path=path))
    self.assertIs(status, Status.OK)

  @parameterized.parameters(
    ('no.py', 'no.py: No such file or directory'),
    ('../etc/passwd', '../etc/passwd: not a plain relative path'),
    ('/etc/passwd', '/etc/passwd: not a plain relative path'),
    ('pkg', 'pkg: not a regular file'),
  )
  def test_what_is_no_file_of_the_repository_is_an_error(self, path, text):
    [(status, said)] = self.answer(call('read_file', path=path))
    self.assertEqual((status, said), (Status.ERROR, text))

  def test_what_is_no_text_is_not_shown(self):
    toolbox = self.toolbox({'a.bin': 'a\0b'})
    self.assertEqual(
      self.answer(call('read_file', path='a.bin'), toolbox=toolbox),
      [(Status.ERROR, 'a.bin is no text: 3 characters with zeros')],
    )


class WriteFileTest(harness.ToolTest):
  def test_writes_new_files_and_replaces_old_ones(self):
    toolbox = self.toolbox()
    self.assertEqual(
      self.answer(
        call('write_file', '1', path='new/a.py', text='x = 1\n'),
        call('write_file', '2', path='./README.md', text=''),
        call('read_file', path='new/a.py'),
        toolbox=toolbox,
      ),
      [(Status.OK, 'ok'), (Status.OK, 'ok'), (Status.OK, 'x = 1')],
    )
    self.assertEqual(
      toolbox.final_work().files, {'new/a.py': 'x = 1\n', 'README.md': ''}
    )

  @parameterized.parameters(
    'tests/test_sums.py',
    'tests/new.py',
    './tests/test_sums.py',
    'pkg/../tests/test_sums.py',
    '/repo/conftest.py',
    'setup.cfg',
  )
  def test_tests_can_be_neither_written_nor_edited(self, path):
    toolbox = self.toolbox()
    results = self.answer(
      call('write_file', path=path, text='def test_total(): pass\n'),
      call('edit_file', path=path, old='== 3', new='== 4'),
      toolbox=toolbox,
    )
    for status, text in results:
      self.assertIs(status, Status.DENIED)
      self.assertIn('belongs to the tests', text)
    self.assertEqual(toolbox.final_work().files, {})

  def test_paths_outside_are_errors(self):
    for path in ('../a.py', '/etc/a.py', '.'):
      [(status, text)] = self.answer(call('write_file', path=path, text=''))
      self.assertEqual(
        (status, text), (Status.ERROR, f'{path}: not a plain relative path')
      )

  def test_undo_takes_back_writes_and_edits_one_by_one(self):
    toolbox = self.toolbox()
    path = 'pkg/sums.py'
    self.answer(
      call('write_file', path='a/b.py', text='x\n'),
      call('edit_file', path=path, old='= 1', new='= 0'),
      call('write_file', path=path, text=''),
      toolbox=toolbox,
    )
    undo = call('undo')
    self.answer(undo, toolbox=toolbox)
    self.assertIn('= 0', self.box.read(path))
    self.answer(undo, undo, toolbox=toolbox)
    self.assertIn('= 1', self.box.read(path))
    self.assertNotIn('a/b.py', self.box.files())
    self.assertEqual(
      self.answer(undo, toolbox=toolbox), [(Status.ERROR, 'nothing to undo')]
    )

  def test_a_file_that_is_no_text_is_not_damaged(self):
    toolbox = self.toolbox()
    self.box.exec(['sh', '-c', r"printf 'a\377b' > a.txt"], seconds=5)
    said = 'a.txt is not valid UTF-8: it would be damaged'
    self.assertEqual(
      self.answer(
        call('edit_file', path='a.txt', old='a', new='c'),
        call('write_file', path='a.txt', text='c'),
        call('undo'),
        toolbox=toolbox,
      ),
      [
        (Status.ERROR, said),
        (Status.ERROR, said),
        (Status.ERROR, 'nothing to undo'),
      ],
    )


if __name__ == '__main__':
  absltest.main()
