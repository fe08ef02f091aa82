"""Folding holds for files that an edit broke, and for odd strings."""

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.tools import files


class FoldDocstringsTest(parameterized.TestCase):
  @parameterized.parameters(
    (['"""one"""', 'x'], [0, 1]),
    (['"""two', 'lines"""', 'x'], [0, 2]),
    (["  r'''a", '  """', "  '''", '  x'], [0, 3]),
    (['def f(:', '  """a', '  b"""', '  return ('], [0, 1, 3]),
    (['"""never ends', 'x'], [0, 1]),
    (['"""a', 'b""".strip()', 'x'], [0, 1, 2]),
    (['x = """a', 'b"""'], [0, 1]),
    (['"""a', 'b"""', '"""c', 'd"""'], [0, 2]),
  )
  def test_shown_lines_keep_their_numbers(self, lines, shown):
    folded = files.fold_docstrings(list(enumerate(lines)))
    self.assertEqual([number for number, _ in folded], shown)

  def test_folded_string_keeps_its_indent_and_quotes(self):
    folded = files.fold_docstrings([(1, "  '''a"), (2, "  '''")])
    self.assertEqual(folded, [(1, "  '''...'''")])


if __name__ == '__main__':
  absltest.main()
