import types

from absl.testing import absltest
import jax
import jax.numpy as jnp

from benchmarks import verify
from composer_jax.pallas_kernels import xla

SIZE = verify.Size(blocks=4, experts=3, k=128, f=64)


def broken(**functions):
  """xla with some functions replaced."""
  return types.SimpleNamespace(**{**vars(xla), **functions})


class ErrorsTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.inputs = verify.draw(SIZE, seed=0)

  def test_what_is_right_has_no_error(self):
    found = verify.errors(xla, self.inputs)
    self.assertLen(found, 8)
    for name, error in found.items():
      self.assertLess(error, 1e-6, name)

  def test_a_wrong_function_is_seen(self):
    def half(function):
      return lambda *args: jax.tree.map(
        lambda x: (x / 2).astype(x.dtype) if x.dtype != jnp.uint8 else x,
        function(*args),
      )

    for name, wrong in {
      'weight_grad': 'weight_grad',
      'swiglu_grad': 'grad of x',
      'quantize': 'grad of gate',
    }.items():
      made_by = broken(**{name: half(vars(xla)[name])})
      found = verify.errors(made_by, self.inputs)
      self.assertGreater(found[wrong], 0.1, name)

  def test_nan_is_no_success(self):
    made_by = broken(forward=lambda *args: jnp.nan * xla.forward(*args))
    found = verify.errors(made_by, self.inputs)
    self.assertFalse(found['forward'] < 1)

  def test_an_expert_is_idle(self):
    self.assertNotIn(SIZE.experts - 2, self.inputs.expert_of_block)


class SpeedTest(absltest.TestCase):
  def test_everything_is_timed(self):
    inputs = verify.draw(SIZE, seed=0)
    found = verify.speeds(xla, inputs)
    self.assertLen(found, 8)
    self.assertContainsSubset({'bfloat16 matmul', 'copy'}, found)


if __name__ == '__main__':
  absltest.main()
