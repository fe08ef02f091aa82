import dataclasses
import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from composer_jax import trajectory
from composer_jax.rewards import effort
from tests import fakes

OK = trajectory.Status.OK


class CostTest(parameterized.TestCase):
  @parameterized.parameters(
    # x, k, q, cost
    (5.0, 0.2, 0.0, 5.0),  # Linear.
    (5.0, 0.2, 1.0, 5 * math.log(2)),
    (15.0, 0.2, 0.5, 10.0),  # (sqrt(4) - 1) / (0.2 * 0.5)
    (5.0, 0.2, 2.0, 2.5),  # (1 - 1/2) / 0.2
    (0.0, 0.2, 0.0, 0.0),
    (0.0, 0.2, 0.5, 0.0),
    (0.0, 0.2, 1.0, 0.0),
  )
  def test_golden(self, x, k, q, cost):
    self.assertAlmostEqual(effort.cost(x, k=k, q=q), cost, places=12)

  @parameterized.parameters(0.3, 0.5, 1.0, 1.5)
  def test_rises_ever_more_slowly_from_slope_one(self, q):
    costs = [effort.cost(x, k=0.2, q=q) for x in range(40)]
    slopes = np.diff(costs)
    self.assertTrue((slopes > 0).all())
    self.assertTrue((np.diff(slopes) < 0).all())
    self.assertAlmostEqual(effort.cost(1e-6, k=0.2, q=q) / 1e-6, 1, places=5)

  def test_the_logarithm_is_where_its_neighbours_meet(self):
    for q in (1 - 1e-7, 1 + 1e-7):
      self.assertAlmostEqual(
        effort.cost(9.0, k=0.2, q=q), effort.cost(9.0, k=0.2, q=1), places=5
      )

  @parameterized.parameters((-1, 0.2, 1), (1, 0, 1), (1, -0.2, 1), (1, 0.2, -1))
  def test_refuses_what_has_no_cost(self, x, k, q):
    with self.assertRaisesRegex(ValueError, f'x={x} q={q} k={k}'):
      effort.cost(x, k=k, q=q)


class AmountTest(absltest.TestCase):
  def test_weighs_tokens_calls_and_turns_of_the_policy(self):
    done = fakes.sequence(
      range(8),
      [0, 0, 1, 1, 0, 1, 0, 0],
      turns=fakes.steps(
        [('undo', {}, OK), ('submit', {}, OK)], [('submit', {}, OK)], []
      ),
    )
    config = effort.EffortConfig(per_token=100, per_call=10, per_turn=1)
    self.assertEqual(effort.amount(done, config), 3 * 100 + 3 * 10 + 3)

  def test_weighs_the_seconds_of_the_calls_where_asked_to(self):
    result = trajectory.ToolResult(call_id='0', status=OK, text='', seconds=1.5)
    turn = dataclasses.replace(
      fakes.steps([('undo', {}, OK)])[0], results=(result,)
    )
    done = fakes.sequence([0], [1], turns=[turn, turn])
    config = effort.EffortConfig(
      per_token=0, per_call=0, per_turn=0, per_second=10
    )
    self.assertEqual(effort.amount(done, config), 30)


if __name__ == '__main__':
  absltest.main()
