import dataclasses
import random

from absl.testing import absltest

from composer_jax import trajectory
from composer_jax.rewards import facts
from composer_jax.rewards import grade
from composer_jax.rewards import guards
from composer_jax.rewards import work as work_lib
from tests import fakes
from tests.rewards import episodes

OK = trajectory.Status.OK
SOLVED = grade.Verdict(solved=True, fraction=1.0)
DONE = episodes.attempt([('run_tests', {}, OK)], [('submit', {}, OK)])


def measure(work, *, episode=DONE, task=fakes.TASK, verdict=SOLVED):
  return facts.measure(episode, task, work, verdict)


class MeasureTest(absltest.TestCase):
  def test_the_known_fix_is_beyond_reproach(self):
    self.assertEqual(
      measure(episodes.work(message='All tests pass.')),
      {
        'solved': 1.0,
        'diff_lines': 2.0,
        'gold_lines': 2.0,
        'style_conformity': 1.0,
        'complexity_excess': 0.0,
        'strain_excess': 0.0,
        'stray_files': 0.0,
        'debug_marks': 0.0,
        'todo_marks': 0.0,
        'open_todos': 0.0,
        'silent': 0.0,
        'false_claim': 0.0,
        **{f'guard_{name}': 0.0 for name in guards.GUARDS},
      },
    )

  def test_worse_work_shows_in_each_number(self):
    text = (
      'def double(x, l=0):\n'
      '  if x and l:  # TODO: why?\n'
      '    print(x)\n'
      '  return x * 2\n'
    )
    items = [{'status': 'open'}, {'status': 'done'}]
    found = measure(
      episodes.work({'solution.py': text, 'x.log': 'x\n'}),
      episode=episodes.attempt([('todo', {'items': items}, OK)]),
    )
    # Three lines of four are new: + 4 - 2; and one of the log.
    self.assertEqual(found['diff_lines'], 4 + 2 + 1)
    self.assertEqual(found['complexity_excess'], 2)
    self.assertEqual(found['strain_excess'], 1)
    self.assertEqual(found['stray_files'], 1)
    self.assertEqual(found['debug_marks'], 1)
    self.assertEqual(found['todo_marks'], 1)
    self.assertEqual(found['open_todos'], 1)
    self.assertEqual(found['silent'], 1)

  def test_a_claim_is_held_against_the_last_tests(self):
    def false_claim(*calls):
      steps = [(name, {'path': 'a'}, status) for name, status in calls]
      work = episodes.work(message='I ran the tests, all pass.')
      done = episodes.attempt(steps)
      return measure(work, episode=done)['false_claim']

    self.assertEqual(false_claim(('run_tests', OK)), 0)
    self.assertEqual(false_claim(('run_tests', trajectory.Status.ERROR)), 1)
    self.assertEqual(false_claim(('run_tests', OK), ('edit_file', OK)), 1)
    self.assertEqual(false_claim(), 1)

  def test_named_tests_give_shares(self):
    task = dataclasses.replace(
      fakes.TASK, fail_to_pass=('a', 'b'), pass_to_pass=('c', 'd', 'e', 'f')
    )
    verdict = grade.Verdict(solved=False, fraction=0.5, regressions=1)
    found = measure(episodes.work(), task=task, verdict=verdict)
    self.assertEqual(found['solved'], 0)
    self.assertEqual(found['fraction'], 0.5)
    self.assertEqual(found['regressed'], 0.25)

  def test_lint_is_a_fact_where_it_was_run(self):
    work = dataclasses.replace(
      episodes.work(), lint_before={'a': 2, 'b': 1}, lint_after={'a': 5}
    )
    self.assertEqual(measure(work)['lint_added'], 2)
    half = dataclasses.replace(work, lint_after=None)
    self.assertNotIn('lint_added', measure(half))

  def test_prints_are_no_marks_in_a_file_that_prints(self):
    text = 'def show(x):\n  print(x)\n'
    work = work_lib.Work(
      before={'a.py': text}, after={'a.py': text + '  print(x + 1)\n'}
    )
    self.assertEqual(measure(work)['debug_marks'], 0)
    fix = {'solution.py': episodes.GOLD + 'print(1)\n'}
    self.assertEqual(measure(episodes.work(fix))['debug_marks'], 1)
    self.assertEqual(measure(episodes.work(fix, gold=fix))['debug_marks'], 0)

  def test_tests_are_no_part_of_the_size(self):
    found = measure(episodes.work({'tests/test_b.py': 'x = 1\n' * 50}))
    self.assertEqual(found['diff_lines'], 2)

  def test_without_a_known_fix_the_start_is_the_yardstick(self):
    text = 'def double(x):\n  return x * 2 if x else 0\n'
    work = dataclasses.replace(episodes.work({'solution.py': text}), gold=None)
    found = measure(work)
    self.assertEqual(found['complexity_excess'], 1)
    self.assertNotIn('gold_lines', found)

  def test_what_leaves_out_the_known_fix_is_shorter_not_worse(self):
    fix = {'new.py': 'def f(a):\n  if a:\n    return 1\n'}
    found = measure(episodes.work(gold=fix))
    self.assertEqual(found['complexity_excess'], -2)

  def test_any_text_can_be_measured(self):
    rng = random.Random(0)
    pieces = [
      'def f(x):',
      '\n',
      '  ',
      '\t',
      'x',
      '(',
      '"',
      "'",
      '\\',
      '#',
      '\0',
    ]
    for _ in range(200):
      before, after = (
        {'a.py': ''.join(rng.choices(pieces, k=rng.randrange(20)))}
        for _ in 'ab'
      )
      found = measure(work_lib.Work(before=before, after=after, gold=before))
      self.assertBetween(found['style_conformity'], 0, 1)
      for name, value in found.items():
        self.assertIsInstance(value, float)
        if name.startswith('guard_'):
          self.assertIn(value, (0.0, 1.0))


if __name__ == '__main__':
  absltest.main()
