import dataclasses

from absl.testing import absltest

from composer_jax import trajectory
from composer_jax.loop import focus
from tests import fakes

MODULE = """import os


class Shelf:
  def low(self, a, b):
    return a < b

  def high(self, a, b):
    return a > b
"""
BROKEN = MODULE.replace('a < b', 'a <= b')


def task(broken=BROKEN, old='a < b', new='a <= b', snapshot='tree'):
  bug = trajectory.Edit('pkg/shelf.py', old, new)
  provenance = dataclasses.replace(fakes.TASK.provenance, bugs=(bug,))
  return dataclasses.replace(
    fakes.TASK,
    files={'pkg/shelf.py': broken},
    provenance=provenance,
    snapshot=snapshot,
  )


class FindTest(absltest.TestCase):
  def test_a_repository_is_read_where_its_function_is(self):
    found = focus.find(task())
    self.assertEqual(
      found.arguments, {'path': 'pkg/shelf.py', 'first': 5, 'last': 6}
    )
    self.assertEqual(
      found.of(BROKEN), '  def low(self, a, b):\n    return a <= b'
    )

  def test_a_small_task_is_read_whole(self):
    self.assertEqual(
      focus.find(task(snapshot='')).arguments, {'path': 'pkg/shelf.py'}
    )

  def test_of_a_long_function_the_lines_around_the_bug_are_read(self):
    body = ''.join(f'  x{i} = {i}\n' for i in range(100))
    text = f'def f():\n{body}'
    broken = text.replace('x50 = 50', 'x50 = 51')
    found = focus.find(task(broken, 'x50 = 50', 'x50 = 51'))
    self.assertEqual((found.first, found.last), (40, 63))
    found = focus.find(
      task(text.replace('x0 = 0', 'x0 = 1'), 'x0 = 0', 'x0 = 1')
    )
    self.assertEqual((found.first, found.last), (1, 24))
    found = focus.find(
      task(text.replace('x99 = 99', 'x99 = 9'), 'x99 = 99\n', 'x99 = 9\n')
    )
    self.assertEqual((found.first, found.last), (78, 101))

  def test_the_prompt_says_where_and_no_more(self):
    self.assertEqual(
      focus.point(task()).prompt, 'Repair pkg/shelf.py, lines 5 to 6.'
    )
    self.assertEqual(
      focus.point(task(snapshot='')).prompt, 'Repair pkg/shelf.py.'
    )


class CandidatesTest(absltest.TestCase):
  def test_only_edits_of_these_lines_and_the_fix_among_them(self):
    found = focus.candidates(BROKEN, focus.find(task()))
    self.assertIn(('<=', '<'), [(e.old, e.new) for e in self.stripped(found)])
    self.assertNotIn('>', {e.old for e in self.stripped(found)})
    whole = focus.candidates(BROKEN, focus.Focus('pkg/shelf.py'))
    self.assertIn('>', {e.old for e in self.stripped(whole)})

  def stripped(self, edits):
    return [
      dataclasses.replace(e, old=e.old.strip(' ab'), new=e.new.strip(' ab'))
      for e in edits
    ]


class OriginalsTest(absltest.TestCase):
  def test_functions_are_shown_as_they_were_and_once(self):
    self.assertEqual(
      focus.originals([task(), task()]),
      ['def low(self, a, b):\n  return a < b'],
    )

  def test_a_small_file_is_shown_whole(self):
    self.assertEqual(focus.originals([task(snapshot='')]), [MODULE])


if __name__ == '__main__':
  absltest.main()
