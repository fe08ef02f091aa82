import dataclasses
import threading
import time

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from composer_jax import trajectory
from composer_jax.replay import buffer

WAIT = 100.0  # Seconds that a call may wait.
SOON = 10.0  # Seconds in which a woken call has returned.


class FakeClock:
  def __init__(self):
    self.now = 0.0

  def __call__(self):
    return self.now


class Waiting:
  """A call in a thread; it waits in the buffer once `Waiting` is built."""

  def __init__(self, clock, call):
    self._got = []
    self._thread = threading.Thread(
      target=lambda: self._got.append(call()), daemon=True
    )
    clock.read.clear()
    self._thread.start()
    # The clock is read under the lock, which only waiting releases.
    assert clock.read.wait(SOON)

  def result(self):
    self._thread.join(SOON)
    assert self._got, 'still waiting'
    return self._got[0]


class RealClock:
  def __init__(self):
    self.read = threading.Event()

  def __call__(self):
    self.read.set()
    return time.monotonic()


def attempt(group, member, version=0, task_id=None):
  return trajectory.Trajectory(
    task_id=task_id or f'task{group}',
    group=group,
    member=member,
    token_T=np.array([1, 2], np.int32),
    sampled_T=np.array([False, True]),
    logprob_T=np.array([0, -1], np.float32),
    version_T=np.array([-1, version], np.int32),
    route_TLX=np.zeros((2, 1, 2), np.int8),
    turns=(),
    ending=trajectory.Ending.SUBMITTED,
    final_files={},
  )


def make(
  clock=None,
  cursor=0,
  groups_per_step=2,
  group_size=2,
  max_lag=0,
  group_deadline_s=60,
):
  config = buffer.ReplayConfig(
    groups_per_step=groups_per_step,
    group_size=group_size,
    max_lag=max_lag,
    group_deadline_s=group_deadline_s,
  )
  return buffer.ReplayBuffer(config, clock or FakeClock(), cursor)


def admit_all(replay):
  admitted = []
  while (place := replay.admit(0)) is not None:
    admitted.append(place)
  return admitted


def members(group):
  return [t.member for t in group.trajectories]


class AdmissionTest(parameterized.TestCase):
  def test_members_of_a_group_are_consecutive(self):
    self.assertEqual(admit_all(make()), [(0, 0), (0, 1), (1, 0), (1, 1)])

  @parameterized.parameters((0, 4), (1, 8), (2, 12))
  def test_runs_max_lag_steps_ahead(self, max_lag, attempts):
    self.assertLen(admit_all(make(max_lag=max_lag)), attempts)

  def test_with_no_lag_a_step_begins_only_under_the_policy_before_it(self):
    replay = make()
    for step in range(3):
      places = admit_all(replay)
      self.assertEqual(
        [g for g, _ in places], [2 * step] * 2 + [2 * step + 1] * 2
      )
      for group, member in places:
        replay.put(attempt(group, member, version=step))
      self.assertLen(replay.take(0), 2)
      self.assertIsNone(replay.admit(0))  # Trained, but not yet published.
      self.assertEqual(replay.stats().lag, 0)
      replay.set_version(step + 1)

  def test_a_restart_begins_at_the_cursor(self):
    replay = make(cursor=6)
    self.assertEqual(replay.admit(0), (6, 0))
    self.assertLen(admit_all(replay), 3)
    self.assertEqual(replay.cursor, 6)

  def test_a_cursor_inside_a_step_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'cursor 3'):
      make(cursor=3)

  def test_the_version_does_not_go_back(self):
    replay = make(cursor=6)
    with self.assertRaisesRegex(ValueError, 'version 2 is older than 3'):
      replay.set_version(2)

  def test_a_new_version_wakes_a_waiting_actor(self):
    clock = RealClock()
    replay = make(clock)
    admit_all(replay)
    actor = Waiting(clock, lambda: replay.admit(WAIT))
    replay.set_version(1)
    self.assertEqual(actor.result(), (2, 0))


