import dataclasses
import re
from unittest import mock

from absl.testing import absltest
import numpy as np

from composer_jax import trajectory
from composer_jax.loop import exercises
from composer_jax.tasks import functions
from tests import fakes

LIBRARY = ['def low(a, b):\n  return a < b', 'def total(c):\n  return c + 1']
PATH = 'solution.py'


def task(text, old, new):
  bug = trajectory.Edit(PATH, old, new)
  provenance = dataclasses.replace(fakes.TASK.provenance, bugs=(bug,))
  return dataclasses.replace(
    fakes.TASK, files={PATH: text}, provenance=provenance
  )


# Shown is what the file was before the bug was planted.
TASKS = [task('def both(p, q):\n  return p or q\n', 'p and', 'p or')]


def make(count=40, max_tokens=400, seed=0):
  with mock.patch.object(functions, 'functions', lambda: LIBRARY):
    return list(
      exercises.make(
        TASKS, fakes.chat(), count=count, max_tokens=max_tokens, seed=seed
      )
    )


def shown_and_calls(exercise):
  """The text that was shown, and the calls that answer it."""
  start = int(np.argmax(exercise.sampled_T))
  text = fakes.tokenizer().decode(exercise.token_T[:start])
  shown = text.split('<tool_response>\n')[1].split('\n</tool_response>')[0]
  return shown, fakes.chat().parse(exercise.token_T[start:], 0)


def without_names(line):
  return re.sub(r'\b(?!def|return|and)\w*[a-z]\w*', 'name', line)


class MakeTest(absltest.TestCase):
  def test_every_edit_applies_to_what_is_shown(self):
    for exercise in make():
      shown, calls = shown_and_calls(exercise)
      self.assertNotEmpty(calls)
      for call in calls:
        self.assertEqual(call.name, 'edit_file')
        self.assertNotEqual(
          trajectory.Edit(**call.arguments).apply(shown), shown
        )

  def test_shows_nothing_but_the_library_and_the_repaired_tasks(self):
    texts = [*LIBRARY, 'def both(p, q):\n  return p and q']
    known = {without_names(line) for t in texts for line in t.split('\n')}
    shown = [shown_and_calls(exercise)[0] for exercise in make()]
    found = {without_names(line) for t in shown for line in t.split('\n')}
    self.assertEqual(found, known)

  def test_exchanges_names_for_others_of_the_library_everywhere(self):
    found = set()
    for exercise in make(count=200):
      text = shown_and_calls(exercise)[0]
      self.assertNotRegex(text, r'(\w+), \1\b')  # Two stay two.
      found |= set(text.split('\n'))
    self.assertContainsSubset({'  return a < b', '  return c < b'}, found)

  def test_only_the_answer_is_learned_and_it_fits(self):
    for exercise in make(max_tokens=300):
      self.assertLessEqual(len(exercise), 300)
      start = int(np.argmax(exercise.sampled_T))
      self.assertTrue(exercise.sampled_T[start:].all())

  def test_depends_on_the_seed_alone(self):
    texts = [[e.token_T.tolist() for e in make(seed=s)] for s in (0, 0, 1)]
    self.assertEqual(texts[0], texts[1])
    self.assertNotEqual(texts[0], texts[2])

  def test_gives_up_where_nothing_fits(self):
    with self.assertRaisesRegex(ValueError, 'fits in 50 tokens'):
      make(max_tokens=50)


if __name__ == '__main__':
  absltest.main()
