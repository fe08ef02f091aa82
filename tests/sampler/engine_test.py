from concurrent import futures
import dataclasses
import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from composer_jax import trajectory
from composer_jax.sampler import engine as engine_lib
from tests import fakes

STOP = 5
CONFIG = engine_lib.SamplerConfig(
  slots=3,
  max_tokens=48,
  decode_rows=2,
  decode_steps=3,
  prefill_rows=2,
  prefill_chunks=(4, 16),
)
HISTORY = tuple(range(6, 18))


def make(version=0):
  return engine_lib.Engine(
    CONFIG, fakes.MODEL, fakes.weights(version), stop_id=STOP
  )


def submit(
  engine, session=0, history=HISTORY, max_new=9, seed=3, temperature=1.0
):
  return engine.submit(
    engine_lib.Request(
      session=session,
      history_T=np.asarray(history, np.int32),
      max_new=max_new,
      seed=seed,
      temperature=temperature,
    )
  )


def finish(engine, *pending):
  """Steps until all are done; a limit instead of a hang."""
  for _ in range(100):
    if all(future.done() for future in pending):
      return [future.result(timeout=0) for future in pending]
    engine.step()
  raise AssertionError('the engine does not finish')


def sample(engine, **request):
  (answer,) = finish(engine, submit(engine, **request))
  return answer


@functools.cache
def long_seed():
  """A seed that does not stop early."""
  return next(s for s in range(99) if not sample(make(), seed=s).finished)


def assert_same(actual, desired):
  """Bit by bit, except for the versions."""
  np.testing.assert_array_equal(actual.token_T, desired.token_T)
  np.testing.assert_array_equal(actual.logprob_T, desired.logprob_T)
  np.testing.assert_array_equal(actual.route_TLX, desired.route_TLX)


class CompanyTest(absltest.TestCase):
  def test_a_sequence_comes_out_the_same_in_any_slot_and_company(self):
    alone = sample(make(), seed=long_seed())
    crowd = make()
    others = [
      submit(crowd, session=1, history=HISTORY[:3], seed=8, max_new=30),
      submit(crowd, session=2, history=HISTORY * 2, seed=9, temperature=0.5),
    ]
    crowd.step()
    (in_slot_2,) = finish(crowd, submit(crowd, session=7, seed=long_seed()))
    assert_same(in_slot_2, alone)
    finish(crowd, *others)

  def test_all_slots_at_once_give_what_a_few_at_a_time_give(self):
    config = dataclasses.replace(CONFIG, decode_rows=CONFIG.slots)
    engine = engine_lib.Engine(
      config, fakes.MODEL, fakes.weights(0), stop_id=STOP
    )
    pending = [submit(engine, session=s, seed=s) for s in range(5)]
    for _ in range(100):
      engine.step()
      for session, future in enumerate(pending):
        if future.done():
          engine.release(session)
    for session, future in enumerate(pending):
      answer, alone = future.result(timeout=0), sample(make(), seed=session)
      np.testing.assert_array_equal(answer.token_T, alone.token_T)
      np.testing.assert_allclose(answer.logprob_T, alone.logprob_T, atol=1e-5)
      np.testing.assert_array_equal(answer.route_TLX, alone.route_TLX)

  def test_a_slot_that_others_used_leaves_no_trace(self):
    engine = make()
    finish(engine, *(submit(engine, session=s, seed=s) for s in range(3)))
    for session in range(3):
      engine.release(session)
    assert_same(sample(engine, session=9), sample(make()))

  def test_sessions_beyond_the_slots_wait_for_one(self):
    engine = make()
    pending = [submit(engine, session=s, seed=s) for s in range(7)]
    expected = [sample(make(), seed=s) for s in range(7)]
    for _ in range(100):
      engine.step()
      for session, future in enumerate(pending):
        if future.done():
          engine.release(session)
    for future, alone in zip(pending, expected, strict=True):
      assert_same(future.result(timeout=0), alone)

  def test_who_gave_up_waiting_takes_no_slot(self):
    engine = make()
    running = [submit(engine, session=s, seed=s) for s in range(3)]
    engine.step()
    given_up = submit(engine, session=3)
    engine.release(3)
    finish(engine, *running)
    for session in range(3):
      engine.release(session)
    later = [submit(engine, session=s, seed=s) for s in range(4, 7)]
    finish(engine, *later)
    self.assertTrue(given_up.cancelled())


