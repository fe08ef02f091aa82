"""Whole attempts in real boxes: facts are measured, then priced."""

import dataclasses
from unittest import mock

from absl.testing import absltest

from composer_jax.loop import config as config_lib
from composer_jax.loop import environment
from composer_jax.loop import focus
from composer_jax.loop import warmstart
from composer_jax.rewards import facts
from composer_jax.rewards import shaping
from composer_jax.tools import registry
from composer_jax.tools import sandbox
from tests import fakes

_CONFIG = config_lib.Config(
  name='test', sandbox=sandbox.SandboxConfig(allow_weak=True)
)
_TASK = dataclasses.replace(
  fakes.TASK,
  hidden_files={
    'grade.py': 'nonce = input()\n'
    'import solution\nassert solution.x == 2\nprint(nonce)\n'
  },
  grade_command=('python', 'grade.py'),
)
_EDIT = ('edit_file', dataclasses.asdict(_TASK.provenance.fix[0]))


class EnvironmentTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    level = sandbox.probe(_CONFIG.sandbox)
    cls.boxes = cls.enterClassContext(
      sandbox.BoxPool(1, _CONFIG.sandbox, level)
    )

  def attempt(self, *calls, config=_CONFIG, task=_TASK):
    env = environment.Environment(
      config, self.boxes, fakes.chat(), registry.ResultCache()
    )
    turns = [[call] for call in calls]
    play = warmstart.scripted_player(lambda _: iter(turns), fakes.chat())
    return env.attempt(task, play)

  def test_a_repair_is_paid_and_its_facts_are_kept(self):
    done = self.attempt(_EDIT, ('submit', {}))
    self.assertEqual(done.facts['solved'], 1.0)
    self.assertEqual(done.facts['diff_lines'], done.facts['gold_lines'])
    self.assertEqual(done.rewards['solved'], 1.0)
    self.assertEqual(done.rewards['guard'], 0.0)
    fired = [n for n, v in done.facts.items() if n.startswith('guard_') and v]
    self.assertEmpty(fired)

  def test_an_episode_without_an_edit_is_an_empty_patch(self):
    done = self.attempt(('submit', {}))
    self.assertEqual(done.facts['guard_empty_patch'], 1.0)
    self.assertEqual(done.rewards['solved'], 0.0)
    self.assertEqual(done.rewards['guard'], 0.0)

  def test_what_a_broken_task_gives_away_is_not_paid(self):
    given = dataclasses.replace(
      _TASK, hidden_files={'grade.py': 'print(input())\n'}
    )
    done = self.attempt(('submit', {}), task=given)
    self.assertEqual(done.facts['solved'], 1.0)
    self.assertEqual(done.rewards['solved'] + done.rewards['guard'], 0.0)

  def test_prices_are_those_of_the_config(self):
    rewards = shaping.RewardConfig(solved_value=3.0, communication_price=0.5)
    config = dataclasses.replace(_CONFIG, rewards=rewards)
    done = self.attempt(_EDIT, ('submit', {}), config=config)
    self.assertEqual(done.rewards['solved'], 3.0)
    self.assertEqual(done.rewards['communication'], -0.25)
    self.assertEqual(done.facts['silent'], 1.0)

  def test_what_is_parsed_is_parsed_by_one_thread_at_a_time(self):
    measure, seen = facts.measure, []

    def watch(*arguments):
      seen.append(focus.PARSER.locked())
      return measure(*arguments)

    with mock.patch.object(facts, 'measure', watch):
      self.attempt(_EDIT, ('submit', {}))
    self.assertEqual(seen, [True])


if __name__ == '__main__':
  absltest.main()
