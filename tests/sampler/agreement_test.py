"""The sampler's log-probabilities are the learner's, token by token."""

import dataclasses
import functools
import itertools

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from composer_jax.model import serving
from composer_jax.sampler import engine as engine_lib
from tests import fakes

CONFIG = engine_lib.SamplerConfig(
  slots=3,
  max_tokens=48,
  decode_rows=2,
  decode_steps=3,
  prefill_rows=2,
  prefill_chunks=(4, 16),
)
# Nats: the median gap, and the largest. Seen: 1e-7 and 9e-6 in float32, 1e-8
# and 1e-4 in bfloat16, 0 and 1e-6 in mxfp8. Where a sum differs in its last
# bit, an operand may round to the neighbour: seldom, but then by a whole step.
GATES = {
  'float32': (1e-5, 1e-4),
  'bfloat16': (1e-5, 1e-2),
  'mxfp8': (1e-5, 5e-2),
}
NEWEST = 2  # The version that all episodes end with.


def said(token_T, sampled=False, logprob_T=0.0, version_T=-1):
  """Columns of token, sampled, log-probability and version."""
  return np.stack(np.broadcast_arrays(token_T, sampled, logprob_T, version_T))


def shipped(version, model):
  weights = fakes.weights(version)
  return dataclasses.replace(
    weights, params=serving.ship(weights.params, model)
  )


@functools.cache
def episodes(temperature, precision='float32'):
  """Three episodes of three turns; new weights arrive in flight, twice."""
  model = dataclasses.replace(fakes.MODEL, precision=precision)
  engine = engine_lib.Engine(CONFIG, model, shipped(0, model), stop_id=5)
  rng = np.random.default_rng(0)
  streams = [said(rng.integers(6, 24, 3 + 4 * s)) for s in range(3)]
  for turn in range(3):
    pending = [
      engine.submit(
        engine_lib.Request(
          session=session,
          history_T=stream[0].astype(np.int32),
          max_new=8,
          seed=session,
          temperature=temperature,
        )
      )
      for session, stream in enumerate(streams)
    ]
    engine.step()
    if turn < NEWEST:
      engine.set_weights(shipped(turn + 1, model))
    while engine.step():
      pass
    samples = [future.result(timeout=0) for future in pending]
    for session, sample in enumerate(samples):
      parts = (
        streams[session],
        said(sample.token_T, True, sample.logprob_T, sample.version_T),
        said(rng.integers(6, 24, 2 + session)),
      )
      streams[session] = np.concatenate(parts, axis=1)
  return list(map(trajectory_of, streams, samples))


def trajectory_of(stream, sample):
  token_T, sampled_T, logprob_T, version_T = stream
  unknown = len(token_T) - len(sample.route_TLX)
  return fakes.sequence(
    token_T,
    sampled_T,
    logprob=logprob_T,
    version=version_T,
    route=np.pad(
      sample.route_TLX, ((0, unknown), (0, 0), (0, 0)), constant_values=-1
    ),
  )


@functools.cache
def chain(precision='float32'):
  """An episode of three contexts in one session; new weights in the second.

  Each context is the task, what was said last, and a tool's answer.
  """
  model = dataclasses.replace(fakes.MODEL, precision=precision)
  engine = engine_lib.Engine(CONFIG, model, shipped(0, model), stop_id=5)
  rng = np.random.default_rng(1)
  task_T, carried_T = rng.integers(6, 24, 9), rng.integers(6, 24, 6)
  contexts = []
  for number in range(3):
    context = said(np.concatenate([task_T, carried_T]))
    for _ in range(2):
      context = np.concatenate([context, said(rng.integers(6, 24, 3))], axis=1)
      pending = engine.submit(
        engine_lib.Request(
          session=0,
          history_T=context[0].astype(np.int32),
          max_new=8,
          seed=number,
        )
      )
      engine.step()
      if number == 1 and engine.version == 0:
        engine.set_weights(shipped(1, model))
      while engine.step():
        pass
      sample = pending.result(timeout=0)
      context = np.concatenate(
        [
          context,
          said(sample.token_T, True, sample.logprob_T, sample.version_T),
        ],
        axis=1,
      )
    carried_T = sample.token_T
    contexts.append((context, sample.route_TLX))
  lengths = [len(route_TLX) for _, route_TLX in contexts]
  token_T, sampled_T, logprob_T, version_T = np.concatenate(
    [context for context, _ in contexts], axis=1
  )
  return fakes.sequence(
    token_T,
    sampled_T,
    logprob=logprob_T,
    version=version_T,
    route=np.concatenate([route_TLX for _, route_TLX in contexts]),
    starts=(0, *np.cumsum(lengths)[:-1].tolist()),
  )


