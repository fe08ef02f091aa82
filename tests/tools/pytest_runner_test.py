"""What the runner reports, from real runs in a real box."""

import json
import pathlib
import tempfile

from absl.testing import absltest

from composer_jax.tools import isolation
from composer_jax.tools import libraries
from composer_jax.tools import sandbox

_COMMAND = ('python', isolation.PYTEST_RUNNER)
_FILES = {
  'pkg/__init__.py': 'def double(x):\n  return x + x\n',
  'tests/test_pkg.py': """
import pytest
import pkg

@pytest.fixture
def broken():
  raise RuntimeError('no fixture')

@pytest.mark.parametrize('x', [1, 2])
def test_double(x):
  print('x' * 100000)
  assert pkg.double(x) == 2

def test_needs(broken):
  pass

@pytest.mark.skip
def test_later():
  pass
""",
}


class PytestRunnerTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = tempfile.TemporaryDirectory()
    packages = pathlib.Path(cls.folder.name, 'packages')
    libraries.collect(['pytest'], packages)
    config = sandbox.SandboxConfig(allow_weak=True, libraries=str(packages))
    cls.box = sandbox.Box(sandbox.probe(config), config)

  @classmethod
  def tearDownClass(cls):
    cls.box.close()
    cls.folder.cleanup()
    super().tearDownClass()

  def report(self, files, *arguments, stdin='abc\n'):
    self.box.reset(files)
    result = self.box.exec(
      [*_COMMAND, *arguments], seconds=60, stdin=stdin, report=True
    )
    return result, json.loads(result.report) if result.report else None

  def test_every_test_is_reported_by_name_and_outcome(self):
    result, report = self.report(_FILES, 'tests')
    self.assertEqual(result.exit_code, 1, result.output)
    self.assertEqual(
      report['tests'],
      {
        'tests/test_pkg.py::test_double[1]': 'passed',
        'tests/test_pkg.py::test_double[2]': 'failed',
        'tests/test_pkg.py::test_needs': 'error',
        'tests/test_pkg.py::test_later': 'skipped',
      },
    )
    self.assertEqual(report['nonce'], 'abc')
    error = report['errors']['tests/test_pkg.py::test_double[2]']
    self.assertIn('assert 4 == 2', error)

  def test_chosen_tests_alone_are_run(self):
    _, report = self.report(_FILES, 'tests/test_pkg.py::test_double')
    self.assertLen(report['tests'], 2)

  def test_a_file_that_does_not_import_is_an_error(self):
    files = {'test_a.py': 'import nothing_of_this_name\n'}
    result, report = self.report(files)
    self.assertEqual(report['tests'], {'test_a.py': 'error'})
    self.assertIn('nothing_of_this_name', report['errors']['test_a.py'])
    self.assertNotEqual(result.exit_code, 0)

  def test_an_import_path_is_searched_first(self):
    files = {
      'src/pkg.py': 'x = 1\n',
      'test_a.py': 'import pkg\ndef test_x(): assert pkg.x == 1\n',
    }
    _, report = self.report(files, '--path=src')
    self.assertEqual(report['tests'], {'test_a.py::test_x': 'passed'})

  def test_options_of_the_project_are_left_aside(self):
    files = _FILES | {
      'setup.cfg': '[tool:pytest]\naddopts = --no-such-option\n'
    }
    _, report = self.report(files, 'tests')
    self.assertLen(report['tests'], 4)

  def test_code_that_ends_the_process_leaves_no_report(self):
    files = {'test_a.py': 'import os\nos._exit(0)\n'}
    result, report = self.report(files)
    self.assertEqual(result.exit_code, 0)
    self.assertIsNone(report)


if __name__ == '__main__':
  absltest.main()
