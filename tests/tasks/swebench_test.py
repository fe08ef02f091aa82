import json
import pathlib
import subprocess

from absl.testing import absltest

from composer_jax.tasks import make_swebench
from composer_jax.tasks import snapshots

RUNNER = ('python', 'runner.py', '--path=.')


class SweBenchTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.root = pathlib.Path(self.create_tempdir().full_path)
    self.clone = self.root / 'clones' / 'owner__tiny'
    self.clone.mkdir(parents=True)
    self.git('init', '-q')
    self.put('tiny.py', 'def one():\n  return 2\n\ndef two():\n  return 2\n')
    self.put('old.py', 'OLD = 1\n')
    self.put('tests/test_tiny.py', 'def test_two():\n  pass\n')
    self.put('tests/test_gone.py', 'def test_gone():\n  pass\n')
    self.base = self.commit()
    self.put('tiny.py', 'def one():\n  return 1\n\ndef two():\n  return 2\n')
    self.put('new.py', 'NEW = 1\n')
    (self.clone / 'old.py').unlink()
    self.patch = self.staged()
    self.mended = self.commit()
    self.put(
      'tests/test_tiny.py',
      'def test_two():\n  pass\n\ndef test_one():\n  pass\n',
    )
    self.put('tests/test_new.py', 'def test_new():\n  pass\n')
    (self.clone / 'tests' / 'test_gone.py').unlink()
    self.test_patch = self.staged()
    self.commit()

  def git(self, *arguments: str) -> str:
    settings = ('-c', 'user.name=x', '-c', 'user.email=x@x')
    return subprocess.run(
      ['git', *settings, *arguments],
      cwd=self.clone,
      check=True,
      capture_output=True,
      text=True,
    ).stdout

  def put(self, path: str, text: str) -> None:
    place = self.clone / path
    place.parent.mkdir(exist_ok=True)
    place.write_text(text)

  def staged(self) -> str:
    self.git('add', '-A')
    return self.git('diff', '--cached', '--no-renames')

  def commit(self) -> str:
    self.git('add', '-A')
    self.git('commit', '-q', '-m', 'x')
    return self.git('rev-parse', 'HEAD').strip()

  def row(self, **changes):
    return {
      'instance_id': 'owner__tiny-1',
      'repo': 'owner/tiny',
      'base_commit': self.base,
      'patch': self.patch,
      'test_patch': self.test_patch,
      'FAIL_TO_PASS': json.dumps(
        ['tests/test_tiny.py::test_one', 'tests/test_new.py::test_new']
      ),
      'PASS_TO_PASS': ['tests/test_tiny.py::test_two'],
      'problem_statement': 'one() is 2',
      **changes,
    }

  def load(self, row, suffix='.jsonl'):
    path = self.root / f'tasks{suffix}'
    path.write_text(json.dumps(row if suffix == '.jsonl' else [row]) + '\n')
    return make_swebench.load(
      path, self.root / 'clones', runner=RUNNER, licence='MIT'
    )

  def test_the_tree_is_the_base_commit_without_history(self):
    for suffix in ('.jsonl', '.json'):
      (task,), trees = self.load(self.row(), suffix)
      files = snapshots.unpack(trees[task.snapshot])
      self.assertEqual(
        set(files),
        {'tiny.py', 'old.py', 'tests/test_tiny.py', 'tests/test_gone.py'},
      )
      self.assertIn(b'def one():\n  return 2', files['tiny.py'])

  def test_the_fix_is_the_patch_with_files_that_come_and_go(self):
    (task,), trees = self.load(self.row())
    texts = snapshots.texts(trees[task.snapshot])
    for edit in task.provenance.fix:
      texts[edit.path] = edit.apply(texts.get(edit.path, ''))
    gold = make_swebench.archive(self.clone, self.mended)
    self.assertEqual(
      {path: text for path, text in texts.items() if text},
      {path: data.decode() for path, data in gold.items()},
    )

  def test_patched_tests_are_hidden_and_grade(self):
    (task,), _ = self.load(self.row())
    self.assertEqual(
      set(task.hidden_files), {'tests/test_tiny.py', 'tests/test_new.py'}
    )
    self.assertIn('test_one', task.hidden_files['tests/test_tiny.py'])
    self.assertEqual(task.test_command, (*RUNNER, 'tests/test_tiny.py'))
    self.assertEqual(
      task.grade_command, (*RUNNER, 'tests/test_new.py', 'tests/test_tiny.py')
    )
    self.assertEqual(task.fail_to_pass[0], 'tests/test_tiny.py::test_one')
    self.assertEqual(task.pass_to_pass, ('tests/test_tiny.py::test_two',))
    self.assertEqual(task.prompt, 'one() is 2')
    self.assertEqual(task.split, 'heldout')

  def test_refuses_what_does_not_fit_and_says_why(self):
    with self.assertRaisesRegex(ValueError, 'git apply'):
      self.load(self.row(patch=self.patch.replace('return 2', 'return 3')))
    with self.assertRaisesRegex(ValueError, 'git archive'):
      self.load(self.row(base_commit='0' * 40))
    with self.assertRaisesRegex(ValueError, 'both patches'):
      self.load(self.row(test_patch=self.patch))
    with self.assertRaisesRegex(ValueError, 'no clone of owner/other'):
      self.load(self.row(repo='owner/other'))
    row = self.row()
    del row['patch']
    with self.assertRaisesRegex(ValueError, "tiny-1 has no field 'patch'"):
      self.load(row)


if __name__ == '__main__':
  absltest.main()
