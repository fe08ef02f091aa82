"""Sessions of bash and copies of boxes. All tests use real boxes."""

from concurrent import futures
import pathlib
import sys
import tempfile
import time

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.tools import libraries
from composer_jax.tools import sandbox
from tests.tools import processes

_CONFIG = sandbox.SandboxConfig(allow_weak=True)
_LEVEL = sandbox.probe(_CONFIG)
_LEVELS = tuple(
  level for level in sandbox.levels() if not sandbox.why_not(level, _CONFIG)
)
_RESTARTED = '[the shell was restarted]'


class ShellTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.boxes = {level: sandbox.Box(level, _CONFIG) for level in _LEVELS}

  @classmethod
  def tearDownClass(cls):
    for box in cls.boxes.values():
      box.close()
    super().tearDownClass()

  def shell(self, level=_LEVEL, **files) -> sandbox.Shell:
    """A session in a reset box with files `name.py`."""
    box = self.boxes[level]
    box.reset({f'{name}.py': text for name, text in files.items()})
    return self.enter_context(box.shell())

  def said(self, shell, command, seconds=10.0) -> str:
    return shell.exec(command, seconds=seconds).output

  @parameterized.parameters(*_LEVELS)
  def test_folder_variables_functions_and_options_stay(self, level):
    shell = self.shell(level)
    self.said(shell, 'mkdir -p d && cd d; x=3; f() { echo "f$1"; }')
    self.said(shell, 'shopt -s nullglob; export y=4')
    result = shell.exec(
      'basename "$PWD"; echo $x; f 9; echo *.c; sh -c "echo $y"', seconds=10
    )
    self.assertEqual(result.output, 'd\n3\nf9\n\n4\n')
    self.assertEqual(result.exit_code, 0)
    self.assertFalse(result.timed_out)

  @parameterized.parameters(
    ('true', 0, ''),
    ('(exit 7)', 7, ''),
    ('no-such-command', 127, 'bash: no-such-command: command not found\n'),
    ('sh -c "kill -9 \\$\\$"', 137, 'Killed\n'),
    ('echo out; echo err >&2; echo out', 0, 'out\nerr\nout\n'),
    ('cat; read x; echo "$?"', 0, '1\n'),
    ('printf "a\\360b"', 0, 'a\ufffdb'),
    ('echo "!!" $# "a b"', 0, '!! 1 a b\n'),
    ('', 0, ''),
    ('# nothing', 0, ''),
    ("cat <<'E'\n$x 'y\nE", 0, "$x 'y\n"),
  )
  def test_status_and_output_are_bashs(self, command, code, output):
    result = self.shell().exec(command, seconds=10)
    self.assertEqual((result.exit_code, result.output), (code, output))

  @parameterized.parameters('echo "', "echo '", 'if true', '(', 'cat <<E', '$(')
  def test_unfinished_command_is_an_error_and_not_a_wait(self, command):
    shell = self.shell()
    result = shell.exec(command, seconds=10)
    self.assertFalse(result.timed_out)
    self.assertRegex(result.output, 'bash: .*(unexpected|here-document|end)')
    self.assertEqual(self.said(shell, 'echo next'), 'next\n')

  @parameterized.parameters(*_LEVELS)
  def test_job_in_the_background_holds_no_call_and_speaks_later(self, level):
    shell = self.shell(level)
    result = shell.exec('sleep 98711 & echo hi', seconds=30)
    self.assertEqual((result.exit_code, result.output), (0, 'hi\n'))
    self.assertLess(result.seconds, 10)
    self.said(shell, '(until [ -e go ]; do sleep 0.01; done; echo late) &')
    self.assertEqual(self.said(shell, 'jobs -pr | wc -l'), '2\n')
    self.assertIn('late\n', self.said(shell, 'touch go; wait %2'))
    self.assertLen(processes.survivors('sleep\x0098711'), 1)
    shell.close()
    self.boxes[level].ping()
    deadline = time.monotonic() + 10
    while processes.survivors('sleep\x0098711') and time.monotonic() < deadline:
      pass
    self.assertEmpty(processes.survivors('sleep\x0098711'))

  def test_flood_in_the_background_neither_holds_nor_starves_a_call(self):
    shell = self.shell()
    self.assertFalse(shell.exec('yes flood &', seconds=10).timed_out)
    result = shell.exec('kill %1; wait; echo done', seconds=10)
    self.assertFalse(result.timed_out)
    self.assertIn('done\n', result.output)
    self.assertLess(len(result.output), _CONFIG.output_bytes + 200)

  @parameterized.product(
    level=_LEVELS,
    command=(
      'while :; do :; done',
      'sleep 98712; echo no; sleep 98712',
      'for i in 1 2 3; do sleep 98712; done',
      'sleep 98712 | cat | cat',
      'sh -c \'trap "" INT TERM; sleep 98712; sleep 98712\'',
      'sleep 98712 & wait; kill %2',
      'python3 -c "while True: pass"',
    ),
  )
  def test_timeout_ends_the_command_and_not_the_session(self, level, command):
    shell = self.shell(level)
    self.said(shell, 'x=kept; sleep 98713 &')
    result = shell.exec(command, seconds=0.2)
    self.assertTrue(result.timed_out)
    self.assertIsNone(result.exit_code)
    self.assertLess(result.seconds, 9)
    self.assertEqual(self.said(shell, 'echo $x'), 'kept\n')
    self.assertIn('sleep 98713', self.said(shell, 'jobs -r'))

  @parameterized.parameters(*_LEVELS)
  def test_shell_that_heeds_nothing_is_restarted_and_says_so(self, level):
    shell = self.shell(level)
    self.said(shell, 'sleep 98714 & x=lost')
    command = "echo a; trap '' TERM INT HUP; while :; do :; done"
    result = shell.exec(command, seconds=0.2)
    self.assertTrue(result.timed_out)
    self.assertEqual(result.output, f'a\n\n{_RESTARTED}')
    self.assertEmpty(processes.survivors('sleep\x0098714'))
    self.assertEqual(self.said(shell, 'echo "$x."'), '.\n')

  @parameterized.parameters(
    'exit 3', 'sleep 98715 & exit 3', 'set -e; (exit 3)'
  )
  def test_exit_ends_the_session_and_the_next_call_says_so(self, command):
    shell = self.shell()
    result = shell.exec(f'cd /usr; echo bye; {command}', seconds=10)
    self.assertEqual((result.exit_code, result.output), (3, 'bye\n'))
    self.assertEmpty(processes.survivors('sleep\x0098715'))
    self.assertEqual(self.said(shell, 'pwd'), f'{_RESTARTED}\n/repo\n')
    self.assertEqual(self.said(shell, 'pwd'), '/repo\n')

  @parameterized.parameters(
    ('exec 1>&- 2>&- 0<&-; echo lost', ''),
    ('exec >file 2>&1; echo there', ''),
    ('kill -STOP $$; echo on', 'on\n'),
    ('trap "" TERM INT; kill -TERM $$; kill -INT $$; echo on', 'on\n'),
    ('unset PATH; echo on', 'on\n'),
    ('set -u; echo $never', 'bash: never: unbound variable\n'),
  )
  def test_session_outlives_what_a_command_does_to_it(self, command, output):
    shell = self.shell()
    self.assertIn(output, self.said(shell, command))
    self.assertEqual(self.said(shell, 'echo next'), 'next\n')

  @absltest.skipIf(_LEVEL is sandbox.Level.WEAK, 'weak boxes share their user')
  def test_killing_everything_costs_the_session_alone(self):
    shell = self.shell(kept='x = 1')
    result = shell.exec('kill -9 -1', seconds=10)
    self.assertIsNone(result.exit_code)
    self.assertIn(_RESTARTED, result.output)
    self.assertEqual(self.said(shell, 'ls'), f'{_RESTARTED}\nkept.py\n')

  def test_memory_of_what_runs_in_the_background_is_bounded(self):
    hog = 'x = bytearray(b"x") * (200 << 20)\nwhile True: pass'
    shell = self.shell(hog=hog)
    self.said(shell, 'for i in 1 2 3; do python3 hog.py & done')
    result = shell.exec('wait', seconds=30)
    self.assertIn('bytes of memory]', result.output)
    self.assertIn(_RESTARTED, result.output)
    self.assertFalse(result.timed_out)

  def test_flood_of_output_is_cut_in_its_middle(self):
    result = self.shell().exec('echo a; yes | head -c 1000000', seconds=20)
    self.assertEqual(result.dropped_bytes, 1000002 - _CONFIG.output_bytes)
    self.assertStartsWith(result.output, 'a\ny\n')
    self.assertLess(len(result.output), _CONFIG.output_bytes + 100)

  def test_large_command_arrives_whole(self):
    text = 'x' * 300_000
    shell = self.shell()
    self.assertEqual(self.said(shell, f'echo {text} | wc -c'), '300001\n')

  def test_commands_see_no_descriptor_of_the_session(self):
    self.assertEqual(
      self.said(self.shell(), 'ls /proc/self/fd'), '0\n1\n2\n3\n'
    )

  @parameterized.parameters(*_LEVELS)
  def test_reset_ends_the_session_and_a_later_call_says_so(self, level):
    shell = self.shell(level)
    self.said(shell, 'x=3; (setsid sleep 98716 &)')
    self.assertTrue(shell.alive)
    self.boxes[level].reset({})
    self.assertFalse(shell.alive)
    self.assertEmpty(processes.survivors('sleep\x0098716'))
    self.assertEqual(self.said(shell, 'echo "$x."'), f'{_RESTARTED}\n.\n')
    self.assertTrue(shell.alive)

  def test_sessions_are_apart_and_share_the_files(self):
    first = self.shell()
    with self.boxes[_LEVEL].shell() as second:
      self.said(first, 'x=1; echo a > shared; cd /tmp')
      self.assertEqual(self.said(second, 'echo "$x"; cat shared'), '\na\n')
      second.close()
      with self.assertRaisesRegex(sandbox.SandboxError, 'closed'):
        second.exec('true', seconds=1)
    self.assertEqual(self.said(first, 'pwd; echo $x'), '/tmp\n1\n')

  def test_calls_of_many_threads_take_turns(self):
    shell = self.shell()
    with futures.ThreadPoolExecutor(4) as threads:
      outputs = threads.map(
        lambda i: self.said(shell, f'n=$((n + 1)); echo {i}'), range(16)
      )
    self.assertEqual(list(outputs), [f'{i}\n' for i in range(16)])
    self.assertEqual(self.said(shell, 'echo $n'), '16\n')

  def test_computing_of_jobs_and_commands_is_counted(self):
    result = self.shell().exec('python3 -c "while True: pass"', seconds=1)
    self.assertGreater(result.cpu_seconds, 0)

  def test_box_that_ends_is_no_result(self):
    box = sandbox.Box(_LEVEL, _CONFIG)
    shell = box.shell()
    with futures.ThreadPoolExecutor(1) as threads:
      running = threads.submit(shell.exec, 'sleep 98717', seconds=30)
      while not processes.survivors('sleep\x0098717'):
        self.assertFalse(running.done())
      box.close()
      with self.assertRaises(sandbox.SandboxError):
        running.result()


