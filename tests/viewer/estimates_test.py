from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from composer_jax.viewer import estimates


class IntervalTest(absltest.TestCase):
  """Wilson's interval of a share."""

  def test_is_symmetric_at_one_half_and_narrows_with_more_tasks(self):
    np.testing.assert_allclose(
      estimates.interval(0.5, 100), [0.4038, 0.5962], atol=1e-4
    )

  def test_stays_within_a_share(self):
    self.assertEqual(estimates.interval(0.0, 78)[0], 0.0)
    self.assertEqual(estimates.interval(1.0, 78)[1], 1.0)
    low, high = estimates.interval(0.0, 10)
    self.assertAlmostEqual(low, 0.0)
    self.assertAlmostEqual(high, 0.2775, places=4)  # z² / (n + z²)


class PassAtKTest(parameterized.TestCase):
  @parameterized.parameters(
    # attempts, solved, k, by hand.
    (4, 1, 1, 1 / 4),
    (4, 1, 2, 1 / 2),  # The one is in 3 of the 6 pairs.
    (4, 2, 2, 5 / 6),  # One pair of the 6 has none.
    (4, 2, 3, 1.0),  # Two failures do not fill three attempts.
    (5, 0, 5, 0.0),
    (3, 3, 1, 1.0),
    (1000, 1, 500, 1 / 2),
    (5, 2, 1, 2 / 5),
    (5, 2, 2, 1 - 3 / 10),
    (5, 3, 3, 1.0),
    (10, 3, 5, 1 - 21 / 252),
  )
  def test_counts_the_choices_with_a_solved_attempt(
    self, attempts, solved, k, expected
  ):
    self.assertAlmostEqual(estimates.pass_at_k(attempts, solved, k), expected)

  def test_equals_the_product_of_the_paper(self):
    n, c, k = 40, 7, 9
    product = 1.0
    for i in range(n - c + 1, n + 1):
      product *= 1 - k / i
    self.assertAlmostEqual(estimates.pass_at_k(n, c, k), 1 - product)

  def test_is_right_on_average_where_the_plug_in_is_not(self):
    rng, chance, k = np.random.default_rng(0), 0.2, 3
    solved = rng.binomial(5, chance, size=20_000)
    mean = np.mean([estimates.pass_at_k(5, int(c), k) for c in solved])
    self.assertAlmostEqual(mean, 1 - (1 - chance) ** k, delta=0.01)
    plug_in = np.mean(1 - (1 - solved / 5) ** k)
    self.assertLess(plug_in, mean - 0.03)

  @parameterized.parameters((2, 1, 3), (2, 3, 1), (2, 1, 0), (0, 0, 1))
  def test_refuses_what_it_cannot_know(self, attempts, solved, k):
    with self.assertRaisesRegex(ValueError, f'pass@{k} of {attempts}'):
      estimates.pass_at_k(attempts, solved, k)


class BootstrapTest(absltest.TestCase):
  def test_is_as_wide_as_two_standard_errors_on_either_side(self):
    low, high = estimates.bootstrap([0.0, 1.0] * 200, seed=1)
    self.assertAlmostEqual(low, 0.5 - 1.96 * 0.025, delta=0.004)
    self.assertAlmostEqual(high, 0.5 + 1.96 * 0.025, delta=0.004)

  def test_is_decided_by_the_seed(self):
    values = np.linspace(0, 1, 50) ** 2
    first = estimates.bootstrap(values, seed=1)
    self.assertEqual(first, estimates.bootstrap(values, seed=1))
    self.assertNotEqual(first, estimates.bootstrap(values, seed=2))

  def test_of_equal_values_is_that_value(self):
    self.assertEqual(estimates.bootstrap([1.0] * 3, seed=0), (1.0, 1.0))


if __name__ == '__main__':
  absltest.main()
