from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from composer_jax.pallas_kernels import matmul
from tests.pallas_kernels import mx_numpy

SHAPES = ((32, 64, 96), (128, 32, 32), (7, 40, 33), (1, 32, 5))  # M, K, N


def operands(shape, seed=0):
  m, k, n = shape
  rng = np.random.default_rng(seed)
  spread = np.exp2(rng.integers(-6, 6, (1, k)))
  return (
    (rng.normal(size=(m, k)) * spread).astype(np.float32),
    rng.normal(size=(k, n)).astype(np.float32),
    rng.normal(size=(m, n)).astype(np.float32),
  )


def rounded(x, axis):
  """What the golden quantiser makes of x along the axis, in float64."""
  x = np.moveaxis(x, axis, -1)
  size = x.shape[-1]
  x = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -size % 32)])
  wide = mx_numpy.dequantize(*mx_numpy.quantize(x)).astype(np.float64)
  return np.moveaxis(wide[..., :size], -1, axis)


def products(x_MK, w_KN, grad_MN):
  """The product and its two gradients, by the rules."""
  return (
    rounded(x_MK, 1) @ rounded(w_KN, 0),
    rounded(grad_MN, 1) @ rounded(w_KN, 1).T,
    rounded(x_MK, 0).T @ rounded(grad_MN, 0),
  )


def run(x_MK, w_KN, grad_MN):
  y_MN, back = jax.vjp(matmul.mx_matmul, jnp.asarray(x_MK), jnp.asarray(w_KN))
  return (y_MN, *back(jnp.asarray(grad_MN)))


def error(actual, expected):
  return np.linalg.norm(actual - expected) / np.linalg.norm(expected)


class ProductTest(parameterized.TestCase):
  @parameterized.parameters(*SHAPES)
  def test_the_three_products_are_those_of_the_rules(self, *shape):
    given = operands(shape)
    for actual, expected in zip(run(*given), products(*given), strict=True):
      self.assertEqual(actual.shape, expected.shape)
      self.assertLess(error(actual, expected), 1e-6)

  def test_is_close_to_the_exact_product_and_not_equal(self):
    x_MK, w_KN, grad_MN = operands((64, 256, 64))
    exact = x_MK @ w_KN, grad_MN @ w_KN.T, x_MK.T @ grad_MN
    for actual, expected in zip(run(x_MK, w_KN, grad_MN), exact, strict=True):
      self.assertBetween(error(actual, expected), 1e-3, 6e-2)

  def test_gradients_have_the_type_of_what_they_belong_to(self):
    x_MK, w_KN, grad_MN = operands((32, 32, 32))
    y_MN, back = jax.vjp(
      matmul.mx_matmul, jnp.asarray(x_MK, jnp.bfloat16), jnp.asarray(w_KN)
    )
    grads = back(jnp.asarray(grad_MN))
    self.assertEqual(y_MN.dtype, jnp.float32)
    self.assertEqual([g.dtype for g in grads], [jnp.bfloat16, jnp.float32])


GROUPS = {  # Rows of each group; some rows may follow the last one.
  'odd_sizes': (5, 40, 1, 130),
  'an_empty_group': (0, 33, 0, 64),
  'everything_in_one': (0, 0, 70, 0),
  'rows_behind': (3, 0, 17, 9),
  'nothing': (0, 0, 0, 0),
}


def grouped_operands(sizes, behind=7):
  rng = np.random.default_rng(1)
  rows = sum(sizes) + behind
  return (
    rng.normal(size=(rows, 40)).astype(np.float32),
    rng.normal(size=(len(sizes), 40, 33)).astype(np.float32),
    rng.normal(size=(rows, 33)).astype(np.float32),
  )


@jax.jit
def run_grouped(x_NK, w_EKF, sizes_E, grad_NF):
  y_NF, back = jax.vjp(
    lambda x, w: matmul.mx_grouped_matmul(x, w, sizes_E), x_NK, w_EKF
  )
  return (y_NF, *back(grad_NF))


