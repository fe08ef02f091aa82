import os
import pathlib
import threading
from unittest import mock

from absl import logging
from absl.testing import absltest
import numpy as np

from composer_jax import trajectory
from composer_jax.checkpoint import snapshot
from composer_jax.checkpoint import weights as weights_lib
from composer_jax.loop import policy as policy_lib
from composer_jax.loop import supervise
from composer_jax.sampler import engine as engine_lib
from tests import fakes

SAMPLER = engine_lib.SamplerConfig(
  slots=2, max_tokens=24, prefill_rows=2, prefill_chunks=(8,)
)
HISTORY = np.asarray([1, 2, 3], np.int32)


class PolicyTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.directory = self.create_tempdir().full_path
    self.crew = supervise.Crew()
    self.addCleanup(self.crew.end)
    self.publisher = weights_lib.Publisher(self.directory)
    self.publisher.publish(0, fakes.params(0))

  def serve(self):
    like = fakes.params(9)
    loaded = weights_lib.load_latest(self.directory, like)
    self.engine = engine_lib.Engine(
      SAMPLER, fakes.MODEL, loaded.weights, stop_id=0
    )
    return policy_lib.Policy(self.engine, self.directory, like, self.crew)

  def sample(self, policy):
    tools = fakes.RecordingTools()
    with policy.session(seed=1, temperature=1.0) as play:
      sample, call_tools = play(tools)
      self.assertIs(call_tools, tools)
      return sample(HISTORY, 5)

  def test_takes_up_what_is_published(self):
    policy = self.serve()
    before = self.sample(policy)
    published = self.publisher.publish(3, fakes.params(3))
    policy.wait_for(3)
    after = self.sample(policy)
    self.assertEqual(set(before.version_T.tolist()), {0})
    self.assertEqual(set(after.version_T.tolist()), {3})
    self.assertEqual(self.engine.digest, published.digest)
    self.assertEqual(policy.versions_taken, 1)
    self.assertNotEqual(before.logprob_T.tolist(), after.logprob_T.tolist())

  def test_each_context_of_an_episode_has_random_numbers_of_its_own(self):
    policy = self.serve()

    def sampled(seed, *histories):
      with policy.session(seed=seed, temperature=1.0) as play:
        sample, _ = play(fakes.RecordingTools())
        return [sample(history, 12).token_T.tolist() for history in histories]

    other = np.asarray([9, 8, 7], np.int32)
    (first,), (alone,) = sampled(1, HISTORY), sampled(1, other)
    again, replaced, back = sampled(1, HISTORY, other, HISTORY)
    self.assertEqual(again, first)
    self.assertNotEqual(replaced, alone)
    self.assertNotEqual(back, first)
    self.assertEqual(sampled(1, HISTORY, other), [first, replaced])
    # A history that grows is the same context.
    longer = np.asarray([*other, 4], np.int32)
    self.assertEqual(sampled(1, other, longer)[1], sampled(1, longer)[0])

  def test_damaged_weights_are_refused_once_and_the_older_stay(self):
    policy = self.serve()
    refused, logged = threading.Event(), []

    def note(*args):
      logged.append(args)
      refused.set()

    self.enter_context(mock.patch.object(logging, 'warning', note))
    elsewhere = pathlib.Path(self.create_tempdir().full_path)
    snapshot.write(elsewhere, 1, {'x': np.ones(1)}, metadata={}, keep=1)
    manifest = elsewhere / '1' / 'MANIFEST'
    manifest.write_bytes(manifest.read_bytes().replace(b'"x"', b'"y"'))
    for name in ('1', 'LATEST'):
      os.rename(elsewhere / name, os.path.join(self.directory, name))
    self.assertTrue(refused.wait(20))
    self.assertEqual(set(self.sample(policy).version_T.tolist()), {0})

    self.publisher.publish(2, fakes.params(2))
    policy.wait_for(2)
    self.assertLen(logged, 1)

  def test_says_what_did_not_arrive(self):
    with self.assertRaisesRegex(
      TimeoutError, 'at version 0, 7 has not arrived'
    ):
      self.serve().wait_for(7, timeout=0.0)

  def test_stopping_frees_who_waits_for_a_sample(self):
    policy = self.serve()
    self.crew.stop.set()  # Nobody decodes any more.
    failures = []

    def ask():
      try:
        self.sample(policy)
      except (supervise.Stopped, trajectory.InfrastructureError) as error:
        failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    self.crew.end()
    thread.join(20)
    self.assertLen(failures, 1)


if __name__ == '__main__':
  absltest.main()
