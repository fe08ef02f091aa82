"""Agents on a repository, in real boxes."""

import dataclasses
import json
import pathlib

from absl.testing import absltest

from composer_jax import trajectory
from composer_jax.loop import agents
from composer_jax.loop import arena as arena_lib
from composer_jax.loop import config as config_lib
from composer_jax.loop import remote
from composer_jax.loop import supervise
from composer_jax.tools import isolation
from composer_jax.tools import sandbox
from tests import completions
from tests.tools import harness

Ending, Status = trajectory.Ending, trajectory.Status

BROKEN = """def total(numbers):
  result = 1
  for n in numbers:
    result += n
  return result
"""
TASK = dataclasses.replace(
  harness.TASK,
  files={'pkg/sums.py': BROKEN},
  hidden_files={
    'tests/test_hidden.py': 'from pkg import total\n\n\n'
    'def test_more():\n  assert total([4]) == 4\n\n\n'
    'def test_none():\n  assert total([]) in (0, 1)\n'
  },
  grade_command=('python', isolation.PYTEST_RUNNER, 'tests/test_hidden.py'),
  fail_to_pass=('tests/test_hidden.py::test_more',),
  pass_to_pass=('tests/test_hidden.py::test_none',),
)


class AgentTest(harness.ToolTest):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.crew = supervise.Crew()
    cls.addClassCleanup(cls.crew.end)
    folder = dataclasses.replace(
      arena_lib.config(tasks='folder'),
      sandbox=sandbox.SandboxConfig(
        allow_weak=True,
        libraries=str(pathlib.Path(cls.folder.name, 'packages')),
      ),
    )
    cls.config = config_lib.override(folder, ['tools.embedding=none'])
    cls.boxes = cls.enterClassContext(
      sandbox.BoxPool(1, cls.config.sandbox, sandbox.probe(cls.config.sandbox))
    )

  def arena(self):
    return arena_lib.enter(
      self.config,
      self.boxes,
      arena_lib.chat_of_bytes(self.config),
      {TASK.snapshot: self.tree},
      self.crew,
    )

  def names(self, done):
    return [[call.name for call in turn.calls] for turn in done.turns]

  def test_the_oracle_mends_what_is_broken_and_says_so(self):
    done = agents.oracle(self.arena())(TASK, 0)
    self.assertEqual(done.facts['solved'], 1.0)
    self.assertEqual(
      self.names(done), [['edit_file'], ['run_tests'], ['submit']]
    )
    (submission,) = done.turns[-1].calls
    self.assertIn('pkg/sums.py', submission.arguments['message'])
    self.assertEqual(done.facts['silent'], 0.0)

  def test_the_oracle_creates_files_that_are_missing(self):
    created = trajectory.Edit('pkg/extra.py', 'x = 1\n', '')
    provenance = dataclasses.replace(TASK.provenance, bugs=(created,))
    task = dataclasses.replace(TASK, provenance=provenance)
    done = agents.oracle(self.arena())(task, 0)
    self.assertEqual(self.names(done)[0], ['write_file'])
    self.assertEqual(done.final_files['pkg/extra.py'], 'x = 1\n')

  def test_the_enumerator_finds_the_bug_by_itself(self):
    misled = trajectory.Edit('pkg/sums.py', 'total(all', 'total(numbers')
    blind = dataclasses.replace(TASK.provenance, bugs=(misled,))
    task = dataclasses.replace(TASK, provenance=blind)
    done = agents.enumerator(self.arena(), most_edits=20)(task, 3)
    self.assertEqual(done.facts['solved'], 1.0, self.names(done))
    self.assertEqual(done.ending, Ending.SUBMITTED)
    self.assertIn('grep', sum(self.names(done), []))

  def test_the_random_caller_calls_as_the_schemas_allow(self):
    agent = agents.random_caller(self.arena())
    statuses, names = [], set()
    for seed in range(4):
      done = agent(TASK, seed)
      self.assertEqual(done.facts['solved'], 0.0)
      for turn in done.turns:
        statuses += [result.status for result in turn.results]
        names |= {call.name for call in turn.calls}
    self.assertNotIn(Status.INVALID, statuses)
    self.assertIn(Status.OK, statuses)
    self.assertGreater(len(names), 6)

  def test_the_random_caller_is_decided_by_its_seed(self):
    agent = agents.random_caller(self.arena())
    first = agent(TASK, 1)
    self.assertEqual(self.names(agent(TASK, 1)), self.names(first))

  def test_a_remote_model_is_shown_our_tools_and_repairs(self):
    fix = dataclasses.asdict(TASK.provenance.fix[0])
    server = completions.Server(
      [
        completions.message(
          'First the code.',
          ('read_file', {'path': 'pkg/sums.py', 'full': True}),
          ('run_tests', {}),
        ),
        completions.message('', ('edit_file', fix), ('run_tests', {})),
        completions.message('', ('submit', {'message': 'Mended total.'})),
      ]
    )
    self.addCleanup(server.close)
    client = remote.Client(
      remote.RemoteConfig(base_url=server.url, model='m', dollars_in=1.0),
      key='',
      wait=self.crew.stop.wait,
    )
    done = agents.remote(self.arena(), client)(TASK, 0)
    self.assertEqual(done.facts['solved'], 1.0)
    self.assertEqual(done.facts['usage_prompt_tokens'], 21)
    offered = {t['function']['name'] for t in server.requests[0]['tools']}
    self.assertEqual(offered, set(self.config.tools.allowed))
    answers = server.requests[1]['messages'][3:]
    self.assertIn('result = 1', answers[0]['content'])
    self.assertIn(
      'FAILED tests/test_sums.py::test_total', answers[1]['content']
    )
    json.dumps(done.facts)  # Numbers alone.


if __name__ == '__main__':
  absltest.main()
