import ast

from absl.testing import absltest

from composer_jax.tasks import candidates
from composer_jax.tasks import definitions
from composer_jax.tasks import delete
from tests.tasks import tiny

PATH = 'tiny/__init__.py'
KNOWN = {f.name: f for f in definitions.functions(tiny.CODE)}


def lists(**changes):
  config = candidates.Config(**changes)
  return candidates.of_module(PATH, tiny.CODE, KNOWN, config)


class CandidatesTest(absltest.TestCase):
  def test_every_one_parses_and_its_fix_gives_the_code_back(self):
    every = candidates.spread(lists(per_function=9))
    self.assertGreater(len(every), 15)
    for candidate in every:
      self.assertNotEqual(candidate.broken(tiny.CODE), tiny.CODE)
      ast.parse(candidate.broken(tiny.CODE))
      self.assertTrue(candidates.mends(candidate, tiny.CODE), candidate)

  def test_a_function_has_one_of_a_kind_and_no_more_than_asked(self):
    for members in lists(per_function=2):
      self.assertLessEqual(len(members), 2)
      kinds = [member.kind for member in members]
      self.assertLen(set(kinds), len(kinds))

  def test_the_lines_are_those_of_the_broken_function(self):
    lines = tiny.CODE.split('\n')
    for candidate in candidates.spread(lists()):
      broken = candidate.broken(tiny.CODE).split('\n')
      first = (
        next(
          i
          for i, pair in enumerate(zip(lines, broken, strict=False))
          if pair[0] != pair[1]
        )
        + 1
      )
      self.assertTrue(any(first in span for span in candidate.lines))

  def test_the_first_touch_every_function(self):
    found = lists()
    first = candidates.spread(found)[: sum(map(bool, found))]
    touched = {name for candidate in first for name in candidate.names}
    self.assertContainsSubset({'clamp', 'mean', 'total', 'Stack.pop'}, touched)

  def test_functions_that_are_not_wanted_are_left_alone(self):
    wanted = {'clamp': KNOWN['clamp']}
    found = candidates.of_module(PATH, tiny.CODE, wanted, candidates.Config())
    for candidate in candidates.spread(found):
      self.assertEqual(candidate.names, ('clamp',))

  def test_several_bugs_are_in_different_functions_and_come_apart(self):
    every = candidates.spread(lists())
    found = candidates.several(
      every, {PATH: tiny.CODE}, candidates.Config(several_percent=50)
    )
    self.assertNotEmpty(found)
    for candidate in found:
      self.assertLen(set(candidate.names), len(candidate.bugs))
      self.assertIn(len(candidate.bugs), (2, 3))
      self.assertTrue(candidates.mends(candidate, tiny.CODE))
      self.assertNotIn(delete.STUB, candidate.broken(tiny.CODE))
    self.assertEqual({len(c.bugs) for c in found}, {2, 3})

  def test_the_order_is_the_same_every_time(self):
    keys = [
      [candidate.key for candidate in candidates.spread(lists())]
      for _ in range(2)
    ]
    self.assertEqual(*keys)
    self.assertLen(set(keys[0]), len(keys[0]))

  def test_code_that_can_be_read_twice_is_told(self):
    mean = KNOWN['mean']
    self.assertEqual(candidates.tell(tiny.CODE, mean), tiny.SECRET)
    once = candidates.squeezed([tiny.CODE, tiny.TESTS])
    self.assertFalse(candidates.stands_twice(once, tiny.CODE, mean))
    copy = tiny.CODE.replace('  ', '      ').replace('def mean', 'def other')
    twice = candidates.squeezed([tiny.CODE, copy])
    self.assertTrue(candidates.stands_twice(twice, tiny.CODE, mean))


if __name__ == '__main__':
  absltest.main()
