"""Folding holds for files that an edit broke, and for odd strings."""

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.tools import files


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


if __name__ == '__main__':
  absltest.main()
