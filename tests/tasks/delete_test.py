import ast

from absl.testing import absltest

from composer_jax.tasks import definitions
from composer_jax.tasks import delete
from tests.tasks import tiny

KNOWN = {f.name: f for f in definitions.functions(tiny.CODE)}


class DefinitionsTest(absltest.TestCase):
  def test_methods_are_named_with_their_class(self):
    self.assertContainsSubset(
      {'clamp', 'mean', 'Stack.push', 'Stack.pop'}, KNOWN
    )

  def test_nested_functions_belong_to_the_outer_one(self):
    text = 'def f():\n  def g():\n    return 1\n  return g\n'
    found = definitions.functions(text)
    self.assertEqual([f.name for f in found], ['f'])
    self.assertEqual(found[0].lines, range(1, 5))

  def test_decorators_are_lines_of_the_function(self):
    lines = tiny.CODE.split('\n')
    self.assertEqual(lines[KNOWN['mean'].lines.start - 1], '@register')

  def test_a_body_on_the_line_of_its_header_has_no_code(self):
    (function,) = definitions.functions('def f(): return 1\n')
    self.assertEmpty(function.code)


class DeleteTest(absltest.TestCase):
  def test_the_body_goes_and_signature_decorator_and_docstring_stay(self):
    text = delete.without_bodies(tiny.CODE, [KNOWN['mean']])
    self.assertNotIn(tiny.SECRET, text)
    self.assertNotIn('Of those that are there', text)
    node = next(
      n
      for n in ast.walk(ast.parse(text))
      if isinstance(n, ast.FunctionDef) and n.name == 'mean'
    )
    self.assertIn('Zero where', ast.get_docstring(node))
    self.assertLen(node.decorator_list, 1)
    self.assertEqual(ast.unparse(node.body[1:]), delete.STUB)

  def test_other_lines_are_untouched(self):
    text = delete.without_bodies(
      tiny.CODE, [KNOWN['Stack.pop'], KNOWN['clamp']]
    )
    for name in ('mean', 'total', 'Stack.push'):
      lines = tiny.CODE.split('\n')[KNOWN[name].lines.start :][:3]
      self.assertIn('\n'.join(lines), text)

  def test_the_edit_leads_there_and_back(self):
    for names in (['mean'], ['Stack.push', 'Stack.pop'], ['clamp', 'total']):
      after = delete.without_bodies(tiny.CODE, [KNOWN[n] for n in names])
      edit = delete.edit_between(tiny.CODE, after, 'a.py')
      self.assertEqual(edit.apply(tiny.CODE), after)
      self.assertEqual(edit.inverse().apply(after), tiny.CODE)

  def test_an_edit_among_twins_takes_in_what_tells_them_apart(self):
    before = 'a\nx\ny\nb\nx\ny\nc\n'
    for after in ('a\nx\ny\nb\nx\nz\nc\n', 'a\nz\ny\nb\nx\ny\nc\n'):
      edit = delete.edit_between(before, after, 'a.py')
      self.assertEqual(edit.apply(before), after)
      self.assertEqual(edit.inverse().apply(after), before)

  def test_equal_texts_have_no_edit_between_them(self):
    self.assertIsNone(delete.edit_between('a\n', 'a\n', 'a.py'))

  def test_classes_are_taken_out_whole(self):
    found = delete.classes(list(KNOWN.values()))
    self.assertEqual(
      {name: [f.name for f in fs] for name, fs in found.items()},
      {'Stack': ['Stack.push', 'Stack.pop']},
    )

  def test_functions_that_call_each_other_are_taken_out_together(self):
    found = delete.circles(list(KNOWN.values()))
    self.assertEqual(
      {name: [f.name for f in fs] for name, fs in found.items()},
      {'mean': ['mean', 'total']},
    )


if __name__ == '__main__':
  absltest.main()
