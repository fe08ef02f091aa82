from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from composer_jax.pallas_kernels import mx
from tests.pallas_kernels import mx_numpy

try:
  import torch
  from torchao.prototype.mx_formats import mx_tensor
except ImportError:
  torch = None

LARGEST = mx_numpy.LARGEST
ONE_ULP = (-1, 0, 1)


def nudged(x, ulps):
  """x moved by some units in the last place."""
  bits = np.asarray(x, np.float32).view(np.int32) + ulps
  return bits.view(np.float32)


def blocks_of(amaxes, rng):
  """A block of smaller numbers for each absolute maximum."""
  amaxes = np.asarray(amaxes, np.float32)
  shares = rng.uniform(-1, 1, (len(amaxes), 32)).astype(np.float32)
  blocks = shares * amaxes[:, None]
  blocks[:, 7] = amaxes
  return blocks


def powers_of_two(factor=1.0):
  """factor * 2^k for all k at which it is a normal number, +- 1 ulp."""
  k = np.arange(-126, 128)
  with np.errstate(over='ignore'):
    base = np.float32(factor) * np.exp2(k.astype(np.float64))
  base = base[(base >= 2.0**-125) & (base < 2.0**127.9)].astype(np.float32)
  return np.concatenate([nudged(base, ulps) for ulps in ONE_ULP])


def inputs(element):
  rng = np.random.default_rng(0)
  special = np.zeros((7, 32), np.float32)
  special[1] = -0.0
  special[2, 3] = np.inf
  special[3, 5] = -np.inf
  special[4, 9] = np.nan
  special[5, 1:3] = np.inf, np.nan
  special[6] = rng.normal(size=32)
  special[2:6, 20:] = rng.normal(size=(4, 12))
  return {
    'random': rng.normal(size=(64, 32)),
    'log_scaled': rng.normal(size=(256, 32))
    * np.exp2(rng.uniform(-126, 120, (256, 1))),
    'within_a_block': np.exp2(rng.uniform(-30, 5, (64, 32))),
    'denormal': rng.uniform(-1, 1, (16, 32)) * 2.0**-126,
    'partly_denormal': rng.uniform(-1, 1, (64, 32))
    * np.exp2(rng.uniform(-135, -110, (64, 32))),
    'special': special,
    'powers': blocks_of(powers_of_two(), rng),
    'largest': blocks_of(powers_of_two(LARGEST[element]), rng),
  }


def bits(elements):
  """Bit patterns; every NaN is the same."""
  elements = np.asarray(elements)
  nan = np.isnan(elements.astype(np.float32))
  return np.where(nan, 0xFF, elements.view(np.uint8))


CASES = parameterized.product(
  kind=tuple(inputs('e4m3')),
  element=tuple(mx.ELEMENTS),
  rounding=mx.ROUNDINGS,
)


class GoldenTest(parameterized.TestCase):
  @CASES
  def test_equals_numpy_bit_by_bit(self, kind, element, rounding):
    x = mx_numpy.flush(inputs(element)[kind])
    quantize = jax.jit(
      lambda x: mx.quantize(x, element=element, rounding=rounding)
    )
    elements, scales = quantize(x)
    expected, expected_scales = mx_numpy.quantize(x, element, rounding)
    np.testing.assert_array_equal(scales, expected_scales)
    np.testing.assert_array_equal(bits(elements), bits(expected))
    self.assertEqual(elements.dtype, expected.dtype)
    self.assertEqual(scales.dtype, np.uint8)
    np.testing.assert_array_equal(
      mx_numpy.flush(jax.jit(mx.dequantize)(elements, scales)),
      mx_numpy.flush(mx_numpy.dequantize(expected, expected_scales)),
    )

  @parameterized.product(kind=tuple(inputs('e4m3')), axis=[0, 1])
  def test_the_way_there_and_back_is_that_through_8_bits(self, kind, axis):
    x = jnp.asarray(inputs('e4m3')[kind], jnp.float32)
    x = jnp.pad(x, ((0, -len(x) % 32), (0, 0)))
    quantized = mx.quantize(x, axis)
    wanted = mx.dequantize(*quantized, axis)
    found = mx.mx_round_trip(x, quantized.scales, axis)
    np.testing.assert_array_equal(found, wanted + 0.0)  # -0 loses its sign.

  def test_by_hand(self):
    x = np.zeros(64, np.float32)
    x[:4] = 448.0, 1.0, 0.3, -(2.0**-10)
    x[32:36] = 449.0, 1.0, -500.0, 2.0**-9
    elements, scales = mx.quantize(jnp.asarray(x))
    self.assertEqual(scales.tolist(), [127, 128])  # 1 and 2.
    shown = np.asarray(elements).astype(np.float32)
    # 2^-10 lies half-way between 0 and the smallest number, 2^-9: to even.
    self.assertEqual(shown[:4].tolist(), [448.0, 1.0, 0.3125, -0.0])
    # Divided by 2: 224.5, 0.5, -250, 2^-10.
    self.assertEqual(shown[32:36].tolist(), [224.0, 0.5, -256.0, 0.0])
    np.testing.assert_array_equal(
      mx.dequantize(elements, scales)[32:35], [448.0, 1.0, -512.0]
    )

  @parameterized.parameters('e4m3', 'e5m2')
  def test_rceil_is_the_smallest_scale_at_which_nothing_saturates(
    self, element
  ):
    x = blocks_of(powers_of_two(LARGEST[element]), np.random.default_rng(1))
    amax = np.abs(x).max(1).astype(np.float64)
    _, scales = mx.quantize(jnp.asarray(x), element=element)
    power = np.exp2(np.asarray(scales)[:, 0].astype(np.float64) - 127)
    inside = np.asarray(scales)[:, 0] > 0
    self.assertTrue((amax <= LARGEST[element] * power).all())
    self.assertTrue((amax > LARGEST[element] * power / 2)[inside].all())


