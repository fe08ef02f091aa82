"""Only work that passes the hidden tests is solved. Real boxes throughout."""

from concurrent import futures
import dataclasses
import io
import json
import tarfile
import types

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax import trajectory
from composer_jax.rewards import grade
from composer_jax.tools import sandbox
from composer_jax.tools import workspace

_CONFIG = sandbox.SandboxConfig(allow_weak=True)
_GOLD = 'def double(x):\n  return x * 2\n'
_BUGGY = 'def double(x):\n  return x + 2\n'
_HIDDEN = """import sys
nonce = sys.stdin.readline().strip()
from solution import double
assert double(2) == 4
assert double(3) == 6
print(nonce)
"""
_TASK = trajectory.Task(
  id='double',
  prompt='Repair double.',
  files={'solution.py': _BUGGY, 'test_solution.py': 'assert 1\n'},
  test_command=('python', 'test_solution.py'),
  hidden_files={'grade.py': _HIDDEN},
  grade_command=('python', 'grade.py'),
  provenance=trajectory.Provenance(
    package='none',
    licence='Apache-2.0',
    problem='double',
    kind='operator',
    bugs=(trajectory.Edit('solution.py', '*', '+'),),
    visible_fails=False,
  ),
  split='train',
  test_seconds=1.0,
)


class GradeTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.box = sandbox.Box(sandbox.probe(_CONFIG), _CONFIG)

  @classmethod
  def tearDownClass(cls):
    cls.box.close()
    super().tearDownClass()

  def grade(self, solution, task=_TASK, **others):
    files = {'solution.py': solution, **others}
    return grade.grade(task, files, self.box).solved

  def test_gold_passes_three_times_and_no_edit_fails_three_times(self):
    for _ in range(3):
      self.assertTrue(self.grade(_GOLD))
      self.assertFalse(grade.grade(_TASK, {}, self.box).solved)
      self.assertFalse(self.grade(_BUGGY))

  @parameterized.parameters(
    'import os; os._exit(0)',
    'import sys; sys.exit(0)',
    'import os\ndef double(x): os._exit(0)',
    'def double(x): raise SystemExit',
    'import sys; print("x"); sys.stdout.flush()\nimport os; os._exit(0)',
    'import builtins; builtins.print = lambda *a: None\n' + _GOLD,
    'def double(x): return',
    'double = ',
    'import os, signal; os.kill(-1, signal.SIGKILL)',
  )
  def test_ending_early_or_silently_solves_nothing(self, solution):
    if 'kill' in solution and self.box.level is sandbox.Level.WEAK:
      self.skipTest('would end the processes of the one who tests')
    self.assertFalse(self.grade(solution))

  def test_code_behind_the_nonce_spoils_it(self):
    late = 'import atexit\natexit.register(print, "more")\n' + _GOLD
    self.assertFalse(self.grade(late))

  def test_endless_loop_is_graded_in_a_thread(self):
    task = dataclasses.replace(_TASK, test_seconds=0.3)
    with futures.ThreadPoolExecutor(1) as threads:
      verdict = threads.submit(
        grade.grade, task, {'solution.py': 'while True: pass'}, self.box
      ).result(timeout=20)
    self.assertFalse(verdict.solved)
    self.assertGreaterEqual(verdict.seconds, 0.3)
    self.assertTrue(self.grade(_GOLD))

  def test_tests_are_never_taken_from_the_work(self):
    self.assertFalse(
      self.grade(
        _BUGGY,
        **{
          'grade.py': 'print(input())',
          'test_solution.py': 'x',
          'sitecustomize.py': 'x',
          'random.py': 'x',
        },
      )
    )
    self.assertCountEqual(
      self.box.files(), ['solution.py', 'test_solution.py', 'grade.py']
    )
    self.assertEqual(self.box.read('grade.py'), _HIDDEN)
    self.assertEqual(self.box.read('test_solution.py'), 'assert 1\n')

  def test_equal_work_is_graded_once(self):
    cache = workspace.ResultCache()
    for solution, solved in ((_GOLD, True), (_BUGGY, False)) * 2:
      files = {'solution.py': solution}
      verdict = grade.grade(_TASK, files, self.box, cache)
      self.assertEqual((verdict.solved, verdict.fraction), (solved, solved))
    self.assertEqual((cache.hits, cache.misses), (2, 2))

  def test_failing_box_is_no_verdict(self):
    box = sandbox.Box(self.box.level, _CONFIG)
    box.close()
    with self.assertRaises(trajectory.InfrastructureError):
      grade.grade(_TASK, {'solution.py': _GOLD}, box)


