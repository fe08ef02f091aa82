"""What environments cost: boxes beside bare subprocesses and SWE-ReX.

python -m benchmarks.environments [--hostile] [--swerex_python=PYTHON]

Every line is the median of runs that were taken in turn with their rivals', so
that the noise of the machine meets all alike; read the ratios. SWE-ReX runs the
same commands with its local runtime, which isolates nothing. It is no
requirement of this project; to compare, give it an environment of its own:

python -m venv REX && REX/bin/pip install swe-rex
python -m benchmarks.environments --swerex_python=REX/bin/python
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import contextlib
import json
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app
from absl import flags

from benchmarks import hostile
from composer_jax.tools import libraries
from composer_jax.tools import sandbox

_REPEATS = flags.DEFINE_integer('repeats', 15, 'Runs of each, in turn.')
_HOSTILE = flags.DEFINE_bool('hostile', False, 'Try the hostile suite too.')
_SWEREX = flags.DEFINE_string(
  'swerex_python', '', 'An interpreter that has swe-rex.'
)

_RIVAL = 'SWE-ReX local'
_SCRIPT = 'print("hello")\n'
_TEST = 'def test_one():\n  assert 1 + 1 == 2\n'
_FILES = {
  'hello.py': _SCRIPT,
  'one_test.py': _TEST,
  **{f'd{i % 10}/f{i}.py': 'x = 1\n' * 3400 for i in range(100)},  # 2 MB.
}
_PYTEST = ('python', '-m', 'pytest', '-q', 'one_test.py')
_COMMANDS = {
  'exec of `true`': ('true',),
  'python script': ('python', 'hello.py'),
  'pytest, one test': _PYTEST,
}

# Runs under another interpreter: {command: milliseconds} as JSON.
_SWEREX_PROGRAM = """
import asyncio, json, statistics, sys, time
from swerex.runtime import abstract, local

async def main(folder, repeats, commands):
  runtime = local.LocalRuntime()
  async def timed(run):
    started = time.perf_counter()
    await run()
    return 1000 * (time.perf_counter() - started)
  session = abstract.CreateBashSessionRequest()
  found = {'create': [await timed(lambda: runtime.create_session(session))]}
  async def call(text):
    await runtime.run_in_session(abstract.BashAction(command=text, timeout=60))
  await call('cd ' + folder)
  for name, text in commands.items():
    found[name] = [await timed(lambda: call(text)) for _ in range(repeats)]
  await runtime.close()
  print(json.dumps({k: statistics.median(v) for k, v in found.items()}))

asyncio.run(main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])))
"""

Run = Callable[[], object]


def milliseconds(run: Run) -> float:
  started = time.perf_counter()
  run()
  return 1000 * (time.perf_counter() - started)


def medians(runs: Mapping[str, Run], repeats: int) -> dict[str, float]:
  """The median time of each; they are run in turn."""
  times = {name: [] for name in runs}
  for _ in range(repeats):
    for name, run in runs.items():
      times[name].append(milliseconds(run))
  return {name: statistics.median(values) for name, values in times.items()}


def report(name: str, found: Mapping[str, float], rival: str = 'bare') -> None:
  """Prints a line: times, and ratios to the rival's."""
  parts = [f'{key} {value:.2f} ms' for key, value in found.items()]
  parts += [
    f'{key} / {rival} = {value / found[rival]:.2f}'
    for key, value in found.items()
    if key != rival and rival in found
  ]
  print(f'{name:28}', ' · '.join(parts), flush=True)


# --- Boxes beside bare subprocesses ------------------------------------------


def bare(command: Sequence[str], folder: str, packages: str) -> None:
  """The command as a plain subprocess, with the packages that a box has."""
  program = {'python': sys.executable}.get(command[0], command[0])
  subprocess.run(
    [program, *command[1:]],
    cwd=folder,
    env={
      'PATH': '/usr/bin:/bin',
      'PYTHONPATH': packages,
      'PYTHONDONTWRITEBYTECODE': '1',
      'PYTEST_ADDOPTS': '-p no:cacheprovider',
      'PYTEST_DISABLE_PLUGIN_AUTOLOAD': '1',
    },
    capture_output=True,
    check=True,
  )


def measure_commands(
  box: sandbox.Box, shell: sandbox.Shell, folder: str, packages: str
) -> dict[str, dict[str, float]]:
  """Prints and returns the medians of each command."""
  found = {}
  for name, command in _COMMANDS.items():

    def boxed(command=command):
      result = box.exec(command, seconds=60)
      assert result.exit_code == 0, result

    def in_session(command=command):
      result = shell.exec(' '.join(command), seconds=60)
      assert result.exit_code == 0, result

    runs = {
      'bare': lambda command=command: bare(command, folder, packages),
      'box': boxed,
      'session': in_session,
    }
    repeats = _REPEATS.value if command != _PYTEST else min(5, _REPEATS.value)
    found[name] = medians(runs, repeats)
    report(name, found[name])
  return found


