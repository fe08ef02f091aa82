import dataclasses

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax import trajectory
from composer_jax.replay import record
from composer_jax.rewards import effort
from composer_jax.rewards import guards
from composer_jax.rewards import shaping
from tests import fakes
from tests.rewards import episodes

BARE = {'solved', 'effort', 'invalid_call', 'unfinished'}
FACTS = {
  'fraction': 0.25,
  'regressed': 0.5,
  'lint_added': 3.0,
  'complexity_excess': 4.0,
  'strain_excess': 1.0,
  'diff_lines': 3.0,
  'gold_lines': 1.0,
  'style_conformity': 0.75,
  'silent': 1.0,
  'false_claim': 0.0,
  'stray_files': 1.0,
  'debug_marks': 1.0,
  'todo_marks': 0.0,
  'open_todos': 0.0,
}
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


def attempt(ending, status=Status.OK, *, solved=False, **facts):
  return episodes.attempt(
    [('undo', {}, status)] * 2,
    [('submit', {}, Status.OK)],
    ending=ending,
    facts={'solved': float(solved), **facts},
  )


class ComponentsTest(absltest.TestCase):
  def test_a_solution_pays_for_its_effort_only(self):
    self.assertEqual(
      shaping.components(attempt(Ending.SUBMITTED, solved=True), CONFIG),
      {'solved': 2, 'effort': -0.2, 'invalid_call': 0, 'unfinished': 0},
    )

  def test_invalid_calls_and_an_open_end_cost_what_they_cost(self):
    self.assertEqual(
      shaping.components(attempt(Ending.TURN_LIMIT, Status.INVALID), CONFIG),
      {'solved': 0, 'effort': -0.2, 'invalid_call': -0.5, 'unfinished': -0.5},
    )

  def test_a_call_that_ran_and_failed_is_no_invalid_one(self):
    for status in set(Status) - {Status.INVALID}:
      found = shaping.components(attempt(Ending.SUBMITTED, status), CONFIG)
      self.assertEqual(found['invalid_call'], 0)

  def test_the_reward_is_the_sum_of_the_components(self):
    done = attempt(Ending.NO_CALL, Status.INVALID, solved=True)
    found = shaping.components(done, CONFIG)
    scored = fakes.sequence([0], [1], rewards=found)
    self.assertAlmostEqual(scored.reward, 2 - 0.2 - 0.5 - 0.5)

  def test_an_episode_that_was_not_graded_has_no_reward(self):
    with self.assertRaisesRegex(ValueError, 'no fact says whether'):
      shaping.components(episodes.attempt([]), CONFIG)

  def test_new_components_are_worth_nothing_unless_asked_for(self):
    done = attempt(Ending.SUBMITTED, **FACTS)
    self.assertEqual(
      list(shaping.components(done, CONFIG)),
      ['solved', 'effort', 'invalid_call', 'unfinished'],
    )
    priced = dataclasses.replace(CONFIG, lint_price=0.5, fraction_value=3.0)
    found = shaping.components(done, priced)
    self.assertEqual(found['lint'], 0.5 * -0.75)
    self.assertEqual(found['fraction'], 3.0 * 0.25)
    bare = shaping.components(attempt(Ending.SUBMITTED), priced)
    self.assertNotIn('lint', bare)  # Not measured: not 0.

  def test_every_weight_has_its_component(self):
    weights = [
      field.name
      for field in dataclasses.fields(CONFIG)
      if field.default == 0.0 and field.name != 'guard_price'
    ]
    self.assertLen(weights, 9)
    done = attempt(Ending.SUBMITTED, **FACTS)
    names = set()
    for weight in weights:
      config = dataclasses.replace(CONFIG, **{weight: 1.0})
      (name,) = shaping.components(done, config).keys() - BARE
      names.add(name)
    self.assertLen(names, 9)

  def test_a_weight_cannot_turn_around(self):
    with self.assertRaisesRegex(ValueError, 'lint_price=-1'):
      shaping.RewardConfig(lint_price=-1)


class GuardTest(parameterized.TestCase):
  def done(self, **fired):
    facts = {f'guard_{name}': 0.0 for name in guards.GUARDS}
    facts.update({f'guard_{name}': 1.0 for name in fired})
    return attempt(Ending.SUBMITTED, solved=True, **{**FACTS, **facts})

  @parameterized.parameters(*guards.GUARDS)
  def test_each_takes_what_was_earned_and_spares_no_cost(self, name):
    config = dataclasses.replace(CONFIG, fraction_value=1.0, guard_price=0.3)
    honest = shaping.components(self.done(), config)
    self.assertEqual(honest['guard'], 0)
    found = shaping.components(self.done(**{name: 1}), config)
    self.assertAlmostEqual(found['guard'], -(2.0 + 0.25) - 0.3)
    self.assertAlmostEqual(sum(found.values()), -0.2 - 0.3)
    off = tuple(other for other in guards.GUARDS if other != name)
    config = dataclasses.replace(config, guards=off)
    self.assertEqual(shaping.components(self.done(**{name: 1}), config), honest)

  def test_all_are_on_by_default(self):
    self.assertCountEqual(shaping.RewardConfig().guards, guards.GUARDS)

  def test_an_unknown_one_is_refused(self):
    with self.assertRaisesRegex(ValueError, "no guard 'typo'"):
      shaping.RewardConfig(guards=('typo',))


class RescoreTest(absltest.TestCase):
  def test_prices_anew_what_was_measured_once(self):
    old = shaping.rescore([attempt(Ending.SUBMITTED, **FACTS)] * 2, CONFIG)
    self.assertAlmostEqual(old[0].reward, -0.2)
    config = dataclasses.replace(CONFIG, fraction_value=4.0)
    new = shaping.rescore(old, config)
    self.assertLen(new, 2)
    self.assertAlmostEqual(new[1].reward, 1 - 0.2)
    self.assertAlmostEqual(old[0].reward, -0.2)
    again = shaping.rescore(new, CONFIG)
    self.assertEqual(again[0].rewards, old[0].rewards)

  def test_survives_being_recorded(self):
    (old,) = shaping.rescore([attempt(Ending.SUBMITTED, **FACTS)], CONFIG)
    new = record.decode(record.encode(old))
    (again,) = shaping.rescore([new], CONFIG)
    self.assertEqual(again.rewards, old.rewards)


if __name__ == '__main__':
  absltest.main()
