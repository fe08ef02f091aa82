"""Every TPU kernel compiled in full for its chip, on a machine without one."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp

from benchmarks import tpu_aot
from composer_jax.pallas_kernels import mx
from composer_jax.pallas_kernels import tpu

CHIPS = tuple(tpu_aot.TOPOLOGIES)

# Bundles executed, as shares of those of a plain bfloat16 product of 4096^3:
# a little above what was counted with libtpu 0.0.52.
BUDGETS = {
  'v5e': {
    'mx_operand_1': 0.085,
    'mx_quantize_1': 0.105,
    'mx_reopen_1': 0.062,
    'mx_operand_2': 0.115,
    'mx_quantize_2': 0.125,
    'mx_reopen_2': 0.09,
    'mx_forward': 1.15,
    'mx_forward, mixed': 1.2,
    'mx_input_grad': 1.05,
    'mx_input_grad, mixed': 1.1,
    'mx_weight_grad': 1.35,
    'mx_weight_grad, mixed': 1.35,
    'mx_swiglu': 0.5,
    'mx_swiglu_grad': 0.6,
  },
  'v6e': {
    'mx_operand_1': 0.26,
    'mx_quantize_1': 0.30,
    'mx_reopen_1': 0.185,
    'mx_operand_2': 0.30,
    'mx_quantize_2': 0.30,
    'mx_reopen_2': 0.225,
    'mx_forward': 1.05,
    'mx_forward, mixed': 1.4,
    'mx_input_grad': 1.05,
    'mx_input_grad, mixed': 1.7,
    'mx_weight_grad': 1.35,
    'mx_weight_grad, mixed': 2.7,
    'mx_swiglu': 1.25,
    'mx_swiglu_grad': 1.55,
  },
  'v7x': {
    'mx_operand_1': 0.56,
    'mx_quantize_1': 0.66,
    'mx_reopen_1': 0.2,
    'mx_operand_2': 0.65,
    'mx_quantize_2': 0.66,
    'mx_reopen_2': 0.28,
    'mx_forward': 1.1,
    'mx_forward, mixed': 2.3,
    'mx_input_grad': 1.6,
    'mx_input_grad, mixed': 3.3,
    'mx_weight_grad': 2.15,
    'mx_weight_grad, mixed': 5.4,
    'mx_swiglu': 2.7,
    'mx_swiglu_grad': 2.9,
    'coarse_quantize_0': 0.4,
    'coarse_quantize_1': 0.52,
    'coarse_forward': 0.6,
  },
}


@functools.cache
def reports(chip):
  return tpu_aot.reports((chip,))


class BudgetTest(parameterized.TestCase):
  @parameterized.parameters(*CHIPS)
  def test_no_kernel_exceeds_its_bundles(self, chip):
    counted = {r.name: r.ratio for r in reports(chip)}
    self.assertEqual(counted.pop(tpu_aot.PLAIN), 1)
    self.assertEqual(set(counted), set(BUDGETS[chip]))
    for name, ratio in counted.items():
      budget = BUDGETS[chip][name]
      self.assertLessEqual(ratio, budget, name)
      # A budget that is far off protects nothing, or the count is wrong.
      self.assertGreaterEqual(ratio, 0.8 * budget, name)

  def test_the_table_has_a_line_for_each(self):
    found = reports('v6e')
    self.assertLen(tpu_aot.table(found).splitlines(), 1 + len(found))


def shaped(*shape, dtype=jnp.bfloat16):
  return jax.ShapeDtypeStruct(shape, dtype)


class CompiledTest(parameterized.TestCase):
  """Shapes that the budgets do not have."""

  @parameterized.parameters(*CHIPS)
  def test_products(self, chip):
    for blocks, m, k, n, experts in (
      (11, 128, 1024, 640, 8),
      (6, 32, 128, 256, 4),
      (9, 64, 8192, 384, 1),
    ):
      x, grad = shaped(blocks, m, k), shaped(blocks, m, n)
      w, at = shaped(experts, k, n), shaped(blocks, dtype=jnp.int32)
      for name, run, given in (
        ('mx_forward', tpu.forward, (x, w, at)),
        ('mx_input_grad', tpu.input_grad, (grad, w, at)),
        (
          'mx_weight_grad',
          lambda x, grad, at, experts=experts: tpu.weight_grad(
            x, grad, at, experts
          ),
          (x, grad, at),
        ),
      ):
        self.compile(run, given, chip, name)

  @parameterized.product(chip=CHIPS, axis=(1, 2))
  def test_quantisers(self, chip, axis):
    for shape in ((3, 96, 128), (1, 2080, 640), (2, 32, 8192)):
      for dtype in (jnp.float32, jnp.bfloat16):
        x = shaped(*shape, dtype=dtype)
        for name in ('quantize', 'operand'):
          run = functools.partial(self.on_axis, getattr(tpu, name), axis)
          self.compile(run, (x,), chip, f'mx_{name}_{axis}')
      kept = jax.eval_shape(lambda x: mx.quantize(x, axis), x)
      run = functools.partial(self.on_axis, tpu.reopen, axis)
      self.compile(run, (kept,), chip, f'mx_reopen_{axis}')

  @parameterized.parameters(*CHIPS)
  def test_the_gated_unit(self, chip):
    for shape in ((2, 128, 640), (3, 32, 128), (2, 128, 14336)):
      x = shaped(*shape, dtype=jnp.float32)
      kept = jax.eval_shape(lambda x: mx.quantize(x, 2), x)
      self.compile(tpu.swiglu, (x, x), chip, 'mx_swiglu')
      self.compile(tpu.swiglu_grad, (x, kept, kept), chip, 'mx_swiglu_grad')

  def on_axis(self, run, axis, x):
    return run(x, axis)

  def compile(self, run, given, chip, name):
    text = tpu_aot.final_bundles(run, given, chip, name)
    self.assertIn('entry bundle', text)


if __name__ == '__main__':
  absltest.main()
