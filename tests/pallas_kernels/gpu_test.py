"""The GPU kernels under the interpreters, which need no GPU.

Triton's interpreter runs everywhere, that of Mosaic GPU from jax 0.11 on; it
also looks for races and fills memory with NaN. What neither can show, that the
kernels compile for a GPU, is seen to in tests_aot/cuda.
"""

import inspect
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.experimental.pallas import mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np

from composer_jax.pallas_kernels import b200
from composer_jax.pallas_kernels import gpu_blackwell
from composer_jax.pallas_kernels import gpu_hopper
from composer_jax.pallas_kernels import h200
from composer_jax.pallas_kernels import mx
from composer_jax.pallas_kernels import xla
from tests.pallas_kernels import mx_numpy
from tests.pallas_kernels import mx_test

try:
  MOSAIC = plgpu.InterpretGPUParams(
    detect_races=True, uninitialized_memory='nan'
  )
except AttributeError:
  MOSAIC = None

M = 128
# (experts, which of them each block belongs to, (K, N), SMs). One expert is
# idle, and tiles of the result are wide; one has every block, and the SM goes
# through its slots more than once; a dense product is that with one expert.
CASES = (
  (3, (0, 0, 2), (128, 256), 2),
  (3, (1, 1, 1), (128, 384), 1),
  (1, (0,), (256, 128), 1),
)


def numbers(*shape, seed=0):
  """Normal numbers of a size that differs from row to row."""
  rng = np.random.default_rng(seed)
  spread = np.exp2(rng.integers(-6, 6, (*shape[:-1], 1)))
  return jnp.asarray(rng.normal(size=shape) * spread, jnp.float32)


def special():
  """(1, 512, 128) with the golden test's blocks along the last axis."""
  blocks = np.concatenate([*mx_test.inputs('e4m3').values()])
  x = np.zeros((2048, 32), np.float32)
  x[: len(blocks)] = mx_numpy.flush(blocks)[: len(x)]
  return x.reshape(1, 512, 128)