class GroupedTest(parameterized.TestCase):
  @parameterized.parameters(*GROUPS)
  def test_each_group_is_a_product_of_its_own(self, name):
    sizes = GROUPS[name]
    x_NK, w_EKF, grad_NF = grouped_operands(sizes)
    y_NF, grad_x_NK, grad_w_EKF = run_grouped(
      x_NK, w_EKF, np.asarray(sizes), grad_NF
    )
    start = 0
    for e, size in enumerate(sizes):
      if not size:
        np.testing.assert_array_equal(grad_w_EKF[e], 0)
        continue
      rows = slice(start, start + size)
      wanted = products(x_NK[rows], w_EKF[e], grad_NF[rows])
      found = y_NF[rows], grad_x_NK[rows], grad_w_EKF[e]
      for actual, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-4)
      start += size
    self.assertFalse(np.any(y_NF[start:]))
    self.assertFalse(np.any(grad_x_NK[start:]))

  def test_another_group_changes_nothing(self):
    sizes = GROUPS['odd_sizes']
    x_NK, w_EKF, grad_NF = grouped_operands(sizes)
    before = run_grouped(x_NK, w_EKF, np.asarray(sizes), grad_NF)
    x_NK[:5], grad_NF[:5] = 1e4, -1e4
    after = run_grouped(x_NK, w_EKF, np.asarray(sizes), grad_NF)
    np.testing.assert_array_equal(before[0][5:], after[0][5:])
    np.testing.assert_array_equal(before[2][1:], after[2][1:])


class RefusalTest(absltest.TestCase):
  def test_shapes_that_do_not_fit(self):
    with self.assertRaisesRegex(ValueError, r'no product of \(4, 33\) and'):
      matmul.mx_matmul(jnp.ones((4, 33)), jnp.ones((64, 8)))
    with self.assertRaisesRegex(ValueError, r'sizes \(5,\): two axes, three'):
      matmul.mx_grouped_matmul(
        jnp.ones((4, 32)), jnp.ones((4, 32, 8)), jnp.ones(5, int)
      )
    with self.assertRaisesRegex(ValueError, r'no product of \(4, 64\) and'):
      matmul.mx_grouped_matmul(
        jnp.ones((4, 64)), jnp.ones((2, 32, 8)), jnp.ones(2, int)
      )


class FaultTest(absltest.TestCase):
  def test_an_all_zero_operand_gives_finite_zeros(self):
    x_MK, w_KN, grad_MN = operands((64, 64, 32))
    for given in (
      (0 * x_MK, w_KN, grad_MN),
      (x_MK, 0 * w_KN, grad_MN),
      (x_MK, w_KN, 0 * grad_MN),
    ):
      for actual, expected in zip(run(*given), products(*given), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-4)

  def test_numbers_that_would_saturate_do_not(self):
    x_MK = np.full((32, 32), 449.0, np.float32)
    x_MK[:, 1:] = 0
    y_MN, _, _ = run(x_MK, np.eye(32, dtype=np.float32), x_MK)
    np.testing.assert_array_equal(y_MN[:, 0], [448.0] * 32)

  def test_what_is_not_finite_is_not_hidden(self):
    x_MK, w_KN, grad_MN = operands((32, 64, 32))
    x_MK[3, 5] = np.nan
    y_MN, _, grad_w_KN = run(x_MK, w_KN, grad_MN)
    self.assertEqual(
      np.isnan(y_MN).any(1).tolist(), [i == 3 for i in range(32)]
    )
    self.assertEqual(
      np.isnan(grad_w_KN).any(1).tolist(), [i == 5 for i in range(64)]
    )


class ResidualTest(absltest.TestCase):
  def test_what_is_kept_is_little_more_than_half_of_bfloat16(self):
    x_MK, w_KN, _ = operands((128, 256, 64))
    _, back = jax.vjp(matmul.mx_matmul, jnp.asarray(x_MK), jnp.asarray(w_KN))
    kept = sum(leaf.nbytes for leaf in jax.tree.leaves(back))
    self.assertLessEqual(kept, 0.55 * 2 * (x_MK.size + w_KN.size))
    self.assertGreaterEqual(kept, x_MK.size + w_KN.size)


if __name__ == '__main__':
  absltest.main()
