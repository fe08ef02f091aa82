import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from composer_jax import trajectory
from composer_jax.model import config as model_config
from composer_jax.model import transformer
from tests import fakes

# One row: a sequence of 5, one of 4, two of padding. Token 0 stands nowhere, so
# its logit depends on the embeddings of the others through attention alone.
TOKEN_BT = np.arange(1, 12, dtype=np.int32)[None]
SEGMENT_BT = np.array([[1] * 5 + [2] * 4 + [0] * 2], np.int32)
POSITION_BT = np.array([[*range(5), *range(4), 0, 0]], np.int32)


@functools.partial(jax.jit, static_argnames='dispatch')
def forward(params, token, segment, position, route=None, dispatch='blocks'):
  return transformer.forward(
    params,
    token,
    segment,
    position,
    config=fakes.MODEL,
    dispatch=dispatch,
    route_BTLX=route,
  )


@functools.partial(jax.jit, static_argnames='dispatch')
def forward_cached(params, token, before, start, cache, dispatch='dense'):
  return transformer.forward_cached(
    params, token, before, start, cache, config=fakes.MODEL, dispatch=dispatch
  )


def packed():
  return forward(fakes.params(), TOKEN_BT, SEGMENT_BT, POSITION_BT)


class InitTest(absltest.TestCase):
  def test_fresh_parameters_already_copy_what_followed(self):
    config = model_config.ModelConfig(vocab_size=128)
    params = transformer.init(jax.random.key(0), config)
    # 32 different tokens, then the first 16 again: each has a known successor.
    rng = np.random.default_rng(0)
    token_BT = np.stack([rng.permutation(128)[:32] for _ in range(16)])
    token_BT = np.concatenate([token_BT, token_BT[:, :16]], axis=1)
    shape = token_BT.shape
    position_BT = np.broadcast_to(np.arange(shape[1]), shape)
    output = transformer.forward(
      params, token_BT, np.ones(shape, int), position_BT, config=config
    )
    logits_BTV = np.asarray(output.logits_BTV)[:, 32:-1]
    successor_BT1 = token_BT[:, 33:, None]
    rank_BT = (
      logits_BTV > np.take_along_axis(logits_BTV, successor_BT1, -1)
    ).sum(-1)
    # By chance half of the other 127 tokens would be ahead of it.
    self.assertLess(np.mean(rank_BT), 52)  # Chance: 63.5 +- 2.4.
    # The heads of the layers do so too, without the copy head.
    written_BTV = np.asarray(output.hidden_BTD @ params['embed_VD'].T)[:, 32:-1]
    ahead_BTV = written_BTV > np.take_along_axis(written_BTV, successor_BT1, -1)
    self.assertLess(np.mean(ahead_BTV.sum(-1)), 52)


class CausalityTest(parameterized.TestCase):
  @parameterized.parameters('dense', 'blocks')
  def test_depends_on_the_past_of_its_own_segment_only(self, dispatch):
    # What the head reads; the head itself sees every embedding.
    def summary(embed_VD, t):
      params = {**fakes.params(), 'embed_VD': embed_VD}
      output = forward(
        params, TOKEN_BT, SEGMENT_BT, POSITION_BT, dispatch=dispatch
      )
      copied = output.copy_BTS[0, t] @ jnp.arange(11.0)
      return output.hidden_BTD[0, t, 0] + copied

    gradient = jax.jit(jax.grad(summary))
    embed_VD = fakes.params()['embed_VD']
    gradient_TVD = np.stack([gradient(embed_VD, t) for t in range(11)])
    depends_TS = (gradient_TVD[:, 1:12] != 0).any(-1)
    real = SEGMENT_BT[0] > 0
    same_TS = SEGMENT_BT[0][:, None] == SEGMENT_BT[0][None]
    past_TS = np.tri(11, dtype=bool)
    np.testing.assert_array_equal(depends_TS[real], (same_TS & past_TS)[real])

  def test_copies_from_the_past_of_its_own_segment_only(self):
    real = SEGMENT_BT[0] > 0
    same_TS = SEGMENT_BT[0][:, None] == SEGMENT_BT[0][None]
    past_TS = np.tri(11, dtype=bool)
    np.testing.assert_array_equal(
      (packed().copy_BTS[0] > 0)[real], (same_TS & past_TS)[real]
    )


class HeadTest(absltest.TestCase):
  def test_mixes_what_it_writes_with_what_it_quotes(self):
    # Written: 1/4, 3/4. Quoted: tokens 1, 0, 1 at .5, .3, .2. Gate: 4 to 1.
    params = {
      'embed_VD': jnp.array([[0.0], [1.0]]),
      'copy': {'gate_D': jnp.array([0.0]), 'bias': jnp.log(4.0)},
    }
    logprob_V = transformer.head(
      params,
      jnp.array([jnp.log(3.0)]),
      jnp.array([0.5, 0.3, 0.2]),
      jnp.array([1, 0, 1]),
    )
    np.testing.assert_allclose(
      jnp.exp(logprob_V), [0.2 * 0.25 + 0.8 * 0.3, 0.2 * 0.75 + 0.8 * 0.7]
    )

  def test_what_cannot_be_quoted_has_a_finite_gradient(self):
    params = fakes.params()

    def loss(params):
      output = forward(params, TOKEN_BT, SEGMENT_BT, POSITION_BT)
      return output.logits_BTV[0, 0].sum()

    for leaf in jax.tree.leaves(jax.grad(loss)(params)):
      self.assertTrue(np.isfinite(leaf).all())


