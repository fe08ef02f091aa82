"""The whole loop on a real package: made, demonstrated, trained, evaluated."""

import dataclasses
import pathlib
import tempfile

from absl.testing import absltest

from composer_jax.loop import config as config_lib
from composer_jax.loop import train
from composer_jax.replay import record
from composer_jax.tasks import make
from composer_jax.tasks import source
from experiments import repositories
from tests.loop import toy
from tests.tasks import make_test

_SETTINGS = (
  'sandbox.allow_weak=true',
  'warm.demonstrations=12',
  'warm.steps=20',
  'run.steps=2',
  'evaluate.tasks=2',
)


def _hold_out(folder: pathlib.Path) -> None:
  """Every other task becomes one that is not trained on."""
  tasks, _ = source.read_set(folder)
  mixed = [
    dataclasses.replace(task, split=('train', 'heldout')[i % 2])
    for i, task in enumerate(sorted(tasks, key=lambda t: t.provenance.kind))
  ]
  source.write(folder / source.TASKS, mixed, 'mixed')


class RepositoriesTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.directory = pathlib.Path(
      cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    folder = make_test.fill(cls.directory / 'tasks')
    make.make(make_test.config(folder))
    _hold_out(folder)
    cls.config = config_lib.override(
      repositories.config(),
      [*toy.SETTINGS, *_SETTINGS, f'repositories.folder={folder}'],
    )
    cls.workdir = str(cls.directory / 'run')
    cls.result = train.train(cls.config, cls.workdir, 0)

  def test_a_run_trains_and_evaluates_on_the_package(self):
    self.assertEqual(self.result['learner_steps'], 2)
    self.assertEqual(self.result['heldout_tasks'], 2)
    self.assertEqual(self.result['episodes'], 2 * 2 * 4)

  def test_episodes_read_a_part_of_a_file_and_know_their_tests(self):
    done = record.TrajectorySource(f'{self.workdir}/demonstrations')
    episodes = [done[i] for i in range(len(done))]
    reads = [
      call.arguments
      for episode in episodes
      for turn in episode.turns
      for call in turn.calls
      if call.name == 'read_file'
    ]
    self.assertNotEmpty(reads)
    for arguments in reads:
      self.assertGreater(arguments['last'], 0)
    for episode in episodes:
      self.assertIn('fraction', episode.facts)
      self.assertIn('regressed', episode.facts)
    self.assertTrue(any(e.facts['solved'] for e in episodes))

  def test_a_set_without_such_bugs_is_refused_with_those_there_are(self):
    config = dataclasses.replace(
      self.config,
      repositories=dataclasses.replace(
        self.config.repositories, kinds=('typo',)
      ),
    )
    with self.assertRaisesRegex(ValueError, 'kinds=typo; there are .*constant'):
      train.train(config, str(self.directory / 'other'), 0)


if __name__ == '__main__':
  absltest.main()