class ForkTest(parameterized.TestCase):
  @parameterized.parameters(*_LEVELS)
  def test_fork_has_the_files_as_they_are_now_and_a_life_of_its_own(
    self, level
  ):
    with sandbox.Box(level, _CONFIG) as box:
      box.reset({'a.py': '1', 'p/q.py': '2'})
      with box.shell() as shell:
        shell.exec(
          'echo new > a.py; rm p/q.py; mkdir -p e/f; ln -s a.py l; ln -s / r;'
          ' chmod +x a.py; touch -d @1000 a.py p; mkfifo pipe; chmod 500 e;'
          ' head -c 3000000 /dev/zero > big; sleep 98718 &',
          seconds=10,
        )
        look = ['sh', '-c', 'find * ! -type p -printf "%p %y %m %l %s\n"|sort']
        before = box.exec(look, seconds=10).output
        with box.fork() as other:
          self.assertEqual(other.exec(look, seconds=10).output, before)
          times = other.exec(['stat', '-c', '%Y', 'a.py', 'p'], seconds=5)
          self.assertEqual(times.output, '1000\n1000\n')
          other.write('a.py', 'other')
          self.assertLen(processes.survivors('sleep\x0098718'), 1)
        self.assertEqual(box.read('a.py'), 'new\n')
        self.assertTrue(shell.alive)

  def test_pool_lends_forks(self):
    with sandbox.BoxPool(2, _CONFIG, _LEVEL) as pool:
      with pool.box() as box:
        box.reset({'a': '1'})
        with pool.fork(box) as other:
          self.assertIsNot(box, other)
          self.assertEqual(other.files(), {'a': '1'})
          other.write('a', '2')
        self.assertEqual(box.files(), {'a': '1'})


