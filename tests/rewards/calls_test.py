from absl.testing import absltest
from absl.testing import parameterized

from composer_jax import trajectory
from composer_jax.rewards import calls
from tests import fakes
from tests.rewards import episodes

Status = trajectory.Status

READ = ('read_file', {'path': 'a'}, Status.OK)
PASS = ('run_tests', {}, Status.OK)
FAIL = ('run_tests', {}, Status.ERROR)
UNDO = ('undo', {}, Status.OK)
SUBMIT = ('submit', {}, Status.OK)


def edit(new, status=Status.OK):
  return ('edit_file', {'line': 1, 'old': '1', 'new': new}, status)


def shell(line, status=Status.OK):
  return ('run_terminal', {'command': line}, status)


class LastTestsTest(parameterized.TestCase):
  @parameterized.parameters(
    ([edit('2'), PASS], Status.OK),
    ([edit('2'), FAIL], Status.ERROR),
    ([edit('2'), PASS, READ], Status.OK),
    ([edit('2')], None),
    ([PASS, edit('2')], None),
    ([PASS, edit('2', Status.ERROR)], Status.OK),  # Nothing was changed.
    ([PASS, FAIL], Status.ERROR),
    ([edit('2'), PASS, UNDO], None),
    ([edit('2'), ('run_tests', {'x': 1}, Status.INVALID)], None),
    ([edit('2'), ('run_tests', {}, Status.DENIED)], None),
    ([edit('2'), ('run_tests', {}, Status.TIMEOUT)], Status.TIMEOUT),
    ([PASS, ('write_file', {'path': 'a'}, Status.OK)], None),
    ([PASS, shell("sed -i 's/1/2/' a.py")], None),
    ([PASS, shell('echo x > a.py')], None),
    ([PASS, shell('python fix.py')], None),
    ([PASS, shell('git checkout a.py')], None),
    ([PASS, shell('git diff; ls -l | head; sed -n 1,5p a.py')], Status.OK),
    ([edit('2'), shell('python -m pytest -q tests')], Status.OK),
    ([edit('2'), shell('cd x && pytest', Status.ERROR)], Status.ERROR),
    ([edit('2'), shell('grep pytest setup.cfg')], None),
    ([], None),
  )
  def test_asks_for_tests_of_what_was_handed_in(self, steps, expected):
    for turns in ([[*steps, SUBMIT]], [*([step] for step in steps), [SUBMIT]]):
      self.assertIs(calls.last_tests(episodes.attempt(*turns)), expected)

  def test_an_exit_status_tells_on_a_terminal_that_answers(self):
    for code, expected in ((0, Status.OK), (1, Status.ERROR)):
      call = trajectory.ToolCall(
        id='0', name='run_terminal', arguments={'command': 'pytest'}
      )
      result = trajectory.ToolResult(
        call_id='0', status=Status.OK, text='', exit_code=code
      )
      turn = trajectory.Turn(start=0, stop=0, calls=(call,), results=(result,))
      done = fakes.sequence([0], [1], turns=[turn])
      self.assertIs(calls.last_tests(done), expected)


class ReadingTest(absltest.TestCase):
  def test_sees_what_was_read_and_written_however_it_is_spelled(self):
    done = episodes.attempt(
      [READ, ('grep', {'pattern': 'x', 'path': 'b'}, Status.ERROR)],
      [('edit_file', {'path': 'c', 'old': '1', 'new': '2'}, Status.OK)],
      [('write_file', {'path': 'd', 'text': '3'}, Status.OK)],
    )
    self.assertEqual(list(calls.read_paths(done)), ['a', 'b'])
    self.assertEqual(list(calls.written(done)), [('c', '2'), ('d', '3')])

  def test_what_was_refused_is_not_seen(self):
    refused = Status.INVALID, Status.DENIED, Status.TRUNCATED
    done = episodes.attempt(
      [
        call
        for status in refused
        for call in (
          ('read_file', {'path': 'a'}, status),
          ('write_file', {'path': 'd', 'text': '3'}, status),
          ('run_terminal', {'command': 'ls'}, status),
          ('submit', {'message': 'done'}, status),
        )
      ]
    )
    self.assertEmpty(list(calls.steps(done)))
    self.assertEmpty(list(calls.read_paths(done)))
    self.assertEmpty(list(calls.written(done)))
    self.assertEmpty(list(calls.commands(done)))
    self.assertEqual(calls.final_message(done), '')

  def test_arguments_of_a_wrong_type_are_no_fault_of_ours(self):
    done = episodes.attempt(
      [
        ('read_file', {'path': 3}, Status.OK),
        ('write_file', {'path': None, 'text': {}}, Status.OK),
        ('run_terminal', {'command': ['ls', 7]}, Status.OK),
        ('todo', {'items': 'x'}, Status.OK),
        ('submit', {'message': 1}, Status.OK),
      ]
    )
    self.assertEmpty(list(calls.read_paths(done)))
    self.assertEmpty(list(calls.written(done)))
    self.assertLen(list(calls.commands(done)), 1)
    self.assertEqual(calls.open_todos(done), 0)
    self.assertEqual(calls.final_message(done), '')

  def test_counts_what_the_last_list_leaves_open(self):
    def items(*statuses):
      return ('todo', {'items': [{'status': s} for s in statuses]}, Status.OK)

    done = episodes.attempt(
      [items('open', 'open')], [items('done', 'open')], [items()]
    )
    self.assertEqual(calls.open_todos(done), 1)
    self.assertEqual(calls.open_todos(episodes.attempt([READ])), 0)

  def test_the_last_word_is_that_of_the_submission(self):
    done = episodes.attempt([('submit', {'message': 'Mended.'}, Status.OK)])
    self.assertEqual(calls.final_message(done), 'Mended.')


if __name__ == '__main__':
  absltest.main()
