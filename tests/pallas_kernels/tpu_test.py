"""The TPU kernels, run by Pallas' interpreters and compared with `xla`."""

import contextlib
import functools
import io

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import numpy as np

from composer_jax.pallas_kernels import mx
from composer_jax.pallas_kernels import tpu
from composer_jax.pallas_kernels import xla
from tests.pallas_kernels import mx_numpy

# The second one simulates copies and their semaphores, and finds races. What
# was never written, and what lies beyond an array, is NaN to it.
INTERPRETERS = {
  'plain': True,
  'races': pltpu.InterpretParams(detect_races=True, uninitialized_memory='nan'),
}
INTERPRETED = tuple(INTERPRETERS)


def hard_blocks():
  """float32 of (blocks, 32): all that a quantiser can get wrong."""
  rng = np.random.default_rng(0)
  with np.errstate(over='ignore'):
    base = np.float32([1, 448]) * np.exp2(np.arange(-126, 128.0))[:, None]
  base = base[(base > 2.0**-125) & (base < 2.0**127.9)].astype(np.float32)
  largest = (base.view(np.int32)[:, None] + np.int32([-1, 0, 1])).view(
    np.float32
  )
  edges = rng.uniform(-1, 1, (largest.size, 32)) * largest.reshape(-1, 1)
  edges[:, 7] = largest.ravel()
  special = rng.normal(size=(8, 32))
  special[0] = 0
  special[1] = -0.0
  special[2, 3] = np.inf
  special[3, 5] = -np.inf
  special[4, 9] = np.nan
  special[5, 1:3] = np.inf, -np.nan
  special[6, 0] = np.finfo(np.float32).max
  special[7] *= 2.0**126
  special[7, 0] = np.inf
  spread = rng.uniform(-1, 1, (300, 32))
  spread *= np.exp2(rng.uniform(-135, -110, (300, 32)))
  inside = rng.normal(size=(150, 32)) * np.exp2(rng.uniform(-18, 4, (150, 32)))
  x = np.concatenate([edges, special, spread, inside]).astype(np.float32)
  return mx_numpy.flush(x)


