from absl.testing import absltest
import jax
import numpy as np

from composer_jax.model import attention

attend = jax.jit(attention.attend)


def normal(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class NormTest(absltest.TestCase):
  def test_divides_by_the_root_mean_square(self):
    x = np.array([[3.0, 4.0]], np.float32)  # Mean square 12.5.
    scale = np.array([1.0, 2.0], np.float32)
    np.testing.assert_allclose(
      attention.rms_norm(x, scale), [[3 / 12.5**0.5, 8 / 12.5**0.5]], rtol=1e-6
    )


class RopeTest(absltest.TestCase):
  def test_first_pair_turns_by_the_position_in_radians(self):
    x_BTHC = np.zeros((1, 2, 1, 4), np.float32)
    x_BTHC[..., 0] = 1
    turned = attention.rope(x_BTHC, np.array([[0, 3]]), 10_000.0)
    np.testing.assert_allclose(
      turned[0, :, 0],
      [[1, 0, 0, 0], [np.cos(3), 0, np.sin(3), 0]],
      atol=1e-6,
    )

  def test_scores_depend_on_distance_only(self):
    query, key = normal(0, 1, 1, 1, 8), normal(1, 1, 1, 1, 8)

    def score(t, s):
      turned = [
        np.asarray(attention.rope(x, np.array([[p]]), 100.0))
        for x, p in ((query, t), (key, s))
      ]
      return float((turned[0] * turned[1]).sum())

    self.assertAlmostEqual(score(9, 4), score(25, 20), places=4)
    self.assertGreater(abs(score(9, 4) - score(9, 5)), 1e-3)


class AttendTest(absltest.TestCase):
  def test_mixes_allowed_values_by_softmax(self):
    query_BTHC = np.full((1, 1, 1, 4), 2.0, np.float32)
    key_BKSC = np.zeros((1, 1, 3, 4), np.float32)
    key_BKSC[0, 0, 1] = np.log(3) / 4  # Scores 0, log 3 and (not seen) 100.
    key_BKSC[0, 0, 2] = 25.0
    value_BKSC = np.array([1.0, 5.0, 1e6], np.float32).reshape(1, 1, 3, 1)
    mixed = attend(
      query_BTHC,
      key_BKSC,
      np.tile(value_BKSC, 4),
      np.array([[[True, True, False]]]),
    )
    np.testing.assert_allclose(mixed, np.full((1, 1, 1, 4), 4.0), rtol=1e-6)

  def test_query_heads_share_key_value_heads_in_order(self):
    query_BTHC = normal(0, 1, 1, 4, 2)
    value_BKSC = np.array([1.0, 2.0], np.float32).reshape(1, 2, 1, 1)
    mixed = attend(
      query_BTHC,
      normal(1, 1, 2, 1, 2),
      np.tile(value_BKSC, 2),
      np.ones((1, 1, 1), bool),
    )
    np.testing.assert_allclose(mixed[0, 0, :, 0], [1, 1, 2, 2], rtol=1e-6)

  def test_a_query_without_keys_stays_finite_in_its_gradient_too(self):
    def total(query_BTHC):
      mixed = attend(
        query_BTHC,
        normal(1, 1, 1, 3, 4),
        normal(2, 1, 1, 3, 4),
        np.zeros((1, 1, 3), bool),
      )
      return mixed.sum()

    value, gradient = jax.jit(jax.value_and_grad(total))(normal(0, 1, 1, 1, 4))
    self.assertTrue(np.isfinite(value))
    np.testing.assert_array_equal(gradient, np.zeros((1, 1, 1, 4)))

  def test_chunks_of_queries_give_what_the_whole_gives(self):
    time = 150  # A whole chunk of 128 and a part.
    arrays = (
      normal(0, 1, time, 2, 4),
      normal(1, 1, 1, time, 4),
      normal(2, 1, 1, time, 4),
    )
    allowed_BTS = np.tri(time, dtype=bool)[None].copy()
    allowed_BTS[:, 140:, :130] = False  # A second sequence begins.
    np.testing.assert_allclose(
      jax.jit(attention.attend_causal)(*arrays, allowed_BTS),
      attend(*arrays, allowed_BTS),
      rtol=1e-5,
      atol=1e-6,
    )


if __name__ == '__main__':
  absltest.main()
