import random

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.rewards import style

Habit = style.Habit
FILE = """def first_one(some_text):
  other_name = 'a'
  return other_name + 'b'


def second_one(some_text):
  return 'c' + some_text
"""


def conformity(line, around=FILE):
  """Of one line that is put at the end of a file."""
  after = around + line
  added = range(around.count('\n') + 1, after.count('\n') + 2)
  return style.conformity({'a.py': around}, {'a.py': after}, {'a.py': added})


class HabitsTest(absltest.TestCase):
  def test_counts_chances_taken(self):
    self.assertEqual(
      style.habits(FILE),
      {
        'long_lines': Habit(0, 5),
        'tabs': Habit(0, 3),
        'odd_indent': Habit(3, 3),
        'double_quotes': Habit(0, 3),
        # Two functions, two parameters.
        'typed': Habit(0, 4),
        # Two functions, two parameters, one variable.
        'camel_case': Habit(0, 5),
      },
    )

  def test_looks_at_some_lines_only(self):
    self.assertEqual(
      style.habits('a = "x"\nbC = \'y\'\n', [2]),
      {
        'long_lines': Habit(0, 1),
        'double_quotes': Habit(0, 1),
        'camel_case': Habit(1, 1),
      },
    )

  def test_a_string_that_needs_its_quotes_shows_no_habit(self):
    text = 'a = "it\'s"\nb = """x"""\nc = 1\n'
    self.assertNotIn('double_quotes', style.habits(text))

  def test_broken_code_still_has_lines(self):
    found = style.habits('def f(:\n\tx = (\n')
    self.assertEqual(found['tabs'], Habit(1, 1))
    self.assertNotIn('typed', found)


class ConformityTest(parameterized.TestCase):
  @parameterized.parameters(
    # Lines, quotes: both alike.
    ("print('d')\n", 1.0),
    # Lines alike, quotes unlike.
    ('print("d")\n', 0.5),
    # Lines, names alike.
    ('new_name = 1\n', 1.0),
    ('newName = 1\n', 0.5),
    # Lines, tabs, odd indent alike; a tab shows no indent.
    ('  pass\n', 1.0),
    ('    pass\n', 2 / 3),
    ('\tpass\n', 0.5),
    # Lines alike, typed unlike.
    ('def f(a: int) -> int: return a\n', 0.5),
    ('x = ' + '1 + ' * 20 + '1\n', 0.0),
    ('', 1.0),
  )
  def test_golden(self, line, value):
    self.assertAlmostEqual(conformity(line), value)

  def test_a_file_with_both_ways_takes_either_half_way(self):
    around = 'f(\'a\')\nf("b")\n' * 3
    for line in ("f('c')\n", 'f("c")\n'):
      self.assertAlmostEqual(conformity(line, around), 0.75)

  def test_a_new_file_is_compared_with_the_others(self):
    def new(text):
      return style.conformity({'a.py': FILE}, {'b.py': text}, {'b.py': [1]})

    self.assertEqual(new("f('x')\n"), 1.0)
    self.assertEqual(new('f("x")\n'), 0.5)

  def test_files_weigh_as_many_lines_as_they_add(self):
    bad, good = 'f("x")\n', "f('x')\n"
    before = {'a.py': FILE, 'b.py': FILE}
    after = {'a.py': FILE + bad, 'b.py': FILE + good * 3}
    added = {'a.py': [8], 'b.py': [8, 9, 10]}
    self.assertAlmostEqual(
      style.conformity(before, after, added), (0.5 + 3 * 1.0) / 4
    )

  def test_stays_between_0_and_1(self):
    rng = random.Random(0)
    pieces = ['x = ', '"a"', "'b'", '\n', '\t', '    ', 'camelCase = 1\n', '(']
    for _ in range(200):
      around, line = (
        ''.join(rng.choices(pieces, k=rng.randrange(30))) for _ in 'ab'
      )
      self.assertBetween(conformity(line, around), 0, 1)


if __name__ == '__main__':
  absltest.main()
