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
    self.assertIn('mxfp8 on cpu: implementation=xla', logged.output[0])

  @parameterized.parameters('tpu', 'h200', 'b200')
  def test_kernels_that_cannot_run_here_are_refused(self, implementation):
    with self.assertRaisesRegex(
      ValueError, f'implementation={implementation} needs a .* here is .cpu.'
    ):
      implementations.choose('mxfp8', implementation)

  @parameterized.parameters(
    ('float32', 'tpu'), ('float32', 'h200'), ('bfloat16', 'b200')
  )
  def test_a_precision_without_kernels_is_refused(
    self, precision, implementation
  ):
    with self.assertRaisesRegex(ValueError, f'has no {precision}: take one of'):
      implementations.choose(precision, implementation)

  @parameterized.parameters(
    ('TPU v6 lite', 'mxfp8', 'tpu'),
    ('TPU v6 lite', 'float32', 'xla'),
    ('NVIDIA H200', 'bfloat16', 'h200'),
    ('NVIDIA B200', 'mxfp8', 'b200'),
    ('NVIDIA B200', 'bfloat16', 'xla'),
    ('NVIDIA A100', 'mxfp8', 'xla'),
  )
  def test_auto_takes_the_kernels_of_the_machine(self, device, precision, name):
    self.assertEqual(implementations._automatic(precision, device), name)

  @parameterized.parameters(
    ('mxfp4', 'auto', 'precision=.mxfp4. must be one of float32, '),
    ('mxfp8', 'cuda', 'implementation=.cuda. must be one of auto, xla, tpu'),
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
