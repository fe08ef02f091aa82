import dataclasses
import random

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from composer_jax import trajectory
from composer_jax.actor import episode
from composer_jax.actor import scripted
from tests import fakes

Ending, Status = trajectory.Ending, trajectory.Status

PATH = 'solution.py'
GOLD = 'a = 1\nb = 2\nc = 3'
BUGGY = 'a = 1\nb = 2\nc = 4'
FIX = trajectory.Edit(PATH, 'c = 4', 'c = 3')
CONFIG = episode.ActorConfig(
  max_turns=40, max_tokens=10_000, max_turn_tokens=500
)
EXPERT = scripted.DemonstrationConfig(
  insight=1,
  tests_first=1,
  tests_after_edit=1,
  same_turn=1,
  gives_up=0,
  forgets_undo=0,
  mistypes=0,
)
NOVICE = dataclasses.replace(EXPERT, insight=0)


def candidates(text):
  """Each number one up, one down, or with its last digit twice."""
  edits = []
  for line in text.split('\n'):
    name, number = line.split(' = ')
    for other in (int(number) + 1, int(number) - 1, number + number[-1]):
      edits.append(trajectory.Edit(PATH, line, f'{name} = {other}'))
  return edits


class FakeWorkspace:
  """A file with edits, undo and tests that want `GOLD`; keeps every call."""

  def __init__(self):
    self.texts = [BUGGY]
    self.names = []  # Names of the calls, turn by turn.
    self.edits = []
    self.failed = []  # Calls other than tests that did not go well.

  def __call__(self, calls):
    self.names.append([call.name for call in calls])
    results = []
    for call in calls:
      good = self._run(call)
      if not good and call.name != 'run_tests':
        self.failed.append(call)
      results.append(
        trajectory.ToolResult(
          call_id=call.id, status=Status.OK if good else Status.ERROR, text=''
        )
      )
    return results

  def _run(self, call):
    match call.name:
      case 'run_tests':
        return self.texts[-1] == GOLD
      case 'undo':
        if len(self.texts) == 1:
          return False
        self.texts.pop()
      case 'edit_file':
        edit = trajectory.Edit(**call.arguments)
        self.edits.append(edit)
        try:
          self.texts.append(edit.apply(self.texts[-1]))
        except ValueError:
          return False
    return True


def play(agent):
  """(Trajectory, FakeWorkspace) of an episode by this agent."""
  workspace = FakeWorkspace()
  script = scripted.Script(agent, fakes.chat(), workspace)
  done = episode.run_episode(
    fakes.TASK,
    script.sample,
    script.call_tools,
    chat=fakes.chat(),
    config=CONFIG,
  )
  return done, workspace


def demonstrate(config, seed=0):
  return play(
    scripted.demonstrator(
      read={'path': PATH},
      text=BUGGY,
      fix=FIX,
      candidates=candidates,
      rng=random.Random(seed),
      config=config,
    )
  )


class DemonstratorTest(parameterized.TestCase):
  def test_with_insight_reads_fixes_tests_and_submits(self):
    done, workspace = demonstrate(EXPERT)
    self.assertEqual(
      workspace.names,
      [['read_file', 'run_tests'], ['edit_file', 'run_tests'], ['submit']],
    )
    self.assertEqual(workspace.texts[-1], GOLD)
    self.assertEqual(done.ending, Ending.SUBMITTED)
    self.assertTrue((done.logprob_T == 0).all())
    self.assertEqual(done.route_TLX.shape[1:], (0, 0))

  def test_without_insight_undoes_and_tries_again_until_it_passes(self):
    solved = 0
    for seed in range(20):
      done, workspace = demonstrate(NOVICE, seed)
      self.assertEqual(done.ending, Ending.SUBMITTED)
      tries = workspace.names[1:-1]
      self.assertLessEqual(len(tries), NOVICE.max_edits)
      self.assertEqual(tries[0], ['edit_file', 'run_tests'])
      for names in tries[1:]:
        self.assertEqual(names, ['undo', 'edit_file', 'run_tests'])
      if workspace.texts[-1] == GOLD:
        solved += 1
      else:
        self.assertLen(tries, NOVICE.max_edits)
    self.assertGreater(solved, 5)

  def test_knows_what_the_file_holds_even_after_forgotten_undos(self):
    careless = dataclasses.replace(NOVICE, forgets_undo=0.5)
    for seed in range(30):
      _, workspace = demonstrate(careless, seed)
      self.assertEmpty(workspace.failed)

  def test_a_mistyped_edit_fails_and_leaves_nothing_to_undo(self):
    clumsy = dataclasses.replace(NOVICE, mistypes=1)
    for seed in range(10):
      done, workspace = demonstrate(clumsy, seed)
      self.assertEqual(workspace.texts, [BUGGY])
      self.assertEqual(
        workspace.names[1:-1], [['edit_file', 'run_tests']] * clumsy.max_edits
      )
      self.assertLen(workspace.failed, clumsy.max_edits)
      self.assertEqual(done.ending, Ending.SUBMITTED)

  @parameterized.parameters(
    # What is changed, the turns after the first.
    (
      dict(gives_up=1, insight=0),
      [['edit_file', 'run_tests'], ['submit']],
    ),
    (dict(tests_after_edit=0), [['edit_file'], ['submit']]),
    (dict(same_turn=0), [['edit_file'], ['run_tests'], ['submit']]),
    (
      dict(max_edits=1, insight=0),
      [['edit_file', 'run_tests'], ['submit']],
    ),
  )
  def test_settings_change_what_it_does(self, changes, turns):
    _, workspace = demonstrate(dataclasses.replace(EXPERT, **changes), seed=1)
    self.assertEqual(workspace.names[1:], turns)

  def test_is_decided_by_the_seed(self):
    mixed = scripted.DemonstrationConfig()
    texts = [demonstrate(mixed, seed)[0].token_T.tolist() for seed in (5, 5, 6)]
    self.assertEqual(texts[0], texts[1])
    self.assertNotEqual(texts[0], texts[2])


class EnumeratorTest(absltest.TestCase):
  def play(self, seed, edits=None):
    return play(
      scripted.enumerator(
        read={'path': PATH},
        text=BUGGY,
        candidates=lambda text: candidates(text) if edits is None else edits,
        rng=random.Random(seed),
      )
    )

  def test_finds_the_fix_without_trying_anything_twice(self):
    firsts = set()
    for seed in range(12):
      done, workspace = self.play(seed)
      self.assertEqual(workspace.texts[1:], [GOLD])
      self.assertLen(set(workspace.edits), len(workspace.edits))
      self.assertEqual(workspace.edits[-1], FIX)
      self.assertEmpty(workspace.failed)
      self.assertEqual(done.ending, Ending.SUBMITTED)
      firsts.add(workspace.edits[0])
    self.assertGreater(len(firsts), 2)

  def test_submits_when_nothing_is_left(self):
    wrong = [edit for edit in candidates(BUGGY) if edit != FIX]
    done, workspace = self.play(0, wrong)
    self.assertCountEqual(workspace.edits, wrong)
    self.assertEqual(done.ending, Ending.SUBMITTED)


class ScriptTest(absltest.TestCase):
  def test_a_turn_longer_than_the_limit_is_cut(self):
    script = scripted.Script(
      lambda script: iter([[('undo', {}), ('submit', {})]]),
      fakes.chat(),
      fakes.RecordingTools(),
    )
    sample = script.sample(np.zeros(4, np.int32), 2)
    self.assertLen(sample.token_T, 2)
    self.assertFalse(sample.finished)


if __name__ == '__main__':
  absltest.main()
