from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.model import config as model_config
from composer_jax.pallas_kernels import implementations
from composer_jax.pallas_kernels import xla


class ChoiceTest(parameterized.TestCase):
  def test_a_cpu_takes_xla_and_says_so_once(self):
    implementations._automatic.cache_clear()
    with self.assertLogs(level='INFO') as logged:
      self.assertIs(implementations.choose('mxfp8'), xla)
      self.assertIs(implementations.choose('mxfp8'), xla)
    self.assertLen(logged.output, 1)
    self.assertIn('mxfp8: implementation xla', logged.output[0])

  @parameterized.parameters(
    ('mxfp4', 'auto', 'precision=.mxfp4. must be one of float32, '),
    ('mxfp8', 'cuda', 'implementation=.cuda. must be one of auto, xla'),
  )
  def test_an_unknown_name_is_refused_with_those_there_are(
    self, precision, implementation, message
  ):
    with self.assertRaisesRegex(ValueError, message):
      implementations.choose(precision, implementation)
    with self.assertRaisesRegex(ValueError, message):
      model_config.ModelConfig(
        precision=precision, implementation=implementation
      )


if __name__ == '__main__':
  absltest.main()