class AxisTest(parameterized.TestCase):
  @parameterized.parameters(0, 1, 2, -1, -2, -3)
  def test_any_axis_is_the_last_one_turned(self, axis):
    x = np.random.default_rng(0).normal(size=(64, 96, 32)).astype(np.float32)
    elements, scales = mx.quantize(jnp.asarray(x), axis)
    turned = mx.quantize(jnp.moveaxis(x, axis, -1))
    np.testing.assert_array_equal(
      bits(jnp.moveaxis(elements, axis, -1)), bits(turned[0])
    )
    np.testing.assert_array_equal(jnp.moveaxis(scales, axis, -1), turned[1])
    back = mx.dequantize(elements, scales, axis)
    np.testing.assert_array_equal(
      jnp.moveaxis(back, axis, -1), mx.dequantize(*turned)
    )

  def test_what_was_quantised_stays(self):
    x = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    once = mx.dequantize(*mx.quantize(jnp.asarray(x)))
    np.testing.assert_array_equal(mx.dequantize(*mx.quantize(once)), once)

  def test_the_error_is_that_of_three_bits(self):
    x = np.random.default_rng(0).uniform(0.25, 1, (64, 32)).astype(np.float32)
    back = mx.dequantize(*mx.quantize(jnp.asarray(x)))
    self.assertLessEqual(np.abs(back / x - 1).max(), 2.0**-4)


class RefusalTest(absltest.TestCase):
  def test_a_ragged_axis(self):
    with self.assertRaisesRegex(ValueError, r'axis 0 .*\(40, 64\).*32: pad it'):
      mx.quantize(jnp.zeros((40, 64)), 0)

  def test_integers(self):
    with self.assertRaisesRegex(ValueError, 'int32'):
      mx.quantize(jnp.zeros(32, jnp.int32))

  def test_unknown_names(self):
    with self.assertRaisesRegex(ValueError, "element='e3m4'.*e4m3, e5m2"):
      mx.quantize(jnp.zeros(32), element='e3m4')
    with self.assertRaisesRegex(ValueError, "rounding='up'.*rceil, floor"):
      mx.quantize(jnp.zeros(32), rounding='up')


class TorchaoTest(absltest.TestCase):
  def test_the_scales_are_those_of_torchao_but_for_one_ulp(self):
    if torch is None:
      self.skipTest('torchao is not installed')
    x = blocks_of(powers_of_two(448.0), np.random.default_rng(2))
    x = mx_numpy.flush(x)
    for rounding in mx.ROUNDINGS:
      scales, elements = mx_tensor.to_mx(
        torch.from_numpy(x),
        torch.float8_e4m3fn,
        32,
        mx_tensor.ScaleCalculationMode[rounding.upper()],
      )
      ours, our_scales = mx.quantize(jnp.asarray(x), rounding=rounding)
      same = (np.asarray(our_scales) == scales.view(torch.uint8).numpy())[:, 0]
      # Its eager `ceil(log2)` is one too low right above 448 * 2^k.
      mantissa, _ = np.frexp(nudged(np.abs(x).max(1), -1) / 448)
      self.assertTrue(
        (same | ((mantissa == 0.5) & (rounding == 'rceil'))).all()
      )
      self.assertGreater(same.mean(), 0.6)
      np.testing.assert_array_equal(
        bits(ours)[same], elements.view(torch.uint8).numpy()[same]
      )


if __name__ == '__main__':
  absltest.main()
