"""Boxes hold what is tried against them. All tests use real boxes."""

import os
import signal
import subprocess
import sys
import time

from absl.testing import absltest
from absl.testing import parameterized

from benchmarks import hostile
from composer_jax.tools import sandbox

_CONFIG = sandbox.SandboxConfig(allow_weak=True)
_LEVELS = tuple(
  level
  for level in sandbox.levels()
  if level is not sandbox.Level.WEAK and not sandbox.why_not(level, _CONFIG)
)
_SLOW = ('tiny calls',)  # The benchmark tries these too.


@absltest.skipUnless(_LEVELS, 'no level of this machine isolates')
class HostileTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.boxes = {level: sandbox.Box(level, _CONFIG) for level in _LEVELS}

  @classmethod
  def tearDownClass(cls):
    for box in cls.boxes.values():
      box.close()
    super().tearDownClass()

  @parameterized.named_parameters(
    (f'{case.name}_{level.value}'.replace(' ', '_'), level, case)
    for level in _LEVELS
    for case in hostile.CASES
    if case.name not in _SLOW
  )
  def test_holds(self, level, case):
    outcome = hostile.attempt(self.boxes[level], case)
    self.assertEqual(outcome.escaped, '', outcome.result)
    self.assertEqual(outcome.survivors, 0)

  def test_a_case_that_succeeds_is_seen(self):
    box = self.boxes[_LEVELS[0]]
    loud = hostile.Case('loud', 'print("ESCAPED indeed")')
    self.assertEqual(hostile.attempt(box, loud).escaped, 'ESCAPED indeed')
    checked = hostile.Case('checked', '', check=lambda result, box: 'seen')
    self.assertEqual(hostile.attempt(box, checked).escaped, 'seen')
    with subprocess.Popen(hostile.SLEEP.split()) as process:
      outcome = hostile.attempt(box, hostile.Case('left', 'pass'))
      process.kill()
    self.assertEqual(outcome.survivors, 1)

  def test_a_thousand_tiny_calls_leave_nothing_behind(self):
    box = self.boxes[_LEVELS[0]]
    box.reset({})
    with box.shell() as shell:
      for i in range(1000):
        self.assertEqual(shell.exec(f'echo {i}', seconds=10).output, f'{i}\n')
      count = shell.exec('echo /proc/[0-9]* | wc -w', seconds=10).output
    # Process 1, the handler, bash, its fork, and `wc`.
    self.assertEqual(count, '5\n')

  def test_killed_parent_leaves_no_session_behind(self):
    mark = f'{time.time_ns() / 1e6!r}'
    for level in _LEVELS:
      script = (
        'from composer_jax.tools import sandbox\n'
        f'config = sandbox.SandboxConfig(wait_seconds={mark})\n'
        f'box = sandbox.Box(sandbox.Level({level.value!r}), config)\n'
        f'box.shell().exec("setsid {hostile.SLEEP} &", seconds=10)\n'
        'print("ready", flush=True)\n'
        'sandbox.Box(box.level, config)\ninput()\n'
      )
      with subprocess.Popen(
        [sys.executable, '-c', script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
      ) as parent:
        self.assertEqual(parent.stdout.readline(), b'ready\n')
        os.kill(parent.pid, signal.SIGKILL)
      deadline = time.monotonic() + 10
      while time.monotonic() < deadline:
        left = [*hostile.processes(mark), *hostile.processes(hostile.SLEEP)]
        if not left:
          break
      self.assertEmpty(left)


if __name__ == '__main__':
  absltest.main()
