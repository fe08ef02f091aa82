"""One turn's calls: valid or not, in order, side by side where possible."""

import dataclasses
import threading

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax import trajectory
from composer_jax.tools import registry
from composer_jax.tools import sandbox

_CONFIG = sandbox.SandboxConfig(allow_weak=True)
_BUGGY = '''def total(numbers):
  """Adds up.

  >>> total([1, 2])
  3
  """
  result = 1
  for n in numbers:
    result += n
  return result
'''
_TESTS = 'from solution import total\nassert total([1, 2]) == 3\n'
_EDIT = trajectory.Edit('solution.py', '= 0', '= 1')
_TASK = trajectory.Task(
  id='total',
  prompt='Repair total.',
  files={'solution.py': _BUGGY, 'test_solution.py': _TESTS},
  test_command=('python', sandbox.ASSERT_RUNNER, 'test_solution.py'),
  hidden_files={'grade.py': 'secret'},
  grade_command=('python', 'grade.py'),
  provenance=trajectory.Provenance(
    package='none',
    licence='Apache-2.0',
    problem='total',
    kind='constant',
    bugs=(_EDIT,),
    visible_fails=True,
  ),
  split='train',
)
_FIX = {'path': 'solution.py', 'old': '= 1', 'new': '= 0'}
_ALL = registry.ToolsConfig(allowed=tuple(registry.TOOLS))
_FAILED = '1 of 1 failed\nassert total([1, 2]) == 3\ngot 4'

Status = trajectory.Status


def _call(name, **arguments):
  return trajectory.ToolCall(id=name, name=name, arguments=arguments)


class ToolboxTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.box = sandbox.Box(sandbox.probe(_CONFIG), _CONFIG)

  @classmethod
  def tearDownClass(cls):
    cls.box.close()
    super().tearDownClass()

  def toolbox(self, task=_TASK, config=_ALL, cache=None) -> registry.Toolbox:
    return registry.Toolbox(task, self.box, config, cache)

  def answer(self, *calls, toolbox=None):
    """Statuses and texts."""
    results = (toolbox or self.toolbox()).call_all(calls)
    self.assertEqual([r.call_id for r in results], [c.id for c in calls])
    return [(r.status, r.text) for r in results]

  def test_read_folds_docstrings(self):
    self.assertEqual(
      self.answer(_call('read_file', path='solution.py')),
      [
        (
          Status.OK,
          'def total(numbers):\n  """..."""\n  result = 1\n'
          '  for n in numbers:\n    result += n\n  return result',
        )
      ],
    )

  def test_read_in_full_shows_the_docstring(self):
    self.assertEqual(
      self.answer(_call('read_file', path='solution.py', full=True)),
      [(Status.OK, _BUGGY.strip('\n'))],
    )

  def test_missing_file_is_an_error(self):
    self.assertEqual(
      self.answer(_call('read_file', path='no.py')),
      [(Status.ERROR, 'no.py: No such file or directory')],
    )

  def test_one_turn_repairs_tests_and_submits_in_order(self):
    toolbox = self.toolbox()
    self.assertEqual(
      self.answer(
        _call('run_tests'),
        _call('edit_file', **_FIX),
        _call('run_tests'),
        _call('submit'),
        _call('run_tests'),
        toolbox=toolbox,
      ),
      [
        (Status.ERROR, _FAILED),
        (Status.OK, 'ok'),
        (Status.OK, '1 passed'),
        (Status.OK, 'submitted'),
        (Status.DENIED, 'already submitted'),
      ],
    )
    self.assertTrue(toolbox.submitted)
    self.assertEqual(
      toolbox.final_work().files,
      {'solution.py': _BUGGY.replace('result = 1', 'result = 0')},
    )

  def test_undo_takes_edits_back_one_by_one(self):
    toolbox = self.toolbox()
    again = _FIX | {'old': '= 0', 'new': '= 2'}
    self.answer(
      _call('edit_file', **_FIX),
      _call('edit_file', **again),
      _call('undo'),
      toolbox=toolbox,
    )
    self.assertIn('result = 0', toolbox.final_work().files['solution.py'])
    self.assertEqual(
      self.answer(_call('undo'), _call('undo'), toolbox=toolbox),
      [(Status.OK, 'ok'), (Status.ERROR, 'nothing to undo')],
    )
    self.assertEqual(toolbox.final_work().files, {})

  @parameterized.parameters(
    ({'old': 'result'}, "'result' occurs 3 times, not once"),
    # Once in the code and once in the docstring, which a reader sees folded.
    ({'old': '1'}, "'1' occurs 2 times, not once"),
    ({'old': '9'}, "'9' occurs 0 times, not once"),
    ({'old': ''}, "'' occurs 131 times, not once"),
    ({'new': '= 1'}, "an edit changes something: old='= 1' new='= 1'"),
  )
  def test_edit_that_does_not_fit_is_an_error(self, change, text):
    toolbox = self.toolbox()
    self.assertEqual(
      self.answer(_call('edit_file', **(_FIX | change)), toolbox=toolbox),
      [(Status.ERROR, text)],
    )
    self.assertEqual(toolbox.final_work().files, {})

  def test_edit_may_span_lines(self):
    toolbox = self.toolbox()
    edit = {'path': 'solution.py', 'old': '1\n  for', 'new': '0\n\n  for'}
    self.assertEqual(
      self.answer(_call('edit_file', **edit), toolbox=toolbox),
      [(Status.OK, 'ok')],
    )
    self.assertEqual(
      toolbox.final_work().files,
      {'solution.py': _BUGGY.replace('result = 1\n', 'result = 0\n\n')},
    )

  @parameterized.parameters('test_solution.py', 'new.py', '../x', '/etc/passwd')
  def test_only_the_tasks_own_code_can_be_edited(self, path):
    self.assertEqual(
      self.answer(_call('edit_file', **(_FIX | {'path': path}))),
      [(Status.DENIED, 'only solution.py can be edited')],
    )

  @parameterized.parameters(
    ('edit_file', {'old': 1}, "'old' is no string"),
    ('edit_file', {'new': True}, "'new' is no string"),
    ('edit_file', {'line': 7}, "unknown argument 'line'"),
    ('read_file', {'full': 1}, "'full' is no boolean"),
    ('read_file', {'path': None}, "'path' is no string"),
  )
  def test_wrong_arguments_are_answered_with_the_usage(
    self, name, change, text
  ):
    usage = {
      'edit_file': 'edit_file(path: string, old: string, new: string)',
      'read_file': 'read_file(path: string, first: integer?, last: integer?,'
      ' full: boolean?, numbers: boolean?)',
    }
    good = _FIX if name == 'edit_file' else {'path': 'solution.py'}
    self.assertEqual(
      self.answer(_call(name, **(good | change))),
      [(Status.INVALID, f'{text}; expected {usage[name]}')],
    )

  def test_missing_argument_is_named(self):
    self.assertEqual(
      self.answer(_call('grep')),
      [
        (
          Status.INVALID,
          "no argument 'pattern'; expected grep(pattern: string,"
          ' path: string?, glob: string?, max: integer?)',
        )
      ],
    )

  def test_malformed_call_is_answered_and_its_neighbour_runs(self):
    broken = trajectory.ToolCall(id='b', name='run_tests', error='bad JSON')
    self.assertEqual(
      self.answer(broken, _call('run_tests')),
      [(Status.INVALID, 'bad JSON'), (Status.ERROR, _FAILED)],
    )

  def test_unknown_and_forbidden_tools_are_told_apart(self):
    config = registry.ToolsConfig(allowed=('read_file', 'submit'))
    toolbox = self.toolbox(config=config)
    self.assertEqual(
      self.answer(_call('shell'), _call('run_tests'), toolbox=toolbox),
      [
        (
          Status.INVALID,
          "unknown tool 'shell'; there are read_file, submit",
        ),
        (Status.DENIED, 'run_tests is not allowed here'),
      ],
    )

  def test_malformed_submit_submits_nothing(self):
    toolbox = self.toolbox()
    self.answer(_call('submit', now=True), toolbox=toolbox)
    self.assertFalse(toolbox.submitted)

  def test_neighbours_run_at_the_same_time_and_answer_in_order(self):
    together = threading.Barrier(2, timeout=10)
    spec = registry.TOOLS['run_tests']

    def wait(workspace, *values):
      together.wait()  # Breaks unless the other call runs meanwhile.
      return spec.run(workspace, *values)

    tools = {**registry.TOOLS}
    for name in ('run_tests', 'read_file'):
      tools[name] = dataclasses.replace(tools[name], run=wait)
    with absltest.mock.patch.object(registry, 'TOOLS', tools):
      results = self.toolbox().call_all(
        [_call('run_tests'), dataclasses.replace(_call('run_tests'), id='2')]
      )
    self.assertEqual([r.call_id for r in results], ['run_tests', '2'])
    self.assertEqual([r.text for r in results], [_FAILED, _FAILED])

  def test_hidden_tests_are_not_in_the_box(self):
    toolbox = self.toolbox()
    self.answer(_call('run_tests'), toolbox=toolbox)
    self.assertCountEqual(self.box.files(), ['solution.py', 'test_solution.py'])

  def test_tests_that_hang_are_a_timeout(self):
    hanging = _BUGGY.replace('result = 1', 'while True: pass')
    task = dataclasses.replace(
      _TASK, test_seconds=0.2, files={**_TASK.files, 'solution.py': hanging}
    )
    toolbox = self.toolbox(task)
    [result] = toolbox.call_all([_call('run_tests')])
    self.assertIs(result.status, Status.TIMEOUT)
    self.assertEqual(result.text, 'timed out after 0.2 s')
    self.assertIsNone(result.exit_code)

  def test_equal_code_is_tested_once_and_changed_code_again(self):
    cache = registry.ResultCache()
    for _ in range(2):
      toolbox = self.toolbox(cache=cache)
      self.answer(
        _call('run_tests'),
        _call('edit_file', **_FIX),
        _call('run_tests'),
        _call('undo'),
        _call('run_tests'),
        toolbox=toolbox,
      )
    self.assertEqual((cache.hits, cache.misses), (4, 2))
    self.assertEqual(
      self.answer(_call('run_tests'), toolbox=toolbox),
      [(Status.ERROR, _FAILED)],
    )

  def test_timeout_without_computing_is_not_remembered(self):
    cache = registry.ResultCache()
    task = dataclasses.replace(
      _TASK, test_seconds=0.1, test_command=('sleep', '9')
    )
    for _ in range(2):
      self.answer(_call('run_tests'), toolbox=self.toolbox(task, cache=cache))
    self.assertEqual((cache.hits, cache.misses), (0, 2))

  def test_work_survives_a_box_that_died(self):
    toolbox = self.toolbox()
    self.answer(_call('edit_file', **_FIX), toolbox=toolbox)
    self.box._stop()
    self.assertFalse(self.box.alive)
    self.assertEqual(
      self.answer(_call('run_tests'), toolbox=toolbox),
      [(Status.OK, '1 passed')],
    )

  def test_removed_work_is_missing_in_the_end(self):
    toolbox = self.toolbox()
    self.box.exec(['rm', 'solution.py'], seconds=5)
    work = toolbox.final_work()
    self.assertEqual(work.files, {})
    self.assertEqual(work.removed, {'solution.py'})

  def test_grep_finds_lines(self):
    self.assertEqual(
      self.answer(
        _call('grep', pattern=r'total\(\['), _call('grep', pattern='--zz')
      ),
      [
        (
          Status.OK,
          'solution.py:4:  >>> total([1, 2])\n'
          'test_solution.py:2:assert total([1, 2]) == 3',
        ),
        (Status.OK, 'no match'),
      ],
    )

  def test_long_text_loses_its_middle_and_says_so(self):
    config = dataclasses.replace(_ALL, text_chars=20)
    [result] = self.toolbox(config=config).call_all([_call('run_tests')])
    self.assertEqual(
      result.text,
      f'{_FAILED[:10]}\n[{len(_FAILED) - 20} characters left out]\n'
      f'{_FAILED[-10:]}',
    )
    self.assertEqual(result.dropped_bytes, len(_FAILED) - 20)

  def test_a_tool_may_be_called_as_often_as_its_rate_says(self):
    config = dataclasses.replace(_ALL, rates=('read_file=2', 'undo=0'))
    toolbox = self.toolbox(config=config)
    read = _call('read_file', path='solution.py')
    wrong = _call('read_file', path=1)
    statuses = [
      status
      for status, _ in self.answer(wrong, read, read, read, toolbox=toolbox)
    ]
    self.assertEqual(
      statuses, [Status.INVALID, Status.OK, Status.OK, Status.DENIED]
    )
    self.assertEqual(
      self.answer(read, _call('undo'), _call('run_tests'), toolbox=toolbox),
      [
        (Status.DENIED, 'read_file was called 2 times, the limit'),
        (Status.DENIED, 'undo was called 0 times, the limit'),
        (Status.ERROR, _FAILED),
      ],
    )

  def test_a_tool_may_say_more_than_others(self):
    config = dataclasses.replace(
      _ALL, text_chars=20, tool_chars=('read_file=1000',)
    )
    toolbox = self.toolbox(config=config)
    (_, shown), (_, cut) = self.answer(
      _call('read_file', path='solution.py', full=True),
      _call('run_tests'),
      toolbox=toolbox,
    )
    self.assertEqual(shown, _BUGGY.strip('\n'))
    self.assertIn('characters left out', cut)

  def test_what_was_said_at_the_end_is_kept(self):
    toolbox = self.toolbox()
    self.answer(_call('submit', message='All done.'), toolbox=toolbox)
    self.assertEqual(toolbox.message, 'All done.')

  def test_the_list_of_things_to_do_is_replaced_and_shown(self):
    toolbox = self.toolbox()
    items = [
      {'text': 'read', 'status': 'done'},
      {'text': 'guess', 'status': 'cancelled'},
      {'text': 'repair', 'status': 'open'},
    ]
    shown = (Status.OK, '[x] read\n[-] guess\n[ ] repair')
    self.assertEqual(
      self.answer(
        _call('todo'),
        _call('todo', items=items),
        _call('todo'),
        _call('todo', items=items[2:]),
        toolbox=toolbox,
      ),
      [
        (Status.OK, 'the list is empty'),
        shown,
        shown,
        (Status.OK, '[ ] repair'),
      ],
    )

  def test_more_calls_than_threads_answer_in_order(self):
    calls = [
      dataclasses.replace(_call('grep', pattern=f'no{i}|total'), id=str(i))
      for i in range(20)
    ]
    results = self.toolbox().call_all(calls)
    self.assertEqual([r.call_id for r in results], [c.id for c in calls])


class ConfigTest(parameterized.TestCase):
  @parameterized.parameters('rates', 'tool_chars')
  def test_a_limit_on_no_tool_is_refused(self, field):
    config = registry.ToolsConfig(**{field: ('reed=1',)})
    with self.assertRaisesRegex(ValueError, "unknown tool 'reed'"):
      registry.Toolbox(_TASK, None, config)

  def test_unknown_tool_in_the_config_is_refused(self):
    with self.assertRaisesRegex(ValueError, "unknown tool 'reed'"):
      registry.Toolbox(_TASK, None, registry.ToolsConfig(allowed=('reed',)))


if __name__ == '__main__':
  absltest.main()