def tar(files):
  buffer = io.BytesIO()
  with tarfile.open(fileobj=buffer, mode='w') as archive:
    for name, text in files.items():
      member = tarfile.TarInfo(name)
      member.size = len(text)
      archive.addfile(member, io.BytesIO(text.encode()))
  return buffer.getvalue()


def untar(tree):
  with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
    return {m.name: archive.extractfile(m).read().decode() for m in archive}


class RecordingBox:
  """Keeps what it is given, and answers with what it was told to."""

  def __init__(self, tests=None, **others):
    self.tests = tests or {}
    self.others = others
    self.resets = []

  def reset(self, files, tree=b''):
    self.resets.append((dict(files), tree))

  def exec(self, command, *, seconds, stdin='', report=False):
    self.asked = command, seconds, report
    report = json.dumps({'nonce': stdin.strip(), 'tests': self.tests})
    return types.SimpleNamespace(
      **{
        'exit_code': 0,
        'output': '',
        'seconds': 0.5,
        'cpu_seconds': 0.1,
        'timed_out': False,
        'report': report,
        **self.others,
      }
    )


_TREE = tar({'pkg/a.py': 'a = 1\n', 'tests/test_a.py': 'old\n', 'types.py': ''})
_REPOSITORY = dataclasses.replace(
  _TASK,
  files={},
  snapshot='pkg-1',
  hidden_files={'tests/test_b.py': 'import hypothesis\nimport pkg\n'},
  fail_to_pass=('tests/test_b.py::one', 'tests/test_b.py::two'),
  pass_to_pass=('tests/test_a.py::three', 'tests/test_a.py::four'),
)
_GOOD = dict.fromkeys(
  (*_REPOSITORY.fail_to_pass, *_REPOSITORY.pass_to_pass), 'passed'
)


