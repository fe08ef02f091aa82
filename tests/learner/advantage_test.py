from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from composer_jax.learner import advantage


class GroupAdvantageTest(parameterized.TestCase):
  def test_is_the_reward_minus_the_mean_of_the_group(self):
    np.testing.assert_array_equal(
      advantage.group_advantage([[1, 0, 0, 1], [0, 0, 0, 2]]),
      np.array([[0.5, -0.5, -0.5, 0.5], [-0.5, -0.5, -0.5, 1.5]], np.float32),
    )

  def test_nearly_equal_rewards_are_not_blown_up(self):
    (advantage_R,) = advantage.group_advantage([[0.35] * 7 + [0.95]])
    # Mean 0.425.
    np.testing.assert_allclose(advantage_R, [-0.075] * 7 + [0.525], rtol=1e-6)
    self.assertLessEqual(np.abs(advantage_R).max(), 0.95 - 0.35)

  @parameterized.parameters(0.0, 0.35, 0.1, -1e6, 1 / 3)
  def test_equal_rewards_give_exactly_zero(self, reward):
    for size in (1, 3, 7, 8):
      np.testing.assert_array_equal(
        advantage.group_advantage([[reward] * size]), np.zeros((1, size))
      )

  def test_absent_members_count_for_nothing(self):
    np.testing.assert_array_equal(
      advantage.group_advantage(
        [[1, 0, 99, 99], [5, 5, -7, 5], [4, 4, 4, 4]],
        present_GR=[
          [True, True, False, False],
          [True, True, False, True],
          [False] * 4,
        ],
      ),
      np.array([[0.5, -0.5, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]], np.float32),
    )

  def test_never_exceeds_the_spread_of_the_group(self):
    reward_GR = np.random.default_rng(0).normal(size=(100, 5)) ** 3
    advantage_GR = advantage.group_advantage(reward_GR)
    spread_G = reward_GR.max(-1) - reward_GR.min(-1)
    self.assertTrue((np.abs(advantage_GR).max(-1) <= spread_G).all())


if __name__ == '__main__':
  absltest.main()
