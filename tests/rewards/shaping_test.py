from absl.testing import absltest

from composer_jax import trajectory
from composer_jax.rewards import effort
from composer_jax.rewards import shaping
from tests import fakes

Ending, Status = trajectory.Ending, trajectory.Status

CONFIG = shaping.RewardConfig(
  solved_value=2.0,
  effort_price=0.1,
  invalid_call_price=0.25,
  unfinished_price=0.5,
  # Two turns, nothing else: linear, so that the effort is 2.
  effort_shape=effort.EffortConfig(
    per_token=0, per_call=0, per_turn=1, k=1, q=0
  ),
)


def attempt(ending, status=Status.OK):
  return fakes.sequence(
    range(4),
    [0, 1, 0, 1],
    turns=fakes.steps([('undo', {}, status)] * 2, [('submit', {}, Status.OK)]),
    ending=ending,
  )


class ComponentsTest(absltest.TestCase):
  def test_a_solution_pays_for_its_effort_only(self):
    self.assertEqual(
      shaping.components(attempt(Ending.SUBMITTED), True, CONFIG),
      {'solved': 2, 'effort': -0.2, 'invalid_call': 0, 'unfinished': 0},
    )

  def test_invalid_calls_and_an_open_end_cost_what_they_cost(self):
    self.assertEqual(
      shaping.components(
        attempt(Ending.TURN_LIMIT, Status.INVALID), False, CONFIG
      ),
      {'solved': 0, 'effort': -0.2, 'invalid_call': -0.5, 'unfinished': -0.5},
    )

  def test_a_call_that_ran_and_failed_is_no_invalid_one(self):
    for status in set(Status) - {Status.INVALID}:
      terms = shaping.components(
        attempt(Ending.SUBMITTED, status), False, CONFIG
      )
      self.assertEqual(terms['invalid_call'], 0)

  def test_the_reward_is_the_sum_of_the_components(self):
    done = attempt(Ending.NO_CALL, Status.INVALID)
    terms = shaping.components(done, True, CONFIG)
    scored = fakes.sequence([0], [1], rewards=terms)
    self.assertAlmostEqual(scored.reward, 2 - 0.2 - 0.5 - 0.5)


if __name__ == '__main__':
  absltest.main()
