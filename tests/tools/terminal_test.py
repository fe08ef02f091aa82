"""A shell that lives as long as the episode."""

import dataclasses

from absl.testing import absltest

from composer_jax.tools import registry
from tests.tools import harness

Status = harness.Status
call = harness.call


def _type(command, call_id='', **arguments):
  return call('run_terminal', call_id, command=command, **arguments)


class TerminalTest(harness.ToolTest):
  def test_output_and_exit_status_are_told(self):
    results = self.toolbox().call_all(
      [_type('echo out; echo err >&2; (exit 3)', '1'), _type('true', '2')]
    )
    self.assertEqual(
      [(r.status, r.exit_code, r.text) for r in results],
      [
        (Status.ERROR, 3, 'out\nerr\n[exit status 3]'),
        (Status.OK, 0, ''),
      ],
    )

  def test_folder_variables_and_functions_live_on(self):
    results = self.answer(
      _type('cd pkg; x=7; f() { echo "f $1"; }', '1'),
      _type('pwd | grep -o pkg; echo $x; f 8', '2'),
    )
    self.assertEqual(results[1], (Status.OK, 'pkg\n7\nf 8'))

  def test_a_job_in_the_background_lives_on(self):
    results = self.answer(
      _type('mkfifo /tmp/pipe; (read x < /tmp/pipe; echo got $x > a) &', '1'),
      _type('echo word > /tmp/pipe; wait; cat a', '2'),
    )
    self.assertIs(results[0][0], Status.OK)
    self.assertIn('got word', results[1][1])

  def test_a_command_that_takes_too_long_is_ended_and_the_next_runs(self):
    results = self.answer(
      _type('sleep 1000', '1', seconds=1), _type('echo next', '2')
    )
    self.assertIs(results[0][0], Status.TIMEOUT)
    self.assertIn('timed out after 1 s', results[0][1])
    self.assertIs(results[1][0], Status.OK)
    self.assertEndsWith(results[1][1], 'next')

  def test_no_command_gets_more_time_than_the_config_gives(self):
    config = dataclasses.replace(harness.ALL, terminal_seconds=0.5)
    [(status, text)] = self.answer(
      _type('sleep 1000', seconds=600), toolbox=self.toolbox(config=config)
    )
    self.assertIs(status, Status.TIMEOUT)
    self.assertIn('timed out after 0.5 s', text)

  def test_a_shell_that_was_left_is_there_again(self):
    results = self.answer(_type('exit 4', '1'), _type('echo again', '2'))
    self.assertIs(results[0][0], Status.ERROR)
    self.assertIs(results[1][0], Status.OK)
    self.assertEndsWith(results[1][1], 'again')

  def test_it_works_on_the_files_that_the_tools_see(self):
    toolbox = self.toolbox()
    results = self.answer(
      call('write_file', path='a.txt', text='one\n'),
      _type('cat a.txt; echo two > b.txt; rm README.md'),
      call('read_file', path='b.txt'),
      toolbox=toolbox,
    )
    self.assertEqual([text for _, text in results], ['ok', 'one', 'two'])
    work = toolbox.final_work()
    self.assertEqual(work.files, {'a.txt': 'one\n', 'b.txt': 'two\n'})
    self.assertEqual(work.removed, {'README.md'})

  def test_a_flood_is_cut_in_the_middle(self):
    [result] = self.toolbox().call_all(
      [_type('echo first; seq 100000; echo last')]
    )
    self.assertStartsWith(result.text, 'first\n')
    self.assertEndsWith(result.text, 'last')
    self.assertGreater(result.dropped_bytes, 500_000)

  def test_a_box_that_broke_down_has_the_files_of_the_tools_and_says_so(self):
    toolbox = self.toolbox()
    self.answer(
      call('write_file', path='a.txt', text='one\n'),
      _type('echo two > b.txt'),
      toolbox=toolbox,
    )
    self.box._stop()
    [(status, text)] = self.answer(_type('ls; cat a.txt'), toolbox=toolbox)
    self.assertIs(status, Status.OK)
    self.assertStartsWith(
      text, '[the box broke down: what the terminal did is lost]\n'
    )
    self.assertEndsWith(text, 'README.md\na.txt\npkg\ntests\none')

  def test_tests_are_run_again_where_a_terminal_may_have_changed_more(self):
    cache = registry.ResultCache()
    toolbox = self.toolbox(cache=cache)
    self.answer(_type('true'), toolbox=toolbox)
    for _ in range(2):
      self.answer(call('run_tests'), toolbox=toolbox)
    self.assertEqual((cache.hits, cache.misses), (0, 0))


if __name__ == '__main__':
  absltest.main()
