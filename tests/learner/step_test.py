import dataclasses
import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from composer_jax.learner import step
from composer_jax.pallas_kernels import implementations
from tests import fakes

MODEL = fakes.SHALLOW
params = functools.partial(fakes.params, model=MODEL)
pack = functools.partial(fakes.pack, model=MODEL)
token_logprobs = functools.partial(fakes.token_logprobs, model=MODEL)
FEW, MANY = 1, 9  # Tokens of the policy in two sequences.


def sequence(sampled, seed, prompt=3, route=None):
  """A prompt, then `sampled` tokens of the policy with three of a tool amid."""
  rng = np.random.default_rng(seed)
  chosen = np.repeat([0, 1, 0, 1], [prompt, sampled // 2, 3, -(-sampled // 2)])
  return fakes.sequence(
    rng.integers(1, MODEL.vocab_size, len(chosen)),
    chosen,
    logprob=-rng.uniform(2.5, 3.5, len(chosen)),
    route=route,
  )


def pairs():
  return [(sequence(FEW, 1), 1.5), (sequence(MANY, 2), -0.5)]


def packed():
  (batch,) = pack(pairs())
  return batch


def stack(*batches):
  return jax.tree.map(lambda *rows: np.concatenate(rows), *batches)


def gradient(
  batch, denominator=FEW + MANY, capacity=12, precision='float32', at=None
):
  return step.gradient(
    at or params(),
    batch,
    float(denominator),
    config=fakes.LEARNER,
    model=dataclasses.replace(MODEL, precision=precision),
    # Named as `update` names them, so that both share one compiled function.
    temperature=1.0,
    supervised=False,
    capacity=capacity,
  )


def assert_finite(tree):
  for leaf in jax.tree.leaves(tree):
    assert np.isfinite(leaf).all()


def total(batches):
  parts = [gradient(batch) for batch in batches]
  return jax.tree.map(lambda *leaves: np.sum(leaves, axis=0), *parts)


def assert_close(actual, desired, rtol=1e-4, atol=2e-6):
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, rtol=rtol, atol=atol),
    actual,
    desired,
  )


def assert_equal(actual, desired):
  jax.tree.map(np.testing.assert_array_equal, actual, desired)


def update(state, batches, **options):
  return step.update(
    state, batches, config=fakes.LEARNER, model=MODEL, **options
  )


def fresh():
  return step.fresh(params(), fakes.LEARNER)


class TokenLogprobsTest(parameterized.TestCase):
  @parameterized.parameters(1.0, 0.6)
  def test_are_those_of_the_logits_one_place_before(self, temperature):
    (batch,) = fakes.pack(pairs(), rows=1, length=48)
    got = fakes.token_logprobs(fakes.params(), batch, temperature)
    logits_BTV = fakes.forward(fakes.params(), batch).logits_BTV
    tempered_BTV = np.asarray(logits_BTV, np.float64) / temperature
    p_BTV = np.exp(tempered_BTV)
    p_BTV /= p_BTV.sum(-1, keepdims=True)
    for b, t in np.ndindex(*batch.token_BT.shape):
      logprob, entropy = 0.0, 0.0
      if batch.position_BT[b, t] > 0:
        p_V = p_BTV[b, t - 1]
        logprob = np.log(p_V[batch.token_BT[b, t]])
        entropy = -(p_V * np.log(p_V)).sum()
      self.assertAlmostEqual(float(got[0][b, t]), logprob, places=5)
      self.assertAlmostEqual(float(got[1][b, t]), entropy, places=4)


