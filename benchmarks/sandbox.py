"""What a boxed test run costs beside the same run bare.

python -m benchmarks.sandbox
"""

from collections.abc import Callable, Sequence
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app

from composer_jax.tools import sandbox

_FILES = {
  'solution.py': 'def double(x):\n  return 2 * x\n',
  'test_solution.py': (
    'from solution import double\n'
    'assert double(2) == 4\nassert double(0) == 0\nprint("passed")\n'
  ),
}
_REPEATS = 60


def milliseconds(run: Callable[[], None]) -> float:
  started = time.perf_counter()
  run()
  return 1000 * (time.perf_counter() - started)


def main(argv: Sequence[str]) -> None:
  del argv
  config = sandbox.SandboxConfig()
  level = sandbox.probe(config)
  boxed, bare = [], []
  with (
    tempfile.TemporaryDirectory() as directory,
    sandbox.Box(level, config) as box,
  ):
    box.reset(_FILES)
    for name, text in _FILES.items():
      pathlib.Path(directory, name).write_text(text)

    def run_boxed():
      result = box.exec(['python', 'test_solution.py'], seconds=5)
      assert result.output == 'passed\n', result

    def run_bare():
      result = subprocess.run(
        [sys.executable, '-S', '-B', 'test_solution.py'],
        cwd=directory,
        capture_output=True,
        check=True,
      )
      assert result.stdout == b'passed\n', result

    for _ in range(_REPEATS):  # Taken in turn: noise meets both alike.
      boxed.append(milliseconds(run_boxed))
      bare.append(milliseconds(run_bare))
  slow, fast = statistics.median(boxed), statistics.median(bare)
  print(f'level {level.value}, {_REPEATS} runs each, medians')
  print(f'boxed {slow:.2f} ms, bare {fast:.2f} ms, ratio {slow / fast:.2f}')


if __name__ == '__main__':
  app.run(main)