class NamedTestsTest(parameterized.TestCase):
  def grade(self, box, files=None, cache=None, **others):
    others = {'tree': _TREE, **others}
    return grade.grade(_REPOSITORY, files or {}, box, cache, **others)

  def test_all_named_tests_solve_it(self):
    box = RecordingBox({**_GOOD, 'tests/test_a.py::other': 'failed'})
    verdict = self.grade(box)
    self.assertTrue(verdict.solved)
    self.assertEqual(verdict.fraction, 1.0)
    self.assertCountEqual(verdict.passed, _GOOD)
    self.assertEqual((verdict.failed, verdict.regressions), ((), 0))
    self.assertEqual(verdict.seconds, 0.5)
    self.assertEqual(box.asked, (_TASK.grade_command, 1.0, True))

  @parameterized.parameters('failed', 'error', 'skipped', 'xpassed', None, 1)
  def test_a_test_that_does_not_pass_has_failed(self, outcome):
    one, *_ = _REPOSITORY.fail_to_pass
    verdict = self.grade(RecordingBox({**_GOOD, one: outcome}))
    self.assertFalse(verdict.solved)
    self.assertEqual(verdict.fraction, 0.5)
    self.assertEqual((verdict.failed, verdict.regressions), ((one,), 0))

  def test_a_test_that_is_not_reported_has_failed(self):
    tests = {n: o for n, o in _GOOD.items() if not n.endswith('three')}
    verdict = self.grade(RecordingBox(tests))
    self.assertFalse(verdict.solved)
    self.assertEqual((verdict.fraction, verdict.regressions), (1.0, 1))

  @parameterized.parameters(
    {'report': ''},
    {'report': '{'},
    {'report': '[]'},
    {'report': 'null'},
    {'report': '[' * 9999},
    {'report': json.dumps({'nonce': 'guessed', 'tests': _GOOD})},
    {'report': json.dumps({'tests': _GOOD})},
    {'timed_out': True},
  )
  def test_a_report_without_the_nonce_reports_nothing(self, **others):
    verdict = self.grade(RecordingBox(_GOOD, **others))
    self.assertFalse(verdict.solved)
    self.assertEqual((verdict.fraction, verdict.regressions), (0.0, 2))

  def test_an_exit_status_decides_nothing(self):
    self.assertTrue(self.grade(RecordingBox(_GOOD, exit_code=1)).solved)
    self.assertFalse(self.grade(RecordingBox({}, exit_code=0)).solved)

  def test_the_work_lies_over_the_tree_and_hidden_tests_over_all(self):
    box = RecordingBox(_GOOD)
    self.grade(
      box,
      {
        'pkg/a.py': 'a = 2\n',
        'pkg/new.py': 'n = 1\n',
        'tests/test_a.py': 'forged\n',
        'tests/test_b.py': 'forged\n',
        'conftest.py': 'forged\n',
      },
    )
    ((files, tree),) = box.resets
    self.assertEqual(
      files,
      {
        'pkg/a.py': 'a = 2\n',
        'pkg/new.py': 'n = 1\n',
        **_REPOSITORY.hidden_files,
      },
    )
    self.assertEqual(tree, _TREE)

  def test_what_was_removed_is_gone_and_tests_stay(self):
    box = RecordingBox(_GOOD)
    self.grade(box, removed=['pkg/a.py', 'tests/test_a.py', 'never.py'])
    ((_, tree),) = box.resets
    self.assertEqual(untar(tree), {'tests/test_a.py': 'old\n', 'types.py': ''})

  @parameterized.parameters(
    'sitecustomize.py',
    'pkg/usercustomize.py',
    'x.pth',
    'pytest.py',
    '_pytest/__init__.py',
    'random.py',
    'json/__init__.py',
    'src/json.py',
    'lib/pluggy/a.py',
    'hypothesis.py',  # A hidden test imports it from elsewhere.
    'hypothesis/__init__.py',
    'x-1.dist-info/entry_points.txt',
    '../outside.py',
    '/outside.py',
    'pkg/__pycache__/a.pyc',
    '.git/hooks/x',
    'pytest.toml',
    'tox.ini',
  )
  def test_no_file_of_the_work_comes_between(self, path):
    box = RecordingBox(_GOOD)
    self.grade(box, {path: 'x'})
    self.assertEqual(box.resets[0][0], dict(_REPOSITORY.hidden_files))

  @parameterized.parameters(
    'pkg/random.py',  # Imported as pkg.random.
    'pkg/json/__init__.py',
    'types.py',  # The tree has it.
    'helper.py',
    'src/other/a.py',
    'README.md',
    'lib.py',
  )
  def test_other_new_files_are_part_of_the_work(self, path):
    box = RecordingBox(_GOOD)
    self.grade(box, {path: 'x'})
    self.assertEqual(box.resets[0][0][path], 'x')

  def test_a_module_that_the_known_fix_brings_may_be_brought(self):
    bug = trajectory.Edit('hypothesis.py', 'text', '')
    provenance = dataclasses.replace(_TASK.provenance, bugs=(bug,))
    task = dataclasses.replace(_REPOSITORY, provenance=provenance)
    box = RecordingBox(_GOOD)
    grade.grade(task, {'hypothesis.py': 'x'}, box, tree=_TREE)
    self.assertIn('hypothesis.py', box.resets[0][0])

  def test_equal_work_on_another_tree_is_other_work(self):
    cache = workspace.ResultCache()
    self.assertTrue(self.grade(RecordingBox(_GOOD), cache=cache).solved)
    self.assertTrue(self.grade(RecordingBox({}), cache=cache).solved)
    other = tar({'pkg/a.py': ''})
    self.assertFalse(
      self.grade(RecordingBox({}), cache=cache, tree=other).solved
    )
    removed = ['pkg/a.py']
    self.assertFalse(
      self.grade(RecordingBox({}), cache=cache, removed=removed).solved
    )


if __name__ == '__main__':
  absltest.main()
