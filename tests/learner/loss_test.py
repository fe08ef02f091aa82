from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from composer_jax.learner import loss


@jax.jit
def clipped(logprob_BT, behaviour_BT, advantage_BT, mask_BT):
  """ClippedSums and the gradient of the loss."""

  def run(logprob_BT):
    sums = loss.clipped(
      logprob_BT,
      behaviour_BT,
      advantage_BT,
      mask_BT,
      clip_low=0.2,
      clip_high=0.28,
    )
    return sums.loss, sums

  gradient_BT, sums = jax.grad(run, has_aux=True)(logprob_BT)
  return sums, gradient_BT


def row(*values):
  return np.array([values], np.float32)


class ClippedTest(parameterized.TestCase):
  @parameterized.parameters(
    # ratio, advantage, loss, clipped, gradient of the loss
    (1.0, 2.0, -2.0, 0, -2.0),
    (1.5, 1.0, -1.28, 1, 0.0),  # Better than wanted: cut at 1 + clip_high.
    (1.27, 1.0, -1.27, 0, -1.27),
    (0.5, 1.0, -0.5, 0, -0.5),  # A good token that got rarer still counts.
    (0.5, -1.0, 0.8, 1, 0.0),  # Worse than wanted: cut at 1 - clip_low.
    (0.9, -1.0, 0.9, 0, 0.9),
    (1.5, -1.0, 1.5, 0, 1.5),  # A bad token that got likelier still counts.
    (1.5, 0.0, 0.0, 0, 0.0),
  )
  def test_one_token(self, ratio, advantage, value, removed, slope):
    behaviour = -2.0
    sums, gradient = clipped(
      row(behaviour + np.log(ratio)),
      row(behaviour),
      row(advantage),
      row(1) > 0,
    )
    np.testing.assert_allclose(sums.loss, value, rtol=1e-5)
    np.testing.assert_allclose(gradient, [[slope]], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(sums.k1, -np.log(ratio), rtol=1e-5, atol=1e-6)
    self.assertEqual(int(sums.clipped), removed)

  def test_tokens_add_up(self):
    logratio = np.log([1.5, 0.5, 0.5, 1.5])
    sums, _ = clipped(
      row(*(logratio - 1)), row(-1, -1, -1, -1), row(1, 1, -1, -1), row(1) > 0
    )
    np.testing.assert_allclose(sums.loss, -1.28 - 0.5 + 0.8 + 1.5, rtol=1e-5)
    np.testing.assert_allclose(sums.k1, -logratio.sum(), rtol=1e-5)
    self.assertEqual(int(sums.clipped), 2)

  def test_tool_tokens_leak_into_nothing(self):
    # Two tokens of the policy among five of a tool, which are 3 nats off.
    mask = row(0, 0, 1, 0, 0, 1, 0) > 0
    logprob = np.where(mask, row(0, 0, -1.1, 0, 0, -0.4, 0), -5)
    behaviour = np.where(mask, row(0, 0, -1.0, 0, 0, -0.6, 0), -2)
    advantage = np.where(mask, 0.7, 3.0).astype(np.float32)
    sums, gradient = clipped(logprob, behaviour, advantage, mask)
    only = [x[mask][None] for x in (logprob, behaviour, advantage, mask)]
    only_sums, only_gradient = clipped(*only)
    for field in loss.ClippedSums._fields:
      np.testing.assert_allclose(
        getattr(sums, field), getattr(only_sums, field), rtol=1e-6
      )
    np.testing.assert_allclose(gradient[mask], only_gradient[0], rtol=1e-6)
    np.testing.assert_array_equal(gradient[~mask], np.zeros(5))

  def test_what_is_masked_cannot_be_non_finite(self):
    sums, gradient = clipped(
      row(-1, -np.inf, np.nan, 500),
      row(-1, -1, -1, -500),
      row(1, np.nan, 1, 1),
      row(1, 0, 0, 0) > 0,
    )
    self.assertEqual(float(sums.loss), -1)
    self.assertEqual(float(sums.k1), 0)
    np.testing.assert_array_equal(gradient, row(-1, 0, 0, 0))

  def test_nothing_in_the_mask_is_zero(self):
    sums, gradient = clipped(
      row(-1, -2), row(-3, -1), row(1, 1), np.zeros((1, 2), bool)
    )
    self.assertEqual([float(x) for x in sums], [0, 0, 0])
    np.testing.assert_array_equal(gradient, row(0, 0))


class CrossEntropyTest(absltest.TestCase):
  def test_sums_the_nats_of_the_mask(self):
    value, gradient = jax.value_and_grad(loss.cross_entropy)(
      row(-0.5, -np.inf, -2, -4), row(1, 0, 1, 0) > 0
    )
    self.assertEqual(float(value), 2.5)
    np.testing.assert_array_equal(gradient, row(-1, 0, -1, 0))


if __name__ == '__main__':
  absltest.main()
