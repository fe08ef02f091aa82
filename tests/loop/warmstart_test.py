from absl.testing import absltest
import numpy as np

from composer_jax import trajectory
from composer_jax.loop import warmstart
from tests import fakes

# Episodes that name themselves: 1, 1 and so on; 10 of the one, 10 of the other.
FIRST = [fakes.sequence([i] * 3, [0, 1, 1]) for i in range(1, 11)]
SECOND = [fakes.sequence([i] * 3, [0, 0, 1]) for i in range(11, 21)]


def stream(seed=0, shares=(0.5, 0.5), rows=2, length=7):
  return warmstart.batches(
    [FIRST, SECOND],
    shares,
    rows=rows,
    length=length,
    seed=seed,
    route_shape=(2, 2),
  )


def take(batches, count):
  return [next(batches).token_BT.tolist() for _ in range(count)]


class BatchesTest(absltest.TestCase):
  def test_packs_whole_sequences(self):
    batch = next(stream())
    np.testing.assert_array_equal(batch.segment_BT, [[1, 1, 1, 2, 2, 2, 0]] * 2)
    np.testing.assert_array_equal(
      batch.position_BT, [[0, 1, 2, 0, 1, 2, 0]] * 2
    )
    for token_T, sampled_T in zip(
      batch.token_BT, batch.sampled_BT, strict=True
    ):
      for start in (0, 3):
        self.assertLen(set(token_T[start : start + 3].tolist()), 1)
        tail = [True, True] if token_T[start] <= 10 else [False, True]
        self.assertEqual(sampled_T[start : start + 3].tolist(), [False, *tail])
    self.assertEqual(batch.route_BTLX.shape, (2, 7, 2, 2))
    self.assertTrue((batch.route_BTLX == trajectory.UNKNOWN_ROUTE).all())

  def test_depends_on_the_seed_alone(self):
    self.assertEqual(take(stream(), 20), take(stream(), 20))
    self.assertNotEqual(take(stream(), 20), take(stream(seed=1), 20))

  def test_resumes_where_it_was_saved(self):
    batches = stream()
    take(batches, 7)
    state = batches.get_state()
    expected = take(batches, 20)
    again = stream()
    again.set_state(state)
    self.assertEqual(take(again, 20), expected)

  def test_mixes_by_the_shares_and_uses_all_of_each(self):
    found = np.asarray(take(stream(shares=(0.25, 0.75)), 200))[..., [0, 3]]
    self.assertAlmostEqual((found <= 10).mean(), 0.25, delta=0.02)
    self.assertEqual(set(found.reshape(-1).tolist()), {*range(1, 21)})


class CorpusTest(absltest.TestCase):
  def test_every_line_counts_once(self):
    self.assertEqual(
      list(warmstart.corpus(['a\nb\na', 'b\nc'])), ['\na', '\nb', '\nc']
    )


if __name__ == '__main__':
  absltest.main()
