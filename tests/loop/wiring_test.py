import dataclasses
import pathlib
from unittest import mock

from absl.testing import absltest

from composer_jax import trajectory
from composer_jax.loop import config as config_lib
from composer_jax.loop import supervise
from composer_jax.loop import wiring
from composer_jax.tools import registry
from composer_jax.tools import sandbox
from tests import fakes
from tests.loop import toy

CONFIG = toy.config()
TEXT = 'def {}(a):\n  return a + 1\n' * 4


def task(name, split):
  bug = trajectory.Edit('solution.py', '- 1', '+ 1')
  return dataclasses.replace(
    fakes.TASK,
    id=name,
    prompt=f'Repair {name}.',
    files={
      'solution.py': TEXT.format(*[name] * 4),
      'test_solution.py': f'from solution import {name}\nassert {name}(1) == 0',
    },
    test_command=('python', sandbox.ASSERT_RUNNER, 'test_solution.py'),
    provenance=dataclasses.replace(fakes.TASK.provenance, bugs=(bug,)),
    split=split,
  )


class OpenWorkdirTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.workdir = self.create_tempdir().full_path

  def test_a_run_finds_its_own_directory_again(self):
    first = wiring.open_workdir(self.workdir, CONFIG, 1)
    self.assertEqual(wiring.open_workdir(self.workdir, CONFIG, 1), first)

  def test_another_run_is_shown_what_differs(self):
    wiring.open_workdir(self.workdir, CONFIG, 1)
    other = config_lib.override(CONFIG, ['run.temperature=0.5'])
    with self.assertRaisesRegex(ValueError, r'run\.temperature: 0\.5, 1\.0$'):
      wiring.open_workdir(self.workdir, other, 1)
    with self.assertRaisesRegex(ValueError, 'seed: 2, 1$'):
      wiring.open_workdir(self.workdir, CONFIG, 2)
    wiring.open_workdir(self.workdir, CONFIG, 1)  # It still is the first's.

  def test_says_why_it_cannot_be_used(self):
    path = self.create_tempfile('file').full_path
    with self.assertRaisesRegex(ValueError, 'cannot be used: Not a directory'):
      wiring.open_workdir(f'{path}/below', CONFIG, 0)


class CacheDirectoryTest(absltest.TestCase):
  def test_follows_the_environment(self):
    with mock.patch.dict('os.environ', XDG_CACHE_HOME='/elsewhere'):
      self.assertEqual(
        wiring.cache_directory(), pathlib.Path('/elsewhere/composer_jax')
      )


class RoomsTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    level = sandbox.probe(CONFIG.sandbox)
    cls.boxes = cls.enterClassContext(sandbox.BoxPool(2, CONFIG.sandbox, level))

  def make_chat(self, *tasks, workdir=None, crew=None):
    workdir = workdir or self.create_tempdir().full_path
    chat = wiring.make_chat(
      CONFIG,
      tasks,
      {},
      self.boxes,
      registry.ResultCache(),
      workdir,
      crew or supervise.Crew(),
    )
    saved = pathlib.Path(workdir, 'tokenizer.json').read_text('utf-8')
    return chat, saved

  def test_the_tokenizer_never_sees_a_heldout_task(self):
    seen, unseen = task('increment', 'train'), task('zygomorphic', 'heldout')
    _, alone = self.make_chat(seen)
    _, both = self.make_chat(seen, unseen)
    self.assertEqual(both, alone)
    _, leaked = self.make_chat(seen, dataclasses.replace(unseen, split='train'))
    self.assertNotEqual(leaked, alone)

  def test_a_run_keeps_its_tokenizer(self):
    workdir = self.create_tempdir().full_path
    _, first = self.make_chat(task('increment', 'train'), workdir=workdir)
    _, second = self.make_chat(task('other', 'train'), workdir=workdir)
    self.assertEqual(first, second)

  def test_tasks_are_built_once(self):
    cache = self.create_tempdir().full_path
    config = config_lib.override(CONFIG, ['tasks.problems=1'])
    crew = supervise.Crew()
    with mock.patch.dict('os.environ', XDG_CACHE_HOME=cache):
      built, _ = wiring.load_tasks(config, self.boxes, crew)
      with mock.patch.object(wiring.validate, 'build') as build:
        again, _ = wiring.load_tasks(config, self.boxes, crew)
    self.assertEqual({t.provenance.problem for t in built}, {'HumanEval/0'})
    self.assertEqual(again, built)
    build.assert_not_called()

  def test_a_stop_is_heard_while_tasks_are_built_or_read(self):
    crew = supervise.Crew()
    crew.stop.set()
    cache = self.create_tempdir().full_path
    with mock.patch.dict('os.environ', XDG_CACHE_HOME=cache):
      with self.assertRaises(supervise.Stopped):
        wiring.load_tasks(CONFIG, self.boxes, crew)
    with self.assertRaises(supervise.Stopped):
      self.make_chat(task('increment', 'train'), crew=crew)


if __name__ == '__main__':
  absltest.main()
