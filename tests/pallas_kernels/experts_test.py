from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from composer_jax.pallas_kernels import experts
from composer_jax.pallas_kernels import implementations
from composer_jax.pallas_kernels import matmul
from composer_jax.pallas_kernels import plain
from composer_jax.pallas_kernels import xla
from tests.pallas_kernels import matmul_test

B, M, D, F, E = 4, 32, 64, 96, 3
EXPERT_OF_BLOCK = np.array([0, 2, 2, 2])  # Expert 1 is idle.


def normal(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


X = normal(0, B, M, D)
WEIGHTS = experts.Weights(
  normal(1, E, D, F) / 8, normal(2, E, D, F) / 8, normal(3, E, F, D) / 8
)
GRAD = normal(4, B, M, D)


def compiled(ops):
  @jax.jit
  def run(x, weights, grad):
    y, back = jax.vjp(
      lambda x, w: experts.feed_forward(x, w, EXPERT_OF_BLOCK, ops), x, weights
    )
    grad_x, grad_weights = back(grad)
    return y, grad_x, *grad_weights

  return lambda *arrays: [np.asarray(a) for a in run(*arrays)]


def by_the_rules(x_MD, gate_DF, up_DF, down_FD, grad_MD):
  """One expert on its rows: every product rounded by the golden quantiser.

  Returns:
    The result, and the gradients of all four.
  """
  rounded = matmul_test.rounded
  gate = rounded(x_MD, 1) @ rounded(gate_DF, 0)
  up = rounded(x_MD, 1) @ rounded(up_DF, 0)
  hidden = gate / (1 + np.exp(-gate)) * up
  y = rounded(hidden, 1) @ rounded(down_FD, 0)
  grad_hidden = rounded(grad_MD, 1) @ rounded(down_FD, 1).T
  gate, up = rounded(gate, 1), rounded(up, 1)  # As they were kept.
  sigmoid = 1 / (1 + np.exp(-gate))
  grad_gate = grad_hidden * up * sigmoid * (1 + gate * (1 - sigmoid))
  grad_up = grad_hidden * gate * sigmoid
  grad_x = rounded(grad_gate, 1) @ rounded(gate_DF, 1).T
  grad_x += rounded(grad_up, 1) @ rounded(up_DF, 1).T
  x_T = rounded(x_MD, 0).T
  return (
    y,
    grad_x,
    x_T @ rounded(grad_gate, 0),
    x_T @ rounded(grad_up, 0),
    rounded(hidden, 0).T @ rounded(grad_MD, 0),
  )


class FeedForwardTest(parameterized.TestCase):
  def test_all_nine_products_are_those_of_the_rules(self):
    found = compiled(xla)(X, WEIGHTS, GRAD)
    for e in range(E):
      rows = EXPERT_OF_BLOCK == e
      if not rows.any():
        for gradient in found[2:]:
          np.testing.assert_array_equal(gradient[e], 0)
        continue
      arrays = [a[rows].reshape(-1, D) for a in (X, GRAD)]
      wanted = by_the_rules(arrays[0], *(w[e] for w in WEIGHTS), arrays[1])
      actual = [found[0][rows].reshape(-1, D), found[1][rows].reshape(-1, D)]
      actual += [gradient[e] for gradient in found[2:]]
      for a, w in zip(actual, wanted, strict=True):
        # A hidden number may round to its neighbour: a sum in float32.
        self.assertLess(matmul_test.error(a, w), 2e-3)

  def test_float32_is_what_jax_differentiates(self):
    def naive(x, weights):
      gate, up, down = (w[EXPERT_OF_BLOCK] for w in weights)
      return (jax.nn.silu(x @ gate) * (x @ up)) @ down

    y, back = jax.vjp(naive, X, WEIGHTS)
    grad_x, grad_weights = back(GRAD)
    wanted = y, grad_x, *grad_weights
    found = compiled(plain.FLOAT32)(X, WEIGHTS, GRAD)
    for actual, expected in zip(found, wanted, strict=True):
      np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)

  @parameterized.parameters(('bfloat16', 1e-3, 1e-2), ('mxfp8', 1e-2, 1e-1))
  def test_others_are_near_and_not_equal(self, precision, low, high):
    exact = compiled(plain.FLOAT32)(X, WEIGHTS, GRAD)
    found = compiled(implementations.choose(precision))(X, WEIGHTS, GRAD)
    for actual, expected in zip(found, exact, strict=True):
      self.assertBetween(matmul_test.error(actual, expected), low, high)

  @parameterized.parameters(*implementations.PRECISIONS)
  def test_ready_weights_give_the_very_same(self, precision):
    ops = implementations.choose(precision)
    ready = experts.Weights(
      *(matmul.ready(ops.quantize(w, 1), ops) for w in WEIGHTS)
    )
    y_BMD = jax.jit(
      lambda x, w: experts.feed_forward(x, w, EXPERT_OF_BLOCK, ops)
    )(X, ready)
    np.testing.assert_array_equal(y_BMD, compiled(ops)(X, WEIGHTS, GRAD)[0])


class ResidualTest(absltest.TestCase):
  def test_a_layer_keeps_little_more_than_half_of_bfloat16(self):
    kept = {}
    for ops in (xla, plain.BFLOAT16):
      _, back = jax.vjp(
        lambda x, w, ops=ops: experts.feed_forward(x, w, EXPERT_OF_BLOCK, ops),
        X,
        WEIGHTS,
      )
      leaves = {id(leaf): leaf for leaf in jax.tree.leaves(back)}
      kept[ops] = sum(leaf.nbytes for leaf in leaves.values())
    self.assertLessEqual(kept[xla], 0.55 * kept[plain.BFLOAT16])
    # Rows, three times the hidden width, and the weights; one byte each.
    self.assertGreater(kept[xla], X.size + 3 * B * M * F + 3 * E * D * F)


class FaultTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('zero_rows', (0 * X, WEIGHTS, GRAD)),
    ('zero_gradient', (X, WEIGHTS, 0 * GRAD)),
    ('zero_weights', (X, jax.tree.map(lambda w: 0 * w, WEIGHTS), GRAD)),
    ('tiny', (1e-30 * X, WEIGHTS, 1e-30 * GRAD)),
    ('huge', (1e6 * X, WEIGHTS, 1e6 * GRAD)),
    ('edges', (448.0 * np.exp2(np.trunc(X)), WEIGHTS, GRAD)),
  )
  def test_gradients_are_finite(self, given):
    for array in compiled(xla)(*given):
      self.assertTrue(np.isfinite(array).all())

  def test_what_is_not_finite_is_not_hidden(self):
    grad = GRAD.copy()
    grad[1, 3, 5] = np.inf
    x = X.copy()
    x[0, 0, 0] = np.nan
    y, grad_x, gate, _, _ = compiled(xla)(x, WEIGHTS, grad)
    self.assertTrue(np.isnan(y[0, 0]).all())
    self.assertTrue(np.isfinite(y[0, 1:]).all())
    self.assertTrue(np.isnan(gate[0]).any())
    self.assertTrue(np.isfinite(grad_x[2:]).all())


if __name__ == '__main__':
  absltest.main()