class GradientTest(parameterized.TestCase):
  def test_is_the_same_for_every_split_into_micro_batches(self):
    few, many = ([pair] for pair in pairs())
    together = total(pack(pairs()))
    self.assertEqual(together[0].tokens, FEW + MANY)
    two_rows = [stack(*(b for p in (few, many) for b in pack(p, rows=1)))]
    two_batches = [*pack(few), *pack(many)]
    assert_close(total(two_rows), together)
    # The mean of the balance is of each micro-batch, hence left out.
    for sums, grads in (together, total(two_batches)):
      assert_close(sums.replace(balance=0), together[0].replace(balance=0))
      assert_close(grads, together[1])

  def test_of_an_episode_is_that_of_its_contexts_apart(self):
    apart = [(sequence(FEW, 1), 1.5), (sequence(MANY, 2), 1.5)]
    (first, _), (second, _) = apart
    chain = dataclasses.replace(
      first,
      **{
        name: np.concatenate([getattr(first, name), getattr(second, name)])
        for name in (
          'token_T',
          'sampled_T',
          'logprob_T',
          'version_T',
          'route_TLX',
        )
      },
      starts=(0, len(first)),
    )
    whole = total(pack([(chain, 1.5)]))
    self.assertEqual(int(whole[0].tokens), FEW + MANY)
    assert_close(whole, total(pack(apart)))
    alone, grads = total(pack(apart[:1]) + pack(apart[1:]))
    assert_close(grads, whole[1])
    assert_close(alone.replace(balance=0), whole[0].replace(balance=0))
    # One context would be another gradient: the summary is seen, not the past.
    joined = total(pack([(dataclasses.replace(chain, starts=(0,)), 1.5)]))
    self.assertGreater(abs(float(joined[0].k1 - whole[0].k1)), 1e-3)

  def test_is_not_changed_by_padding(self):
    (wide,) = pack(pairs(), rows=3, length=40)
    assert_close(gradient(wide), gradient(packed()))

  def test_is_divided_once_by_the_denominator_of_the_whole_update(self):
    _, grads = gradient(packed())
    _, quarter = gradient(packed(), denominator=4 * (FEW + MANY))
    assert_close(jax.tree.map(lambda x: 4 * x, quarter), grads, rtol=1e-6)

  def test_sums_hold_the_policys_tokens_only(self):
    batch = packed()
    sums, _ = gradient(batch)
    logprob_BT, entropy_BT, _ = token_logprobs(params(), batch)
    mask = batch.sampled_BT
    ratio = np.exp(np.asarray(logprob_BT - batch.behaviour_BT)[mask])
    advantage = batch.advantage_BT[mask]
    surrogate = np.minimum(
      ratio * advantage, np.clip(ratio, 0.8, 1.28) * advantage
    )
    self.assertEqual(sums.tokens, FEW + MANY)
    np.testing.assert_allclose(sums.loss, -surrogate.sum(), rtol=1e-4)
    np.testing.assert_allclose(sums.k1, -np.log(ratio).sum(), rtol=1e-4)
    np.testing.assert_allclose(
      sums.entropy, np.asarray(entropy_BT)[mask].sum(), rtol=1e-4
    )

  def test_what_others_said_is_never_weighed(self):
    batch = packed()
    poisoned = batch.replace(
      behaviour_BT=np.where(batch.sampled_BT, batch.behaviour_BT, -300),
      advantage_BT=np.where(batch.sampled_BT, batch.advantage_BT, np.nan),
    )
    assert_equal(gradient(poisoned), gradient(batch))

  def test_computing_the_policys_tokens_alone_changes_nothing(self):
    assert_close(gradient(packed()), gradient(packed(), capacity=None))

  @parameterized.parameters(*implementations.PRECISIONS)
  def test_replayed_experts_are_trained_with_live_gates(self, precision):
    route = np.broadcast_to(np.int8([3, 1]), (13, 1, 2))
    members = [(sequence(7, 3, route=route), 1.0)]
    _, grads = gradient(*pack(members), precision=precision)
    assert_finite(grads)  # Those of the experts without tokens too.
    for layer in grads['layers']:
      router_DE, up_EDF = layer['router_DE'], layer['up_EDF']
      for expert in (1, 3):
        self.assertGreater(np.abs(router_DE[:, expert]).max(), 0)
        self.assertGreater(np.abs(up_EDF[expert]).max(), 0)
      for expert in (0, 2):
        self.assertEqual(np.abs(router_DE[:, expert]).max(), 0)
        self.assertEqual(np.abs(up_EDF[expert]).max(), 0)

  @parameterized.parameters(0.0, 1e-30, 1e4)
  def test_in_mxfp8_extreme_weights_have_finite_gradients(self, scale):
    at = params()
    first, *others = at['layers']
    first = {**first, 'gate_EDF': first['gate_EDF'] * scale}
    at = {**at, 'layers': (first, *others)}
    assert_finite(gradient(packed(), precision='mxfp8', at=at)[1])


