import ast

from absl.testing import absltest

from composer_jax.tasks import excerpts
from tests.tasks import tiny


class ExcerptsTest(absltest.TestCase):
  def test_a_node_id_names_a_function(self):
    self.assertEqual(
      excerpts.function_of('tests/a.py::Case::test_b[x::y[0]]'),
      ('tests/a.py', 'Case.test_b'),
    )

  def test_a_test_goes_with_its_decorators_and_comment(self):
    text = excerpts.without(tiny.TESTS, {'test_clamp', 'test_mean_of_nothing'})
    self.assertNotIn('test_clamp', text)
    self.assertNotIn('(9, 8)', text)
    self.assertNotIn('About nothing', text)
    for kept in ('test_mean()', 'test_numbers', 'test_order', 'import tiny'):
      self.assertIn(kept, text)

  def test_a_class_that_is_left_empty_still_parses(self):
    names = {'StackTest.test_order', 'StackTest.test_empty'}
    text = excerpts.without(tiny.TESTS, names)
    ast.parse(text)
    self.assertIn('class StackTest', text)
    self.assertNotIn('IndexError', text)

  def test_a_block_inside_a_test_goes_with_it(self):
    text = 'def test_a():\n  for x in y:\n    z()\n\ndef test_b(): pass\n'
    self.assertEqual(
      excerpts.without(text, {'test_a'}).strip(), 'def test_b(): pass'
    )

  def test_a_test_that_is_inherited_is_not_written_down(self):
    text = 'class A:\n  def test_x(self): pass\nclass TestB(A): pass\n'
    self.assertEqual(excerpts.written(text), {'A.test_x'})
    with self.assertRaisesRegex(ValueError, 'TestB.test_x'):
      excerpts.without(text, {'TestB.test_x'})


if __name__ == '__main__':
  absltest.main()
