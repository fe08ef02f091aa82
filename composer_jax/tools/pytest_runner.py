"""Runs pytest and reports every test by name; needs pytest in the box.

This file runs inside a box, as

    python /opt/box/pytest_runner.py [--path=DIR ...] [pytest's arguments]

Each DIR goes to the front of the import path. What pytest prints is the output.
Apart from it, in the file that the variable BOX_REPORT names, goes one JSON
object: `nonce` (the first line of standard input, read before any of the tested
code is imported), `tests` (node id: passed, failed, error or skipped), `errors`
(node id: the end of the traceback) and `seconds`. Plugins are those of pytest
itself and `conftest.py`; the project's own options are left aside.
"""

from json import encoder
import os
import sys
import time

import pytest  # Before /repo is on the import path.

_LONGEST = 1200  # Characters of one traceback; its end is kept.
_MOST_ERRORS = 50  # Tracebacks kept.
_ARGUMENTS = (
  '-q',
  '--tb=short',
  '--no-header',
  '--color=no',
  '--override-ini=addopts=',
  '-p',
  'no:cacheprovider',
)


class Recorder:
  """A plugin that keeps how each test ended."""

  def __init__(self):
    self.tests = {}
    self.errors = {}

  def pytest_runtest_logreport(self, report):
    known = self.tests.get(report.nodeid)
    if report.failed:
      self.tests[report.nodeid] = 'failed' if report.when == 'call' else 'error'
      self._keep(report)
    elif report.skipped and known is None:
      self.tests[report.nodeid] = 'skipped'
    elif report.when == 'call' and known is None:
      self.tests[report.nodeid] = 'passed'

  def pytest_collectreport(self, report):
    if report.failed:
      self.tests[report.nodeid] = 'error'
      self._keep(report)

  def _keep(self, report):
    if len(self.errors) < _MOST_ERRORS:
      self.errors[report.nodeid] = report.longreprtext[-_LONGEST:]


def main():
  nonce = sys.stdin.readline().rstrip('\n')
  os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # Not to be read again.
  target = os.environ.pop('BOX_REPORT', '')
  file = os.fdopen(os.dup(int(target)), 'w') if target else None
  if file:
    os.close(int(target))
  write, quote = file and file.write, encoder.encode_basestring_ascii
  arguments = sys.argv[1:]
  paths = [a.partition('=')[2] for a in arguments if a.startswith('--path=')]
  arguments = [a for a in arguments if not a.startswith('--path=')]
  sys.path[0] = os.getcwd()  # In place of the folder of this file.
  sys.path[:0] = [os.path.abspath(path) for path in paths]
  os.environ['PYTEST_DISABLE_PLUGIN_AUTOLOAD'] = '1'
  recorder = Recorder()
  started = time.monotonic()
  code = int(pytest.main([*_ARGUMENTS, *arguments], [recorder]))
  if file:
    seconds = time.monotonic() - started
    write(f'{{"nonce": {quote(nonce)}, "seconds": {seconds:.6f}')
    for name, texts in (('tests', recorder.tests), ('errors', recorder.errors)):
      pairs = [f'{quote(key)}: {quote(text)}' for key, text in texts.items()]
      write(f', "{name}": {{{", ".join(pairs)}}}')
    write('}')
    file.close()
  sys.exit(code)


if __name__ == '__main__':
  main()
