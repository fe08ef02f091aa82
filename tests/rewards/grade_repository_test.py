"""Grading by the names of tests: a real pytest in a real box."""

import dataclasses
import io
import pathlib
import tarfile
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.rewards import grade
from composer_jax.tools import libraries
from composer_jax.tools import sandbox
from tests import fakes

_BUGGY = 'def double(x):\n  return x + 2\n\n\ndef one():\n  return 1\n'
_GOLD = _BUGGY.replace('+', '*')
_TREE = {
  'pkg/__init__.py': '',
  'pkg/a.py': _BUGGY,
  'tests/test_a.py': 'from pkg import a\n\n\ndef test_one():\n'
  '  assert a.one() == 1\n',
}
_HIDDEN = """from pkg import a


def test_double():
  assert a.double(3) == 6
"""
_TASK = dataclasses.replace(
  fakes.TASK,
  files={},
  snapshot='pkg-1',
  hidden_files={'tests/test_b.py': _HIDDEN},
  grade_command=('python', '/opt/box/pytest_runner.py', 'tests'),
  fail_to_pass=('tests/test_b.py::test_double',),
  pass_to_pass=('tests/test_a.py::test_one',),
  test_seconds=30.0,
)
# Writes what would be a perfect report to every descriptor there is.
_FORGER = """import json, os
names = 'tests/test_b.py::test_double', 'tests/test_a.py::test_one'
report = json.dumps({'nonce': '', 'tests': dict.fromkeys(names, 'passed')})
for number in range(3, 64):
  try:
    os.write(number, report.encode())
  except OSError:
    pass
os._exit(0)
"""


def tar(files):
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode='w') as archive:
    for name, text in files.items():
      member = tarfile.TarInfo(name)
      member.size = len(text)
      archive.addfile(member, io.BytesIO(text.encode()))
  return buffer.getvalue()


class RepositoryTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    packages = pathlib.Path(folder, 'packages')
    libraries.collect(['pytest'], packages)
    config = sandbox.SandboxConfig(allow_weak=True, libraries=str(packages))
    cls.box = cls.enterClassContext(sandbox.Box(sandbox.probe(config), config))

  def grade(self, text, **others):
    files = {'pkg/a.py': text, **others}
    return grade.grade(_TASK, files, self.box, tree=tar(_TREE))

  def test_the_known_fix_solves_it_and_no_edit_does_not(self):
    verdict = self.grade(_GOLD)
    self.assertTrue(verdict.solved)
    self.assertCountEqual(
      verdict.passed, (*_TASK.fail_to_pass, *_TASK.pass_to_pass)
    )
    verdict = grade.grade(_TASK, {}, self.box, tree=tar(_TREE))
    self.assertFalse(verdict.solved)
    self.assertEqual((verdict.fraction, verdict.regressions), (0.0, 0))

  def test_what_breaks_a_kept_test_is_no_solution(self):
    verdict = self.grade(_GOLD.replace('return 1', 'return 2'))
    self.assertFalse(verdict.solved)
    self.assertEqual((verdict.fraction, verdict.regressions), (1.0, 1))

  @parameterized.parameters('import os; os._exit(0)', 'x = (', _FORGER)
  def test_ending_early_or_writing_a_report_solves_nothing(self, text):
    verdict = self.grade(text)
    self.assertFalse(verdict.solved)
    self.assertEqual((verdict.fraction, verdict.regressions), (0.0, 1))

  def test_new_files_join_and_those_that_interfere_do_not(self):
    split = {'pkg/a.py': 'from pkg.b import double, one\n', 'pkg/b.py': _GOLD}
    verdict = grade.grade(_TASK, split, self.box, tree=tar(_TREE))
    self.assertTrue(verdict.solved)
    skipping = 'import pytest\npytestmark = pytest.mark.skip\n'
    verdict = self.grade(
      _GOLD,
      **{'conftest.py': 'x = (', 'sitecustomize.py': 'raise SystemExit'},
      **{'tests/test_a.py': skipping, 'pytest.py': 'x = ('},
    )
    self.assertTrue(verdict.solved)

  def test_a_report_is_not_what_a_replaced_library_makes_of_it(self):
    text = """
import json
def lie(*arguments, **named):
  raise SystemExit(0)
json.dump = json.dumps = json.JSONEncoder.encode = lie
json.JSONEncoder.iterencode = lie
"""
    verdict = self.grade(_GOLD + text)
    self.assertTrue(verdict.solved)

  def test_the_nonce_cannot_be_read_a_second_time(self):
    text = 'import os\nassert os.pread(0, 9, 0)\n'
    self.assertFalse(self.grade(_GOLD + text).solved)
    text = 'import os\nassert not os.read(0, 9)\n'
    self.assertTrue(self.grade(_GOLD + text).solved)

  def test_a_file_in_a_folders_place_is_ignored(self):
    for path in ('tests', 'pkg', 'pkg/a.py/x.py', 'tests/test_b.py/x.py'):
      self.assertTrue(self.grade(_GOLD, **{path: 'x'}).solved, path)

  def test_a_library_that_a_shown_test_imports_is_not_replaced(self):
    uses = 'import colours\n\ndef test_c():\n  assert colours.x\n'
    task = dataclasses.replace(
      _TASK, fail_to_pass=('tests/test_c.py::test_c',), pass_to_pass=()
    )
    tree = tar(_TREE | {'tests/test_c.py': uses})
    files = {'pkg/a.py': _GOLD, 'colours.py': 'x = 1\n'}
    self.assertFalse(grade.grade(task, files, self.box, tree=tree).solved)
    tree = tar(_TREE | {'tests/test_c.py': uses, 'colours.py': 'x = 0\n'})
    self.assertTrue(grade.grade(task, files, self.box, tree=tree).solved)

  def test_what_was_removed_is_missed(self):
    verdict = grade.grade(
      _TASK, {}, self.box, tree=tar(_TREE), removed=['pkg/a.py']
    )
    self.assertEqual((verdict.fraction, verdict.regressions), (0.0, 1))


if __name__ == '__main__':
  absltest.main()
