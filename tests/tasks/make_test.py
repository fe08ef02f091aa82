"""The whole way from an archive to tasks, in real boxes, without a network."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from absl.testing import absltest

from composer_jax import trajectory
from composer_jax.tasks import candidates
from composer_jax.tasks import delete
from composer_jax.tasks import excerpts
from composer_jax.tasks import make
from composer_jax.tasks import snapshots
from composer_jax.tasks import source
from composer_jax.tools import isolation
from composer_jax.tools import sandbox
from tests.tasks import tiny

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SCRIPT = """
import pathlib, sys
from composer_jax.tasks import candidates, make
from composer_jax.tools import sandbox
make.make(make.Config(
  packages=('tiny==1.0',), out=sys.argv[1], boxes=1, batch=2,
  candidates=candidates.Config(per_function=1),
  sandbox=sandbox.SandboxConfig(allow_weak=True, memory_bytes=1 << 30),
))
"""


def config(out: pathlib.Path, **changes) -> make.Config:
  return make.Config(
    packages=(tiny.REQUIREMENT,),
    out=str(out),
    boxes=2,
    candidates=candidates.Config(per_function=2, several_percent=60),
    sandbox=sandbox.SandboxConfig(allow_weak=True, memory_bytes=1 << 30),
    **changes,
  )


def fill(out: pathlib.Path) -> pathlib.Path:
  """A folder with the archive of the tiny package."""
  path = out / 'archives' / 'tiny-1.0' / 'tiny-1.0.tar.gz'
  tiny.archive(path, {**tiny.FILES, **tiny.RESIDUE})
  return out


class MakeTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = tempfile.TemporaryDirectory()
    cls.out = fill(pathlib.Path(cls.folder.name))
    cls.index = make.make(config(cls.out, heldout=('tiny',)))
    cls.tasks, cls.trees = source.read_set(cls.out)
    settings = sandbox.SandboxConfig(
      allow_weak=True,
      memory_bytes=1 << 30,
      libraries=str(cls.out / source.LIBRARIES),
    )
    cls.box = sandbox.Box(sandbox.probe(settings), settings)

  @classmethod
  def tearDownClass(cls):
    cls.box.close()
    cls.folder.cleanup()
    super().tearDownClass()

  def one(self, kind: str, name: str = '') -> trajectory.Task:
    return next(
      task
      for task in self.tasks
      if task.provenance.kind == kind and name in task.prompt
    )

  def graded(self, task: trajectory.Task, work: dict[str, str]):
    """Outcomes of the grading command in a box filled for it."""
    self.box.reset(
      {**task.files, **work, **task.hidden_files}, self.trees[task.snapshot]
    )
    ended = self.box.exec(
      task.grade_command, seconds=60, stdin='nonce\n', report=True
    )
    return json.loads(ended.report)['tests']

  def test_there_are_tasks_of_every_sort(self):
    kinds = {task.provenance.kind for task in self.tasks}
    self.assertContainsSubset(
      {
        candidates.DELETED,
        candidates.DELETED_CLASS,
        candidates.DELETED_CIRCLE,
        candidates.SEVERAL,
        'comparison',
      },
      kinds,
      str(self.index['packages']),
    )
    self.assertLen({task.id for task in self.tasks}, len(self.tasks))

  def test_the_fix_passes_and_no_work_fails_as_the_task_says(self):
    for task in self.tasks:
      work = dict(task.files)
      for edit in task.provenance.fix:
        work[edit.path] = edit.apply(work[edit.path])
      source_files = {
        path: text
        for path, text in work.items()
        if not trajectory.is_test(path)
      }
      self.assertEqual(source_files, {'tiny/__init__.py': tiny.CODE})
      fixed, empty = self.graded(task, source_files), self.graded(task, {})
      wanted = {*task.fail_to_pass, *task.pass_to_pass}
      self.assertNotEmpty(task.fail_to_pass)
      self.assertNotEmpty(task.pass_to_pass)
      self.assertEqual({fixed[test] for test in wanted}, {'passed'}, task.id)
      for test in wanted:
        failed = empty[test] in ('failed', 'error')
        self.assertEqual(failed, test in task.fail_to_pass, (task.id, test))

  def test_what_never_passed_and_what_is_too_much_is_left_out(self):
    for task in self.tasks:
      tests = {*task.fail_to_pass, *task.pass_to_pass}
      self.assertNotIn('tests/test_tiny.py::test_that_never_passed', tests)
      self.assertLessEqual(len(task.fail_to_pass), 0.3 * 48)

  def test_hidden_tests_are_nowhere_where_the_policy_works(self):
    hiding = [task for task in self.tasks if task.hidden_files]
    self.assertNotEmpty(hiding)
    for task in hiding:
      self.box.reset(task.files, self.trees[task.snapshot])
      for path, text in task.hidden_files.items():
        visible = self.box.read(path)
        self.assertLess(len(visible), len(text))
        gone = excerpts.written(text) - excerpts.written(visible)
        failing = {excerpts.function_of(t)[1] for t in task.fail_to_pass}
        self.assertNotEmpty(gone & failing)
        self.assertEmpty(gone - failing)

  def test_visible_tests_run_and_fail_where_the_task_says(self):
    seen = set()
    for task in self.tasks:
      self.box.reset(task.files, self.trees[task.snapshot])
      ended = self.box.exec(
        task.test_command, seconds=60, stdin='\n', report=True
      )
      tests = json.loads(ended.report)['tests']
      failed = {t for t, o in tests.items() if o in ('failed', 'error')}
      self.assertEqual(bool(failed), task.provenance.visible_fails, task.id)
      self.assertContainsSubset(failed, task.fail_to_pass)
      seen.add(bool(failed))
    self.assertEqual(seen, {True, False})

  def test_deleted_code_still_imports_and_says_what_is_wanted(self):
    task = self.one(candidates.DELETED, '`mean`')
    self.assertIn('def mean(items, missing_value=None):', task.prompt)
    self.assertIn('The mean of what is not missing', task.prompt)
    self.assertNotIn(tiny.SECRET, task.prompt)
    self.box.reset(task.files, self.trees[task.snapshot])
    self.box.write('try_it.py', 'import tiny\nprint(tiny.clamp(9, 1, 5))\n')
    ended = self.box.exec(['python', 'try_it.py'], seconds=60)
    self.assertEqual(ended.output, '5\n')

  def test_deleted_code_is_nowhere_in_the_box(self):
    if self.box.level is sandbox.Level.WEAK:
      self.skipTest('a weak box sees the whole machine')
    task = self.one(candidates.DELETED, '`mean`')
    search = [
      isolation.RIPGREP,
      *('--no-config', '-uuu', '--text', '--fixed-strings', '--no-messages'),
      *('--files-with-matches', '--max-filesize=4M', f'--regexp={tiny.SECRET}'),
    ]
    places = ['/repo', '/tmp', '/opt', os.path.realpath(sys.base_prefix)]
    self.box.reset(task.files, self.trees[task.snapshot])
    ended = self.box.exec([*search, *places], seconds=300)
    self.assertEqual(ended.output, '')
    self.assertFalse(ended.timed_out)
    usr = self.box.exec([*search, '--glob=*.py', '/usr'], seconds=300)
    self.assertEqual((usr.output, usr.timed_out), ('', False))
    self.box.write('leak/__pycache__/x.pyc', f'\0{tiny.SECRET}\0')
    ended = self.box.exec([*search, *places], seconds=300)
    self.assertEqual(ended.output, '/repo/leak/__pycache__/x.pyc\n')

  def test_the_package_itself_is_not_installed_in_the_box(self):
    self.box.reset({'try_it.py': 'import tiny\n'})
    ended = self.box.exec(['python', 'try_it.py'], seconds=60)
    self.assertIn('ModuleNotFoundError', ended.output)

  def test_the_snapshot_is_what_a_box_gives_back(self):
    (tree,) = self.trees.values()
    self.box.reset({}, tree)
    self.assertEqual(self.box.snapshot(), tree)
    self.assertEqual(set(snapshots.unpack(tree)), set(tiny.FILES))

  def test_tasks_say_where_they_come_from_and_how_hard_they_are(self):
    for task, row in zip(self.tasks, self.index['tasks'], strict=True):
      self.assertEqual(task.split, 'heldout')
      self.assertEqual(task.provenance.package, 'tiny==1.0')
      self.assertEqual(task.provenance.licence, 'MIT')
      self.assertEqual(row['failing'], len(task.fail_to_pass))
      self.assertEqual((row['id'], row['files']), (task.id, 1))
    self.assertEqual(
      json.loads((self.out / 'tasks.json').read_text()), self.index
    )
    deepest = self.one(candidates.DELETED_CIRCLE).difficulty
    self.assertGreater(deepest.lines, self.one('comparison').difficulty.lines)

  def test_a_bug_in_code_that_runs_on_import_is_tried_on_all_tests(self):
    with sandbox.BoxPool(
      1,
      sandbox.SandboxConfig(
        allow_weak=True, libraries=str(self.out / source.LIBRARIES)
      ),
      self.box.level,
    ) as boxes:
      subject, _ = make.prepare(tiny.REQUIREMENT, config(self.out), boxes)
    known = {
      function.name: function.lines
      for function in make.definitions.functions(tiny.CODE)
    }
    path = 'tiny/__init__.py'
    suite = subject.suite
    self.assertEqual(suite.reaching(path, [known['register']]), suite.tests)
    self.assertEqual(
      suite.reaching(path, [known['Stack.pop']]),
      {
        'tests/test_tiny.py::StackTest::test_order',
        'tests/test_tiny.py::StackTest::test_empty',
      },
    )
    self.assertEqual(
      suite.excluded,
      {'tests/test_tiny.py::test_that_never_passed': 'failed'},
    )

  def test_a_limit_leaves_room_for_several_bugs(self):
    out = fill(pathlib.Path(self.create_tempdir().full_path))
    make.make(config(out, limit=8, batch=1))
    kinds = [task.provenance.kind for task in source.read_set(out)[0]]
    self.assertIn(candidates.SEVERAL, kinds)
    self.assertBetween(len(kinds), 6, 9)  # What was begun is finished.

  def test_made_again_from_the_journal_it_is_the_same(self):
    out = self.out / source.TASKS
    before = out.read_bytes()
    make.make(config(self.out, heldout=('tiny',)))
    self.assertEqual(source.read_set(self.out)[0], self.tasks)
    self.assertEqual(len(out.read_bytes()), len(before))


class KilledTest(absltest.TestCase):
  def test_finished_work_is_kept_and_not_done_again(self):
    out = fill(pathlib.Path(self.create_tempdir().full_path))
    child = subprocess.Popen(
      [sys.executable, '-c', _SCRIPT, str(out)],
      env={**os.environ, 'PYTHONPATH': str(_ROOT)},
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    lines = []
    while not lines and child.poll() is None:
      lines = [
        line
        for journal in out.glob('work/tiny/journal-*.jsonl')
        for line in journal.read_bytes().splitlines(keepends=True)
      ]
    child.send_signal(signal.SIGKILL)
    child.wait()
    self.assertNotEmpty(lines)
    self.assertFalse((out / source.TASKS).exists())
    (journal,) = out.glob('work/tiny/journal-*.jsonl')
    with open(journal, 'ab') as file:
      file.write(b'{"key": "half')
    kept = journal.read_bytes().splitlines(keepends=True)[:-1]
    again = dataclasses.replace(
      config(out), candidates=candidates.Config(per_function=1)
    )
    make.make(again)
    after = journal.read_bytes().splitlines(keepends=True)
    self.assertEqual(after[: len(kept)], kept)
    keys = [json.loads(line)['key'] for line in after]
    self.assertLen(set(keys), len(keys))
    self.assertNotEmpty(source.read_set(out)[0])
    self.assertNotIn(delete.STUB, tiny.CODE)


class RefusalTest(absltest.TestCase):
  def test_a_package_whose_tests_fail_is_refused_with_the_reason(self):
    out = pathlib.Path(self.create_tempdir().full_path)
    path = out / 'archives' / 'tiny-1.0' / 'tiny-1.0.tar.gz'
    broken = tiny.CODE.replace('def mean', 'def median')
    tests = 'import tiny\n' + ''.join(
      f'def test_{i}(): tiny.mean([])\n' for i in range(9)
    )
    tiny.archive(
      path,
      {
        'PKG-INFO': tiny.INFO,
        'tiny/__init__.py': broken,
        'tests/test_tiny.py': tests,
      },
    )
    with self.assertRaisesRegex(ValueError, '0 of 9 tests can be trusted'):
      make.make(config(out))


if __name__ == '__main__':
  absltest.main()
