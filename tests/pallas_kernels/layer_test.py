"""The expert layer and a dense product on kernels, interpreted."""

import dataclasses
import functools
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from composer_jax.loop import config as config_lib
from composer_jax.loop import precision as loop_precision
from composer_jax.pallas_kernels import audit
from composer_jax.pallas_kernels import experts
from composer_jax.pallas_kernels import implementations
from composer_jax.pallas_kernels import matmul
from composer_jax.pallas_kernels import plain
from composer_jax.pallas_kernels import targets
from composer_jax.pallas_kernels import tpu
from composer_jax.pallas_kernels import xla
from tests import fakes
from tests.pallas_kernels import matmul_test

_FUNCTIONS = (
  'quantize',
  'reopen',
  'unpack',
  'operand',
  'forward',
  'input_grad',
  'weight_grad',
  'swiglu',
  'swiglu_grad',
)


def interpreted(module):
  """The module, its functions run by the interpreter."""
  members = {
    name: staticmethod(functools.partial(getattr(module, name), interpret=True))
    for name in _FUNCTIONS
  }
  sizes = {'block_rows': module.block_rows, 'columns': module.columns}
  return type('Interpreted', (), members | sizes)


TPU = interpreted(tpu)
EXPERT_OF_BLOCK = np.array([0, 2, 2])  # Expert 1 is idle.


def normal(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


X = normal(0, 3, 128, 128)
WEIGHTS = experts.Weights(*(normal(i, 3, 128, 128) / 11 for i in range(3)))
GRAD = normal(4, 3, 128, 128)


def layer(ops, x, weights, grad):
  y, back = jax.vjp(
    lambda x, w: experts.feed_forward(x, w, EXPERT_OF_BLOCK, ops), x, weights
  )
  return y, *back(grad)


def dense(ops, x_MK, w_KN, grad_MN):
  y, back = jax.vjp(lambda x, w: matmul.dense(x, w[None], ops), x_MK, w_KN)
  return y, *back(grad_MN)


class KernelsTest(parameterized.TestCase):
  @parameterized.named_parameters(
    ('mxfp8', TPU, xla, 'mxfp8'),
    ('bfloat16', plain.Plain('bfloat16', TPU), plain.BFLOAT16, 'bfloat16'),
  )
  def test_a_layer_and_its_gradients_are_those_of_xla(
    self, kernels, reference, precision
  ):
    run = functools.partial(layer, kernels)
    wanted = layer(reference, X, WEIGHTS, GRAD)
    found = jax.jit(run)(X, WEIGHTS, GRAD)
    for actual, expected in zip(
      jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True
    ):
      # A hidden number may round to its neighbour: a sum in float32.
      self.assertLess(matmul_test.error(actual, expected), 2e-3)
    traced = jax.make_jaxpr(run)(X, WEIGHTS, GRAD)
    self.assertEqual(dict(audit.products(traced)), {precision: 9})

  def test_a_dense_product_of_any_number_of_rows(self):
    given = normal(0, 150, 128), normal(1, 128, 256), normal(2, 150, 256)
    wanted = dense(xla, *given)
    for actual, expected in zip(
      jax.jit(functools.partial(dense, TPU))(*given), wanted, strict=True
    ):
      self.assertLess(matmul_test.error(actual, expected), 1e-6)

  @parameterized.parameters((40, 33), (128, 96))
  def test_sizes_that_are_no_multiples_are_filled(self, k, n):
    sizes = np.array([5, 0, 130])
    self.enter_context(
      mock.patch.object(implementations, 'choose', lambda *_: TPU)
    )
    x_NK, w_EKF = normal(0, 140, k), normal(1, 3, k, n)
    grad_NF = normal(2, 140, n)
    y_NF, back = jax.vjp(
      lambda x, w: matmul.mx_grouped_matmul(x, w, sizes), x_NK, w_EKF
    )
    wanted, back_wanted = jax.vjp(
      lambda x, w: matmul.grouped(x, w, sizes, xla), x_NK, w_EKF
    )
    for actual, expected in zip(
      (y_NF, *back(grad_NF)), (wanted, *back_wanted(grad_NF)), strict=True
    ):
      self.assertEqual(actual.shape, expected.shape)
      self.assertLess(matmul_test.error(actual, expected), 1e-6)
    y_MN = matmul.mx_matmul(x_NK, w_EKF[0])
    wanted = matmul.dense(x_NK, w_EKF[:1], xla)
    self.assertLess(matmul_test.error(y_MN, wanted), 1e-6)

  def test_shipped_matrices_of_any_size_are_taken(self):
    kept = xla.quantize(normal(1, 1, 40, 33), 1)
    x_MK = normal(0, 9, 40)
    found = matmul.dense(x_MK, matmul.ready(kept, TPU), TPU)
    wanted = matmul.dense(x_MK, matmul.ready(kept, xla), xla)
    self.assertEqual(found.shape, (9, 33))
    self.assertLess(matmul_test.error(found, wanted), 1e-6)

  def test_operands_that_were_not_rounded_are_noticed(self):
    def run(x, w):
      return TPU.forward(
        TPU.operand(x, 2), w.astype(jnp.bfloat16), np.zeros(3, np.int32)
      )

    traced = jax.make_jaxpr(run)(X, WEIGHTS.gate_EDF)
    self.assertEqual(dict(audit.products(traced)), {'bfloat16': 1})


class AuditTest(parameterized.TestCase):
  """Programs for machines that are not here are traced, and not run."""

  @parameterized.parameters(
    ('TPU v6 lite', 'mxfp8'),
    ('TPU v6 lite', 'bfloat16'),
    ('NVIDIA H200', 'mxfp8'),
    ('NVIDIA H200', 'bfloat16'),
    ('NVIDIA B200', 'mxfp8'),
  )
  def test_every_product_of_a_small_model_is_found(self, device, precision):
    self.enter_context(
      mock.patch.object(targets, 'device_kind', lambda: device)
    )
    self.addCleanup(jax.clear_caches)
    jax.clear_caches()
    name = implementations.resolve(precision)
    self.assertIn(name, ('tpu', 'h200', 'b200'))
    model = dataclasses.replace(
      fakes.MODEL, precision=precision, block_rows=128
    )
    line = loop_precision.check(config_lib.Config(name='toy', model=model))
    self.assertStartsWith(line, f'Products in {precision} ({name}): 42 of ')


if __name__ == '__main__':
  absltest.main()
