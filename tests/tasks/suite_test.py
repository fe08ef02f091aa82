import json

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.tasks import packages
from composer_jax.tasks import suite as suite_lib

GOOD = [f't.py::test_{i}' for i in range(10)]


def answer(tests=None, seconds=None, **fields):
  tests = {**dict.fromkeys(GOOD, 'passed'), **(tests or {})}
  return {
    'tests': tests,
    'seconds': {**dict.fromkeys(tests, 0.5), **(seconds or {})},
    'cpu': 2.0,
    'order': list(tests),
    'executed': {'a.py:3': [0, 1], 'a.py:9': [-1, 2], 'tests/x.py:1': [5]},
    'processes': [7],
    **fields,
  }


class SuiteTest(parameterized.TestCase):
  @parameterized.parameters(
    ({'t.py::bad': 'failed'}, {'t.py::bad': 'failed'}, 'failed'),
    ({'t.py::bad': 'skipped'}, {'t.py::bad': 'skipped'}, 'skipped'),
    ({'t.py::bad': 'passed'}, {'t.py::bad': 'failed'}, 'flaky'),
    ({'t.py::bad': 'passed'}, {}, 'flaky'),
    ({'u.py': 'error'}, {'u.py': 'error'}, 'does not import'),
  )
  def test_what_does_not_always_pass_is_not_trusted(self, one, other, reason):
    suite = suite_lib.of_answers([answer(one), answer(other)])
    self.assertEqual(suite.tests, set(GOOD))
    self.assertEqual(list(suite.excluded.values()), [reason])

  def test_slow_tests_are_not_trusted(self):
    slow = answer({}, {GOOD[0]: 60.0})
    suite = suite_lib.of_answers([slow, slow])
    self.assertEqual(suite.excluded, {GOOD[0]: 'slow'})
    self.assertEqual(
      suite.deselections(['t.py', 'u.py']), (f'--deselect={GOOD[0]}',)
    )
    self.assertEmpty(suite.deselections(['u.py']))

  def test_tests_that_begin_like_a_deselected_one_go_with_it(self):
    bad = {'t.py::test': 'failed', 'u.py::x': 'passed'}
    names = {f'u.py::y{i}': 'passed' for i in range(20)}
    suite = suite_lib.of_answers([answer({**bad, **names})] * 2)
    self.assertEqual(suite.tests, {'u.py::x', *names})

  def test_a_function_is_reached_by_the_tests_that_executed_it(self):
    suite = suite_lib.of_answers([answer(), answer()])
    everywhere = GOOD[7]
    self.assertEqual(
      suite.reaching('a.py', [range(2, 5)]), {GOOD[0], GOOD[1], everywhere}
    )
    self.assertEmpty(suite.reaching('a.py', [range(4, 9)]))
    self.assertEmpty(suite.reaching('b.py', [range(2, 5)]))
    self.assertEmpty(suite.reaching('tests/x.py', [range(0, 5)]))

  def test_what_also_runs_outside_of_tests_is_reached_by_all(self):
    suite = suite_lib.of_answers([answer(), answer()])
    self.assertEqual(suite.reaching('a.py', [range(9, 10)]), suite.tests)

  def test_too_few_trusted_tests_are_refused_with_numbers(self):
    bad = {f't.py::bad{i}': 'failed' for i in range(10)}
    with self.assertRaisesRegex(packages.UnfitError, '10 of 20'):
      suite_lib.of_answers([answer(bad), answer(bad)])
    with self.assertRaisesRegex(packages.UnfitError, 'hang'):
      suite_lib.of_answers([answer(), None])

  def test_the_limit_grows_with_the_tests_and_the_failures_to_show(self):
    names = {f'u.py::y{i}': 'passed' for i in range(390)}
    suite = suite_lib.of_answers([answer(names), answer(names)])
    self.assertEqual(suite.most_failing(400), 120)
    self.assertEqual(suite.most_failing(7), 7)
    # Ten tests of 0.5 s: five times the 2 s of a whole run, 0.5 s, 3 s.
    self.assertEqual(suite.limit(GOOD), 14)
    self.assertEqual(suite.limit(suite.tests), 10 + 6 + 3)

  def test_comes_back_from_json_equal(self):
    suite = suite_lib.of_answers([answer({'x.py::y': 'failed'})] * 2)
    text = json.dumps(suite_lib.to_json(suite))
    self.assertEqual(suite_lib.from_json(json.loads(text)), suite)


if __name__ == '__main__':
  absltest.main()