class LandingTest(parameterized.TestCase):
  def test_groups_come_in_order_whatever_ends_first(self):
    replay = make()
    for group, member in reversed(admit_all(replay)):
      replay.put(attempt(group, member))
    groups = replay.take(0)
    self.assertEqual([g.index for g in groups], [0, 1])
    self.assertEqual([members(g) for g in groups], [[0, 1], [0, 1]])
    self.assertEqual([g.task_id for g in groups], ['task0', 'task1'])
    self.assertEqual([g.closed for g in groups], ['', ''])
    self.assertEqual(replay.cursor, 2)

  def test_a_later_group_does_not_overtake(self):
    replay = make(max_lag=1)
    admit_all(replay)
    for group in (1, 2, 3):
      for member in (0, 1):
        replay.put(attempt(group, member))
    with self.assertRaisesRegex(TimeoutError, r'group 0: members \[0, 1\]'):
      replay.take(0)

  @parameterized.parameters((0, 0), (7, 0), (0, 5))
  def test_what_is_not_in_flight_is_refused(self, group, member):
    replay = make()
    admit_all(replay)
    replay.put(attempt(0, 0))
    with self.assertRaisesRegex(ValueError, 'not in flight'):
      replay.put(attempt(group, member))
    with self.assertRaisesRegex(ValueError, 'not in flight'):
      replay.fail(group, member, 'gone')

  def test_another_task_in_the_group_is_refused(self):
    replay = make()
    admit_all(replay)
    replay.put(attempt(0, 0))
    with self.assertRaisesRegex(ValueError, "'task0'.*'other'"):
      replay.put(attempt(0, 1, task_id='other'))

  def test_a_fault_of_ours_is_left_out_and_named(self):
    replay = make()
    admit_all(replay)
    replay.fail(0, 1, 'sandbox died')
    replay.put(attempt(0, 0))
    replay.fail(1, 0, 'sandbox died')
    replay.fail(1, 1, 'sampler died')
    first, second = replay.take(0)
    self.assertEqual(members(first), [0])
    self.assertEqual(first.closed, 'member 1 failed: sandbox died')
    self.assertEqual(members(second), [])
    self.assertEqual(
      second.closed,
      'member 0 failed: sandbox died; member 1 failed: sampler died',
    )
    stats = replay.stats()
    self.assertEqual((stats.failed, stats.completed), (3, 1))
    self.assertEqual(stats.closed_groups, 2)

  def test_stale_tokens_do_not_reach_the_learner(self):
    replay = make(cursor=6, max_lag=1)  # The next step is step 3.
    admit_all(replay)
    replay.put(attempt(6, 0, version=3))
    replay.put(attempt(6, 1, version=1))
    replay.put(attempt(7, 0, version=2))
    replay.put(attempt(7, 1, version=4))  # The future.
    first, second = replay.take(0)
    self.assertEqual(members(first), [0])
    self.assertEqual(
      first.closed, 'member 1 stale: version 1 at step 3 with max_lag 1'
    )
    self.assertEqual(members(second), [0])
    self.assertEqual((replay.stats().stale, replay.stats().lag), (2, 1))


