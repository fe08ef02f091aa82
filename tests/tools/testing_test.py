"""Real tests that pass, fail, break and lie, as the policy is told of them."""

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.tools import isolation
from composer_jax.tools import registry
from tests.tools import harness

Status = harness.Status
call = harness.call
_FIX = call('edit_file', path='pkg/sums.py', old='= 1', new='= 0')
_MANY = """
import pytest


@pytest.fixture
def broken():
  raise RuntimeError('no fixture')


@pytest.mark.parametrize('n', range(40))
def test_many(n):
  assert n < 0, 'x' * 9999


def test_needs(broken):
  pass


@pytest.mark.skip
def test_later():
  pass
"""


class RunTestsTest(harness.ToolTest):
  def test_failures_are_counted_and_shown(self):
    [(status, text)] = self.answer(call('run_tests'))
    self.assertIs(status, Status.ERROR)
    lines = text.split('\n')
    self.assertEqual(
      lines[:2],
      ['1 passed, 1 failed', 'FAILED tests/test_sums.py::test_total'],
    )
    self.assertIn('tests/test_sums.py:5: in test_total', text)
    self.assertIn('E   assert 4 == 3', text)

  def test_success_is_a_count(self):
    self.assertEqual(
      self.answer(_FIX, call('run_tests'))[1], (Status.OK, '2 passed')
    )

  def test_some_tests_may_be_chosen(self):
    name = 'tests/test_sums.py::test_type'
    for chosen in (name, f'./{name}', f'/repo/{name}'):
      self.assertEqual(
        self.answer(call('run_tests', tests=[chosen])),
        [(Status.OK, '1 passed')],
      )

  def test_of_many_failures_some_are_shown_and_some_counted(self):
    toolbox = self.toolbox({'tests/test_many.py': _MANY})
    chosen = ['tests/test_many.py']
    [(status, text)] = self.answer(
      call('run_tests', tests=chosen), toolbox=toolbox
    )
    self.assertIs(status, Status.ERROR)
    lines = text.split('\n')
    self.assertEqual(lines[0], '40 failed, 1 error, 1 skipped')
    self.assertEqual(lines[-1], '[11 more]')
    self.assertEqual(text.count('FAILED '), 30)
    self.assertLess(len(text), 6000)

  @parameterized.parameters(
    ('tests/no.py', 'file or directory not found: tests/no.py'),
    ('README.md::a', 'not found'),
    ('--version', 'file or directory not found: ./--version'),
  )
  def test_a_test_that_is_not_there_is_an_error(self, chosen, text):
    [(status, said)] = self.answer(call('run_tests', tests=[chosen]))
    self.assertIs(status, Status.ERROR)
    self.assertIn(text, said)

  def test_code_that_does_not_import_is_an_error_with_its_reason(self):
    toolbox = self.toolbox({'pkg/sums.py': 'def total(\n'})
    [(status, text)] = self.answer(call('run_tests'), toolbox=toolbox)
    self.assertIs(status, Status.ERROR)
    self.assertStartsWith(text, '1 error\nERROR tests/test_sums.py\n')
    self.assertIn('SyntaxError', text)

  def test_code_that_ends_the_run_has_not_passed(self):
    toolbox = self.toolbox({'pkg/sums.py': 'import os\nos._exit(0)\n'})
    self.assertEqual(
      self.answer(call('run_tests'), toolbox=toolbox),
      [(Status.ERROR, '[the tests ended without a report]')],
    )

  @parameterized.parameters('[]', '{"tests": 1, "errors": {}}', '{"tests": {')
  def test_code_that_writes_the_report_itself_has_not_passed(self, report):
    lie = (
      f'import os\nfor fd in range(3, 20):\n'
      f'  try:\n    os.write(fd, {report.encode()!r})\n'
      f'  except OSError:\n    pass\nos._exit(0)\n'
    )
    toolbox = self.toolbox({'pkg/sums.py': lie})
    [(status, text)] = self.answer(call('run_tests'), toolbox=toolbox)
    self.assertIs(status, Status.ERROR)
    self.assertEndsWith(text, '[the tests ended without a report]')

  def test_tests_that_are_no_pytest_run_all_together(self):
    command = ('python', isolation.ASSERT_RUNNER, 'tests/test_a.py')
    toolbox = self.toolbox(
      {'tests/test_a.py': 'assert 1 == 1\n'}, command=command
    )
    self.assertEqual(
      self.answer(
        call('run_tests', '1'),
        call('run_tests', '2', tests=['tests/test_a.py']),
        toolbox=toolbox,
      ),
      [
        (Status.OK, '1 passed'),
        (
          Status.ERROR,
          'the tests here run all together: leave `tests` out',
        ),
      ],
    )

  def test_options_of_the_task_stay_when_tests_are_chosen(self):
    files = {
      'src/inner.py': 'x = 1\n',
      'tests/test_inner.py': 'import inner\ndef test_x(): pass\n',
    }
    command = (*harness.TASK.test_command[:2], '--path=src', 'tests')
    self.assertEqual(
      self.answer(
        call('run_tests', tests=['tests/test_inner.py']),
        toolbox=self.toolbox(files, command=command),
      ),
      [(Status.OK, '1 passed')],
    )

  def test_equal_trees_are_tested_once_and_others_again(self):
    cache = registry.ResultCache()
    toolbox = self.toolbox(cache=cache)
    tests = call('run_tests', tests=['tests/test_sums.py'])
    first, _, second, _, third = self.answer(
      tests, _FIX, tests, call('undo'), tests, toolbox=toolbox
    )
    self.assertEqual((cache.hits, cache.misses), (1, 2))
    self.assertEqual(first, third)
    self.assertEqual(second, (Status.OK, '2 passed'))

  def test_trees_that_differ_in_bytes_that_are_no_text_are_not_equal(self):
    cache, said = registry.ResultCache(), []
    command = ('python', isolation.PYTEST_RUNNER, 'tests')
    test = "def test_byte(): assert open('a.bin', 'rb').read() == b'\\xff'\n"
    for byte in ('377', '376'):
      self.box.reset({'tests/test_a.py': test})
      self.box.exec(['sh', '-c', f"printf '\\{byte}' > a.bin"], seconds=5)
      toolbox = self.toolbox(
        tree=self.box.snapshot(), cache=cache, command=command
      )
      said += self.answer(call('run_tests'), toolbox=toolbox)
    self.assertEqual([status for status, _ in said], [Status.OK, Status.ERROR])


if __name__ == '__main__':
  absltest.main()