def measure_lives(
  level: sandbox.Level, config: sandbox.SandboxConfig, folder: str
) -> None:
  """Making, forking and filling boxes."""

  def create():
    sandbox.Box(level, config).close()

  runs = {'bare': lambda: bare(('true',), folder, ''), 'box': create}
  report('create and close', medians(runs, _REPEATS.value))
  with contextlib.ExitStack() as stack:
    box = stack.enter_context(sandbox.Box(level, config))
    other = stack.enter_context(sandbox.Box(level, config))
    box.reset(_FILES)
    tree = box.snapshot()

    def copy():
      with tempfile.TemporaryDirectory(dir='/dev/shm') as target:
        shutil.copytree(folder, target, dirs_exist_ok=True)

    runs = {
      'bare': copy,
      'warm box': lambda: box.copy_to(other),
      'new box': lambda: box.fork().close(),
      'reset to a snapshot': lambda: other.reset({}, tree),
    }
    report('fork, 102 files, 2 MB', medians(runs, _REPEATS.value))


def resident(box: sandbox.Box) -> float:
  """Megabytes of a box's processes, shared pages by their share."""
  children: dict[int, list[int]] = {}
  for stat in pathlib.Path('/proc').glob('[0-9]*/stat'):
    try:
      parent = int(stat.read_text().rpartition(')')[2].split()[1])
    except OSError:
      continue
    children.setdefault(parent, []).append(int(stat.parent.name))
  waiting, kilobytes = [box.pid], 0
  while waiting:
    pid = waiting.pop()
    waiting += children.get(pid, [])
    text = pathlib.Path(f'/proc/{pid}/smaps_rollup').read_text()
    kilobytes += int(re.search(r'^Pss: +(\d+)', text, re.MULTILINE)[1])
  return kilobytes / 1024


def measure_memory(level: sandbox.Level, config: sandbox.SandboxConfig) -> None:
  with sandbox.Box(level, config) as box:
    found = {'after start': resident(box)}
    box.reset(_FILES)
    tree = box.snapshot()
    found['after a reset from texts'] = resident(box)
    box.reset({}, tree)
    box.exec(['python', 'hello.py'], seconds=10)
    found['after a reset from a tree'] = resident(box)
    with box.shell() as shell:
      shell.exec('true', seconds=10)
      found['with an idle session'] = resident(box)
  text = ' · '.join(f'{name} {size:.1f} MB' for name, size in found.items())
  print(f'{"memory of an idle box":28}', text, '(at most 15)', flush=True)


# --- Others ------------------------------------------------------------------


def measure_swerex(
  ours: Mapping[str, Mapping[str, float]], folder: str, packages: str
) -> None:
  """The same commands there, soon after ours."""
  if not _SWEREX.value:
    print('SWE-ReX: left out; see --swerex_python')
    return
  commands = {
    name: ' '.join(command).replace('python', sys.executable)
    for name, command in _COMMANDS.items()
  }
  result = subprocess.run(
    [
      _SWEREX.value,
      '-c',
      _SWEREX_PROGRAM,
      folder,
      str(min(5, _REPEATS.value)),
      json.dumps(commands),
    ],
    env={'PATH': '/usr/bin:/bin', 'PYTHONPATH': packages},
    stdout=subprocess.PIPE,
    check=True,
    text=True,
  )
  for name, value in json.loads(result.stdout.splitlines()[-1]).items():
    report(name, {_RIVAL: value, **ours.get(name, {})}, _RIVAL)


def try_hostile(level: sandbox.Level, config: sandbox.SandboxConfig) -> None:
  escaped = survivors = 0
  with sandbox.Box(level, config) as box:
    for case in hostile.CASES:
      outcome = hostile.attempt(box, case)
      if outcome.escaped:
        escaped += 1
        print(f'  {case.name}: {outcome.escaped}')
      survivors += outcome.survivors
  print(
    f'hostile suite: {len(hostile.CASES)} tried, {escaped} escaped,'
    f' {survivors} survivors'
  )


def main(argv: Sequence[str]) -> None:
  del argv
  with tempfile.TemporaryDirectory() as directory:
    packages = f'{directory}/packages'
    libraries.collect(['pytest'], packages)
    config = sandbox.SandboxConfig(libraries=packages)
    level = sandbox.probe(config)
    print(f'level {level.value}, {_REPEATS.value} runs of each, medians')
    folder = f'{directory}/repo'
    for name, text in _FILES.items():
      path = pathlib.Path(folder, name)
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(text)
    with sandbox.Box(level, config) as box:
      box.reset(_FILES)
      with box.shell() as shell:
        ours = measure_commands(box, shell, folder, packages)
    measure_lives(level, config, folder)
    measure_memory(level, config)
    measure_swerex(ours, folder, packages)
    if _HOSTILE.value:
      try_hostile(level, config)


if __name__ == '__main__':
  app.run(main)