class DeadlineTest(absltest.TestCase):
  def test_a_stuck_attempt_closes_its_group_and_is_named(self):
    clock = FakeClock()
    replay = make(clock)
    admit_all(replay)
    for place in ((0, 0), (1, 0), (1, 1)):
      replay.put(attempt(*place))
    clock.now = 59.0
    with self.assertRaisesRegex(TimeoutError, r'group 0: members \[1\]$'):
      replay.take(0)
    clock.now = 60.0
    first, second = replay.take(0)
    self.assertEqual(members(first), [0])
    self.assertEqual(first.closed, 'members [1] pending after 60 s')
    self.assertEqual(second.closed, '')

  def test_a_late_arrival_is_dropped_and_counted(self):
    clock = FakeClock()
    replay = make(clock)
    admit_all(replay)
    clock.now = 60.0
    groups = replay.take(0)
    self.assertEqual([g.trajectories for g in groups], [(), ()])
    self.assertEqual(replay.stats().in_flight, 4)
    replay.put(attempt(0, 0))
    replay.fail(0, 1, 'sandbox died')
    stats = replay.stats()
    self.assertEqual((stats.late, stats.failed, stats.in_flight), (1, 1, 2))
    replay.set_version(1)
    for group, member in admit_all(replay):
      replay.put(attempt(group, member, version=1))
    self.assertEqual([members(g) for g in replay.take(0)], [[0, 1], [0, 1]])

  def test_what_ends_before_the_learner_closes_the_group_still_counts(self):
    clock = FakeClock()
    replay = make(clock)
    admit_all(replay)
    clock.now = 100.0
    replay.put(attempt(0, 1))
    self.assertEqual(members(replay.take(0)[0]), [1])

  def test_members_of_a_closed_group_are_not_begun_any_more(self):
    clock = FakeClock()
    replay = make(clock, groups_per_step=1, max_lag=1)
    self.assertEqual(replay.admit(0), (0, 0))
    clock.now = 60.0
    replay.take(0)
    self.assertEqual(replay.admit(0), (1, 0))

  def test_without_actors_no_deadline_runs_and_the_wait_ends(self):
    clock = FakeClock()
    replay = make(clock)
    clock.now = 1000.0
    with self.assertRaisesRegex(
      TimeoutError, 'version 0.*group 0: not begun; group 1: not begun'
    ):
      replay.take(0)

  def test_a_waiting_learner_wakes_at_a_deadline_that_began_meanwhile(self):
    clock = RealClock()
    replay = make(clock, groups_per_step=1, group_deadline_s=0.05)
    learner = Waiting(clock, lambda: replay.take(WAIT))
    replay.admit(0)
    (group,) = learner.result()
    self.assertEqual(group.closed, 'members [0, 1] pending after 0.05 s')

  def test_a_waiting_learner_wakes_when_the_last_member_lands(self):
    clock = RealClock()
    replay = make(clock, groups_per_step=1)
    admit_all(replay)
    replay.put(attempt(0, 0))
    learner = Waiting(clock, lambda: replay.take(WAIT))
    replay.fail(0, 1, 'sandbox died')
    (group,) = learner.result()
    self.assertEqual(members(group), [0])


class ClosingTest(absltest.TestCase):
  def test_closing_wakes_learner_and_actors(self):
    clock = RealClock()
    replay = make(clock)
    admit_all(replay)
    actor = Waiting(clock, lambda: replay.admit(WAIT))
    learner = Waiting(clock, lambda: replay.take(WAIT))
    replay.close()
    self.assertIsNone(actor.result())
    self.assertIsNone(learner.result())
    self.assertTrue(replay.closed)
    replay.put(attempt(0, 0))  # Attempts in flight may still land.
    self.assertEqual(replay.stats().in_flight, 3)


class ConfigTest(parameterized.TestCase):
  @parameterized.parameters(
    ('groups_per_step', 0),
    ('group_size', 0),
    ('max_lag', -1),
    ('group_deadline_s', 0),
  )
  def test_impossible_sizes_are_refused(self, name, value):
    with self.assertRaisesRegex(ValueError, name):
      dataclasses.replace(buffer.ReplayConfig(), **{name: value})


class ManyActorsTest(absltest.TestCase):
  def test_every_group_is_trained_once_and_never_too_old(self):
    """32 actors, one learner, one restart with work in flight."""
    trained = []
    cursor = 0
    for steps in (10, 15):
      replay = make(
        time.monotonic, cursor, groups_per_step=4, group_size=8, max_lag=2
      )
      version = [cursor // 4]
      actors = [
        threading.Thread(target=self._act, args=(replay, version), daemon=True)
        for _ in range(32)
      ]
      for actor in actors:
        actor.start()
      for _ in range(steps):
        groups = replay.take(SOON)
        step = groups[0].index // 4
        for group in groups:
          self.assertEqual(members(group), list(range(8)))
          self.assertEqual(group.closed, '')
          for member in group.trajectories:
            self.assertBetween(step - member.oldest_version, 0, 2)
        trained.extend(group.index for group in groups)
        version[0] = step + 1
        replay.set_version(step + 1)
      cursor = replay.cursor  # What a restart would know.
      replay.close()
      for actor in actors:
        actor.join(SOON)
        self.assertFalse(actor.is_alive())
    self.assertEqual(trained, list(range(100)))

  def _act(self, replay, version):
    while (place := replay.admit(WAIT)) is not None:
      replay.put(attempt(*place, version=version[0]))


if __name__ == '__main__':
  absltest.main()
