import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp

from composer_jax.pallas_kernels import audit
from composer_jax.pallas_kernels import experts
from composer_jax.pallas_kernels import implementations
from composer_jax.pallas_kernels import matmul
from composer_jax.pallas_kernels import mx
from composer_jax.pallas_kernels import plain
from composer_jax.pallas_kernels import xla

X, W = jnp.ones((64, 96)), jnp.ones((96, 32))
F32 = jnp.float32


def products(function, *arrays):
  return dict(audit.products(jax.make_jaxpr(function)(*arrays)))


def rounded(x, axis):
  return xla.operand(x, axis)


def coarse(x, axis):
  """Rounded with one scale for 64 numbers: not the format."""
  x = jnp.moveaxis(x, axis, -1)
  blocks = x.reshape(*x.shape[:-1], -1, 64)
  bits = jax.lax.bitcast_convert_type(jnp.abs(blocks), jnp.int32)
  exponent = bits.max(-1, keepdims=True) >> 23
  power = jax.lax.bitcast_convert_type(exponent << 23, F32)
  scaled = (blocks / power).astype(jnp.float8_e4m3fn).astype(F32) * power
  return jnp.moveaxis(scaled.reshape(x.shape), -1, axis)


def odd(x, axis):
  """Rounded, but scaled by 1.4 times a power of two."""
  elements, scales = mx.quantize(x, axis)
  elements = jnp.moveaxis(elements, axis, -1).astype(F32)
  exponent = jnp.moveaxis(scales, axis, -1).astype(jnp.int32)
  bits = (exponent << 23) | 0x345678
  scale = jax.lax.bitcast_convert_type(bits, F32)[..., None]
  wide = elements.reshape(*scale.shape[:-1], 32) * scale
  return jnp.moveaxis(wide.reshape(elements.shape), -1, axis)


def looped(x):
  """Rounded before the first step of a loop, and not after the last."""
  step = lambda carry, _: (carry + 1, None)
  return jax.lax.scan(step, rounded(x, 1).astype(F32), None, length=2)[0]


def branched(x):
  return jax.lax.cond(x.sum() > 0, lambda: x, lambda: rounded(x, 1).astype(F32))


class ProductsTest(parameterized.TestCase):
  @parameterized.parameters(*implementations.PRECISIONS)
  def test_a_dense_product_and_its_gradients(self, precision):
    ops = implementations.choose(precision)
    run = lambda x, w: matmul.dense(x, w[None], ops).sum()
    self.assertEqual(products(run, X, W), {precision: 1})
    self.assertEqual(products(jax.grad(run, (0, 1)), X, W), {precision: 3})

  @parameterized.parameters(*implementations.PRECISIONS)
  def test_the_experts_and_their_gradients(self, precision):
    weights = experts.Weights(*(jnp.ones((2, 32, 32)) for _ in range(3)))
    run = functools.partial(
      experts.feed_forward,
      expert_of_block=jnp.array([0, 1, 1]),
      ops=implementations.choose(precision),
    )
    x_BMD = jnp.ones((3, 64, 32))
    self.assertEqual(products(run, x_BMD, weights), {precision: 3})
    loss = lambda x, w: run(x, w).sum()
    gradient = jax.jit(jax.grad(loss, (0, 1)))
    self.assertEqual(products(gradient, x_BMD, weights), {precision: 9})

  def test_shipped_numbers_are_known_by_their_type(self):
    kept = xla.quantize(W[None], 1)
    run = lambda x, kept: matmul.dense(x, matmul.ready(kept, xla), xla)
    self.assertEqual(products(run, X, kept), {'mxfp8': 1})

  def test_inside_loops_and_branches(self):
    def run(x, w):
      def step(carry, w):
        return carry, matmul.dense(x, w[None], xla)

      _, looped = jax.lax.scan(step, 0, w[None])
      branch = lambda: jnp.einsum('MK,KN->MN', rounded(x, 1), rounded(w, 0))
      return looped[0] + jax.lax.cond(x.sum() > 0, branch, branch)

    self.assertEqual(products(run, X, W), {'mxfp8': 1 + 2})

  @parameterized.named_parameters(
    ('one_operand', lambda x, w: (rounded(x, 1), w)),
    ('changed_afterwards', lambda x, w: (rounded(x, 1) + 1, rounded(w, 0))),
    (
      'a_factor_that_is_no_power',
      lambda x, w: (rounded(x, 1) * 1.5, rounded(w, 0)),
    ),
    ('without_scales', lambda x, w: (x.astype(jnp.float8_e4m3fn), w)),
    ('blocks_of_64', lambda x, w: (coarse(x, 1), coarse(w, 0))),
    (
      'partly_unrounded',
      lambda x, w: (jnp.where(x > 0, x, rounded(x, 1)), rounded(w, 0)),
    ),
    ('a_scale_that_is_no_power', lambda x, w: (odd(x, 1), odd(w, 0))),
    ('a_loop_that_undoes_it', lambda x, w: (looped(x), rounded(w, 0))),
    ('only_one_of_two_branches', lambda x, w: (branched(x), rounded(w, 0))),
    ('five_bits_of_exponent', lambda x, w: (_e5m2(x, 1), _e5m2(w, 0))),
  )
  def test_what_only_looks_like_it_is_not_counted(self, operands):
    def run(x, w):
      left, right = operands(x, w)
      return left.astype(F32) @ right.astype(F32)

    x, w = jnp.ones((64, 128)), jnp.ones((128, 32))
    self.assertEqual(products(run, x, w), {'float32': 1})

  def test_joined_operands_stay_operands(self):
    def run(x, w):
      both = jnp.concatenate([rounded(x, 1), rounded(x, 1)])
      return both @ rounded(w, 0)

    self.assertEqual(products(run, X, W), {'mxfp8': 1})

  def test_bfloat16_is_told_from_a_mixture(self):
    run = lambda x, w: plain.BFLOAT16.forward(
      x[None].astype(jnp.bfloat16), w[None], None
    )
    self.assertEqual(products(run, X, W), {'mixed': 1})


def _e5m2(x, axis):
  return mx.dequantize(*mx.quantize(x, axis, element='e5m2'), axis)


if __name__ == '__main__':
  absltest.main()