class LimitTest(parameterized.TestCase):
  def test_the_stop_token_ends_a_sequence_and_belongs_to_it(self):
    stopped = 0
    for seed in range(24):
      engine = make()
      answer = sample(engine, seed=seed, max_new=20)
      self.assertNotIn(STOP, answer.token_T[:-1])
      self.assertEqual(answer.finished, answer.token_T[-1] == STOP)
      if answer.finished:
        stopped += 1
      else:
        self.assertLen(answer.token_T, 20)
      self.assertEqual(engine.tokens_sampled, len(answer.token_T))
    self.assertBetween(stopped, 1, 23)

  @parameterized.parameters(
    # history, max_new, sampled
    (12, 1, 1),
    (12, 4, 4),
    (44, 9, 4),  # The whole sequence is limited.
    (47, 9, 1),
    (1, 2, 2),
  )
  def test_limits_hold(self, length, max_new, sampled):
    history = np.resize(HISTORY, length)
    answers = [
      sample(make(), history=history, max_new=max_new, seed=seed)
      for seed in range(6)
    ]
    unfinished = [answer for answer in answers if not answer.finished]
    self.assertNotEmpty(unfinished)
    for answer in unfinished:
      self.assertLen(answer.token_T, sampled)
      self.assertLen(answer.route_TLX, length + sampled)
    for answer in answers:
      self.assertLessEqual(len(answer.token_T), sampled)

  @parameterized.parameters((48, 9), (60, 9), (12, 0))
  def test_refuses_what_has_no_room(self, length, max_new):
    with self.assertRaisesRegex(
      ValueError, f'{length} of 48.*max_new {max_new}'
    ):
      submit(make(), history=np.resize(HISTORY, length), max_new=max_new)

  @parameterized.parameters(((),), ((8, 4),), ((4, 4),))
  def test_refuses_chunks_that_do_not_ascend(self, chunks):
    with self.assertRaisesRegex(ValueError, 'ascend'):
      engine_lib.SamplerConfig(prefill_chunks=chunks)

  def test_refuses_chunks_longer_than_a_sequence(self):
    with self.assertRaisesRegex(
      ValueError, r'\(32, 128\) exceed max_tokens=96'
    ):
      engine_lib.SamplerConfig(max_tokens=96)


class GreedyTest(absltest.TestCase):
  def test_takes_the_likeliest_token_of_the_model(self):
    answer = sample(make(), temperature=0.0, max_new=5)
    stream = np.concatenate([HISTORY, answer.token_T])
    sequence = fakes.sequence(stream, np.zeros(len(stream)))
    (batch,) = fakes.pack([(sequence, 0.0)], rows=1, length=48)
    output = fakes.forward(fakes.params(), batch)
    at = slice(len(HISTORY) - 1, len(stream) - 1)
    logprob_TV = jax.nn.log_softmax(output.logits_BTV[0, at])
    np.testing.assert_array_equal(answer.token_T, logprob_TV.argmax(-1))
    np.testing.assert_allclose(answer.logprob_T, logprob_TV.max(-1), atol=1e-5)
    # The token sampled last has not been through the model.
    np.testing.assert_array_equal(
      answer.route_TLX[:-1], output.route_BTLX[0, : len(stream) - 1]
    )
    self.assertTrue((answer.route_TLX[-1] == -1).all())


class PrefixTest(parameterized.TestCase):
  def test_a_turn_feeds_only_what_is_new(self):
    engine = make()
    first = sample(engine, max_new=4)
    self.assertEqual(engine.tokens_fed, len(HISTORY) - 1)
    history = [*HISTORY, *first.token_T, 20, 21, 22, 23, 20]
    second = sample(engine, history=history, max_new=4)
    self.assertEqual(engine.tokens_fed, len(HISTORY) - 1 + 5)
    cold = sample(make(), history=history, max_new=4)
    np.testing.assert_array_equal(second.token_T, cold.token_T)
    np.testing.assert_allclose(second.logprob_T, cold.logprob_T, atol=1e-5)
    np.testing.assert_array_equal(second.route_TLX, cold.route_TLX)

  def test_a_rewritten_past_is_fed_again_from_where_it_differs(self):
    engine = make()
    sample(engine, max_new=4)
    fed = engine.tokens_fed
    history = [*HISTORY[:7], 22, *HISTORY[8:]]
    second = sample(engine, history=history)
    self.assertEqual(engine.tokens_fed - fed, len(HISTORY) - 1 - 7)
    cold = sample(make(), history=history)
    np.testing.assert_array_equal(second.token_T, cold.token_T)
    np.testing.assert_allclose(second.logprob_T, cold.logprob_T, atol=1e-5)

  def test_asking_again_gives_the_same_again(self):
    engine = make()
    first, again = sample(engine), sample(engine)
    np.testing.assert_array_equal(first.token_T, again.token_T)
    np.testing.assert_allclose(first.logprob_T, again.logprob_T, atol=1e-5)

  @parameterized.parameters(33, 43, 47)
  def test_at_the_end_of_the_cache_a_turn_goes_on_from_the_same_past(self, end):
    stream = np.resize(HISTORY, end)
    engine = make()
    first = sample(engine, history=stream[:-9], max_new=1)
    history = [*stream[:-9], *first.token_T, *stream[-8:]]
    second = sample(engine, history=history)
    cold = sample(make(), history=history)
    np.testing.assert_array_equal(second.token_T, cold.token_T)
    np.testing.assert_allclose(second.logprob_T, cold.logprob_T, atol=1e-5)
    np.testing.assert_array_equal(second.route_TLX, cold.route_TLX)

  def test_other_sessions_do_not_share_the_slot(self):
    engine = make()
    sample(engine, session=0)
    fed = engine.tokens_fed
    sample(engine, session=1)
    self.assertEqual(engine.tokens_fed, 2 * fed)


