"""Only work that passes the hidden tests is solved. Real boxes throughout."""

from concurrent import futures
import dataclasses

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
    return grade.grade(task, {'solution.py': solution, **others}, self.box)

  def test_gold_passes_three_times_and_no_edit_fails_three_times(self):
    for _ in range(3):
      self.assertTrue(self.grade(_GOLD))
      self.assertFalse(grade.grade(_TASK, {}, self.box))
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
      solved = threads.submit(
        grade.grade, task, {'solution.py': 'while True: pass'}, self.box
      ).result(timeout=20)
    self.assertFalse(solved)
    self.assertTrue(self.grade(_GOLD))

  def test_tests_are_never_taken_from_the_work(self):
    self.assertFalse(
      self.grade(
        _BUGGY,
        **{
          'grade.py': 'print(input())',
          'test_solution.py': 'x',
          'sitecustomize.py': 'x',
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
      self.assertEqual(
        grade.grade(_TASK, {'solution.py': solution}, self.box, cache), solved
      )
    self.assertEqual((cache.hits, cache.misses), (2, 2))

  def test_failing_box_is_no_verdict(self):
    box = sandbox.Box(self.box.level, _CONFIG)
    box.close()
    with self.assertRaises(trajectory.InfrastructureError):
      grade.grade(_TASK, {'solution.py': _GOLD}, box)


if __name__ == '__main__':
  absltest.main()
