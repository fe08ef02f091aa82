import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from composer_jax.checkpoint import weights as weights_lib
from composer_jax.model import serving
from composer_jax.model import transformer
from composer_jax.pallas_kernels import implementations
from composer_jax.pallas_kernels import mx
from tests import fakes


def model(precision):
  return dataclasses.replace(fakes.MODEL, precision=precision)


def logits(params, config):
  token_BT = jnp.array([[3, 4, 5, 3, 4]])
  return jax.jit(
    lambda p: (
      transformer.forward(
        p,
        token_BT,
        jnp.ones_like(token_BT),
        jnp.arange(5)[None],
        config=config,
      ).logits_BTV
    )
  )(params)


class ServingTest(parameterized.TestCase):
  @parameterized.parameters(*implementations.PRECISIONS)
  def test_the_same_numbers_come_out_of_what_is_shipped(self, precision):
    config, params = model(precision), fakes.params(0)
    unpacked = serving.unpack(serving.ship(params, config), config)
    np.testing.assert_allclose(
      logits(unpacked, config), logits(params, config), atol=1e-6
    )

  @parameterized.parameters(*implementations.PRECISIONS)
  def test_survives_the_way_through_a_checkpoint(self, precision):
    shipped = serving.ship(fakes.params(0), model(precision))
    directory = self.create_tempdir().full_path
    weights_lib.Publisher(directory).publish(1, shipped)
    like = jax.eval_shape(lambda: shipped)
    loaded = weights_lib.load(directory, 1, like).params
    for found, wanted in zip(
      jax.tree.leaves(loaded), jax.tree.leaves(shipped), strict=True
    ):
      self.assertEqual(found.dtype, wanted.dtype)
      self.assertEqual(
        np.asarray(found).tobytes(), np.asarray(wanted).tobytes()
      )

  def test_matrices_ship_in_the_format_and_the_rest_as_it_is(self):
    params = fakes.params(0)
    shipped = serving.ship(params, model('mxfp8'))
    layer = shipped['layers'][0]
    kinds = {k for k, v in layer.items() if isinstance(v, mx.Quantized)}
    self.assertEqual(
      kinds,
      {'query_DHC', 'key_DKC', 'value_DKC', 'output_HCD'}
      | {'gate_EDF', 'up_EDF', 'down_EFD'},
    )
    self.assertEqual(layer['gate_EDF'].elements.dtype, jnp.float8_e4m3fn)
    self.assertEqual(layer['gate_EDF'].scales.dtype, jnp.uint8)
    for name in layer.keys() - kinds:
      np.testing.assert_array_equal(layer[name], params['layers'][0][name])
    np.testing.assert_array_equal(shipped['embed_VD'], params['embed_VD'])


if __name__ == '__main__':
  absltest.main()
