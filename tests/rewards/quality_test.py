from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.rewards import quality


class ComplexityTest(parameterized.TestCase):
  @parameterized.parameters(
    ('', 0),
    ('def f():\n  return 1\n', 1),
    ('def f(a):\n  if a:\n    return 1\n  elif a > 2:\n    return 3\n', 3),
    ('def f(a, b, c):\n  return a and b and c or a\n', 4),
    ('def f(a):\n  return [x for x in a if x if x > 1]\n', 4),
    ('async def f(a):\n  async for x in a:\n    pass\n', 2),
    ('while x:\n  y = 1 if x else 2\n', 2),
    ('try:\n  f()\nexcept A:\n  g()\nexcept B:\n  g()\n', 2),
    ('match x:\n  case 1:\n    pass\n  case _:\n    pass\n', 2),
    ('def f():\n  def g():\n    pass\n', 2),
    ('def f(:', None),
    ('x = "\0"', None),
  )
  def test_golden(self, text, value):
    self.assertEqual(quality.complexity(text), value)


def nested(depth):
  lines = ['def f(a):']
  lines += ['  ' * (i + 1) + 'if a:' for i in range(depth)]
  return '\n'.join([*lines, '  ' * (depth + 1) + 'pass', ''])


class StrainTest(parameterized.TestCase):
  @parameterized.parameters(
    ('', 0),
    (f'value = "{"x" * 90}"', 0),  # 100 columns.
    (f'value = "{"x" * 91}"', 1),
    ('def f():\n' + '  pass\n' * 49, 0),
    ('def f():\n' + '  pass\n' * 50, 1),
    (nested(4), 0),
    (nested(5), 1),
    ('def f(a1, a2, a3, *, a4, a5, a6): pass', 0),
    ('def f(self, a1, a2, a3, *, a4, a5, a6): pass', 0),
    ('def f(a1, a2, a3, /, a4, *, a5, a6, a7): pass', 1),
    ('i = x = k = 1', 0),
    ('l = 1\nl = 2', 1),
    ('def I(O):\n  return O\n', 2),
    ('x = (', None),
  )
  def test_golden(self, text, value):
    self.assertEqual(quality.strain(text), value)

  def test_a_chain_of_elif_is_not_deep(self):
    chain = 'def f(a):\n  if a:\n    pass\n' + '  elif a:\n    pass\n' * 9
    self.assertEqual(quality.strain(chain), 0)


if __name__ == '__main__':
  absltest.main()