class ProgramsTest(parameterized.TestCase):
  """What a developer types is there, and nothing of this machine's Python."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    packages = pathlib.Path(cls.folder, 'packages')
    libraries.collect(['pytest'], packages)
    cls.config = sandbox.SandboxConfig(allow_weak=True, libraries=str(packages))

  @parameterized.parameters(*_LEVELS)
  def test_python_pytest_ruff_and_ripgrep_are_on_the_path(self, level):
    with sandbox.Box(level, self.config) as box:
      box.reset(
        {'a.py': 'import os\n', 'a_test.py': 'def test_a():\n  assert 1\n'}
      )
      with box.shell() as shell:
        said = lambda command: shell.exec(command, seconds=60).output
        version = f'Python {sys.version.split()[0]}\n'
        self.assertEqual(said('python --version'), version)
        self.assertEqual(said('python3 --version'), version)
        self.assertEqual(said('rg -l import'), 'a.py\n')
        self.assertIn('F401', said('ruff check a.py'))
        self.assertIn('1 passed', said('pytest -q a_test.py'))
        self.assertIn('1 passed', said('python -m pytest -q a_test.py'))
        if level is not sandbox.Level.WEAK:  # Else plugins may leave traces.
          self.assertEqual(said('echo $(ls -A)'), 'a.py a_test.py\n')

  @absltest.skipIf(_LEVEL is sandbox.Level.WEAK, 'weak boxes see everything')
  def test_packages_of_this_machine_are_hidden(self):
    with sandbox.Box(_LEVEL, self.config) as box:
      count = 'import importlib.metadata as m; print(*sorted({d.name for d in'
      result = box.exec(
        ['python', '-c', f'{count} m.distributions()}}))'], seconds=20
      )
    self.assertEqual(
      result.output, 'Pygments iniconfig packaging pluggy pytest\n'
    )


if __name__ == '__main__':
  absltest.main()