def laid_out(blocks, axis):
  """The blocks in three axes, the last of which is 128 or more long."""
  blocks = blocks[: len(blocks) // 256 * 256]
  if axis == 1:
    return blocks.reshape(2, -1, 32).swapaxes(1, 2)
  return blocks.reshape(1, -1, 128)[:, :-32]  # Tiles hang over its end.


def bits(elements):
  """Bit patterns; every NaN is the same."""
  elements = np.asarray(elements)
  nan = np.isnan(elements.astype(np.float32))
  return np.where(nan, 0xFF, elements.view(np.uint8))


@functools.partial(jax.jit, static_argnums=(1, 2))
def rounded(x, axis, interpreter):
  """What is kept of x, its operand, and the operand from what is kept."""
  interpret = INTERPRETERS[interpreter]
  kept = tpu.quantize(x, axis, interpret=interpret)
  operand = tpu.operand(x, axis, interpret=interpret)
  return kept, operand, tpu.reopen(kept, axis, interpret=interpret)


def error(actual, expected):
  actual, expected = (np.asarray(x, np.float32) for x in (actual, expected))
  return np.linalg.norm(actual - expected) / np.linalg.norm(expected)


class InterpretedTest(parameterized.TestCase):
  """Fails where the interpreter reports a race: it only prints it."""

  def setUp(self):
    super().setUp()
    printed = io.StringIO()
    self.enter_context(contextlib.redirect_stdout(printed))
    self.addCleanup(
      lambda: self.assertNotIn('RACE DETECTED', printed.getvalue())
    )


class QuantizeTest(InterpretedTest):
  @parameterized.product(
    axis=(1, 2), given=(('float32', 'races'), ('bfloat16', 'plain'))
  )
  def test_equals_the_rules_bit_by_bit(self, axis, given):
    dtype, interpreter = given
    x = jnp.asarray(laid_out(hard_blocks(), axis), dtype)
    turned = mx_numpy.flush(np.moveaxis(np.asarray(x, np.float32), axis, -1))
    elements, scales = mx_numpy.quantize(turned)
    kept, operand, reopened = rounded(x, axis, interpreter)
    np.testing.assert_array_equal(
      np.moveaxis(np.asarray(kept.scales), axis, -1), scales
    )
    np.testing.assert_array_equal(
      np.moveaxis(bits(kept.elements), axis, -1), bits(elements)
    )
    expected = mx_numpy.flush(mx_numpy.dequantize(elements, scales))
    for actual in (operand, reopened):
      self.assertEqual(actual.dtype, jnp.bfloat16)
      actual = np.moveaxis(np.asarray(actual, np.float32), axis, -1)
      np.testing.assert_array_equal(mx_numpy.flush(actual), expected)

  @parameterized.parameters(((1, 1056, 128), 1), ((1, 160, 384), 2))
  def test_any_shape_that_is_taken(self, shape, axis):
    rng = np.random.default_rng(1)
    x = rng.normal(size=shape) * np.exp2(rng.integers(-9, 9, (*shape[:2], 1)))
    kept, operand, reopened = rounded(
      jnp.asarray(x, jnp.float32), axis, 'races'
    )
    expected = xla.quantize(jnp.asarray(x, jnp.float32), axis)
    np.testing.assert_array_equal(bits(kept.elements), bits(expected.elements))
    np.testing.assert_array_equal(kept.scales, expected.scales)
    np.testing.assert_array_equal(operand, xla.reopen(expected, axis))
    np.testing.assert_array_equal(reopened, operand)

  def test_what_is_not_taken_is_refused(self):
    for shape, axis, words in (
      ((1, 40, 128), 1, r'\(1, 40, 128\).*pad axis 1 .* 32'),
      ((1, 32, 96), 2, r'\(1, 32, 96\).*axis 2 to one of 128'),
      ((32, 128), 1, 'three axes'),
      ((1, 32, 128), 0, 'axis 0'),
      ((1, 32, 4096 * 4 + 128), 2, '16512 columns.*4096'),
    ):
      with self.assertRaisesRegex(ValueError, words):
        tpu.quantize(jnp.zeros(shape), axis)
    with self.assertRaisesRegex(ValueError, 'int32'):
      tpu.operand(jnp.zeros((1, 32, 128), jnp.int32), 1)
    kept = mx.Quantized(
      jnp.zeros((1, 32, 128), jnp.float8_e4m3fn), jnp.zeros((1, 32, 4))
    )
    with self.assertRaisesRegex(ValueError, r'uint8 scales of \(1, 1, 128\)'):
      tpu.reopen(kept, 1)


# Of 11 blocks with five experts; tiles are of 4 for rows and of 8 for weights.
PATTERNS = {
  'idle_between': (0, 0, 1, 1, 1, 1, 1, 1, 1, 3, 4),
  'all_to_one': (2,) * 11,
  'only_the_last': (0,) + (4,) * 10,
  'whole_tiles': (1,) * 4 + (3,) * 7,
}


def operands(pattern, sizes=(128, 128, 256), experts=5, seed=0):
  """x_BMK, w_EKN, grad_BMN and the experts of the blocks."""
  m, k, n = sizes
  rng = np.random.default_rng(seed)
  shapes = (len(pattern), m, k), (experts, k, n), (len(pattern), m, n)
  return (
    *(jnp.asarray(rng.normal(size=s), jnp.bfloat16) for s in shapes),
    jnp.asarray(pattern, jnp.int32),
  )


@functools.partial(jax.jit, static_argnums=4)
def products(x, w, grad, expert_of_block, interpreter):
  interpret, experts = INTERPRETERS.get(interpreter), w.shape[0]
  module = xla if interpret is None else tpu
  more = {} if interpret is None else {'interpret': interpret}
  return {
    'forward': module.forward(x, w, expert_of_block, **more),
    'input_grad': module.input_grad(grad, w, expert_of_block, **more),
    'weight_grad': module.weight_grad(
      x, grad, expert_of_block, experts, **more
    ),
  }


def check_products(test, x, w, grad, expert_of_block, interpreter):
  actual = products(x, w, grad, expert_of_block, interpreter)
  expected = products(x, w, grad, expert_of_block, 'xla')
  for name, value in actual.items():
    test.assertEqual(value.dtype, jnp.float32, name)
    test.assertEqual(value.shape, expected[name].shape, name)
    test.assertLess(error(value, expected[name]), 1e-6, name)
  if expert_of_block is not None:
    idle = np.setdiff1d(np.arange(w.shape[0]), expert_of_block)
    np.testing.assert_array_equal(actual['weight_grad'][idle], 0)


class ProductTest(InterpretedTest):
  @parameterized.product(pattern=tuple(PATTERNS), interpreter=INTERPRETED)
  def test_equals_xla_for_any_experts(self, pattern, interpreter):
    check_products(self, *operands(PATTERNS[pattern]), interpreter)

  @parameterized.parameters(
    (1, 128, 640, 128),  # 128 columns hang over a tile of 512.
    (1, 32, 8192, 128),  # K in two steps.
  )
  def test_a_dense_product(self, blocks, *sizes):
    given = operands((0,) * blocks, sizes, experts=1)
    check_products(self, *given, 'races')

  def test_without_experts_each_block_has_its_own_matrix(self):
    x, w, grad, _ = operands((0,) * 5)
    check_products(self, x, w, grad, None, 'plain')

  def test_what_is_not_finite_stays_with_its_expert(self):
    x, w, grad, expert_of_block = operands(PATTERNS['idle_between'])
    x = x.at[2, 3, 4].set(jnp.nan)
    actual = products(x, w, grad, expert_of_block, 'plain')
    rows = np.argwhere(np.isnan(actual['forward']).any(2)).tolist()
    self.assertEqual(rows, [[2, 3]])
    rows = np.argwhere(np.isnan(actual['weight_grad']).any(2)).tolist()
    self.assertEqual(rows, [[1, 4]])

  def test_what_is_not_taken_is_refused(self):
    x, w, grad, expert_of_block = operands((0, 1))
    with self.assertRaisesRegex(ValueError, r'\(2, 128, 128\) and \(5, 200'):
      tpu.forward(x, jnp.zeros((5, 200, 128), jnp.bfloat16), expert_of_block)
    with self.assertRaisesRegex(ValueError, 'bfloat16, not float32'):
      tpu.input_grad(grad.astype(jnp.float32), w, expert_of_block)
    with self.assertRaisesRegex(ValueError, '2 blocks.*experts for'):
      tpu.weight_grad(x, grad, expert_of_block[:1], 5)
    with self.assertRaisesRegex(ValueError, 'blocks of 40 rows'):
      tpu.forward(x[:, :40], w, expert_of_block)
    with self.assertRaisesRegex(ValueError, 'multiples of 128'):
      tpu.forward(x[:, :64, :64], w[:, :64], expert_of_block)
    with self.assertRaisesRegex(ValueError, 'summed axis'):
      tpu.forward(x, w.swapaxes(1, 2), expert_of_block)


@functools.partial(jax.jit, static_argnums=3)
def unit(gate, up, grad, interpret):
  """The gated unit and its gradient; those of `xla` without an interpreter."""
  if interpret is None:
    hidden = xla.swiglu(gate, up)
    return hidden, xla.swiglu_grad(grad, hidden.gate_BMF, hidden.up_BMF)
  hidden = tpu.swiglu(gate, up, interpret=interpret)
  return hidden, tpu.swiglu_grad(
    grad, hidden.gate_BMF, hidden.up_BMF, interpret=interpret
  )


class SwigluTest(InterpretedTest):
  @parameterized.parameters(
    ((2, 64, 384), 'float32', 'races'), ((1, 32, 128), 'bfloat16', 'plain')
  )
  def test_equals_xla_to_rounding(self, shape, dtype, interpreter):
    rng = np.random.default_rng(0)
    gate, up, grad = (
      jnp.asarray(rng.normal(size=shape) * 3, dtype) for _ in range(3)
    )
    gate = gate.at[0, :32, :64].set(0)
    actual, grads = unit(gate, up, grad, INTERPRETERS[interpreter])
    wide = (x.astype(jnp.float32) for x in (gate, up, grad))
    expected, expected_grads = unit(*wide, None)
    for kept, other in (
      (actual.gate_BMF, expected.gate_BMF),
      (actual.up_BMF, expected.up_BMF),
    ):
      np.testing.assert_array_equal(bits(kept.elements), bits(other.elements))
      np.testing.assert_array_equal(kept.scales, other.scales)
    pairs = [
      (actual.operand_BMF, expected.operand_BMF),
      (xla.reopen(actual.kept_BMF, 1), xla.reopen(expected.kept_BMF, 1)),
      *zip(grads, expected_grads, strict=True),
    ]
    for ours, theirs in pairs:
      self.assertEqual(ours.dtype, jnp.bfloat16)
      # An ulp before rounding may be a step of an element, but seldom is.
      self.assertLess(np.mean(np.asarray(ours != theirs)), 1e-4)
      self.assertLess(error(ours, theirs), 1e-3)

  def test_a_nan_is_not_hidden(self):
    gate = jnp.ones((1, 64, 256)).at[0, 40, 70].set(jnp.nan)
    hidden = tpu.swiglu(gate, gate, interpret=True)
    rows, columns = np.nonzero(np.isnan(hidden.operand_BMF[0]))
    self.assertEqual((set(rows), set(columns)), ({40}, set(range(64, 96))))
    rows, columns = np.nonzero(np.isnan(xla.reopen(hidden.kept_BMF, 1)[0]))
    self.assertEqual((set(rows), set(columns)), (set(range(32, 64)), {70}))

  def test_what_is_not_taken_is_refused(self):
    x = jnp.zeros((1, 256, 128))
    with self.assertRaisesRegex(ValueError, r'\(1, 256, 128\).*128 rows'):
      tpu.swiglu(x, x)
    with self.assertRaisesRegex(ValueError, 'differ'):
      tpu.swiglu(x[:, :128], x[:, :64])


if __name__ == '__main__':
  absltest.main()
