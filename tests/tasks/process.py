"""Runs a command in a temporary folder, without any isolation."""

from collections.abc import Mapping, Sequence
import pathlib
import subprocess
import sys
import tempfile

_LIMIT = ('sh', '-c', 'ulimit -v 1048576; exec "$@"', 'sh')  # 1 GiB.


def run(
  files: Mapping[str, str],
  command: Sequence[str],
  stdin: str,
  seconds: float,
) -> tuple[int | None, str]:
  """Exit code (None: timed out) and output; 'python' is this interpreter."""
  argv = list(command)
  if argv[0] == 'python':
    argv[:1] = [sys.executable, '-S', '-B']
  with tempfile.TemporaryDirectory() as folder:
    for name, text in files.items():
      pathlib.Path(folder, name).write_text(text, encoding='utf-8')
    try:
      done = subprocess.run(
        [*_LIMIT, *argv],
        input=stdin.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        timeout=seconds,
        check=False,
      )
    except subprocess.TimeoutExpired:
      return None, ''
  return done.returncode, done.stdout.decode(errors='replace')
