"""Tests are reported briefly, and nothing the tested code does hides them."""

import pathlib
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.tools import assert_runner

_IMPORT = 'from solution import f\n'


class AssertRunnerTest(parameterized.TestCase):
  def report(self, solution: str, tests: str) -> tuple[str, int]:
    folder = pathlib.Path(self.create_tempdir().full_path)
    (folder / 'solution.py').write_text(solution)
    (folder / 'test_solution.py').write_text(_IMPORT + tests)
    done = subprocess.run(
      [sys.executable, '-S', assert_runner.__file__, 'test_solution.py'],
      cwd=folder,
      capture_output=True,
      text=True,
    )
    return done.stdout + done.stderr, done.returncode

  def test_all_that_pass_are_counted(self):
    tests = 'assert f(1) == 2\nassert f(2)\nassert 1 < f(2) < 4\n'
    report = self.report('f = lambda x: x + 1', tests)
    self.assertEqual(report, ('3 passed\n', 0))

  def test_first_failure_is_shown_and_all_are_counted(self):
    tests = 'assert f([]) == 0\nassert f([1, 2]) == 3\nassert f([5]) == 5\n'
    report = self.report('f = lambda x: 2 * sum(x)', tests)
    self.assertEqual(
      report, ('2 of 3 failed\nassert f([1, 2]) == 3\ngot 6\n', 1)
    )

  @parameterized.parameters(
    ('lambda x: x[9]', 'raised IndexError: list index out of range'),
    ('lambda x: (_ for _ in ()).throw(SystemExit(0))', 'raised SystemExit: 0'),
    ('lambda x: f(x)', 'raised RecursionError: maximum recursion depth excee'),
    ('lambda x: None', 'got None'),
  )
  def test_what_the_code_does_instead_is_shown(self, solution, got):
    text, code = self.report(f'f = {solution}', 'assert f([1, 2]) == 3\n')
    self.assertStartsWith(text, f'1 of 1 failed\nassert f([1, 2]) == 3\n{got}')
    self.assertEqual(code, 1)

  def test_value_of_an_assert_that_compares_nothing_is_shown(self):
    text, _ = self.report('f = lambda x: ""', 'assert f(1)\n')
    self.assertEqual(text, "1 of 1 failed\nassert f(1)\ngot ''\n")

  def test_lines_are_cut(self):
    tests = f'assert f(1) == [{"1, " * 50}\n  2]\n'
    text, _ = self.report('f = lambda x: "y" * 500', tests)
    lines = text.splitlines()
    self.assertEqual([len(line) for line in lines], [13, 80, 80])
    self.assertEndsWith(lines[1], '...')

  @parameterized.parameters(
    ('f = = 1', 'SyntaxError: invalid syntax (solution.py, line 1)'),
    ('g = 1', "ImportError: cannot import name 'f' from 'solution' (/"),
    ('import sys; sys.exit(0)', 'SystemExit: 0'),
  )
  def test_code_that_cannot_be_imported_is_one_line(self, solution, reason):
    text, code = self.report(solution, 'assert f(1)\n')
    self.assertStartsWith(text, f'cannot run test_solution.py: {reason}'[:77])
    self.assertLen(text.splitlines(), 1)
    self.assertEqual(code, 1)


if __name__ == '__main__':
  absltest.main()
