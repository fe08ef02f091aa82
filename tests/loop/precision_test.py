import dataclasses
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.loop import config as config_lib
from composer_jax.loop import precision
from composer_jax.pallas_kernels import implementations
from composer_jax.pallas_kernels import plain
from tests import fakes


def config(name, **sizes):
  model = dataclasses.replace(fakes.MODEL, precision=name, **sizes)
  return config_lib.Config(name='toy', model=model)


class PrecisionTest(parameterized.TestCase):
  @parameterized.parameters('bfloat16', 'mxfp8')
  def test_every_product_of_experts_and_projections_has_it(self, name):
    # Two layers with seven products; a gradient has each three times.
    line = precision.check(config(name))
    self.assertStartsWith(line, f'Products in {name} (xla): 42 of ')
    self.assertEqual(line.count(' 14 of '), 2)

  @parameterized.parameters(
    ('float32', plain.BFLOAT16, 16),
    ('mxfp8', plain.BFLOAT16, 24),
    ('mxfp8', plain.FLOAT32, 40),
    ('bfloat16', plain.FLOAT32, 56),
  )
  def test_another_one_that_ran_instead_is_an_error(self, name, ran, width):
    self.enter_context(
      mock.patch.object(implementations, 'choose', lambda *_: ran)
    )
    with self.assertRaisesRegex(
      RuntimeError, f'model.precision={name}: a training step has'
    ):
      # A size of its own: what jit has traced once, it does not trace again.
      precision.check(config(name, expert_width=width))


if __name__ == '__main__':
  absltest.main()
