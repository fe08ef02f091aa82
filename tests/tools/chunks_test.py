"""Files are cut at their symbols, whatever state they are in."""

import collections
import pathlib
import textwrap

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.tools import chunks


def _spans(text: str, path: str = 'pkg/mod.py') -> list[tuple]:
  return [
    (chunk.name, chunk.first_line, chunk.last_line)
    for chunk in chunks.chunk(path, textwrap.dedent(text).lstrip('\n'))
  ]


class PythonTest(parameterized.TestCase):
  @parameterized.named_parameters(
    (
      'decorators, async and comments above belong to a function',
      """
      import os

      # Says hello.
      # Twice.
      @wraps(f)
      @other
      async def hello():
        return 1
      """,
      [('mod.py', 1, 1), ('hello', 3, 8)],
    ),
    (
      'a comment set apart does not',
      """
      # Section

      def f():
        pass
      x = 1  # trailing
      def g(): pass
      """,
      [('mod.py', 1, 1), ('f', 3, 4), ('mod.py', 5, 5), ('g', 6, 6)],
    ),
    (
      'what stands in a function stays in it',
      """
      def outer():
        def inner():
          pass
        class Local:
          def m(self): pass
        return inner
      """,
      [('outer', 1, 6)],
    ),
    (
      'methods are pieces, the lines between them are the class',
      """
      class A:
        '''Doc.'''
        x = 1

        def m(self):
          pass

        class B:
          y = 2
          @property
          def n(self): return 3

        z = 4
      """,
      [
        ('A', 1, 3),
        ('A.m', 5, 6),
        ('A.B', 8, 9),
        ('A.B.n', 10, 11),
        ('A', 13, 13),
      ],
    ),
    (
      'functions under a condition are found',
      """
      try:
        import fast
      except ImportError:
        def slow():
          pass
      """,
      [('mod.py', 1, 3), ('slow', 4, 5)],
    ),
  )
  def test_boundaries(self, text, spans):
    self.assertEqual(_spans(text), spans)

  @parameterized.parameters(
    'def broken(x, (:\n  return 2\n',
    'def broken(x):\n  return 2 +\n',
    'def broken(x)\n  return 2\n',
    'def broken(x):\n  return (2\n',
    'x = "abc\n  y\n',
    'class\n  pass\n',
    '<<<<<<< ours\n=======\n',
  )
  def test_a_break_does_not_reach_the_symbols_around_it(self, broken):
    before = 'def before():\n  return 1\n\n'
    after = '\n@d\nclass After:\n  def method(self):\n    return 3\n'
    spans = _spans(before + broken + after)
    self.assertEqual(spans[0], ('before', 1, 2))
    self.assertEqual(spans[-2:], [('After', 7, 8), ('After.method', 9, 10)])

  def test_text_without_any_code_is_one_piece_and_none_is_none(self):
    self.assertEqual(_spans(') ( def class @\n'), [('mod.py', 1, 1)])
    self.assertEqual(_spans('\n \n'), [])
    self.assertEqual(_spans(''), [])

  def test_every_filled_line_lies_in_exactly_one_piece(self):
    for path in sorted(pathlib.Path(chunks.__file__).parent.glob('*.py')):
      text = path.read_text()
      for cut in (text, text[: len(text) // 2], text.replace(')', '', 3)):
        seen = collections.Counter()
        lines = cut.split('\n')
        for chunk in chunks.chunk(path.name, cut):
          span = slice(chunk.first_line - 1, chunk.last_line)
          self.assertEqual(chunk.text, '\n'.join(lines[span]))
          seen.update(range(chunk.first_line, chunk.last_line + 1))
        filled = [i for i, line in enumerate(lines, 1) if line.strip()]
        self.assertEqual({seen[i] for i in filled}, {1}, path)

  def test_code_nested_beyond_the_interpreters_stack_is_cut(self):
    text = ''.join(' ' * i + f'class C{i}:\n' for i in range(1500))
    spans = _spans(text)
    self.assertEqual(spans[-1][2], 1500)
    self.assertGreater(spans[-1][0].count('.'), 500)

  def test_signature_and_first_line_of_doc_are_told(self):
    (chunk,) = chunks.chunk(
      'a.py',
      '@d\ndef f(\n  x,\n):\n  """\n  Adds één.\n\n  No.\n  """\n  return x\n',
    )
    self.assertEqual(chunk.signature, 'def f(')
    self.assertEqual(chunk.doc, 'Adds één.')

  def test_a_string_that_is_no_docstring_is_not_taken_for_one(self):
    (chunk,) = chunks.chunk('a.py', 'def f():\n  x = "no"\n  "neither"\n')
    self.assertEqual(chunk.doc, '')

  def test_long_tables_are_cut_and_long_functions_are_not(self):
    table = 'X = [\n' + '  1,\n' * 98 + ']\n'
    self.assertEqual(
      _spans(table),
      [('mod.py', 1, 40), ('mod.py', 41, 80), ('mod.py', 81, 100)],
    )
    self.assertEqual(_spans('def f():\n' + '  g()\n' * 200), [('f', 1, 201)])

  def test_unpaired_surrogates_and_carriage_returns_move_no_line(self):
    text = 'x = "\udc80"\r\n\r\ndef f():\r\n  pass\r\n'
    self.assertEqual(_spans(text), [('mod.py', 1, 1), ('f', 3, 4)])


class TextTest(absltest.TestCase):
  def test_windows_overlap_and_reach_the_end(self):
    text = '\n'.join(f'line {i}' for i in range(1, 101))
    self.assertEqual(
      _spans(text, 'README.md'),
      [
        ('README.md', 1, 40),
        ('README.md', 31, 70),
        ('README.md', 61, 100),
      ],
    )

  def test_short_text_is_one_window(self):
    self.assertEqual(_spans('\na\nb\n', 'a.toml'), [('a.toml', 1, 2)])


if __name__ == '__main__':
  absltest.main()
