import textwrap

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax import trajectory
from composer_jax.tasks import humaneval
from composer_jax.tasks import mutate

PATH = 'solution.py'


def function(*lines: str) -> str:
  return '\n'.join(['def f(a, b):', *('  ' + line for line in lines), ''])


def edits(text: str) -> list[tuple[str, str]]:
  return [(m.edit.old, m.edit.new) for m in mutate.mutations(text, PATH)]


class MutateTest(parameterized.TestCase):
  @parameterized.parameters(
      ('return a < b', [(' <', ' <='), (' <', ' >')]),
      ('return a<b', [('<', '<='), ('<', '>')]),
      ('return a in b', [(' in', ' not in')]),
      ('return a not in b', [(' not in', ' in')]),
      ('return a is b', [(' is', ' is not')]),
      ('return a - b', [(' -', ' +')]),
      ('return a and b', [(' and', ' or'), (' and b', ' and not b')]),
      ('return 5 if a else b', [(' 5', ' 4'), (' 5', ' 6'), (' a', ' not a')]),
      ('return a if not b else a', [(' not b else', ' b else')]),
      ('return a if (b == a) else b', [(' ==', ' !=')]),
      ('return True', [(' True', ' False')]),
      ('return g(a, b)', [(' g(a, b', ' g(b, a')]),
      ('return max(a, b)', [(' max', ' min')]),
      ('return a.append(b)', [('append', 'extend')]),
      ('return a[b:]', [('b:', ':b')]),
      ('return a[-1]', [('1', '2')]),
      ('return range(a)', [('a)', 'a + 1)'), ('a)', 'a - 1)')]),
      ('a -= b', [(' -=', ' +=')]),
      ('return 40 + a', [(' +', ' *'), (' +', ' -')]),
      ('return [1, 2, 3]', []),
      ('return "%s" % a', []),
      ('return a == a, b == b', [
          (' == a', ' != a'), (' == b', ' != b'),
      ]),
  )  # fmt: skip
  def test_offers_these_slips_in_as_few_tokens(self, line, expected):
    self.assertEqual(edits(function(line)), expected)

  def test_leaves_everything_else_alone(self):
    text = textwrap.dedent('''\
        import math as m, re
        LIMIT = 3 + 4

        @cache(1)
        def f(a: 'x < y' = 1, *, b=2 + 3) -> 4 < 5:
          """If 1 < 2 and 3 + 4."""
          import sys
          c: list[1 + 1] = a
          g = lambda x=1: x
          return f'{a + 1} {b}'
        ''')
    self.assertEmpty(mutate.mutations(text, PATH))

  def test_inverse_is_a_candidate_in_every_mutant_of_humaneval(self):
    tried = 0
    for problem in humaneval.problems():
      text = problem.solution
      for mutation in mutate.mutations(text, PATH):
        mutant = mutation.edit.apply(text)
        inverse = mutation.edit.inverse()
        self.assertNotEqual(mutant, text)
        self.assertEqual(inverse.apply(mutant), text)
        compile(mutant, PATH, 'exec')
        back = [m.edit for m in mutate.mutations(mutant, PATH)]
        self.assertIn(inverse, back, f'{problem.id}: {mutation}')
        tried += 1
    self.assertGreater(tried, 2000)

  @parameterized.parameters(
    'return a + b * -1 ** a % (2 - a) // b',
    'return a and not b or a < b and not (a or b)',
    'return range(1, len(a) + 1 - 1), range(b - 1), range(a, b, 2)',
    'return g(a + 1, b, 1)[a:], a[:-1], a[1:2]',
    'return ("é", a + 1, a + 1) if a is not b else "ü" * 2',
    'return [x for x in a if not x if x % 2 == 0 if "y" in x]',
    'return not a and(b) or  a',
  )
  def test_inverse_is_a_candidate_whatever_the_precedence(self, line):
    text = function(line)
    found = mutate.mutations(text, PATH)
    self.assertNotEmpty(found)
    for mutation in found:
      mutant = mutation.edit.apply(text)
      self.assertIn(
        mutation.edit.inverse(),
        [m.edit for m in mutate.mutations(mutant, PATH)],
      )

  def test_names_path_and_kind(self):
    self.assertEqual(
      mutate.mutations(function('c = a', 'return c or b'), PATH)[0],
      mutate.Mutation('boolean', trajectory.Edit(PATH, ' or', ' and')),
    )

  @parameterized.parameters(
    # Found below, and in the line of another mutation.
    (('c = a - b', 'return c - b'), [
      (' a -', ' a +'), (' c -', ' c +'),
    ]),
    # Found in the docstring.
    (('"More if a < b."', 'return a < b + b'), [
      (' < b +', ' <= b +'), (' < b +', ' > b +'),
      (' +', ' *'), (' +', ' -'),
    ]),
    # What is new is there already, above.
    (('c = a + b', 'return a - b'), [
      (' +', ' *'), (' = a +', ' = a -'), ('return a -', 'return a +'),
    ]),
  )  # fmt: skip
  def test_widens_until_unique_in_the_file(self, lines, expected):
    self.assertEqual(edits(function(*lines)), expected)

  @parameterized.parameters(
    # Alike before the mutation, alike after it, and free of twins.
    (('a -= b', 'a -= b'), []),
    (('a -= b', 'a += b'), [(' +=', ' *=')]),
    (('a -= b', 'b += a'), [
      (' -= b', ' += b'), (' +=', ' *='), (' += a', ' -= a'),
    ]),
    (('while a is b:', '  return True', 'return False'), [
      (' is', ' is not'),
    ]),
  )  # fmt: skip
  def test_leaves_out_lines_that_have_a_twin(self, lines, expected):
    self.assertEqual(edits(function(*lines)), expected)

  def test_text_that_overlaps_itself_is_not_unique(self):
    # With ' 1 - 2' its inverse would find ' 1 - 1' too early in ' 1 - 1 - 1'.
    self.assertIn((' - 1 - 2', ' - 1 - 1'), edits(function('return 1 - 1 - 2')))

  def test_refuses_what_is_not_python(self):
    with self.assertRaises(SyntaxError):
      mutate.mutations('def f(:\n', PATH)


if __name__ == '__main__':
  absltest.main()
