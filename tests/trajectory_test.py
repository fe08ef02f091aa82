from absl.testing import absltest

from composer_jax import trajectory


class EditTest(absltest.TestCase):
  def test_text_that_overlaps_itself_occurs_twice(self):
    edit = trajectory.Edit('solution.py', 'x*x', 'x+x')
    self.assertEqual(edit.apply('a = x*x'), 'a = x+x')
    with self.assertRaisesRegex(ValueError, 'occurs 2 times'):
      edit.apply('a = x*x*x')


if __name__ == '__main__':
  absltest.main()
