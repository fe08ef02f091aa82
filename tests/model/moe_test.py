import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from composer_jax.model import moe
from composer_jax.pallas_kernels import experts as experts_lib
from composer_jax.pallas_kernels import plain

TOKENS, EXPERTS, WIDTH, HIDDEN = 13, 4, 6, 5  # 13 * 2 fills no whole blocks.

# name, experts of each token
CHOICES = {
  'spread': np.stack(
    [np.arange(TOKENS) % 4, (np.arange(TOKENS) + 1) % 4], axis=1
  ),
  'expert_2_without_tokens': np.stack(
    [np.arange(TOKENS) % 2, np.full(TOKENS, 3)], axis=1
  ),
  'all_on_experts_0_and_1': np.tile([1, 0], (TOKENS, 1)),
}


def normal(seed, *shape):
  values = np.random.default_rng(seed).normal(size=shape, scale=0.5)
  return values.astype(np.float32)


ARRAYS = (
  normal(0, TOKENS, WIDTH),
  np.abs(normal(1, TOKENS, 2)),  # Gates need not sum to one here.
  normal(2, EXPERTS, WIDTH, HIDDEN),
  normal(3, EXPERTS, WIDTH, HIDDEN),
  normal(4, EXPERTS, HIDDEN, WIDTH),
)


def one_by_one(x_ND, expert_NX, gate_NX, gate_EDF, up_EDF, down_EFD):
  """Each token through each of its experts, as one would say it."""
  y_ND = np.zeros_like(x_ND)
  for n, chosen in enumerate(expert_NX):
    for x, e in enumerate(chosen):
      gate = x_ND[n] @ gate_EDF[e]
      hidden = gate / (1 + np.exp(-gate)) * (x_ND[n] @ up_EDF[e])
      y_ND[n] += gate_NX[n, x] * (hidden @ down_EFD[e])
  return y_ND


@functools.partial(jax.jit, static_argnames='block_rows')
def values_and_gradients(arrays, expert_NX, *, block_rows):
  """Output and gradients of all inputs; block_rows=0 is the dense dispatch."""

  def run(arrays):
    x_ND, gate_NX, *experts = arrays
    routing = moe.Routing(expert_NX, gate_NX, jnp.zeros(()))
    weights = experts_lib.Weights(*experts)
    if not block_rows:
      y_ND = moe.experts_dense(
        x_ND, routing, weights, experts_count=EXPERTS, ops=plain.FLOAT32
      )
    else:
      y_ND = moe.experts_blocks(
        x_ND,
        routing,
        weights,
        experts_count=EXPERTS,
        ops=plain.FLOAT32,
        block_rows=block_rows,
      )
    return (y_ND * normal(5, TOKENS, WIDTH)).sum(), y_ND

  (_, y_ND), gradients = jax.value_and_grad(run, has_aux=True)(arrays)
  return y_ND, gradients


class ExpertsTest(parameterized.TestCase):
  @parameterized.parameters(*CHOICES)
  def test_dense_is_each_token_on_its_own_experts(self, name):
    x_ND, gate_NX, *experts = ARRAYS
    expert_NX = CHOICES[name]
    y_ND, _ = values_and_gradients(ARRAYS, expert_NX, block_rows=0)
    np.testing.assert_allclose(
      y_ND, one_by_one(x_ND, expert_NX, gate_NX, *experts), rtol=1e-4, atol=1e-5
    )

  @parameterized.product(name=[*CHOICES], block_rows=[4, 32])
  def test_blocks_equal_dense_in_values_and_gradients(self, name, block_rows):
    expert_NX = CHOICES[name]
    dense = values_and_gradients(ARRAYS, expert_NX, block_rows=0)
    blocks = values_and_gradients(ARRAYS, expert_NX, block_rows=block_rows)
    jax.tree.map(
      functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5),
      blocks,
      dense,
    )

  def test_an_expert_without_tokens_has_gradient_zero(self):
    expert_NX = CHOICES['expert_2_without_tokens']
    _, gradients = values_and_gradients(ARRAYS, expert_NX, block_rows=4)
    for gradient in gradients[2:]:
      np.testing.assert_array_equal(gradient[2], np.zeros_like(gradient[2]))
      self.assertTrue(np.isfinite(gradient).all())
      for expert in (0, 1, 3):
        self.assertGreater(np.abs(gradient[expert]).max(), 1e-3)


# Logits of two tokens over three experts: the input is the identity.
LOGITS_NE = np.array([[0.0, 2.0, 1.0], [3.0, 0.0, 3.0]], np.float32)
ALL = np.ones(2, bool)


@jax.jit
def route(mask_N=ALL, replay_NX=None):
  return moe.route(
    jnp.eye(2), jnp.asarray(LOGITS_NE), 2, mask_N=mask_N, replay_NX=replay_NX
  )


class RouteTest(absltest.TestCase):
  def test_takes_the_top_experts_with_a_softmax_over_them(self):
    routing = route()
    np.testing.assert_array_equal(routing.expert_NX, [[1, 2], [0, 2]])
    e = np.e
    np.testing.assert_allclose(
      routing.gate_NX, [[e / (1 + e), 1 / (1 + e)], [0.5, 0.5]], rtol=1e-6
    )

  def test_replays_known_experts_and_routes_unknown_ones(self):
    replay_NX = np.array([[2, 0], [-1, -1]], np.int8)
    routing = route(replay_NX=replay_NX)
    np.testing.assert_array_equal(routing.expert_NX, [[2, 0], [0, 2]])

  def test_a_half_known_route_is_not_replayed(self):
    routing = route(replay_NX=np.array([[0, -1], [-1, 1]], np.int8))
    np.testing.assert_array_equal(routing.expert_NX, route().expert_NX)

  def test_gates_of_replayed_experts_are_live(self):
    def first_gate(router_DE):
      routing = moe.route(
        jnp.eye(2),
        router_DE,
        2,
        mask_N=ALL,
        replay_NX=np.array([[2, 0], [1, 2]], np.int8),
      )
      return routing.gate_NX[0, 0]

    gate, gradient = jax.jit(jax.value_and_grad(first_gate))(LOGITS_NE)
    p = np.e / (1 + np.e)  # Softmax of (1, 0), the logits of experts 2 and 0.
    np.testing.assert_allclose(gate, p, rtol=1e-6)
    slope = p * (1 - p)
    np.testing.assert_allclose(
      gradient, [[-slope, 0, slope], [0, 0, 0]], rtol=1e-5, atol=1e-7
    )

  def test_balance_is_one_when_uniform(self):
    routing = jax.jit(moe.route, static_argnums=2)(
      np.eye(2, dtype=np.float32),
      np.zeros((2, 2), np.float32),
      1,
      mask_N=ALL,
      replay_NX=np.array([[0], [1]], np.int8),
    )
    np.testing.assert_allclose(routing.balance, 1.0, rtol=1e-6)

  def test_balance_ignores_padding(self):
    # The first token alone: load (0, 1/2, 1/2), probabilities softmax(0, 2, 1).
    p_E = np.exp(LOGITS_NE[0]) / np.exp(LOGITS_NE[0]).sum()
    only_first = route(mask_N=np.array([True, False]))
    np.testing.assert_allclose(
      only_first.balance, 3 * (p_E[1] + p_E[2]) / 2, rtol=1e-6
    )

  def test_nothing_but_padding_has_balance_zero(self):
    self.assertEqual(route(mask_N=~ALL).balance, 0.0)


if __name__ == '__main__':
  absltest.main()