def packed(scales, axis):
  """Scales in the order of the Blackwell tensor core, by the formula."""
  if axis == 1:
    scales = scales.swapaxes(1, 2)
  matrices, rows, blocks = scales.shape
  tiles = scales.reshape(matrices, rows // 128, 4, 32, blocks // 4, 4)
  tiles = tiles.transpose(0, 1, 4, 3, 2, 5)
  return tiles.reshape(matrices, rows // 128, blocks // 4, 32, 16)


def unpacked(tiles):
  """A factor for each element, (rows, contracted), from (., ., 32, 16)."""
  rows, blocks = tiles.shape[:2]
  scales = tiles.astype(jnp.float32).reshape(rows, blocks, 32, 4, 4)
  scales = scales.transpose(0, 3, 2, 1, 4).reshape(128 * rows, 4 * blocks)
  return jnp.repeat(scales, 32, axis=1)


def error(actual, expected):
  return np.linalg.norm(actual - expected) / np.linalg.norm(expected)


class QuantizeTest(parameterized.TestCase):
  @parameterized.parameters(1, 2)
  def test_blocks_are_the_golden_ones_bit_by_bit(self, axis):
    x = special()
    elements, scales = mx_numpy.quantize(x)
    if axis == 1:
      x, elements, scales = (a.swapaxes(1, 2) for a in (x, elements, scales))
    actual = h200.quantize(jnp.asarray(x), axis, interpret=True)
    np.testing.assert_array_equal(actual.scales, scales)
    np.testing.assert_array_equal(
      mx_test.bits(actual.elements), mx_test.bits(elements)
    )
    wide = xla.reopen(actual, axis).astype(jnp.float32)
    for opened_again in (
      h200.operand(jnp.asarray(x), axis, interpret=True),
      h200.reopen(actual, axis, interpret=True),
    ):
      self.assertEqual(opened_again.dtype, jnp.bfloat16)
      np.testing.assert_array_equal(opened_again.astype(jnp.float32), wide)
    operand = b200.operand(jnp.asarray(x), axis, interpret=True)
    np.testing.assert_array_equal(operand.scales, packed(scales, axis))
    np.testing.assert_array_equal(
      mx_test.bits(operand.elements), mx_test.bits(elements)
    )

  @parameterized.parameters(1, 2)
  def test_what_others_quantised_is_packed_as_its_own(self, axis):
    x = numbers(2, 256, 128)
    found = b200.unpack(mx.quantize(x, axis), axis)
    wanted = b200.operand(x, axis, interpret=True)
    np.testing.assert_array_equal(found.scales, wanted.scales)
    np.testing.assert_array_equal(
      found.elements.view(jnp.uint8), wanted.elements.view(jnp.uint8)
    )

  @parameterized.parameters((2, 32, 96, 1), (3, 5, 32, 2), (1, 160, 64, 2))
  def test_sizes_that_no_large_tile_divides(self, *case):
    *shape, axis = case
    x = numbers(*shape)
    actual = h200.quantize(x, axis, interpret=True)
    expected = mx.quantize(x, axis)
    np.testing.assert_array_equal(actual.scales, expected.scales)
    np.testing.assert_array_equal(
      mx_test.bits(actual.elements), mx_test.bits(expected.elements)
    )

  def test_bfloat16_is_taken(self):
    x = numbers(1, 32, 32).astype(jnp.bfloat16)
    np.testing.assert_array_equal(
      h200.operand(x, 2, interpret=True), xla.operand(x, 2)
    )


class SwigluTest(parameterized.TestCase):
  def inputs(self):
    gate = numbers(2, M, 128).at[0, 3, 5].set(jnp.nan).at[1, :32].set(0)
    return gate, numbers(2, M, 128, seed=1), numbers(2, M, 128, seed=2)

  def assert_operand(self, actual, expected, axis):
    """That it is the bfloat16 operand but for the last bits of exp."""
    if isinstance(actual, gpu_blackwell.Operand):
      actual = jnp.stack(
        [opened(*matrix, axis) for matrix in zip(*actual, strict=True)]
      )
    elif isinstance(actual, mx.Quantized):
      actual = xla.reopen(actual, axis)
    if isinstance(expected, mx.Quantized):
      expected = xla.reopen(expected, axis)
    actual, expected = (np.asarray(x, np.float32) for x in (actual, expected))
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    self.assertGreater(np.mean((actual == expected) | np.isnan(actual)), 0.999)
    np.testing.assert_allclose(actual, expected, rtol=1 / 8)

  @parameterized.parameters(h200, b200)
  def test_unit_is_that_of_xla(self, implementation):
    gate, up, _ = self.inputs()
    actual = implementation.swiglu(gate, up, interpret=True)
    expected = jax.jit(xla.swiglu)(gate, up)
    self.assert_operand(actual.operand_BMF, expected.operand_BMF, 2)
    self.assert_operand(actual.kept_BMF, expected.kept_BMF, 1)
    for name in ('gate_BMF', 'up_BMF'):
      self.assertIsInstance(getattr(actual, name), mx.Quantized)
      self.assert_operand(getattr(actual, name), getattr(expected, name), 2)

  @parameterized.parameters(h200, b200)
  def test_gradient_is_that_of_xla(self, implementation):
    gate, up, grad = self.inputs()
    quantize = jax.jit(lambda x: mx.quantize(x, 2))
    kept = quantize(gate), quantize(up)
    actual = implementation.swiglu_grad(grad, *kept, interpret=True)
    expected = jax.jit(xla.swiglu_grad)(grad, *kept)
    for name, axis in (
      ('gate_BMF', 2),
      ('up_BMF', 2),
      ('gate_rows_BMF', 1),
      ('up_rows_BMF', 1),
    ):
      self.assert_operand(getattr(actual, name), getattr(expected, name), axis)


def opened(elements, scales, axis):
  """The numbers of a matrix of a Blackwell operand."""
  power = jax.lax.bitcast_convert_type(scales, jnp.float8_e8m0fnu)
  power = unpacked(power)
  return elements.astype(jnp.float32) * (power if axis == 2 else power.T)


def products(module, operand, experts, layout, shape, **options):
  """The three products of numbers that only depend on the layout and shape."""
  (k, n), blocks = shape, len(layout)
  x, w = numbers(blocks, M, k), numbers(experts, k, n)
  grad = numbers(blocks, M, n)
  of_block = jnp.asarray(layout)
  operand = jax.jit(operand, static_argnums=1)

  @jax.jit
  def run(along_k, along_n, along_m):
    return (
      module.forward(*along_k, of_block, **options),
      module.input_grad(*along_n, of_block, **options),
      module.weight_grad(*along_m, of_block, experts, **options),
    )

  return run(
    (operand(x, 2), operand(w, 1)),
    (operand(grad, 2), operand(w, 2)),
    (operand(x, 1), operand(grad, 1)),
  )


class TensorCore:
  """Stands in for the block-scaled multiplication, which has no interpreter.

  It takes the same slices from shared memory, unpacks the scales and leaves
  and frees what the tensor core would.
  """

  def __init__(self):
    self._scales = {}

  def copy_scales(self, shared, tensor_memory):
    self._scales[id(tensor_memory)] = shared

  def multiply(self, acc, a, b, barrier, *, a_scale, b_scale, accumulate):
    a_scales, b_scales = (
      unpacked(self._scales[id(x)][...]) for x in (a_scale, b_scale)
    )
    product = (a[...].astype(jnp.float32) * a_scales) @ (
      b[...].astype(jnp.float32) * b_scales.T
    )
    before = plgpu.async_load_tmem(acc)
    plgpu.wait_load_tmem()
    plgpu.async_store_tmem(acc, jnp.where(accumulate, before, 0.0) + product)
    plgpu.commit_tmem()
    plgpu.commit_smem()
    plgpu.tcgen05_commit_arrive(barrier)

  def installed(self):
    """A context in which it takes the tensor core's place."""
    return mock.patch.multiple(
      plgpu,
      async_copy_scales_to_tmem=self.copy_scales,
      tcgen05_mma=self.multiply,
    )


@absltest.skipIf(MOSAIC is None, 'jax before 0.11 cannot interpret Mosaic GPU')
class ProductTest(parameterized.TestCase):
  def assert_products(self, actual, experts, layout, shape):
    expected = products(xla, xla.operand, experts, layout, shape)
    for a, e in zip(actual, expected, strict=True):
      self.assertEqual((a.shape, a.dtype), (e.shape, jnp.float32))
      self.assertLess(error(a, e), 1e-6)
    idle = sorted(set(range(experts)) - set(layout))
    np.testing.assert_array_equal(np.asarray(actual[2])[idle], 0)

  @parameterized.parameters(*CASES)
  def test_hopper(self, experts, layout, shape, sms):
    case = experts, layout, shape
    actual = products(
      gpu_hopper, xla.operand, *case, num_sms=sms, interpret=MOSAIC
    )
    self.assert_products(actual, *case)

  @parameterized.parameters(*CASES)
  def test_blackwell(self, experts, layout, shape, sms):
    case = experts, layout, shape

    def operand(x, axis):
      elements, scales = mx.quantize(x, axis)
      return gpu_blackwell.Operand(elements, packed(scales, axis))

    with TensorCore().installed():
      actual = products(
        gpu_blackwell, operand, *case, num_sms=sms, interpret=MOSAIC
      )
    self.assert_products(actual, *case)


class InterfaceTest(parameterized.TestCase):
  @parameterized.parameters(h200, b200)
  def test_functions_and_arguments_are_those_of_xla(self, implementation):
    for name, function in inspect.getmembers(xla, inspect.isfunction):
      if name.startswith('_') or function.__module__ != xla.__name__:
        continue
      expected = [*inspect.signature(function).parameters]
      offered = inspect.signature(getattr(implementation, name)).parameters
      self.assertEqual([*offered], [*expected, 'interpret'], name)
      self.assertFalse(offered['interpret'].default)


class RefusalTest(parameterized.TestCase):
  @parameterized.parameters(h200, b200)
  def test_where_there_is_no_such_gpu(self, implementation):
    x = jnp.zeros((1, M, 128))
    of_block = jnp.zeros(1, jnp.int32)
    kept = mx.quantize(x, 2)
    for run in (
      lambda: implementation.quantize(x, 2),
      lambda: implementation.operand(x, 2),
      lambda: implementation.swiglu(x, x),
      lambda: implementation.swiglu_grad(x, kept, kept),
      lambda: implementation.forward(x, x, of_block),
      lambda: implementation.input_grad(x, x, of_block),
      lambda: implementation.weight_grad(x, x, of_block, 1),
    ):
      with self.assertRaisesRegex(
        RuntimeError, f"{implementation.TARGET.name[:4]}.* is 'cpu'.*xla"
      ):
        run()

  @parameterized.parameters(
    ((2, 64, 128), (1, 128, 128), 'blocks have 64 rows.*128'),
    ((2, 128, 96), (1, 96, 128), 'k=96 is no multiple of 128: pad'),
    ((2, 128, 128), (1, 128, 192), 'n=192 is no multiple of 128: pad'),
    ((2, 128, 128), (1, 256, 128), r'differ in k: 128 and \[256\]'),
  )
  def test_shapes_that_are_not_cut_into_tiles(self, x, w, message):
    of_block = jnp.zeros(2, jnp.int32)
    with self.assertRaisesRegex(ValueError, message):
      h200.forward(jnp.zeros(x), jnp.zeros(w), of_block, interpret=True)

  def test_what_is_no_operand(self):
    of_block = jnp.zeros(1, jnp.int32)
    x = jnp.zeros((1, M, 256))
    with self.assertRaisesRegex(ValueError, 'float32 is no operand'):
      h200.weight_grad(x, x, of_block, 1, interpret=True)
    along_2 = b200.operand(x, 2, interpret=True)
    with self.assertRaisesRegex(ValueError, r'\(1, 1, 2, .* along axis 1'):
      b200.weight_grad(along_2, along_2, of_block, 1, interpret=True)

  def test_axes_that_have_no_whole_blocks(self):
    x = jnp.zeros((1, 40, 128))
    with self.assertRaisesRegex(ValueError, r'axis 1 .*40.* of 32: pad'):
      h200.quantize(x, 1, interpret=True)
    with self.assertRaisesRegex(ValueError, r'axis 2 .*40.* of 128: pad'):
      b200.operand(x, 2, interpret=True)


if __name__ == '__main__':
  absltest.main()
