from absl.testing import absltest
import numpy as np

from composer_jax import trajectory
from composer_jax.learner import batch as batch_lib
from tests import fakes


def sequence(length, first=0, **fields):
  """Ids first, first + 1 ...; the second half is the policy's."""
  sampled = np.arange(length) >= length // 2
  return fakes.sequence(first + np.arange(length), sampled, **fields)


class PackTest(absltest.TestCase):
  def test_places_the_longest_first_and_fills_up_the_rows(self):
    pairs = [
      (sequence(2, 10), 0.5),
      (sequence(4, 20), -1.0),
      (sequence(3, 30), 2.0),
    ]
    (batch,) = fakes.pack(pairs, rows=2, length=6)
    np.testing.assert_array_equal(
      batch.token_BT, [[20, 21, 22, 23, 10, 11], [30, 31, 32, 0, 0, 0]]
    )
    np.testing.assert_array_equal(
      batch.segment_BT, [[1, 1, 1, 1, 2, 2], [1, 1, 1, 0, 0, 0]]
    )
    np.testing.assert_array_equal(
      batch.position_BT, [[0, 1, 2, 3, 0, 1], [0, 1, 2, 0, 0, 0]]
    )
    np.testing.assert_array_equal(
      batch.sampled_BT,
      np.array([[0, 0, 1, 1, 0, 1], [0, 1, 1, 0, 0, 0]], bool),
    )
    np.testing.assert_array_equal(
      batch.advantage_BT, [[0, 0, -1, -1, 0, 0.5], [0, 2, 2, 0, 0, 0]]
    )
    np.testing.assert_array_equal(batch.behaviour_BT, -1.0 * batch.sampled_BT)

  def test_every_token_stands_in_exactly_one_micro_batch(self):
    lengths = [7, 5, 5, 3, 3, 2, 1]
    pairs = [(sequence(n, 100 * i), 1.0) for i, n in enumerate(lengths)]
    batches = fakes.pack(pairs, rows=2, length=8)
    self.assertEqual({b.token_BT.shape for b in batches}, {(2, 8)})
    placed = np.concatenate([b.token_BT[b.segment_BT > 0] for b in batches])
    self.assertEqual(
      sorted(placed), sorted(t for m, _ in pairs for t in m.token_T)
    )
    self.assertLen(batches, 2)  # 26 tokens do not fit 24 slots.

  def test_keeps_routes_and_leaves_the_rest_unknown(self):
    route = np.arange(3 * 4, dtype=np.int8).reshape(3, 2, 2) % 4
    pairs = [
      (sequence(3, route=route), 1.0),
      # A script has no routes.
      (sequence(2, route=np.zeros((2, 0, 0), np.int8)), 1.0),
    ]
    (batch,) = fakes.pack(pairs, rows=1, length=6)
    np.testing.assert_array_equal(batch.route_BTLX[0, :3], route)
    self.assertTrue((batch.route_BTLX[0, 3:] == -1).all())

  def test_refuses_routes_of_another_model(self):
    member = sequence(3, route=np.zeros((3, 1, 2), np.int8))
    with self.assertRaisesRegex(ValueError, r'\(1, 2\).*\(2, 2\)'):
      fakes.pack([(member, 1.0)])

  def test_refuses_a_sequence_longer_than_a_row(self):
    with self.assertRaisesRegex(ValueError, 'task has 7 tokens.* holds 6'):
      fakes.pack([(sequence(7), 1.0)], length=6)

  def test_contexts_of_an_episode_are_segments_with_one_advantage(self):
    route = np.arange(9 * 4, dtype=np.int8).reshape(9, 2, 2) % 4
    chain = fakes.sequence(
      np.arange(9), [0, 1, 0, 1, 1, 0, 0, 1, 1], route=route, starts=(0, 5)
    )
    (batch,) = fakes.pack([(chain, -0.5)], rows=2, length=5)
    np.testing.assert_array_equal(
      batch.token_BT, [[0, 1, 2, 3, 4], [5, 6, 7, 8, 0]]
    )
    np.testing.assert_array_equal(
      batch.position_BT, [[0, 1, 2, 3, 4], [0, 1, 2, 3, 0]]
    )
    np.testing.assert_array_equal(
      batch.segment_BT, [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
    )
    np.testing.assert_array_equal(
      batch.advantage_BT, [[0, -0.5, 0, -0.5, -0.5], [0, 0, -0.5, -0.5, 0]]
    )
    np.testing.assert_array_equal(batch.route_BTLX[1, :4], route[5:])
    # No longer than a row: the contexts, not the episode.
    with self.assertRaisesRegex(ValueError, 'has 5 tokens, a row holds 4'):
      fakes.pack([(chain, -0.5)], length=4)

  def test_nothing_gives_no_batches(self):
    self.assertEmpty(fakes.pack([]))


class GroupAdvantagesTest(absltest.TestCase):
  def test_compares_the_members_that_came_back(self):
    def member(group, number, **rewards):
      return sequence(2, group=group, member=number, rewards=rewards)

    whole = (member(0, 0, solved=1.0, effort=-0.5), member(0, 1, solved=0.0))
    rest = (member(1, 2, solved=1.0),)
    groups = [
      trajectory.Group(index=0, task_id='task', trajectories=whole, size=2),
      trajectory.Group(
        index=1, task_id='task', trajectories=rest, size=3, closed='deadline'
      ),
      trajectory.Group(
        index=2, task_id='task', trajectories=(), size=3, closed='deadline'
      ),
    ]
    pairs = batch_lib.group_advantages(groups)
    self.assertEqual([m for m, _ in pairs], [*whole, *rest])
    self.assertEqual([a for _, a in pairs], [0.25, -0.25, 0.0])

  def test_refuses_a_reward_that_is_no_number(self):
    broken = sequence(2, rewards={'effort': float('nan')})
    group = trajectory.Group(
      index=0, task_id='task', trajectories=(broken,), size=1
    )
    with self.assertRaisesRegex(ValueError, 'not finite'):
      batch_lib.group_advantages([group])


if __name__ == '__main__':
  absltest.main()