class PackingTest(absltest.TestCase):
  def test_a_sequence_reads_the_same_alone_and_behind_another(self):
    alone = forward(
      fakes.params(),
      np.pad(TOKEN_BT[:, 5:9], ((0, 0), (0, 7))),
      np.array([[1] * 4 + [0] * 7]),
      np.array([[*range(4), *[0] * 7]]),
    )
    np.testing.assert_allclose(
      alone.logits_BTV[:, :4], packed().logits_BTV[:, 5:9], atol=1e-5
    )
    np.testing.assert_array_equal(
      alone.route_BTLX[:, :4], packed().route_BTLX[:, 5:9]
    )


class CacheTest(parameterized.TestCase):
  @parameterized.parameters('dense', 'blocks')
  def test_cached_steps_equal_the_packed_forward(self, dispatch):
    cache = transformer.init_cache(2, 12, fakes.MODEL)
    cache = jax.tree.map(lambda x: x + 7, cache)  # Leftovers are not seen.
    token_BT = np.stack([TOKEN_BT[0], TOKEN_BT[0, ::-1]])
    shape = token_BT.shape
    whole = forward(
      fakes.params(),
      token_BT,
      np.ones(shape, np.int32),
      np.broadcast_to(np.arange(11), shape),
    )
    # The second row runs two tokens behind the first.
    logits_BTV = np.zeros((*shape, fakes.MODEL.vocab_size))
    for first in range(-2, 11):
      start_B = np.maximum([first, first - 2], 0)
      at = (np.arange(2), start_B)
      place_BP = start_B[:, None] + np.arange(-transformer.CONTEXT, 0)
      before_BP = np.where(
        place_BP >= 0, token_BT[at[0][:, None], place_BP], transformer.NO_TOKEN
      )
      output, cache = forward_cached(
        fakes.params(),
        token_BT[at][:, None],
        before_BP,
        start_B,
        cache,
        dispatch=dispatch,
      )
      logits_BTV[at] = output.logits_BTV[:, 0]
    np.testing.assert_allclose(
      logits_BTV[0], whole.logits_BTV[0], atol=4e-5, rtol=0
    )
    np.testing.assert_allclose(
      logits_BTV[1, :9], whole.logits_BTV[1, :9], atol=4e-5, rtol=0
    )


class RouteTest(absltest.TestCase):
  def test_replaying_its_own_routes_changes_nothing(self):
    output = packed()
    again = forward(
      fakes.params(), TOKEN_BT, SEGMENT_BT, POSITION_BT, output.route_BTLX
    )
    np.testing.assert_allclose(again.logits_BTV, output.logits_BTV, atol=1e-6)

  def test_replayed_routes_are_taken_and_unknown_ones_are_not_padded(self):
    output = packed()
    route_BTLX = np.full(
      output.route_BTLX.shape, trajectory.UNKNOWN_ROUTE, np.int8
    )
    unknown = forward(
      fakes.params(), TOKEN_BT, SEGMENT_BT, POSITION_BT, route_BTLX
    )
    np.testing.assert_array_equal(unknown.route_BTLX, output.route_BTLX)
    np.testing.assert_allclose(unknown.logits_BTV, output.logits_BTV, atol=1e-6)

    others = sorted(set(range(4)) - set(output.route_BTLX[0, 0, 0].tolist()))
    route_BTLX[0, 0, 0] = others
    replayed = forward(
      fakes.params(), TOKEN_BT, SEGMENT_BT, POSITION_BT, route_BTLX
    )
    self.assertEqual(replayed.route_BTLX[0, 0, 0].tolist(), others)
    change_TV = np.abs(replayed.logits_BTV - output.logits_BTV)[0]
    self.assertGreater(change_TV[0].max(), 1e-4)
    np.testing.assert_allclose(change_TV[5:9], 0, atol=1e-6)


class ConfigTest(parameterized.TestCase):
  @parameterized.parameters(
    (dict(query_heads=3, kv_heads=2), '3 query heads'),
    (dict(experts=4, experts_per_token=5), 'experts_per_token=5'),
    (dict(experts_per_token=0), 'experts_per_token=0'),
    (dict(head_width=7), 'head_width=7'),
    (dict(experts=129), 'experts=129'),
  )
  def test_refuses_what_cannot_be(self, fields, message):
    with self.assertRaisesRegex(ValueError, message):
      model_config.ModelConfig(**fields)


if __name__ == '__main__':
  absltest.main()
