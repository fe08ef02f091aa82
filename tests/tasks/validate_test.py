from collections.abc import Mapping, Sequence
from concurrent import futures
import itertools
import time

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax import trajectory
from composer_jax.tasks import humaneval
from composer_jax.tasks import validate
from tests.tasks import process

P, F, H = validate.Outcome
TEST_COMMAND = ('python', 'test_solution.py')
HALF = humaneval.Problem(
  id='toy/half',
  name='half',
  preamble='',
  solution=(
    'def half(n):\n'
    '  """>>> half(4)\n  2\n  """\n'
    '  while n > 8:\n'
    '    n -= 2\n'
    '  return n // 2\n'
  ),
  test='def check(f):\n  assert (f(4), f(7), f(9)) == (2, 3, 3)\n',
)


def build(run: validate.Run, *problems, **config) -> validate.Report:
  with futures.ThreadPoolExecutor(2) as executor:
    return validate.build(
      problems or [HALF],
      run=run,
      executor=executor,
      clock=time.monotonic,
      test_command=TEST_COMMAND,
      config=validate.Config(**config),
    )


def scripted(outcomes: Mapping[str, Sequence[int | None]]) -> validate.Run:
  """Knows the bugs by a piece of their text; all else passes, bugs fail.

  The exit codes of the grader are taken in turn.
  """
  codes = {part: iter(turns) for part, turns in outcomes.items()}

  def run(files, command, stdin, seconds):
    del seconds
    if command[1] == 'probe.py':
      return 0, '0\n'
    if files['solution.py'] == HALF.solution:
      return 0, stdin
    if command[1] == 'grade.py':
      for part, turns in codes.items():
        if part in files['solution.py']:
          return next(turns), stdin
    return 1, stdin

  return run


class VerdictTest(parameterized.TestCase):
  @parameterized.parameters(
    (0, 'noise\n\nn1\n', P),
    (0, 'n1\nnoise\n', F),
    (0, '', F),
    (1, 'n1\n', F),
    (None, 'n1\n', H),
  )
  def test_hidden_tests_pass_only_with_the_nonce_last(self, code, text, want):
    self.assertIs(validate.hidden_outcome(code, text, 'n1'), want)

  @parameterized.parameters((0, P), (1, F), (-9, F), (None, H))
  def test_visible_tests_pass_by_exit_code(self, code, want):
    self.assertIs(validate.visible_outcome(code), want)

  @parameterized.parameters(
    ([P, P, P], [P, P, P], ''),
    ([P, P, P], [P, P, H], 'slow'),
    ([P, F, P], [P, P, P], 'flaky'),
    ([P, P, P], [P, F, P], 'flaky'),
    ([F, F, F], [P, P, P], 'reference fails'),
    ([P, P, P], [F, F, F], 'reference fails'),
  )
  def test_problem_needs_a_reference_that_always_passes(
    self, visible, hidden, want
  ):
    self.assertEqual(validate.objection_to_problem(visible, hidden), want)

  @parameterized.parameters(
    ([F, F, F], [F, F, F], ''),
    ([P, P, P], [F, F, F], ''),
    ([F, F, F], [P, P, P], 'unnoticed'),
    ([F, P, F], [F, F, F], 'flaky'),
    ([F, F, F], [F, P, F], 'flaky'),
    ([F, F, H], [F, F, F], 'hangs'),
    ([F, F, F], [H, F, F], 'hangs'),
  )
  def test_mutant_must_always_fail_the_hidden_tests(
    self, visible, hidden, want
  ):
    self.assertEqual(validate.objection_to_mutant(visible, hidden), want)


class BuildTest(absltest.TestCase):
  def test_key_follows_command_and_config(self):
    keys = [
      validate.key(command, validate.Config(runs=runs))
      for command in (['a'], ['b'])
      for runs in (3, 3, 4)
    ]
    self.assertEqual(keys[0], keys[1])
    self.assertLen(set(keys), 4)

  def test_keeps_what_real_runs_prove(self):
    report = build(process.run, limit_seconds=20.0, least_seconds=1.0)
    # `n += 2` hangs on 9; `n > 9` gives 4 for it, which half(4) == 2 lets pass.
    bugs = {
      (t.provenance.bugs[0].old, t.provenance.bugs[0].new): (
        t.provenance.visible_fails
      )
      for t in report.tasks
    }
    self.assertFalse(bugs[' 8', ' 9'])
    self.assertTrue(bugs[' //', ' %'])
    self.assertNotIn((' -=', ' +='), bugs)
    self.assertGreaterEqual(report.mutants['hangs'], 1)
    self.assertEqual(report.problems, {})
    self.assertIn(
      'assert half(4) == 2', report.tasks[0].files['test_solution.py']
    )
    self.assertIn('tasks:', validate.describe(report))

  def test_rejects_what_changes_between_runs(self):
    everything = build(scripted({}))
    report = build(
      scripted({'n % 2': (1, 0, 1), 'n > 9': (1, None, 1), 'n >= 8': (0,)})
    )
    self.assertEqual(report.mutants, {'flaky': 1, 'hangs': 1, 'unnoticed': 1})
    self.assertLen(report.tasks, len(everything.tasks) - 3)

  def test_rejected_at_first_sight_is_not_run_again(self):
    report = build(scripted({'n % 2': (0,)}))
    self.assertEqual(report.mutants, {'unnoticed': 1})

  def test_caps_the_tasks_of_one_problem(self):
    report = build(scripted({}), per_problem=3)
    self.assertLen(report.tasks, 3)
    self.assertLen({t.provenance.kind for t in report.tasks}, 3)

  def test_counts_problems_that_cannot_be_used(self):
    turns = itertools.cycle([0, 1])

    def unsteady(files, command, stdin, seconds):
      del files, seconds
      return 0 if command[1] == 'probe.py' else next(turns), '0\n' + stdin

    self.assertEqual(build(unsteady).problems, {'reference fails': 1})
    nothing_holds = lambda *_: (0, '-1\n')
    self.assertEqual(build(nothing_holds).problems, {'no example': 1})

  def test_our_own_fault_is_no_verdict(self):
    def broken(files, command, stdin, seconds):
      raise trajectory.InfrastructureError('no sandbox')

    with self.assertRaisesRegex(trajectory.InfrastructureError, 'no sandbox'):
      build(broken)


if __name__ == '__main__':
  absltest.main()
