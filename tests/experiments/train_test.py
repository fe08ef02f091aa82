import contextlib
import io
import os
import pathlib
from unittest import mock

from absl.testing import absltest
from absl.testing import flagsaver
from absl.testing import parameterized
import numpy as np

from composer_jax.tools import isolation
from experiments import train
from tests import fakes
from tests.experiments import commands
from tests.loop import toy

ROOT = pathlib.Path(__file__).parents[2]


class BadInputTest(parameterized.TestCase):
  def refuse(self, *settings, experiment='quickstart', workdir=None):
    """The one line that a refused command prints."""
    output, errors = io.StringIO(), io.StringIO()
    workdir = workdir or os.path.join(self.create_tempdir().full_path, 'run')
    flags = flagsaver.flagsaver(
      experiment=experiment, workdir=workdir, seed=0, set=list(settings)
    )
    with flags, contextlib.redirect_stdout(output):
      with contextlib.redirect_stderr(errors):
        self.assertEqual(train.main(['train']), 2)
    self.assertEqual(output.getvalue(), '')
    self.assertEqual(errors.getvalue().count('\n'), 1, errors.getvalue())
    self.assertStartsWith(errors.getvalue(), 'error: ')
    return errors.getvalue()

  @parameterized.parameters(
    'quikstart', 'train', 'ablations', '../quickstart', ''
  )
  def test_unknown_experiment(self, name):
    said = self.refuse(experiment=name)
    self.assertIn(f'--experiment={name} is not one of', said)
    self.assertIn('quickstart', said)

  @parameterized.parameters(
    ('run.step=3', 'did you mean steps'),
    ('replay.maxlag=3', 'did you mean max_lag'),
    ('run.steps=three', "'three' is no int"),
    ('run.steps', 'expected room.field=value'),
    ('sampler.max_tokens=256', 'change one of the two'),
  )
  def test_bad_setting(self, setting, hint):
    self.assertIn(hint, self.refuse(setting))

  def test_unwritable_workdir(self):
    said = self.refuse(workdir='/proc/nowhere')
    self.assertIn('--workdir=/proc/nowhere cannot be used', said)

  def test_no_sandbox(self):
    with mock.patch.multiple(
      isolation, find_bwrap=lambda: None, find_unshare=lambda: None
    ):
      self.assertIn('add --set sandbox.allow_weak=true', self.refuse())

  @parameterized.parameters(
    (['--experiment=quickstart'], '--workdir'),
    (['--experiment=quickstart', '--workdir=x', '--seed=-1'], '--seed=-1'),
    (['--experiment=quickstart', '--workdir=x', '--sed=1'], "'sed'"),
  )
  def test_bad_flags(self, arguments, named):
    done = commands.run('experiments.train', arguments)
    self.assertEqual(done.returncode, 1)
    self.assertIn(named, done.stderr)
    self.assertNotIn('Traceback', done.stderr)


class LoadTest(absltest.TestCase):
  def test_every_experiment_is_one(self):
    for path in (ROOT / 'experiments').glob('*.py'):
      if path.stem not in ('__init__', *train.COMMANDS):
        config = train.load(path.stem, ['run.steps=9'])
        self.assertEqual(config.run.steps, 9)

  def test_a_setting_is_applied(self):
    self.assertEqual(train.load('quickstart', toy.SETTINGS), toy.config())


class SegmentsTest(absltest.TestCase):
  def test_cuts_where_the_author_changes(self):
    texts = ['def ', 'return', 'abab', 'x']
    ids = [fakes.encode(text) for text in texts]
    sampled = [[0], [1], [0], [1]]
    episode = fakes.sequence(
      sum(ids, []),
      np.concatenate([s * len(i) for s, i in zip(sampled, ids, strict=True)]),
      logprob=-0.5,
    )
    segments = train._segments(episode, fakes.tokenizer())
    self.assertEqual(
      [(s.kind, s.text, s.logprob) for s in segments],
      [
        ('prompt', 'def ', None),
        ('policy', 'return', -0.5),
        ('tool', 'abab', None),
        ('policy', 'x', -0.5),
      ],
    )

  def test_a_new_context_is_a_prompt_whoever_spoke_before_it(self):
    episode = fakes.sequence(
      fakes.encode('a', 'b', 'c', 'd', 'e'), [0, 1, 0, 0, 1], starts=(0, 3)
    )
    segments = train._segments(episode, fakes.tokenizer())
    self.assertEqual(
      [(s.kind, s.text) for s in segments],
      [
        ('prompt', 'a'),
        ('policy', 'b'),
        ('tool', 'c'),
        ('prompt', 'd'),
        ('policy', 'e'),
      ],
    )


if __name__ == '__main__':
  absltest.main()
