"""Runs the code of one package in boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
import os
import pathlib
import secrets
import sys
import threading
from typing import Any

from composer_jax import trajectory
from composer_jax.tools import isolation
from composer_jax.tools import sandbox

BASELINE_CPU = 120  # Seconds for all tests of a package.
_RUNNER = pathlib.Path(__file__).parent / 'trial_runner.py'
_RUNNER_INSIDE = '.trials/trial_runner.py'
_CLOCK = 20  # Seconds on the clock allowed for one of processor time.
_SEARCH_SECONDS = 300.0


class Bench:
  """Runs code of one package in boxes. Any thread may use it."""

  def __init__(self, boxes: sandbox.BoxPool, tree: bytes):
    self._boxes = boxes
    self._tree = tree
    self._lock = threading.Lock()
    self._correct: dict[tuple[str, ...], tuple[dict[str, str], float]] = {}

  def answers(self, jobs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What the trial runner answers to these jobs, one box for all."""
    command = ('python', _RUNNER_INSIDE)
    seconds = sum(job['wall'] for job in jobs) + 30.0
    with self._boxes.box() as box:
      box.reset({_RUNNER_INSIDE: _RUNNER.read_text()}, tree=self._tree)
      ended = box.exec(
        command, seconds=seconds, stdin=json.dumps(jobs), report=True
      )
    if not ended.report:
      if len(jobs) > 1:  # One of them took the runner with it.
        return [self.answers([job])[0] for job in jobs]
      return [None]
    return json.loads(ended.report)

  def outcomes(
    self, files: Mapping[str, str], command: Sequence[str], cpu: float
  ) -> tuple[dict[str, str] | None, float]:
    """Runs a grading command in a fresh box: outcomes and processor seconds.

    None where it takes more than `cpu` seconds, or ends without a report.
    """
    nonce = secrets.token_hex(8)
    with self._boxes.box() as box:
      box.reset(files, tree=self._tree)
      ended = box.exec(
        command, seconds=_CLOCK * cpu, stdin=nonce + '\n', report=True
      )
    report = json.loads(ended.report) if ended.report else {}
    if report.get('nonce') != nonce or ended.cpu_seconds > cpu:
      return None, ended.cpu_seconds
    return report['tests'], ended.cpu_seconds

  def correct(
    self, files: Mapping[str, str], command: tuple[str, ...]
  ) -> tuple[dict[str, str] | None, float]:
    """`outcomes` of correct code, whose runs are all alike: kept."""
    with self._lock:
      known = self._correct.get(command)
    if known is None:
      known = self.outcomes(files, command, BASELINE_CPU)
      with self._lock:
        self._correct[command] = known
    return known

  def found(self, lines: Sequence[str], roots: Sequence[str]) -> dict[str, str]:
    """Which of these lines stand in Python files below `roots`, and where."""
    wanted = frozenset(lines)
    with self._boxes.box() as box:
      box.reset({})
      ended = box.exec(
        [
          isolation.RIPGREP,
          *('--no-config', '--no-ignore', '--hidden', '--threads=2'),
          *(
            '--fixed-strings',
            '--only-matching',
            '--no-heading',
            '--no-line-number',
            '--null',
          ),
          *('--no-messages', '--glob=*.py', '--file=-', *roots),
        ],
        seconds=_SEARCH_SECONDS,
        stdin='\n'.join(lines) + '\n',
      )
    if ended.timed_out or ended.exit_code is None or ended.dropped_bytes:
      raise trajectory.InfrastructureError(
        f'cannot search a box for deleted code: {ended.output[-300:]}'
      )
    pairs = (line.partition('\0') for line in ended.output.splitlines())
    return {line: path for path, _, line in pairs if line in wanted}


def readable_roots() -> list[str]:
  """Folders of this machine that a box can read."""
  return sorted({'/usr', '/opt', os.path.realpath(sys.base_prefix)})
