"""Code that is nested too deep to be looked into ends nobody's run."""

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.rewards import facts
from composer_jax.rewards import grade
from tests import fakes
from tests.rewards import episodes

_VERDICT = grade.Verdict(solved=True, fraction=1.0)


class DeepCodeTest(parameterized.TestCase):
  @parameterized.parameters(
    'def f():\n  return ' + ' + '.join(['1'] * 1200) + '\n',
    'x = a' + '.b' * 900 + '\n',
    'x = f' + '(1)' * 900 + '\n',
    'if a:\n  pass\n' + 'elif b:\n  pass\n' * 990,
  )
  def test_is_measured_as_far_as_it_can_be(self, text):
    done = episodes.attempt([('submit', {}, episodes.OK)])
    work = episodes.work({'solution.py': text})
    found = facts.measure(done, fakes.TASK, work, _VERDICT)
    self.assertEqual(found['solved'], 1.0)
    self.assertIn('guard_grader_touched', found)

  def test_hides_nothing_from_the_guards(self):
    done = episodes.attempt([('submit', {}, episodes.OK)])
    work = episodes.work({'solution.py': 'x = a' + '.b' * 900 + '\n'})
    found = facts.measure(done, fakes.TASK, work, _VERDICT)
    self.assertEqual(found['guard_grader_touched'], 1.0)


if __name__ == '__main__':
  absltest.main()
