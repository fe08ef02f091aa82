"""What the runner of many variants answers, from a real box."""

import json
import pathlib
import tempfile

from absl.testing import absltest

from composer_jax.tasks import packages
from composer_jax.tasks import trial_runner
from composer_jax.tasks import trials
from composer_jax.tools import libraries
from composer_jax.tools import sandbox

_RUNNER = pathlib.Path(trial_runner.__file__).read_text()
_PACKAGE = packages.Package(name='pkg', version='1', path='src')
_FILES = {
  'src/pkg.py': """
import functools

def plain(x):
  return x

def outside(function):
  return function

@outside
def kept():
  return [part() for part in (lambda: 1, lambda: 2)]
""",
  'tests/test_a.py': """
import subprocess
import pkg
import pytest

@pytest.fixture(scope='module')
def shared():
  return pkg.kept()

def test_plain():
  assert pkg.plain(1) == 1

def test_kept():
  assert pkg.kept() == [1, 2]

def test_process():
  subprocess.run(['true'])

def test_shared(shared):
  pass
""",
}


class TrialRunnerTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = tempfile.TemporaryDirectory()
    found = pathlib.Path(cls.folder.name, 'packages')
    libraries.collect(['pytest'], found)
    config = sandbox.SandboxConfig(
      allow_weak=True, libraries=str(found), memory_bytes=1 << 30
    )
    cls.box = sandbox.Box(sandbox.probe(config), config)

  @classmethod
  def tearDownClass(cls):
    cls.box.close()
    cls.folder.cleanup()
    super().tearDownClass()

  def answers(self, *jobs, files=None):
    self.box.reset({**(files or _FILES), 'run.py': _RUNNER})
    ended = self.box.exec(
      ['python', 'run.py'], seconds=300, stdin=json.dumps(jobs), report=True
    )
    self.assertEqual(ended.exit_code, 0, ended.output)
    return json.loads(ended.report)

  def job(self, files=None, arguments=('tests',), **settings):
    settings = {'cpu': 60, **settings}
    return trials.job(files or {}, arguments, _PACKAGE, **settings)

  def outcomes(self, answer):
    return {test.partition('::')[2]: o for test, o in answer['tests'].items()}

  def test_every_variant_is_run_as_it_is_and_taken_back(self):
    def variant(value):  # All of one size, laid within one second.
      return {'src/pkg.py': _FILES['src/pkg.py'].replace('lambda: 1', value)}

    answers = self.answers(
      self.job(),
      self.job(variant('lambda: 3')),
      self.job(variant('lambda: 1')),
      self.job(variant('lambda: 4')),
      self.job({'src/new.py': 'x = 1\n'}),
      self.job(),
    )
    self.assertEqual(
      [self.outcomes(a)['test_kept'] for a in answers],
      ['passed', 'failed', 'passed', 'failed', 'passed', 'passed'],
    )
    self.assertIn('assert [3, 2]', [*answers[1]['errors'].values()][0])
    self.assertEqual(self.box.read('src/pkg.py'), _FILES['src/pkg.py'])
    with self.assertRaises(OSError):
      self.box.read('src/new.py')

  def test_code_that_hangs_or_ends_the_process_is_answered_by_nothing(self):
    loops = {'src/pkg.py': 'def plain(x):\n  while True: pass\n'}
    sleeps = {'src/pkg.py': 'import time\ntime.sleep(3600)\n'}
    leaves = {'src/pkg.py': 'import os\nos._exit(0)\n'}
    jobs = [self.job(files, cpu=2) for files in (loops, sleeps, leaves)]
    jobs[1]['wall'] = 3
    answers = self.answers(*jobs, self.job())
    self.assertEqual(answers[:3], [None, None, None])
    self.assertEqual(self.outcomes(answers[3])['test_kept'], 'passed')

  def test_chosen_tests_alone_are_run(self):
    (answer,) = self.answers(self.job(only=['tests/test_a.py::test_plain']))
    self.assertEqual(self.outcomes(answer), {'test_plain': 'passed'})

  def test_a_file_that_does_not_import_is_an_error_of_the_file(self):
    (answer,) = self.answers(self.job({'src/pkg.py': 'import nothing'}))
    self.assertEqual(answer['tests'], {'tests/test_a.py': 'error'})
    self.assertTrue(trials.failing(answer['tests']))

  def test_a_trace_says_which_code_each_test_executed(self):
    (answer,) = self.answers(self.job(trace=True))
    order = [test.partition('::')[2] for test in answer['order']]
    executed = {
      place: {order[i] if i >= 0 else '' for i in tests}
      for place, tests in answer['executed'].items()
    }
    self.assertEqual(executed['src/pkg.py:4'], {'test_plain'})
    self.assertEqual(executed['src/pkg.py:7'], {''})
    # Its first line is the decorator's; a shared fixture stands for all tests.
    self.assertEqual(executed['src/pkg.py:10'], {'test_kept', ''})
    self.assertEqual({order[i] for i in answer['processes']}, {'test_process'})


if __name__ == '__main__':
  absltest.main()
