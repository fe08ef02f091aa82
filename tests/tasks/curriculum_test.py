import dataclasses
import json
import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from composer_jax import trajectory
from composer_jax.tasks import curriculum
from tests import fakes

CONFIG = curriculum.CurriculumConfig(
  enabled=True,
  explore=0.0,
  sharpness=1.0,
  half_life=10.0,
  prior_attempts=4.0,
  solved_in_row=8,
  rest_steps=5,
  give_up_after=12,
  lost_groups=2,
)


def task(name, lines=1, bugs=1, visible=True):
  """A task whose fix adds so many lines, by so many edits of one file."""
  edits = tuple(
    trajectory.Edit(
      'a.py', '\n'.join([f'{b}'] * (lines if b == 0 else 1)), f'x{b}'
    )
    for b in range(bugs)
  )
  return dataclasses.replace(
    fakes.TASK,
    id=name,
    provenance=dataclasses.replace(
      fakes.TASK.provenance, bugs=edits, visible_fails=visible
    ),
  )


def course(*tasks, groups=1, max_lag=0, seed=0, **config):
  return curriculum.Course(
    tasks=tasks or (task('a'), task('b'), task('c')),
    config=dataclasses.replace(CONFIG, **config),
    seed=seed,
    groups=groups,
    max_lag=max_lag,
  )


def follow(plan, *outcomes, drawn='a'):
  """The state after these outcomes of one task, one group in a step."""
  state = curriculum.start(plan)
  for outcome in outcomes:
    state = dataclasses.replace(state, drawn=((drawn,), *state.drawn[1:]))
    state = curriculum.record(state, plan, [outcome])
  return state


class LevelTest(parameterized.TestCase):
  @parameterized.parameters(
    (dict(), 0),
    (dict(visible=False), 1),
    (dict(bugs=3), 2 + 1),  # Three lines in all.
    (dict(lines=2), 1),
    (dict(lines=3), 1),
    (dict(lines=16, visible=False), 4 + 1),
  )
  def test_counts_bugs_lines_and_what_tests_do_not_show(self, made, expected):
    self.assertEqual(curriculum.level(task('a', **made)), expected)


class SolveRateTest(absltest.TestCase):
  def test_a_task_never_tried_has_that_of_its_level(self):
    plan = course(task('a'), task('b'), task('c', visible=False))
    state = follow(plan, (4, 1))
    solved, failed = curriculum.solve_rates(state, plan)
    # The level: (1 + 1) of (4 + 2) solved. Four attempts' worth of it, and for
    # 'a' its own 1 of 4; nothing is known of the level of 'c'.
    third = 4 / 3
    np.testing.assert_allclose(solved, [1 + third, third, 2])
    np.testing.assert_allclose(failed, [3 + 2 * third, 2 * third, 2])

  def test_what_is_long_ago_counts_less(self):
    plan = course(half_life=1.0, prior_attempts=1e-9)
    state = follow(plan, (4, 4), (4, 0), (0, 0))
    solved, failed = curriculum.solve_rates(state, plan)
    # One step after the second group, two after the first.
    self.assertAlmostEqual(solved[0], 4 / 4)
    self.assertAlmostEqual(failed[0], 4 / 2)

  def test_weights_are_the_variance_expected(self):
    plan = course(prior_attempts=2.0)
    state = follow(plan, (4, 2))
    # Beta(3, 3): 9 / (6 * 7); and Beta(1, 1): 1 / (2 * 3).
    np.testing.assert_allclose(
      curriculum.weights(state, plan), [9 / 42, 1 / 6, 1 / 6]
    )
    sharp = course(prior_attempts=2.0, sharpness=2.0)
    np.testing.assert_allclose(
      curriculum.weights(state, sharp), [(9 / 42) ** 2, 1 / 36, 1 / 36]
    )


