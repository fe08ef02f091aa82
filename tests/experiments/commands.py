"""Command lines of experiments, as a user types them."""

import os
import pathlib
import subprocess
import sys

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(module: str, arguments) -> subprocess.CompletedProcess[str]:
  """`python -m module arguments` in the root of the project."""
  return subprocess.run(
    [sys.executable, '-m', module, *arguments],
    cwd=_ROOT,
    env=os.environ,
    capture_output=True,
    text=True,
  )