def gaps(
  temperature,
  version,
  *,
  weights=None,
  learner=None,
  replay=False,
  precision='float32',
  learner_precision=None,
):
  """Learner minus sampler, in nats, on the tokens that a version chose."""
  weights = version if weights is None else weights
  learner = temperature if learner is None else learner
  found = []
  model = dataclasses.replace(
    fakes.MODEL, precision=learner_precision or precision
  )
  for episode in episodes(temperature, precision):
    (batch,) = fakes.pack([(episode, 1.0)], rows=1, length=48)
    logprob_BT, _, _ = fakes.token_logprobs(
      fakes.params(weights), batch, learner, model=model, replay=replay
    )
    difference_T = np.asarray(logprob_BT - batch.behaviour_BT)[0]
    found.append(difference_T[: len(episode)][episode.version_T == version])
  return np.concatenate(found)


class AgreementTest(parameterized.TestCase):
  def assert_within_gate(self, gap, precision):
    median, largest = GATES[precision]
    self.assertGreaterEqual(len(gap), 3)
    self.assertLess(np.median(np.abs(gap)), median)
    self.assertLess(np.abs(gap).max(), largest)

  @parameterized.product(
    temperature=[1.0, 0.6], version=[0, 1, NEWEST], precision=[*GATES]
  )
  def test_each_token_has_the_learners_logprob_of_its_version(
    self, temperature, version, precision
  ):
    gap = gaps(temperature, version, precision=precision)
    self.assert_within_gate(gap, precision)
    # The gate sees weights of another version.
    other = gaps(
      temperature, version, weights=(version + 1) % 3, precision=precision
    )
    self.assertGreater(np.abs(other).max(), 0.1)

  @parameterized.product(temperature=[1.0, 0.6], precision=[*GATES])
  def test_so_has_it_when_the_samplers_experts_are_replayed(
    self, temperature, precision
  ):
    gap = gaps(temperature, NEWEST, replay=True, precision=precision)
    self.assert_within_gate(gap, precision)

  @parameterized.product(replay=[False, True], precision=[*GATES])
  def test_so_has_it_in_every_context_of_an_episode(self, replay, precision):
    done = chain(precision)
    model = dataclasses.replace(fakes.MODEL, precision=precision)
    found = []
    for number, context in enumerate(done.contexts()):
      (batch,) = fakes.pack([(context, 1.0)], rows=1, length=48)
      # Routes are those of the newest weights, hence not replayed before.
      for version in (1,) if replay and number else (0, 1):
        logprob_BT, _, _ = fakes.token_logprobs(
          fakes.params(version),
          batch,
          model=model,
          replay=replay and version == 1,
        )
        gap_T = np.asarray(logprob_BT - batch.behaviour_BT)[0, : len(context)]
        found.append(gap_T[context.version_T == version])
    self.assert_within_gate(np.concatenate(found), precision)
    self.assertEqual(set(done.version_T.tolist()), {-1, 0, 1})
    # Seen as one context it would be another policy.
    if not replay and precision == 'float32':
      whole = dataclasses.replace(done, starts=(0,))
      (batch,) = fakes.pack([(whole, 1.0)], rows=1, length=len(whole))
      logprob_BT, _, _ = fakes.token_logprobs(
        fakes.params(1), batch, model=model
      )
      gap_T = np.asarray(logprob_BT - batch.behaviour_BT)[0]
      last_T = np.arange(len(whole)) >= done.starts[2]
      self.assertGreater(np.abs(gap_T[last_T & done.sampled_T]).max(), 0.1)

  @parameterized.parameters(*itertools.permutations(GATES, 2))
  def test_a_learner_of_another_precision_is_noticed(self, sampler, learner):
    gap = gaps(1.0, NEWEST, precision=sampler, learner_precision=learner)
    self.assertGreater(np.median(np.abs(gap)), 100 * GATES[sampler][0])

  @parameterized.parameters(1.0, 0.6)
  def test_the_ratio_of_equal_weights_is_one(self, temperature):
    ratio = np.exp(gaps(temperature, NEWEST))
    # Which tokens are sampled is a matter of time here, so that the rounding of
    # a few logits, divided by the temperature, is seldom more than 1e-5.
    np.testing.assert_allclose(ratio, np.ones_like(ratio), atol=3e-5)
    wrong = np.exp(gaps(temperature, NEWEST, learner=0.8))
    self.assertGreater(np.abs(wrong - 1).max(), 0.01)

  def test_the_samplers_routes_are_those_of_its_newest_weights(self):
    flips, known = 0, 0
    for episode in episodes(1.0):
      (batch,) = fakes.pack([(episode, 1.0)], rows=1, length=48)
      output = fakes.forward(fakes.params(NEWEST), batch)
      route_TLX = output.route_BTLX[0, : len(episode)]
      recorded_TLX = episode.route_TLX
      # All but the tool's last answer, and the token sampled last.
      fed = (recorded_TLX >= 0).all((1, 2))
      self.assertEqual(fed.sum(), np.flatnonzero(episode.sampled_T)[-1])
      flips += (np.sort(route_TLX) != np.sort(recorded_TLX))[fed].any(-1).sum()
      known += fed.sum() * fakes.MODEL.layers
    self.assertLessEqual(flips, 0.01 * known)


if __name__ == '__main__':
  absltest.main()
