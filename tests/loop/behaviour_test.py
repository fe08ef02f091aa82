import dataclasses

from absl.testing import absltest

from composer_jax import trajectory
from composer_jax.loop import behaviour
from tests import fakes

Ending, Status = trajectory.Ending, trajectory.Status

READ = ('read_file', {'path': 'a'}, Status.OK)
PASS = ('run_tests', {}, Status.OK)
FAIL = ('run_tests', {}, Status.ERROR)
UNDO = ('undo', {}, Status.OK)
SUBMIT = ('submit', {}, Status.OK)


def edit(new, status=Status.OK):
  return ('edit_file', {'line': 1, 'old': '1', 'new': new}, status)


def attempt(*turns, ending=Ending.SUBMITTED, length=4, **rewards):
  return fakes.sequence(
    range(length),
    [0] * (length - 1) + [1],
    turns=fakes.steps(*turns),
    ending=ending,
    rewards=rewards,
  )


class SummaryTest(absltest.TestCase):
  def test_means_over_episodes(self):
    episodes = [
      attempt(
        [READ, PASS],
        [edit('2'), FAIL],
        [UNDO, edit('2'), edit('3'), edit('4', Status.ERROR)],
        [('', {}, Status.INVALID), ('', {}, Status.INVALID), PASS, SUBMIT],
        length=10,
        solved=1.0,
        effort=-0.5,
      ),
      attempt([READ], ending=Ending.NO_CALL, solved=0.0, effort=-0.25),
    ]
    self.assertEqual(
      behaviour.summary(episodes, ['read_file', 'run_tests']),
      {
        'solve_rate': 0.5,
        'reward': 0.125,
        'reward_std': 0.375,
        'tests_before_submit': 1.0,
        'passed_before_submit': 1.0,
        'solved_of_submitted': 1.0,
        'tries_per_episode': 1.5,
        'repeated_edits': 0.5,
        'invalid_calls': 1.0,
        'failed_calls': 1.0,
        'turns': 2.5,
        'contexts': 1.0,
        'tokens_per_episode': 7.0,
        'submitted': 0.5,
        'calls_read_file': 1.0,
        'calls_run_tests': 1.5,
        'reward_solved': 0.5,
        'reward_effort': -0.375,
      },
    )

  def test_what_precedes_a_submission_is_a_share_of_the_submissions(self):
    episodes = [
      attempt([edit('2'), PASS, SUBMIT], solved=1.0),
      attempt([PASS, SUBMIT], solved=0.0),
      attempt([edit('2'), FAIL, SUBMIT], solved=0.0),
      attempt([edit('2'), SUBMIT], solved=0.0),
      attempt([edit('2'), PASS], ending=Ending.TURN_LIMIT, solved=1.0),
    ]
    found = behaviour.summary(episodes, [])
    self.assertEqual(found['submitted'], 0.8)
    self.assertEqual(found['tests_before_submit'], 0.75)
    self.assertEqual(found['passed_before_submit'], 0.5)
    self.assertEqual(found['solved_of_submitted'], 0.25)
    none = behaviour.summary(episodes[-1:], [])
    self.assertEqual(none['tests_before_submit'], 0.0)
    self.assertEqual(none['solved_of_submitted'], 0.0)

  def test_facts_and_guards_are_means_over_those_that_have_them(self):
    episodes = [
      dataclasses.replace(attempt([SUBMIT]), facts=facts)
      for facts in (
        {'guard_empty_patch': 1.0, 'fraction': 0.5},
        {'guard_empty_patch': 0.0},
      )
    ]
    found = behaviour.summary(episodes, [])
    self.assertEqual(found['fact_guard_empty_patch'], 0.5)
    self.assertEqual(found['fact_fraction'], 0.5)

  def test_a_solution_that_a_guard_took_back_is_none(self):
    honest = attempt([SUBMIT], solved=1.0, guard=0.0)
    caught = attempt([SUBMIT], solved=1.0, guard=-1.0)
    found = behaviour.summary([honest, caught], [])
    self.assertEqual(found['solve_rate'], 0.5)
    self.assertEqual(found['reward_guard'], -0.5)

  def test_nothing_has_no_means(self):
    self.assertEmpty(behaviour.summary([], ['read_file']))


if __name__ == '__main__':
  absltest.main()
