"""Runs many variants of one repository in a box, each in a fork of its own.

This file runs inside a box, on its own and from the standard library and pytest
alone. Pytest is imported once, and what is compiled is kept from fork to fork:
that is most of what a short run costs. None of the tested code is ever imported
outside the forks, and every file that is laid has a time of its own, so that no
compiled file is taken for another's.

Standard input is a JSON list of jobs:

    files      {path: text}, laid over /repo for this job and taken back after
    arguments  of pytest
    paths      put in front of the import path
    only       node ids that are run of those collected; null: all
    cpu        seconds of processor time, whole; beyond them the job hangs
    wall       seconds on the clock, likewise
    trace      also report which functions each test executed

One JSON list of answers goes to the file that BOX_REPORT names: `tests` (node
id: passed, failed, error, skipped), `errors` (node id: end of the traceback),
`seconds` (node id: wall clock), `cpu` (of the whole job), `executed` (see
`Tracer`), `processes` (node ids that started some), or null: the job hung or
died.
"""

import collections
import gc
import importlib
import itertools
import json
import os
import resource
import select
import signal
import sys
import threading
import time

from _pytest import config as pytest_config
import pytest

_LONGEST = 600  # Characters of one traceback; its end is kept.
_MOST_ERRORS = 10  # Tracebacks kept.
_FIRST_TIME = 1_000_000_000  # Of files that were laid, in seconds.
_times = itertools.count(_FIRST_TIME)
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
  """A plugin that keeps how each test ended and how long it took."""

  def __init__(self, only):
    self.only = None if only is None else frozenset(only)
    self.tests = {}
    self.errors = {}
    self.seconds = collections.Counter()

  def pytest_collection_modifyitems(self, config, items):
    if self.only is not None:
      left = [item for item in items if item.nodeid not in self.only]
      items[:] = [item for item in items if item.nodeid in self.only]
      config.hook.pytest_deselected(items=left)

  def pytest_runtest_logreport(self, report):
    known = self.tests.get(report.nodeid)
    self.seconds[report.nodeid] += report.duration
    if report.failed:
      self.tests[report.nodeid] = 'failed' if report.when == 'call' else 'error'
      self.keep(report)
    elif report.skipped and known is None:
      self.tests[report.nodeid] = 'skipped'
    elif report.when == 'call' and known is None:
      self.tests[report.nodeid] = 'passed'

  def pytest_collectreport(self, report):
    if report.failed:
      self.tests[report.nodeid] = 'error'
      self.keep(report)

  def keep(self, report):
    if len(self.errors) < _MOST_ERRORS:
      self.errors[report.nodeid] = report.longreprtext[-_LONGEST:]


class Tracer:
  """A plugin that notes which code objects run in which test.

  `executed` maps 'path:first line' to indices in `order`, the node ids. Index
  -1 stands for everything outside of single tests: imports, collection, and
  fixtures that several tests share.
  """

  def __init__(self):
    self.order = []
    self.executed = collections.defaultdict(set)
    self.processes = set()
    self.here = -1
    self.root = os.getcwd() + os.sep

  def start(self):
    sys.addaudithook(self.audit)
    threading.setprofile(self.profile)
    sys.setprofile(self.profile)

  def profile(self, frame, event, unused):
    if event == 'call':
      code = frame.f_code
      if code.co_filename.startswith(self.root):
        self.executed[code].add(self.here)

  def audit(self, event, unused):
    if event in ('subprocess.Popen', 'os.fork', 'os.exec', 'os.posix_spawn'):
      self.processes.add(self.here)

  @pytest.hookimpl(wrapper=True)
  def pytest_runtest_protocol(self, item):
    self.here = len(self.order)
    self.order.append(item.nodeid)
    sys.setprofile(self.profile)  # A test may have set its own.
    try:
      return (yield)
    finally:
      self.here = -1

  @pytest.hookimpl(wrapper=True)
  def pytest_fixture_setup(self, fixturedef):
    before = self.here
    if fixturedef.scope != 'function':
      self.here = -1
    try:
      return (yield)
    finally:
      self.here = before

  def report(self):
    merged = collections.defaultdict(set)
    for code, tests in self.executed.items():
      path = code.co_filename.removeprefix(self.root)
      merged[f'{path}:{code.co_firstlineno}'] |= tests
    return {
      'order': self.order,
      'executed': {place: sorted(tests) for place, tests in merged.items()},
      'processes': sorted(self.processes),
    }


def run(job, target):
  """Runs the job in this process, and ends it."""
  os.setpgid(0, 0)
  resource.setrlimit(resource.RLIMIT_CPU, (job['cpu'], job['cpu'] + 1))
  nothing = os.open(os.devnull, os.O_RDWR)
  for fd in (0, 1, 2):
    os.dup2(nothing, fd)
  sys.path[0] = os.getcwd()
  sys.path[:0] = [os.path.abspath(path) for path in job['paths']]
  recorder = Recorder(job['only'])
  plugins = [recorder]
  tracer = Tracer()
  if job['trace']:
    plugins.append(tracer)
    tracer.start()
  pytest.main([*_ARGUMENTS, *job['arguments']], plugins)
  sys.setprofile(None)
  answer = {
    'tests': recorder.tests,
    'errors': recorder.errors,
    'seconds': {i: round(s, 4) for i, s in recorder.seconds.items()},
    'cpu': time.process_time(),
    **tracer.report(),
  }
  with os.fdopen(target, 'w') as file:
    json.dump(answer, file)
  os._exit(0)


def lay(files):
  """Writes the files; what was there before (None: nothing)."""
  before = {}
  for path, text in files.items():
    try:
      with open(path, 'rb') as file:
        before[path] = file.read()
    except FileNotFoundError:
      before[path] = None
    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
    write(path, text.encode())
  return before


def write(path, data):
  with open(path, 'wb') as file:
    file.write(data)
  now = next(_times)
  os.utime(path, (now, now))


def restore(before):
  for path, data in before.items():
    if data is None:
      os.unlink(path)
    else:
      write(path, data)


def warm():
  """Imports what pytest would import in every fork."""
  for name in pytest_config.default_plugins:
    importlib.import_module(f'_pytest.{name}')
  sys.dont_write_bytecode = False
  gc.freeze()


def wait(child, source, wall):
  """What the child wrote before it ended or its time did."""
  deadline = time.monotonic() + wall
  parts = []
  while True:
    left = deadline - time.monotonic()
    if left <= 0 or not select.select([source], [], [], left)[0]:
      break
    data = os.read(source, 1 << 16)
    if not data:
      break
    parts.append(data)
  try:
    os.killpg(child, signal.SIGKILL)
  except ProcessLookupError:
    pass
  os.waitpid(child, 0)
  return b''.join(parts)


def answer(job):
  """Runs one job in a fork; None if it hung or died."""
  before = lay(job['files'])
  source, target = os.pipe()
  child = os.fork()
  if not child:
    try:
      os.close(source)
      run(job, target)
    finally:
      os._exit(1)
  os.close(target)
  text = wait(child, source, job['wall'])
  os.close(source)
  restore(before)
  try:
    return json.loads(text)
  except ValueError:
    return None


def main():
  jobs = json.load(sys.stdin)
  target = int(os.environ.pop('BOX_REPORT'))
  os.environ['PYTEST_DISABLE_PLUGIN_AUTOLOAD'] = '1'
  warm()
  answers = [answer(job) for job in jobs]
  with os.fdopen(target, 'w') as file:
    json.dump(answers, file)


if __name__ == '__main__':
  main()
