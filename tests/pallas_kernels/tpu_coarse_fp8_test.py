"""The coarse 8-bit product by its rules, in numpy."""

from absl.testing import absltest
from absl.testing import parameterized
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from composer_jax.pallas_kernels import tpu_coarse_fp8

RACES = pltpu.InterpretParams(detect_races=True, uninitialized_memory='nan')


def golden(x, axis):
  """(elements, scales) in float64."""
  largest = np.abs(x).max(axis, keepdims=True).astype(np.float64)
  exponent = np.floor(np.log2(np.maximum(largest, 2.0**-200) / 448))
  exponent += largest > 448 * 2.0**exponent
  scales = 2.0 ** np.maximum(exponent, -126)
  elements = (x / scales).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
  return elements.astype(np.float64), scales


def matrices(seed=0):
  rng = np.random.default_rng(seed)
  x_MK, w_KN = rng.normal(size=(256, 384)), rng.normal(size=(384, 640))
  x_MK *= np.exp2(rng.integers(-90, 90, (256, 1)))
  w_KN *= np.exp2(rng.integers(-20, 20, (1, 640)))
  x_MK[3] = 0
  x_MK[4, 5] = 448
  x_MK[4, 6:] = 1
  w_KN[:, 7] = np.nextafter(np.float32(448), np.float32(500))
  return x_MK.astype(np.float32), w_KN.astype(np.float32)


class CoarseTest(parameterized.TestCase):
  @parameterized.parameters(True, RACES)
  def test_equals_the_rules(self, interpret):
    x_MK, w_KN = matrices()
    kept, expected = [], []
    for x, axis in ((x_MK, 1), (w_KN, 0)):
      ours = tpu_coarse_fp8.quantize(jnp.asarray(x), axis, interpret=interpret)
      elements, scales = golden(x, axis)
      np.testing.assert_array_equal(
        np.asarray(ours.elements).astype(np.float64), elements
      )
      np.testing.assert_array_equal(ours.scales, scales)
      kept.append(ours)
      expected.append(elements * scales)
    y_MN = tpu_coarse_fp8.forward(*kept, interpret=interpret)
    exact_MN = expected[0] @ expected[1]
    size_MN = np.abs(expected[0]) @ np.abs(expected[1])
    self.assertTrue((np.abs(y_MN - exact_MN) <= 1e-6 * size_MN).all())
    np.testing.assert_array_equal(y_MN[3], 0)

  def test_a_nan_is_not_hidden(self):
    x_MK, w_KN = matrices()
    x_MK[9, 2] = np.nan
    y_MN = tpu_coarse_fp8.forward(
      tpu_coarse_fp8.quantize(jnp.asarray(x_MK), 1, interpret=True),
      tpu_coarse_fp8.quantize(jnp.asarray(w_KN), 0, interpret=True),
      interpret=True,
    )
    rows = np.nonzero(np.isnan(y_MN).any(1))[0].tolist()
    self.assertEqual(rows, [9])

  def test_what_is_not_taken_is_refused(self):
    with self.assertRaisesRegex(ValueError, r'\(128, 100\).*128'):
      tpu_coarse_fp8.quantize(jnp.zeros((128, 100)), 1)
    with self.assertRaisesRegex(ValueError, '16512 summed'):
      tpu_coarse_fp8.quantize(jnp.zeros((128, 16512)), 1)
    by_row = tpu_coarse_fp8.quantize(jnp.ones((128, 128)), 1, interpret=True)
    with self.assertRaisesRegex(ValueError, 'not both quantised along K'):
      tpu_coarse_fp8.forward(by_row, by_row)


if __name__ == '__main__':
  absltest.main()
