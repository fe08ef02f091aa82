"""Golden by hand; and no term leaves the range that it states."""

import random

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.rewards import terms

RANGES = {
  terms.correctness: (0, 1),
  terms.fraction: (0, 1),
  terms.regression: (-1, 0),
  terms.lint: (-1, 0),
  terms.complexity: (-1, 0),
  terms.readability: (-1, 0),
  terms.diff_size: (-1, 0),
  terms.conformity: (-1, 0),
  terms.communication: (-1, 0),
  terms.hygiene: (-1, 0),
}


class TermsTest(parameterized.TestCase):
  @parameterized.parameters(
    (terms.correctness, {'solved': 1.0}, 1),
    (terms.fraction, {'fraction': 0.25}, 0.25),
    (terms.regression, {'regressed': 0.25}, -0.25),
    (terms.lint, {'lint_added': 3.0}, -3 / 4),
    (terms.lint, {'lint_added': -3.0}, 0),
    (terms.complexity, {'complexity_excess': 4.0}, -4 / 8),
    (terms.complexity, {'complexity_excess': -9.0}, 0),
    (terms.readability, {'strain_excess': 1.0}, -1 / 2),
    (terms.diff_size, {'diff_lines': 2.0, 'gold_lines': 2.0}, 0),
    (terms.diff_size, {'diff_lines': 6.0, 'gold_lines': 2.0}, -4 / 8),
    (terms.diff_size, {'diff_lines': 1.0, 'gold_lines': 2.0}, 0),
    (terms.diff_size, {'diff_lines': 3.0, 'gold_lines': 0.0}, -1),
    (terms.diff_size, {'diff_lines': 0.0, 'gold_lines': 0.0}, 0),
    (terms.conformity, {'style_conformity': 0.75}, -0.25),
    (terms.communication, {'silent': 1.0, 'false_claim': 0.0}, -0.5),
    (terms.communication, {'silent': 0.0, 'false_claim': 1.0}, -1),
    (terms.communication, {'silent': 0.0, 'false_claim': 0.0}, 0),
    (
      terms.hygiene,
      {
        'stray_files': 1.0,
        'debug_marks': 2.0,
        'todo_marks': 0.0,
        'open_todos': 3.0,
      },
      -6 / 8,
    ),
  )
  def test_golden(self, term, facts, value):
    self.assertAlmostEqual(term(facts), value, places=12)

  @parameterized.parameters(*RANGES)
  def test_stays_in_its_range(self, term):
    low, high = RANGES[term]
    rng = random.Random(0)
    shares = ('solved', 'fraction', 'regressed', 'style_conformity')
    flags = ('silent', 'false_claim')
    signed = ('lint_added', 'complexity_excess', 'strain_excess')
    counts = ('diff_lines', 'gold_lines', 'stray_files', 'debug_marks')
    for _ in range(500):
      size = 10 ** rng.randrange(4)
      facts = {
        **{name: rng.random() for name in shares},
        **{name: float(rng.randrange(2)) for name in flags},
        **{name: float(rng.randint(-size, size)) for name in signed},
        **{name: float(rng.randint(0, size)) for name in counts},
        'todo_marks': float(rng.randint(0, size)),
        'open_todos': float(rng.randint(0, size)),
      }
      value = term(facts)
      self.assertBetween(value, low, high, msg=str(facts))

  @parameterized.parameters(*(t for t in RANGES if t != terms.correctness))
  def test_what_was_not_measured_has_no_value(self, term):
    self.assertIsNone(term({'solved': 1.0}))


if __name__ == '__main__':
  absltest.main()
