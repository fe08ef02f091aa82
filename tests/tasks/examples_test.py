from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.tasks import examples
from tests.tasks import process


def module(docstring: str, name: str = 'f') -> str:
  return f"def {name}(x):\n  '''{docstring}'''\n  return x\n"


class ExamplesTest(parameterized.TestCase):
  @parameterized.parameters(
    ('>>> f( 1 )\n    2', 'f(1) == 2'),
    ('>>> f([])\n\n    >>> f(', 'f([]) == None'),
    ('>>> f(1) == 2', 'f(1) == 2'),
    ('>>> round(f(1), 2) # rounded\n7', 'round(f(1), 2) == 7'),
    ('>>> f(1)\n["a",\n  "b"]', "f(1) == ['a', 'b']"),
    ('  f((1), ")") => 2', "f(1, ')') == 2"),
    ('f(1)==>True', 'f(1) == True'),
    ('f(1) = 2', 'f(1) == 2'),
    ('f(1) -> 8 - 5 - 1 = 2', 'f(1) == 2'),
    ('f(1) ➞ "a" ', "f(1) == 'a'"),
    ('f(1)   # returns "db"', "f(1) == 'db'"),
    ('f(1) # => 2 (a note)', 'f(1) == 2'),
    ('f(1) should return True.', 'f(1) == True'),
    ('f(1) returns [1, 5] # odd only', 'f(1) == [1, 5]'),
    ('* f(1) => false', 'f(1) == False'),
    ('another(1) == 2', 'f(1) == 2'),
    ('For x = [1], the output should be 2.', 'f(x=[1]) == 2'),
    ('Input: [4,2]\n   Output: [2, 1]\n', 'f([4, 2]) == [2, 1]'),
  )
  def test_reads_each_style(self, docstring, expected):
    self.assertEqual(
      examples.asserts(module(docstring), 'f'), ((f'assert {expected}',),)
    )

  @parameterized.parameters(
    'f() gives the second', 'f(1) is 2', 'f(1) == g', 'calls f(1'
  )
  def test_reads_nothing_into_prose(self, docstring):
    self.assertEqual(examples.asserts(module(docstring), 'f'), ())

  def test_offers_a_tolerance_for_fractions(self):
    self.assertEqual(
      examples.asserts(module('f(1) == 0.5'), 'f'),
      (('assert f(1) == 0.5', 'assert abs(f(1) - 0.5) < 1e-06'),),
    )

  def test_keeps_the_strictest_line_that_holds_for_correct_code(self):
    variants = (
      ('assert f(1) == 1',),
      ('assert f(1) == 2',),
      ('assert f(.1 + .2) == .3', 'assert abs(f(.1 + .2) - .3) < 1e-6'),
    )
    files = {
      'solution.py': module(''),
      'probe.py': examples.probe('f', variants),
    }
    code, output = process.run(files, ('python', 'probe.py'), '', 10.0)
    self.assertEqual((code, output.split()), (0, ['0', '-1', '1']))
    self.assertEqual(
      examples.select(variants, output),
      ('assert f(1) == 1', 'assert abs(f(.1 + .2) - .3) < 1e-6'),
    )

  def test_drops_long_lines_only_when_others_remain(self):
    long, longer = ('assert ' + 'x' * n for n in (100, 101))
    self.assertEqual(
      examples.select([[long], ['assert 1']], '0\n0\n'), ('assert 1',)
    )
    self.assertEqual(examples.select([[longer], [long]], '0\n0\n'), (long,))

  def test_keeps_six_at_most(self):
    self.assertLen(examples.select([['assert 1']] * 9, '0\n' * 9), 6)

  def test_refuses_the_output_of_another_probe(self):
    with self.assertRaisesRegex(ValueError, '1 answers for 2'):
      examples.select([['a'], ['b']], '0\n')


if __name__ == '__main__':
  absltest.main()