class RetirementTest(absltest.TestCase):
  def test_a_task_failed_for_long_is_retired_with_the_reason(self):
    plan = course()
    before = follow(plan, (4, 0), (4, 0))
    self.assertEmpty(curriculum.retired(before))
    after = follow(plan, (4, 0), (4, 0), (4, 0))
    self.assertEqual(
      curriculum.retired(after), {'a': 'never solved in 12 attempts'}
    )
    self.assertEqual(curriculum.weights(after, plan)[0], 0)
    self.assertNotIn('a', after.drawn[0])

  def test_one_that_was_ever_solved_is_not(self):
    state = follow(course(), (4, 1), *[(4, 0)] * 9)
    self.assertEmpty(curriculum.retired(state))

  def test_a_task_of_which_nothing_comes_back_rests_and_is_retired(self):
    plan = course()
    once = follow(plan, (0, 0))
    self.assertEmpty(curriculum.retired(once))
    self.assertEqual(once.tasks['a'].rests_until, 1 + 5)
    twice = follow(plan, (0, 0), (0, 0))
    self.assertEqual(
      curriculum.retired(twice), {'a': 'no attempt came back in 2 groups'}
    )
    between = follow(plan, (0, 0), (1, 0), (0, 0))
    self.assertEmpty(curriculum.retired(between))

  def test_a_lost_group_does_not_change_why_a_task_was_given_up(self):
    plan = course(task('a'), task('b', visible=False))
    state = curriculum.start(plan)
    gone = dataclasses.replace(
      curriculum.Statistics(), attempts=12, lost=1, retired='never solved'
    )
    state = dataclasses.replace(state, tasks={'a': gone}, drawn=(('a',),))
    after = curriculum.record(state, plan, [(0, 0)])
    self.assertEqual(curriculum.retired(after), {'a': 'never solved'})

  def test_a_solved_task_rests_and_is_tried_again_later(self):
    plan = course(task('a'), task('b', visible=False))
    state = follow(plan, (4, 4), (4, 4))
    self.assertEqual(state.tasks['a'].rests_until, 2 + 5)
    drawn = []
    for _ in range(30):
      drawn += state.drawn[0]
      state = curriculum.record(state, plan, [(2, 1)])
    self.assertEqual(drawn[:5], ['b'] * 5)
    self.assertIn('a', drawn[5:])

  def test_still_solved_it_rests_again_at_once_else_it_is_back(self):
    plan = course()
    rested = follow(plan, (4, 4), (4, 4), (4, 4))
    self.assertEqual(rested.tasks['a'].rests_until, 3 + 5)
    back = follow(plan, (4, 4), (4, 4), (4, 3))
    self.assertEqual(back.tasks['a'].rests_until, 0)

  def test_when_all_rest_they_are_woken(self):
    plan = course(task('a'))
    state = follow(plan, (8, 8))
    self.assertGreater(state.tasks['a'].rests_until, state.step)
    self.assertEqual(state.drawn, (('a',),))

  def test_when_all_are_retired_the_run_ends_with_the_reason(self):
    with self.assertRaisesRegex(
      ValueError, r'all 1 tasks are retired, such as a: never solved in 12'
    ):
      follow(course(task('a')), (12, 0))


class DrawTest(absltest.TestCase):
  def test_no_task_is_drawn_twice_while_it_waits(self):
    plan = course(*(task(str(i)) for i in range(12)), groups=4, max_lag=2)
    state = curriculum.start(plan)
    for _ in range(20):
      ids = [task_id for step in state.drawn for task_id in step]
      self.assertLen(set(ids), 12)
      state = curriculum.record(state, plan, [(4, 2)] * 4)

  def test_few_tasks_are_drawn_again_rather_than_none(self):
    plan = course(task('a'), task('b'), groups=3, max_lag=1)
    state = curriculum.start(plan)
    self.assertEqual([len(ids) for ids in state.drawn], [3, 3])
    self.assertEqual(set(state.drawn[0]), {'a', 'b'})

  def test_follows_the_weights_but_for_what_is_explored(self):
    def shares(explore):
      """Of 'a' in the weights, and in 400 draws."""
      others = [task(name, visible=False) for name in 'bc']
      plan = course(task('a'), *others, explore=explore, half_life=1e9)
      state = follow(plan, (8, 4), (32, 0))
      weight = curriculum.weights(state, plan)
      drawn = [
        curriculum.record(
          dataclasses.replace(state, step=step, drawn=(('b',),)),
          plan,
          [(1, 0)],
        ).drawn[0][0]
        for step in range(400)
      ]
      return weight[0] / weight.sum(), drawn.count('a') / 400

    weight, share = shares(0.0)
    self.assertLess(weight, 0.25)
    self.assertAlmostEqual(share, weight, delta=0.05)
    _, share = shares(1.0)
    self.assertAlmostEqual(share, 1 / 3, delta=0.05)

  def test_a_group_has_its_task_until_it_is_trained(self):
    plan = course(groups=2, max_lag=1)
    first = curriculum.start(plan)
    ids = [curriculum.task_of(first, plan, group).id for group in range(4)]
    self.assertEqual(ids, [*first.drawn[0], *first.drawn[1]])
    second = curriculum.record(first, plan, [(4, 1), (4, 4)])
    self.assertEqual(
      [curriculum.task_of(second, plan, group).id for group in (2, 3)], ids[2:]
    )
    with self.assertRaisesRegex(trajectory.InfrastructureError, 'group 1 was'):
      curriculum.task_of(second, plan, 1)
    with self.assertRaisesRegex(ValueError, 'group 6 of step 3 is not drawn'):
      curriculum.task_of(second, plan, 6)

  def test_what_is_drawn_depends_on_what_is_known_then_and_on_nothing_else(
    self,
  ):
    plan = course(*(task(str(i)) for i in range(40)), groups=2, max_lag=1)
    first = curriculum.start(plan)
    # Step 1 begins before step 0 has ended: its outcomes cannot matter.
    poor = curriculum.record(first, plan, [(4, 0), (4, 0)])
    good = curriculum.record(first, plan, [(4, 2), (4, 2)])
    self.assertEqual(poor.drawn[0], good.drawn[0])
    self.assertEqual(poor.drawn[0], first.drawn[1])
    again = curriculum.record(first, plan, [(4, 2), (4, 2)])
    self.assertEqual(again, good)
    other = curriculum.start(dataclasses.replace(plan, seed=1))
    self.assertNotEqual(other.drawn, first.drawn)

  def test_outcomes_are_those_of_the_groups(self):
    plan = course(groups=2)
    state = curriculum.start(plan)
    with self.assertRaisesRegex(ValueError, '1 outcomes of 2 groups'):
      curriculum.record(state, plan, [(4, 2)])
    with self.assertRaisesRegex(ValueError, '5 of 4 attempts'):
      curriculum.record(state, plan, [(4, 5), (4, 0)])

  def test_ids_that_repeat_are_refused(self):
    with self.assertRaisesRegex(ValueError, '2 tasks have 1 different ids'):
      course(task('a'), task('a'))


