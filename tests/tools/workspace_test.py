"""What an episode leaves behind, told from the files themselves."""

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.tools import registry
from composer_jax.tools import workspace
from tests.tools import harness

call = harness.call


class FinalWorkTest(harness.ToolTest):
  def work(self, script, config=harness.ALL):
    """What is told after a shell script changed the files."""
    toolbox = self.toolbox(config=config)
    result = self.box.exec(['sh', '-ec', script], seconds=10)
    self.assertEqual(result.exit_code, 0, result.output)
    return toolbox.final_work()

  def test_nothing_done_is_no_work(self):
    self.assertEqual(self.work('touch README.md'), workspace.Work(files={}))

  def test_changed_new_and_removed_files_are_told(self):
    work = self.work(
      'echo x > README.md; mkdir -p a/b; echo y > a/b/c; rm pkg/sums.py'
    )
    self.assertEqual(work.files, {'README.md': 'x\n', 'a/b/c': 'y\n'})
    self.assertEqual(work.removed, {'pkg/sums.py'})

  def test_tests_that_were_changed_are_told_too(self):
    work = self.work('echo > tests/test_sums.py')
    self.assertEqual(work.files, {'tests/test_sums.py': '\n'})

  def test_what_is_no_text_or_no_file_is_left_out(self):
    work = self.work(
      r"printf '\377' > a.bin; ln -s README.md link; mkfifo pipe; mkdir empty"
    )
    self.assertEqual(work, workspace.Work(files={}))

  def test_a_file_that_became_a_link_is_removed(self):
    work = self.work('ln -sf /etc/passwd README.md')
    self.assertEqual(work.removed, {'README.md'})

  def test_a_file_that_grew_too_large_is_removed(self):
    work = self.work('yes | head -c 3000000 > README.md')
    self.assertEqual((work.files, work.removed), ({}, {'README.md'}))

  def test_work_beyond_the_limit_is_left_out_new_files_first(self):
    config = dataclasses.replace(harness.ALL, work_bytes=2 * 512 + 10)
    work = self.work(
      'printf 12345 > pkg/sums.py; printf 1234 > b; printf 123456 > a', config
    )
    self.assertEqual(work.files, {'pkg/sums.py': '12345', 'b': '1234'})

  def test_of_countless_files_there_is_what_the_tools_wrote(self):
    toolbox = self.toolbox(cache=registry.ResultCache())
    self.answer(call('write_file', path='a.txt', text='x\n'), toolbox=toolbox)
    flood = (
      "import os\nos.mkdir('z')\nfor i in range(6000):\n"
      "  os.close(os.open(f'z/{i}', os.O_CREAT))\n"
    )
    self.assertEqual(
      self.box.exec(['python3', '-c', flood], seconds=60).exit_code, 0
    )
    self.assertEqual(
      toolbox.final_work(), workspace.Work(files={'a.txt': 'x\n'})
    )
    tests, found = self.answer(
      call('run_tests'),
      call('semantic_search', query='x', limit=1),
      toolbox=toolbox,
    )
    self.assertStartsWith(tests[1], '1 passed, 1 failed')
    self.assertEqual(found, (harness.Status.OK, 'a.txt:1-1  a.txt\n  x'))

  def test_a_file_of_the_tree_that_the_task_changes_is_told_against_the_task(
    self,
  ):
    toolbox = self.toolbox({'README.md': 'of the task\n'})
    self.assertEqual(toolbox.final_work().files, {})
    self.box.write('README.md', 'Adds numbers up.\n')
    self.assertEqual(
      toolbox.final_work().files, {'README.md': 'Adds numbers up.\n'}
    )

  def test_a_box_that_broke_down_has_its_tree_again(self):
    toolbox = self.toolbox()
    self.answer(
      call('write_file', '1', path='a.txt', text='x\n'),
      call('write_file', '2', path='b.txt', text='y\n'),
      call('undo'),
      toolbox=toolbox,
    )
    self.box._stop()
    self.assertEqual(
      toolbox.final_work(), workspace.Work(files={'a.txt': 'x\n'})
    )

  def test_a_task_without_its_tree_is_refused(self):
    with self.assertRaisesRegex(ValueError, "starts from the tree 'sums'"):
      self.toolbox(tree=b'')


class PathTest(parameterized.TestCase):
  @parameterized.parameters(
    ('a/b.py', 'a/b.py'),
    ('./a//b.py', 'a/b.py'),
    ('/repo/a/b.py', 'a/b.py'),
    ('/repo/', '.'),
    ('a/../../b', '../b'),
    ('/etc/passwd', '/etc/passwd'),
  )
  def test_one_file_has_one_name(self, path, name):
    self.assertEqual(workspace.relative(path), name)


class ConfigTest(parameterized.TestCase):
  @parameterized.parameters('run_tests', 'run_tests=', 'run_tests=-1', '=x')
  def test_a_limit_that_is_no_number_is_refused(self, entry):
    for field in ('rates', 'tool_chars'):
      with self.assertRaisesRegex(ValueError, f'tools.{field}: {entry!r}'):
        workspace.ToolsConfig(**{field: (entry,)})


if __name__ == '__main__':
  absltest.main()