class SwapTest(absltest.TestCase):
  def test_in_flight_the_rest_is_what_a_cold_engine_gives(self):
    engine, seed = make(0), long_seed()
    future = submit(engine, max_new=9, seed=seed)
    engine.step()
    engine.set_weights(fakes.weights(1))
    self.assertEqual(engine.version, 0)  # Not before the next step.
    (answer,) = finish(engine, future)
    self.assertEqual((engine.version, engine.digest), (1, 'digest of 1'))
    done = CONFIG.decode_steps
    self.assertEqual(
      answer.version_T.tolist(), [0] * done + [1] * (len(answer.token_T) - done)
    )
    before = sample(make(0), max_new=done, seed=seed)
    np.testing.assert_array_equal(answer.token_T[:done], before.token_T)
    np.testing.assert_array_equal(answer.logprob_T[:done], before.logprob_T)
    cold = sample(
      make(1), history=[*HISTORY, *before.token_T], max_new=9 - done, seed=seed
    )
    np.testing.assert_array_equal(answer.token_T[done:], cold.token_T)
    np.testing.assert_array_equal(answer.logprob_T[done:], cold.logprob_T)
    np.testing.assert_array_equal(answer.route_TLX, cold.route_TLX)

  def test_between_turns_the_cache_of_the_old_weights_is_not_used(self):
    engine = make(0)
    first = sample(engine, max_new=4)
    engine.set_weights(fakes.weights(1))
    history = [*HISTORY, *first.token_T, 20, 21]
    second = sample(engine, history=history)
    cold = sample(make(1), history=history)
    assert_same(second, cold)
    self.assertEqual(set(second.version_T.tolist()), {1})

  def test_only_newer_weights_are_taken(self):
    engine = make(3)
    for version in (2, 3):
      with self.assertRaisesRegex(ValueError, f'{version} is not newer than 3'):
        engine.set_weights(fakes.weights(version))
    engine.set_weights(fakes.weights(5))
    with self.assertRaisesRegex(ValueError, '4 is not newer than 5'):
      engine.set_weights(fakes.weights(4))
    engine.step()
    self.assertEqual(engine.version, 5)


class FailureTest(absltest.TestCase):
  def test_ends_every_request_running_or_waiting(self):
    engine = make()
    pending = [submit(engine, session=s) for s in range(5)]
    engine.step()
    error = RuntimeError('no memory')
    engine.fail(error)
    for future in pending:
      self.assertIs(future.exception(timeout=0), error)
    with self.assertRaises(trajectory.InfrastructureError) as caught:
      submit(engine)
    self.assertIs(caught.exception.__cause__, error)

  def test_a_step_under_way_ends_quietly(self):
    engine = make()
    future = submit(engine)
    engine.step()
    engine.fail(RuntimeError('stopped'))
    while engine.step():
      pass
    with self.assertRaisesRegex(RuntimeError, 'stopped'):
      future.result(timeout=0)

  def test_finished_answers_are_kept(self):
    engine = make()
    future = submit(engine)
    (answer,) = finish(engine, future)
    engine.fail(RuntimeError('later'))
    self.assertIs(future.result(timeout=0), answer)


class IdleTest(absltest.TestCase):
  def test_says_whether_there_was_work(self):
    engine = make()
    self.assertFalse(engine.step())
    submit(engine, max_new=1)
    self.assertTrue(engine.step())
    self.assertFalse(engine.step())

  def test_new_work_ends_the_wait(self):
    engine = make()
    engine.step()
    submit(engine)
    with futures.ThreadPoolExecutor(1) as executor:
      executor.submit(engine.wait, 60).result(timeout=30)


if __name__ == '__main__':
  absltest.main()