class SummaryTest(absltest.TestCase):
  def test_says_what_is_active_and_what_is_drawn(self):
    plan = course(
      task('a'), task('b'), task('c', visible=False), prior_attempts=2.0
    )
    state = follow(plan, (12, 0))
    state = dataclasses.replace(state, drawn=(('b',),))
    self.assertEqual(
      curriculum.summary(state, plan),
      {
        'curriculum_active': 2,
        'curriculum_resting': 0,
        'curriculum_never_solved': 1,
        'curriculum_lost': 0,
        'curriculum_rate': 0.5,
        'curriculum_level': 0.0,
        'curriculum_level_0': 1.0,
        'curriculum_level_1': 0.0,
      },
    )


LEVELS, SIZE, STEPS = 9, 16, 120


def simulate(plan, state, steps, *, uniform=False):
  """Steps of a policy whose skill rises; yields (state, solve rates)."""
  for _ in range(steps):
    step = state.step
    rng = np.random.default_rng((7, step))
    skill = (LEVELS - 2) * step / STEPS
    if uniform:
      ids = [plan.tasks[i].id for i in rng.integers(len(plan.tasks), size=SIZE)]
      state = dataclasses.replace(state, drawn=(tuple(ids), *state.drawn[1:]))
    outcomes = []
    for task_id in state.drawn[0]:
      hard = curriculum.level(plan.by_id[task_id])
      chance = 1 / (1 + math.exp(-2 * (skill - hard)))
      outcomes.append((8, int(rng.binomial(8, chance))))
    state = curriculum.record(state, plan, outcomes)
    yield state, np.asarray([solved / 8 for _, solved in outcomes])


class SimulationTest(absltest.TestCase):
  def plan(self):
    tasks = [
      task(f'{lines}/{i}', lines=lines)
      for lines in 2 ** np.arange(LEVELS)
      for i in range(40)
    ]
    return curriculum.Course(
      tasks=tuple(tasks),
      config=curriculum.CurriculumConfig(enabled=True),
      seed=3,
      groups=SIZE,
      max_lag=1,
    )

  def test_difficulty_follows_a_policy_whose_skill_rises(self):
    plan = self.plan()
    useful, rates = {}, {}
    for uniform in (True, False):
      found = [
        rate
        for _, rate in simulate(
          plan, curriculum.start(plan), STEPS, uniform=uniform
        )
      ]
      rates[uniform] = np.asarray(found)
      useful[uniform] = ((rates[uniform] > 0) & (rates[uniform] < 1)).mean()
    self.assertGreater(useful[False], 0.65)  # Of the groups; seen: 0.71.
    self.assertLess(useful[True], 0.35)  # Seen: 0.29.
    # In every sixth of the run, while the skill rises by seven levels.
    parts = rates[False].reshape(6, -1).mean(axis=1)
    self.assertBetween(parts.min(), 0.3, 0.75, parts)
    self.assertBetween(parts.max(), 0.3, 0.75, parts)
    parts = rates[True].reshape(6, -1).mean(axis=1)
    self.assertLess(parts[0], 0.2)

  def test_a_resumed_run_draws_the_same(self):
    plan = self.plan()
    whole = [s for s, _ in simulate(plan, curriculum.start(plan), 20)]
    saved = json.loads(json.dumps(curriculum.to_json(whole[9])))
    resumed = curriculum.from_json(saved)
    self.assertEqual(resumed, whole[9])
    rest = [s for s, _ in simulate(plan, resumed, 10)]
    self.assertEqual(rest, whole[10:])


if __name__ == '__main__':
  absltest.main()
