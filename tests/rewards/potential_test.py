"""A potential leaves the best policy as it is; another bonus may not."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from composer_jax import trajectory
from composer_jax.rewards import potential
from tests import fakes
from tests.rewards import episodes

OK, ERROR = trajectory.Status.OK, trajectory.Status.ERROR

# A walk over states 0 to 3. Left and right move by one; 0 and 4 end it.
# The end at 4 pays 1, the end at 0 pays 0.5, and each step costs a little.
GAMMA = 0.9
INNER = (1, 2, 3)
MOVES = (-1, 1)


def reward(state, following):
  return {0: 0.5, 4: 1.0}.get(following, 0.0) - 0.01


def best_moves(bonus):
  """By value iteration: the moves that are optimal in each inner state."""
  value = np.zeros(5)

  def worth(state, move):
    following = state + move
    gain = reward(state, following) + bonus(state, following)
    return gain + GAMMA * value[following]

  for _ in range(500):
    for state in INNER:
      value[state] = max(worth(state, move) for move in MOVES)
  return {
    state: {
      move
      for move in MOVES
      if worth(state, move) > max(worth(state, m) for m in MOVES) - 1e-9
    }
    for state in INNER
  }


def from_potential(phi, terminal=0.0):
  """The bonus that `potential.shaping` gives a step."""

  def bonus(state, following):
    if following in INNER:
      first, _ = potential.shaping([phi[state], phi[following]], GAMMA)
      return first
    (last,) = potential.shaping([phi[state]], GAMMA)
    return last + GAMMA * (terminal if following == 0 else 0.0)

  return bonus


class PolicyTest(absltest.TestCase):
  def test_the_walk_has_one_best_policy(self):
    plain = best_moves(lambda state, following: 0.0)
    self.assertEqual(plain, {1: {1}, 2: {1}, 3: {1}})

  def test_any_potential_leaves_the_best_policy_as_it_is(self):
    plain = best_moves(lambda state, following: 0.0)
    rng = np.random.default_rng(0)
    for _ in range(20):
      phi = rng.normal(scale=5.0, size=5)
      self.assertEqual(best_moves(from_potential(phi)), plain)

  def test_a_bonus_for_being_somewhere_changes_it(self):
    found = best_moves(lambda state, following: 0.5 * (following == 2))
    self.assertEqual(found[3], {-1})  # Back and forth, for ever.

  def test_a_potential_that_is_not_0_at_the_end_changes_it(self):
    phi = np.zeros(5)
    found = best_moves(from_potential(phi, terminal=2.0))
    self.assertEqual(found[1], {-1})


class ShapingTest(parameterized.TestCase):
  def test_golden(self):
    np.testing.assert_allclose(
      potential.shaping([0.0, 0.5, 0.25], 0.5), [0.25, -0.375, -0.25]
    )
    self.assertEmpty(potential.shaping([]))

  @parameterized.parameters(1.0, 0.9, 0.5)
  def test_the_discounted_sum_depends_on_the_start_alone(self, gamma):
    phi = np.random.default_rng(1).normal(size=9)
    bonuses = potential.shaping(phi, gamma)
    total = sum(gamma**i * bonus for i, bonus in enumerate(bonuses))
    self.assertAlmostEqual(total, -phi[0])


def run_tests(text, status=OK):
  call = trajectory.ToolCall(id='0', name='run_tests')
  result = trajectory.ToolResult(call_id='0', status=status, text=text)
  return trajectory.Turn(start=0, stop=0, calls=(call,), results=(result,))


class TurnsTest(parameterized.TestCase):
  def test_each_turn_is_paid_for_the_tests_it_saw_pass(self):
    (read,) = episodes.attempt([('read_file', {'path': '9 passed'}, OK)]).turns
    turns = [
      run_tests('2 of 4 failed\nassert f(1)\ngot 2', ERROR),
      read,
      run_tests('3 passed'),
      run_tests('cannot run', ERROR),
      read,
    ]
    done = fakes.sequence([0], [1], turns=turns)
    # Phi before each turn: 0, 1/2, 1/2, 1, 1; 0 at the end.
    self.assertEqual(potential.turn_bonuses(done), [0.5, 0, 0.5, 0, -1.0])
    self.assertEqual(sum(potential.turn_bonuses(done)), 0)

  @parameterized.parameters(
    ('3 passed', 1.0),
    ('1 of 4 failed', 0.75),
    ('===== 1 failed, 2 passed, 1 error in 0.1s =====', 0.5),
    ('assert 2 passed\n1 failed in 0.1s', 0.0),
    ('0 of 0 failed', None),
    ('no tests ran', None),
    ('', None),
  )
  def test_reads_what_runners_print(self, text, share):
    self.assertEqual(potential.passing_share(text), share)


if __name__ == '__main__':
  absltest.main()
