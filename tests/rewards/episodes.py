"""Episodes that are told by their calls, and works by what they changed."""

import dataclasses

from composer_jax import trajectory
from composer_jax.rewards import work as work_lib
from tests import fakes

OK = trajectory.Status.OK
CODE = 'def double(x):\n  return x + 2\n'
GOLD = 'def double(x):\n  return x * 2\n'
BEFORE = {'solution.py': CODE, 'tests/test_a.py': 'assert 1\n'}


def attempt(*turns, ending=trajectory.Ending.SUBMITTED, facts=None):
  """An episode of turns of (tool name, arguments, status) triples."""
  done = fakes.sequence(
    range(4), [0, 0, 0, 1], turns=fakes.steps(*turns), ending=ending
  )
  return dataclasses.replace(done, facts=facts or {})


def terminal(*lines):
  """An episode that gave these lines to the terminal."""
  return attempt(*([('run_terminal', {'command': x}, OK)] for x in lines))


def work(changes=None, *, message='', gold=None):
  """A repair of solution.py, with other `changes` to files; None removes."""
  after = {**BEFORE, 'solution.py': GOLD, **(changes or {})}
  return work_lib.Work(
    before=BEFORE,
    after={path: text for path, text in after.items() if text is not None},
    gold={**BEFORE, 'solution.py': GOLD, **(gold or {})},
    message=message,
  )