class UpdateTest(absltest.TestCase):
  def assert_refused(self, state, batches):
    after, metrics = update(state, batches)
    assert_equal(after.params, state.params)
    assert_equal(after.opt_state, state.opt_state)
    self.assertEqual(int(after.skipped), int(state.skipped) + 1)
    self.assertEqual(int(after.step), int(state.step) + 1)
    return metrics

  def test_a_fully_masked_batch_is_refused_with_loss_zero(self):
    batch = packed()
    masked = batch.replace(sampled_BT=np.zeros_like(batch.sampled_BT))
    state, _ = update(fresh(), [batch])  # The optimizer holds something.
    metrics = self.assert_refused(state, [masked])
    self.assertEqual(metrics['loss'], 0)
    self.assertEqual(metrics['gradient_norm'], 0)
    self.assertEqual(metrics['train_tokens'], 0)

  def test_no_batches_at_all_are_refused(self):
    self.assertEmpty(self.assert_refused(fresh(), []))

  def test_a_non_finite_gradient_is_refused(self):
    batch = packed()
    # A bad token that became e^200 times likelier: the ratio overflows.
    bad = batch.replace(
      behaviour_BT=batch.behaviour_BT - 200 * batch.sampled_BT,
      advantage_BT=-1.0 * batch.sampled_BT,
    )
    state, _ = update(fresh(), [batch])
    metrics = self.assert_refused(state, [batch, bad])
    self.assertFalse(np.isfinite(metrics['gradient_norm']))
    after, _ = update(state, [batch])
    self.assertEqual(int(after.skipped), int(state.skipped))

  def test_a_sound_batch_moves_every_parameter(self):
    state = fresh()
    for _ in range(2):  # The rate of the very first step is zero.
      state, metrics = update(state, [packed()])
    self.assertEqual((int(state.step), int(state.skipped)), (2, 0))
    self.assertEqual(metrics['train_tokens'], FEW + MANY)
    for before, after in zip(
      jax.tree.leaves(params()),
      jax.tree.leaves(state.params),
      strict=True,
    ):
      self.assertGreater(np.abs(after - before).max(), 0)

  def test_micro_batches_give_the_step_of_the_whole(self):
    few, many = pairs()
    whole, once = update(fresh(), [packed()])
    parts, twice = update(fresh(), [*pack([few]), *pack([many])])
    # Means over all tokens, not means of means.
    for name in ('loss', 'entropy', 'kl_behaviour', 'gradient_norm'):
      self.assertAlmostEqual(twice[name], once[name], places=4)
    assert_close(parts.opt_state, whole.opt_state, atol=1e-5)

  def test_sequences_left_out_still_count_in_the_denominator(self):
    _, all_metrics = update(fresh(), [packed()])
    _, metrics = update(fresh(), [packed()], denominator=2 * (FEW + MANY))
    self.assertAlmostEqual(
      metrics['gradient_norm'], all_metrics['gradient_norm'] / 2, places=5
    )
    self.assertAlmostEqual(metrics['loss'], all_metrics['loss'], places=6)

  def test_supervised_learns_the_policys_tokens_by_heart(self):
    state, losses = fresh(), []
    for _ in range(12):
      state, metrics = update(state, [packed()], supervised=True)
      losses.append(metrics['loss'])
    logprob_BT, _, _ = token_logprobs(params(), packed())
    np.testing.assert_allclose(
      losses[0], -np.asarray(logprob_BT)[packed().sampled_BT].mean(), rtol=1e-4
    )
    self.assertLess(losses[-1], 0.8 * losses[0])


if __name__ == '__main__':
  absltest.main()
