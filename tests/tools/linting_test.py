"""What ruff finds, from real runs in a real box."""

from absl.testing import absltest
from absl.testing import parameterized

from tests.tools import harness

Status = harness.Status
call = harness.call
_FAULTS = {
  'pkg/a.py': 'import os\nimport re\nx = y\n',
  'pkg/b.py': 'def f(:\n',
  'docs/c.py': 'import os\n',
}


class LintTest(harness.ToolTest):
  def lint(self, files, **arguments):
    [result] = self.toolbox(files).call_all([call('lint', **arguments)])
    return result

  def test_clean_code_has_no_findings(self):
    result = self.lint({}, paths=['pkg/sums.py', 'tests'])
    self.assertEqual(
      (result.status, result.exit_code, result.text),
      (Status.OK, 0, 'no findings'),
    )

  def test_findings_are_counted_and_placed(self):
    result = self.lint(_FAULTS, paths=['pkg/a.py'])
    self.assertEqual((result.status, result.exit_code), (Status.OK, 1))
    self.assertEqual(
      result.text,
      '3 findings: F401 2, F821 1\n'
      'pkg/a.py:1 F401 `os` imported but unused\n'
      'pkg/a.py:2 F401 `re` imported but unused\n'
      'pkg/a.py:3 F821 Undefined name `y`',
    )

  def test_code_that_does_not_parse_is_a_finding(self):
    result = self.lint(_FAULTS, paths=['./pkg/b.py'])
    self.assertIs(result.status, Status.OK)
    self.assertIn('pkg/b.py:1 invalid-syntax', result.text)

  def test_all_is_looked_at_unless_paths_are_given(self):
    self.assertIn('docs/c.py:1 F401', self.lint(_FAULTS).text)
    some = self.lint(_FAULTS, paths=['docs', 'pkg/b.py']).text
    self.assertIn('docs/c.py', some)
    self.assertIn('pkg/b.py', some)
    self.assertNotIn('pkg/a.py', some)

  def test_more_findings_than_the_output_holds_are_still_counted(self):
    result = self.lint({'a.py': 'import os\n' * 1000}, paths=['a.py'])
    lines = result.text.split('\n')
    self.assertEqual(lines[0], '1000 findings: F811 999, F401 1')
    self.assertLen(lines, 52)
    self.assertEqual(lines[-1], '[950 more]')

  @parameterized.parameters('pyproject.toml', 'ruff.toml')
  def test_the_project_cannot_turn_rules_off(self, path):
    rules = 'lint.per-file-ignores."*" = ["F401"]\n'
    if path == 'pyproject.toml':
      rules = f'[tool.ruff]\n{rules}'
    result = self.lint(_FAULTS | {path: rules}, paths=['docs'])
    self.assertStartsWith(result.text, '1 findings: F401 1\n')

  @parameterized.parameters('no.py', '--help')
  def test_a_path_that_is_not_there_is_an_error(self, path):
    result = self.lint({}, paths=[path])
    self.assertIs(result.status, Status.ERROR, result.text)
    self.assertIn('No such file', result.text)


if __name__ == '__main__':
  absltest.main()
