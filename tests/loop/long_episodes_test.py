"""A toy run whose episodes outgrow their context, on tasks of a curriculum."""

import itertools
import os
import pathlib
import shutil
import tempfile

from absl.testing import absltest
import numpy as np

from composer_jax.checkpoint import snapshot
from composer_jax.checkpoint import train_state
from composer_jax.loop import metrics
from composer_jax.loop import train
from composer_jax.loop import wiring
from composer_jax.replay import record
from composer_jax.tasks import curriculum
from composer_jax.text import chat as chat_lib
from composer_jax.text import tokenizer as tokenizer_lib
from tests.loop import toy

SEED = 3
SETTINGS = (
  'actor.summary_at=1',  # After every turn.
  'actor.summary_tokens=24',
  'actor.max_turn_tokens=48',
  'warm.demonstrations=120',  # Enough for a policy that can make calls.
  'warm.steps=240',
  'warm.optimizer.decay_steps=240',
  'curriculum.enabled=true',
  'run.save_every=2',
  'evaluate.greedy=false',
)


def recorded(workdir, name='trajectories'):
  found = record.TrajectorySource(os.path.join(workdir, name))
  return [found[i] for i in range(len(found))]


def final_arrays(workdir):
  paths = wiring.Paths(workdir=workdir)
  directory = pathlib.Path(paths.checkpoints('rl'))
  return dict(snapshot.read(directory, toy.STEPS).arrays)


class LongEpisodesTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.config = toy.config(*SETTINGS)
    cls.directory = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.workdir = str(cls.directory / 'whole')
    cls.result = train.train(cls.config, cls.workdir, SEED)

  def test_the_policy_goes_on_from_its_own_notes(self):
    episodes = recorded(self.workdir)
    chains = [e for e in episodes if len(e.starts) > 1]
    self.assertNotEmpty(chains)
    tokenizer = tokenizer_lib.load(self.workdir)
    chat = chat_lib.Chat(tokenizer, {})
    asked = chat.summarise()
    for chain in chains:
      self.assertIn('solved', chain.rewards)
      contexts = chain.contexts()
      for before, after in itertools.pairwise(contexts):
        notes = before.turns[-1]
        self.assertEqual(
          before.token_T[notes.start - 1 : notes.start].tolist(), asked
        )
        written = before.token_T[notes.start : notes.stop].tolist()
        self.assertLessEqual(len(written), 24)
        step = before.turns[-2]
        carried = [token for token in written if token != chat.end_id]
        carried += before.token_T[step.start : step.stop].tolist()
        first = after.token_T.tolist()[: after.turns[0].start]
        opening = before.token_T.tolist()[: before.turns[0].start]
        if before is contexts[0]:
          self.assertEqual(first[: len(opening)], opening)
          self.assertEqual(first[len(opening) :][: len(carried)], carried)
        self.assertFalse(after.sampled_T[: len(first)].any())
    self.assertLessEqual(
      max(len(c) for e in episodes for c in e.contexts()), 320
    )

  def test_it_has_seen_how_to_write_them(self):
    tokenizer = tokenizer_lib.load(self.workdir)
    chat = chat_lib.Chat(tokenizer, {})
    (asked,) = chat.summarise()
    shown = recorded(self.workdir, 'demonstrations')
    self.assertTrue(any(asked in e.token_T for e in shown))
    self.assertEqual({e.starts for e in shown}, {(0,)})

  def test_tells_what_the_curriculum_does(self):
    lines = [
      line for line in metrics.read(self.workdir) if line['phase'] == 'rl'
    ]
    self.assertEqual(lines[0]['curriculum_active'], 20)
    self.assertEqual(lines[0]['curriculum_rate'], 0.5)
    self.assertBetween(lines[-1]['curriculum_rate'], 0, 1)
    self.assertGreater(max(line['contexts'] for line in lines), 1)

  def test_outcomes_are_counted_for_the_tasks_that_were_attempted(self):
    paths = wiring.Paths(workdir=self.workdir)
    directory = pathlib.Path(paths.checkpoints('rl'))
    found = snapshot.read(directory, toy.STEPS).metadata['curriculum']
    state = curriculum.from_json(found)
    self.assertEqual(state.step, toy.STEPS)
    counted = {}
    for episode in recorded(self.workdir):
      attempts, solved = counted.get(episode.task_id, (0, 0))
      good = episode.rewards['solved'] > 0
      counted[episode.task_id] = attempts + 1, solved + good
    self.assertEqual(
      {name: (s.attempts, s.solved) for name, s in state.tasks.items()},
      counted,
    )

  def test_a_resumed_run_attempts_the_same_tasks_and_ends_the_same(self):
    workdir = str(self.directory / 'resumed')
    shutil.copytree(self.workdir, workdir)
    paths = wiring.Paths(workdir=workdir)
    directory = pathlib.Path(paths.checkpoints('rl'))
    snapshot.forget(directory, toy.STEPS)
    self.assertEqual(train_state.latest(directory), 4)
    os.remove(paths.result)
    os.remove(paths.evaluation('after'))
    train.train(self.config, workdir, SEED)
    tasks = [[e.task_id for e in recorded(d)] for d in (self.workdir, workdir)]
    self.assertEqual(*tasks)
    expected, found = final_arrays(self.workdir), final_arrays(workdir)
    for name, array in expected.items():
      np.testing.assert_array_equal(found[name], array, err_msg=name)


if __name__ == '__main__':
  absltest.main()
