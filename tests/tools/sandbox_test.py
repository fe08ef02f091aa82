"""Boxes hold what is run in them. All tests use real boxes."""

from concurrent import futures
import dataclasses
import io
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax import trajectory
from composer_jax.tools import isolation
from composer_jax.tools import sandbox
from tests.tools import processes

_CONFIG = sandbox.SandboxConfig(allow_weak=True)
_LEVEL = sandbox.probe(_CONFIG)
_LEVELS = tuple(
  level for level in sandbox.levels() if not sandbox.why_not(level, _CONFIG)
)
_ISOLATED = _LEVEL is not sandbox.Level.WEAK

_FORK_BOMB = """
import os
while True:
  try:
    os.fork()
  except OSError:
    pass
"""
_COUNT = """
import os
print(sum(name.isdigit() for name in os.listdir('/proc')))
"""


class BoxTest(parameterized.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.boxes = {level: sandbox.Box(level, _CONFIG) for level in _LEVELS}

  @classmethod
  def tearDownClass(cls):
    for box in cls.boxes.values():
      box.close()
    super().tearDownClass()

  def box(self, level=_LEVEL, **files) -> sandbox.Box:
    """A reset box with files `name.py`."""
    box = self.boxes[level]
    box.reset({f'{name}.py': text for name, text in files.items()})
    return box

  def python(self, text: str, *, seconds=5.0, level=_LEVEL, stdin=''):
    box = self.box(level, script=text)
    return box.exec(['python', 'script.py'], seconds=seconds, stdin=stdin)

  @parameterized.parameters(*_LEVELS)
  def test_script_runs_like_plain_python(self, level):
    text = 'import sys, mine\nprint(__name__, sys.argv, mine.x, input())'
    box = self.box(level, script=text, mine='x = 3')
    result = box.exec(['python', 'script.py', 'a'], seconds=5, stdin='hello\n')
    self.assertEqual(
      result.output, "__main__ ['script.py', 'a'] 3 hello\n", result
    )
    self.assertEqual(result.exit_code, 0)

  @parameterized.parameters(
    ('', 0, ''),
    ('import sys; sys.exit()', 0, ''),
    ('import sys; sys.exit(3)', 3, ''),
    ('import sys; sys.exit("why")', 1, 'why\n'),
    ('import os; os.kill(os.getpid(), 9)', -9, ''),
    (
      'def f(): return 1 / 0\nf()',
      1,
      'Traceback (most recent call last):\n'
      '  File "script.py", line 2, in <module>\n    f()\n'
      '  File "script.py", line 1, in f\n    def f(): return 1 / 0\n'
      '                    ~~^~~\n'
      'ZeroDivisionError: division by zero\n',
    ),
  )
  def test_exit_code_and_traceback_are_pythons(self, text, code, output):
    result = self.python(text)
    self.assertEqual((result.exit_code, result.output), (code, output))

  def test_syntax_error_shows_nothing_of_the_worker(self):
    result = self.python('x = = 1')
    self.assertIn('SyntaxError: invalid syntax', result.output)
    self.assertNotIn('worker', result.output)

  def test_threads_and_exit_functions_run_before_the_end(self):
    result = self.python(
      'import atexit, threading, time\n'
      'atexit.register(print, "exit")\n'
      'go = threading.Event()\n'
      'threading.Thread(target=lambda: (go.wait(), print("thread"))).start()\n'
      'threading.Timer(0.01, go.set).start()\n'
    )
    self.assertEqual(result.output, 'thread\nexit\n')

  def test_equal_runs_print_equal_sets_but_other_random_numbers(self):
    text = 'import random; print({*"abcdefgh"}, random.random())'
    with sandbox.Box(_LEVEL, _CONFIG) as other:
      other.write('script.py', text)
      other.exec(['python', 'script.py'], seconds=5)
      first = other.exec(['python', 'script.py'], seconds=5).output
    first = first.rsplit(' ', 1)
    second = self.python(text).output.rsplit(' ', 1)
    self.assertEqual(first[0], second[0])
    self.assertNotEqual(first[1], second[1])

  def test_other_commands_run_and_missing_ones_are_told(self):
    box = self.box()
    self.assertEqual(box.exec(['echo', 'hi'], seconds=5).output, 'hi\n')
    result = box.exec(['no-such-command'], seconds=5)
    self.assertEqual(result.exit_code, 127)
    self.assertIn('No such file', result.output)

  @parameterized.product(
    level=_LEVELS,
    script=(
      'sleep 98701',
      'setsid sleep 98701 & setsid sleep 98701 & wait',
      'trap "" TERM INT HUP; sleep 98701 & sleep 98701; sleep 98701',
      '(setsid sleep 98701 &) ; exec sleep 98701',
    ),
  )
  def test_timeout_leaves_no_process(self, level, script):
    box = self.box(level)
    result = box.exec(['sh', '-c', script], seconds=0.15)
    self.assertTrue(result.timed_out)
    self.assertIsNone(result.exit_code)
    self.assertLess(result.seconds, 2)
    self.assertEmpty(processes.survivors('sleep\x0098701'))

  @parameterized.parameters(*_LEVELS)
  def test_command_that_ends_leaves_no_background_process(self, level):
    box = self.box(level)
    result = box.exec(['sh', '-c', 'setsid sleep 98702 & echo x'], seconds=5)
    self.assertEqual((result.exit_code, result.output), (0, 'x\n'))
    self.assertLess(result.seconds, 4)
    self.assertEmpty(processes.survivors('sleep\x0098702'))

  def test_busy_loop_is_ended_and_its_computing_counted(self):
    result = self.python('while True: pass', seconds=0.3)
    self.assertTrue(result.timed_out)
    self.assertGreater(result.cpu_seconds, 0.01)
    self.assertLess(result.seconds, 2)

  def test_bytes_that_are_no_utf8_become_replacement_characters(self):
    box = self.box()
    result = box.exec(['printf', r'a\360b'], seconds=5)
    self.assertEqual((result.output, result.exit_code), ('a\ufffdb', 0))
    box.exec(['sh', '-c', r"printf 'c\377' > odd.txt"], seconds=5)
    self.assertEqual(box.read('odd.txt'), 'c\ufffd')

  @parameterized.parameters(*_LEVELS)
  def test_flood_of_output_is_cut_in_its_middle(self, level):
    text = 'print("first"); print("x" * 1_000_000); print("last")'
    result = self.python(text, level=level)
    kept = _CONFIG.output_bytes
    self.assertEqual(result.dropped_bytes, 6 + 1_000_001 + 5 - kept)
    self.assertStartsWith(result.output, 'first\nxxx')
    self.assertEndsWith(result.output, 'xxx\nlast\n')
    self.assertIn(f'\n[{result.dropped_bytes} bytes dropped]\n', result.output)
    self.assertLess(len(result.output), kept + 100)

  def test_endless_output_ends_with_the_time(self):
    result = self.python('while True: print("x" * 1000)', seconds=0.3)
    self.assertTrue(result.timed_out)
    self.assertLess(len(result.output), _CONFIG.output_bytes + 100)

  @absltest.skipUnless(_ISOLATED, 'weak boxes do not hold fork bombs')
  def test_fork_bomb_is_held_and_removed(self):
    box = self.box(bomb=_FORK_BOMB, count=_COUNT)
    with futures.ThreadPoolExecutor(1) as threads:
      bomb = threads.submit(box.exec, ['python', 'bomb.py'], seconds=0.5)
      most = 0
      while not bomb.done():
        most = max(
          most, int(box.exec(['python', 'count.py'], seconds=5).output)
        )
    self.assertIsNotNone(bomb.result())
    # Processes may be counted a few too many by the kernel's own races.
    self.assertBetween(most, 3, 2 * _CONFIG.processes + 8)
    # Process 1, the handler, and the counting script itself.
    self.assertEqual(box.exec(['python', 'count.py'], seconds=5).output, '3\n')

  def test_too_many_processes_are_ended_where_the_kernel_does_not_count(self):
    text = (
      'import os, time\nfor _ in range(40):\n'
      '  if not os.fork(): time.sleep(60)\ntime.sleep(60)'
    )
    result = self.python(text, seconds=30, level=sandbox.Level.WEAK)
    self.assertIn('[killed: more than 32 processes]', result.output)
    self.assertFalse(result.timed_out)

  @parameterized.parameters(*_LEVELS)
  def test_process_that_forks_and_leaves_is_caught(self, level):
    text = 'import os\nwhile True:\n  if os.fork(): os._exit(0)'
    box = self.box(level, hop=text)
    box.exec(['python', '-S', 'hop.py'], seconds=0.2)
    self.assertEmpty(processes.survivors('hop.py'))

  @parameterized.parameters(*_LEVELS)
  def test_memory_of_a_process_is_bounded(self, level):
    result = self.python('x = bytearray(1 << 30)', level=level)
    self.assertEqual(result.exit_code, 1)
    self.assertIn('MemoryError', result.output)

  def test_memory_of_many_processes_is_bounded(self):
    config = dataclasses.replace(_CONFIG, tree_bytes=120 << 20)
    text = (
      'import os, time\nfor _ in range(4): os.fork()\n'
      'x = bytearray(b"x") * (20 << 20)\ntime.sleep(60)'
    )
    with sandbox.Box(_LEVEL, config) as box:
      box.write('script.py', text)
      result = box.exec(['python', 'script.py'], seconds=20)
    self.assertIn('bytes of memory]', result.output)
    self.assertFalse(result.timed_out)
    self.assertEqual(result.exit_code, -9)

  @absltest.skipUnless(_ISOLATED, 'weak boxes write to disk')
  def test_disk_is_bounded(self):
    result = self.python(
      'import itertools, os\n'
      'for folder in ("/repo", "/tmp", "/dev/shm"):\n'
      '  try:\n'
      '    for i in itertools.count():\n'
      '      with open(f"{folder}/{i}", "wb") as f: f.write(bytes(4 << 20))\n'
      '  except OSError as e: print(e.strerror, i)\n',
      seconds=20,
    )
    self.assertEqual(
      result.output,
      'No space left on device 7\nNo space left on device 8\n'
      'No space left on device 0\n',
    )

  @absltest.skipUnless(_ISOLATED, 'weak boxes see the network')
  def test_there_is_no_network_not_even_this_machines(self):
    with socket.create_server(('127.0.0.1', 0)) as server:
      port = server.getsockname()[1]
      result = self.python(
        'import socket\n'
        f'for address in (("127.0.0.1", {port}), ("8.8.8.8", 53)):\n'
        '  try: socket.create_connection(address, 1); print("open")\n'
        '  except OSError as e: print(e.strerror)\n'
        'try: socket.socket(40, socket.SOCK_STREAM)\n'  # AF_VSOCK
        'except OSError as e: print(e.strerror)\n'
      )
    self.assertEqual(
      result.output,
      'Connection refused\nNetwork is unreachable\nOperation not permitted\n',
    )

  @absltest.skipUnless(_ISOLATED, 'weak boxes see the files')
  def test_files_of_this_machine_are_neither_read_nor_written(self):
    with tempfile.NamedTemporaryFile() as secret:
      result = self.python(
        'import os, sys\n'
        f'print(*map(os.path.exists, ({secret.name!r}, "/etc/passwd")))\n'
        f'print(os.path.exists({os.getcwd()!r}), len(os.environ) < 12)\n'
        'for folder in ("/", "/usr", "/dev", "/opt/box", sys.prefix):\n'
        '  try: open(folder + "/x", "w"); print("wrote", folder)\n'
        '  except OSError: pass\n'
        'for fd in os.listdir("/proc/self/fd"):\n'
        '  if int(fd) > 3: print("open descriptor", fd)\n'
      )
    self.assertEqual(result.output, 'False False\nFalse True\n')

  @absltest.skipUnless(_LEVEL is sandbox.Level.BWRAP_ROOT, 'root only')
  def test_every_box_has_a_user_of_its_own(self):
    text = 'import os; print(os.getuid(), os.getresuid()[2], os.getgroups())'
    with sandbox.Box(_LEVEL, _CONFIG) as other:
      other.write('script.py', text)
      second = other.exec(['python', 'script.py'], seconds=5).output
    first = self.python(text).output
    self.assertNotEqual(first, second)
    self.assertNotStartsWith(first, '0 ')
    self.assertEndsWith(first, ' []\n')

  @absltest.skipUnless(_ISOLATED, 'filters are for boxes')
  def test_new_namespaces_and_foreign_memory_are_refused(self):
    result = self.python(
      'import ctypes\nlibc = ctypes.CDLL(None)\n'
      'print(libc.unshare(0x10000000), libc.unshare(0x20000))\n'
      'print(libc.ptrace(16, 1, 0, 0), libc.shmget(1, 4096, 0o1666))\n'
      'try: open("/proc/1/mem"); print("opened")\n'
      'except PermissionError: print("refused")\n'
    )
    self.assertEqual(result.output, '-1 -1\n-1 -1\nrefused\n')

  def test_parallel_runs_do_not_disturb_each_other(self):
    box = self.box(script='import sys; print(sys.argv[1])')

    def run(i):
      seconds = 0.1 if i % 4 == 0 else 10
      if i % 4 == 0:
        return box.exec(['sleep', '98703'], seconds=seconds)
      return box.exec(['python', 'script.py', str(i)], seconds=seconds)

    with futures.ThreadPoolExecutor(8) as threads:
      results = list(threads.map(run, range(16)))
    for i, result in enumerate(results):
      self.assertEqual(result.timed_out, i % 4 == 0)
      self.assertEqual(result.output, '' if i % 4 == 0 else f'{i}\n')

  @absltest.skipUnless(_ISOLATED, 'weak boxes share their user')
  def test_code_that_kills_its_supervision_ends_alone(self):
    box = self.box(script='import os, signal; os.kill(-1, signal.SIGKILL)')
    result = box.exec(['python', 'script.py'], seconds=5)
    self.assertIsNone(result.exit_code)
    self.assertFalse(result.timed_out)
    self.assertTrue(box.alive)
    self.assertIn('SIGKILL', box.read('script.py'))

  def test_box_that_dies_under_a_command_is_the_commands_doing(self):
    with sandbox.Box(_LEVEL, _CONFIG) as box:
      box.reset({'a.txt': 'x'})
      with futures.ThreadPoolExecutor(1) as threads:
        running = threads.submit(box.exec, ['sleep', '98704'], seconds=30)
        while not processes.survivors('sleep\x0098704'):
          self.assertFalse(running.done())
        os.killpg(box._process.pid, signal.SIGKILL)
        self.assertIsNone(running.result().exit_code)
      self.assertFalse(box.alive)
      self.assertTrue(processes.wait_until_gone('sleep\x0098704'))
      with self.assertRaises(sandbox.SandboxError):
        box.exec(['true'], seconds=1)
      box.reset({'b.txt': 'y'})
      self.assertEqual(box.files(), {'b.txt': 'y'})

  @parameterized.parameters(*_LEVELS)
  def test_reset_removes_files_and_processes(self, level):
    box = self.box(level, a='1')
    box.exec(
      ['sh', '-c', 'mkdir -p b/c; ln -s / b/d; touch $TMPDIR/left b/c/e'],
      seconds=5,
    )
    box.exec(['sh', '-c', 'mkdir -p z/y; chmod 0 z'], seconds=5)
    box.reset({'p/q.py': '2'})
    self.assertEqual(box.files(), {'p/q.py': '2'})
    listing = box.exec(['sh', '-c', 'ls -A . $TMPDIR'], seconds=5).output
    self.assertNotIn('left', listing)
    self.assertTrue(os.path.exists('/usr'))

  @parameterized.parameters(*_LEVELS)
  def test_files_are_read_without_following_links_or_waiting(self, level):
    box = self.box(level, a='1')
    box.exec(
      ['sh', '-c', 'ln -s /proc/version l; mkfifo f; ln -s /proc d'], seconds=5
    )
    for path in ('l', 'f', 'd/version', '../a.py', '/proc/version', 'no', '.'):
      with self.assertRaises(OSError, msg=path):
        box.read(path)
    for path in ('l', 'f', 'd/x', '../x', '/tmp/x'):
      with self.assertRaises(OSError, msg=path):
        box.write(path, 'x')
    self.assertEqual(box.files(), {'a.py': '1'})

  def test_too_large_a_file_is_refused(self):
    box = self.box()
    box.write('big', 'x' * (_CONFIG.read_bytes + 1))
    with self.assertRaisesRegex(OSError, 'larger than 1048576 bytes'):
      box.read('big')

  @parameterized.parameters(*_LEVELS)
  def test_a_snapshot_lays_the_same_files_down_again(self, level):
    box = self.box(level, a='x = 1')
    box.exec(
      [
        'sh',
        '-c',
        "mkdir d; printf '\\377\\0' > d/raw; chmod +x d/raw; ln -s a.py l",
      ],
      seconds=5,
    )
    tree = box.snapshot()
    box.reset({'a.py': 'x = 2', 'e/f.py': ''}, tree)
    listing = box.exec(
      [
        'sh',
        '-c',
        'find . -type f -o -type l | sort; od -An -tx1 d/raw; cat a.py',
      ],
      seconds=5,
    )
    self.assertEqual(listing.output, './a.py\n./d/raw\n./e/f.py\n ff 00\nx = 2')
    self.assertEqual(box.exec(['test', '-x', 'd/raw'], seconds=5).exit_code, 0)
    box.reset({}, tree)
    self.assertEqual(box.snapshot(), tree)

  @parameterized.parameters(*_LEVELS)
  def test_a_tree_cannot_lead_out_of_the_repository(self, level):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode='w') as archive:
      archive.addfile(tarfile.TarInfo('../escaped'))
    with self.assertRaisesRegex(sandbox.SandboxError, 'plain relative path'):
      self.boxes[level].reset({}, data.getvalue())

  @parameterized.parameters(*_LEVELS)
  def test_a_report_is_kept_apart_from_the_output(self, level):
    text = """
import os
print('said')
os.write(int(os.environ['BOX_REPORT']), b'written')
"""
    box = self.box(level, script=text)
    result = box.exec(['python', 'script.py'], seconds=5, report=True)
    self.assertEqual((result.output, result.report), ('said\n', 'written'))
    result = box.exec(['python', 'script.py'], seconds=5)
    self.assertIn('KeyError', result.output)

  @parameterized.parameters(*_LEVELS)
  def test_close_leaves_neither_process_nor_folder(self, level):
    mark = f'{time.time_ns() / 1e6!r}'
    config = dataclasses.replace(_CONFIG, wait_seconds=float(mark))
    box = sandbox.Box(level, config)
    self.assertNotEmpty(processes.survivors(mark))
    folders = _folders(os.getpid())
    box.exec(['sh', '-c', 'mkdir -p locked/inner; chmod 0 locked'], seconds=5)
    box.close()
    self.assertEmpty(processes.survivors(mark))
    if level in (sandbox.Level.WEAK, sandbox.Level.UNSHARE):
      self.assertLen(_folders(os.getpid()), len(folders) - 1)
    with self.assertRaises(sandbox.SandboxError):
      box.reset({})

  @parameterized.product(level=_LEVELS, boxes_before=(0, 1, 3))
  def test_killed_parent_leaves_nothing(self, level, boxes_before):
    mark = f'{time.time_ns() / 1e6!r}'
    script = (
      'import dataclasses, sys\n'
      'from composer_jax.tools import sandbox\n'
      f'config = sandbox.SandboxConfig(wait_seconds={mark})\n'
      'kept = []\nwhile len(kept) < 9:\n'
      '  print("starting", flush=True)\n'
      f'  kept.append(sandbox.Box(sandbox.Level({level.value!r}), config))\n'
    )
    with subprocess.Popen(
      [sys.executable, '-c', script], stdout=subprocess.PIPE
    ) as parent:
      for _ in range(boxes_before + 1):
        self.assertEqual(parent.stdout.readline(), b'starting\n')
      parent.send_signal(signal.SIGKILL)
    self.assertTrue(processes.wait_until_gone(mark))
    sandbox.reap_stale()
    self.assertEmpty(_folders(parent.pid))


def _folders(pid: int) -> list[pathlib.Path]:
  return list(
    pathlib.Path(tempfile.gettempdir()).glob(f'composer_jax-box-{pid}-*')
  )


class BoxPoolTest(absltest.TestCase):
  def test_boxes_are_shared_by_many_threads_and_outlive_them(self):
    with sandbox.BoxPool(3, _CONFIG, _LEVEL) as pool:
      seen = set()

      def use(i):
        with pool.box() as box:
          box.reset({'n.py': f'print({i})'})
          seen.add(box)
          return box.exec(['python', 'n.py'], seconds=20).output

      results = [None] * 64
      threads = [
        threading.Thread(target=lambda i=i: results.__setitem__(i, use(i)))
        for i in range(64)
      ]
      for thread in threads:
        thread.start()
      for thread in threads:
        thread.join()
      self.assertEqual(results, [f'{i}\n' for i in range(64)])
      # The threads that first wanted these boxes are gone, the boxes are not.
      self.assertLessEqual(len(seen), 3)
      self.assertTrue(all(box.alive for box in seen))
    self.assertFalse(any(box.alive for box in seen))

  def test_wait_for_a_box_is_bounded_and_says_why(self):
    config = dataclasses.replace(_CONFIG, wait_seconds=0.05)
    with sandbox.BoxPool(1, config, _LEVEL) as pool:
      with pool.box():
        with self.assertRaisesRegex(
          sandbox.SandboxError, 'none of 1 boxes came free within 0.05 s'
        ):
          with pool.box():
            pass
      with pool.box() as box:
        box.ping()

  def test_dead_box_is_replaced(self):
    with sandbox.BoxPool(1, _CONFIG, _LEVEL) as pool:
      with pool.box() as first:
        os.killpg(first._process.pid, signal.SIGKILL)
        first._process.wait()
      with pool.box() as second:
        second.ping()
      self.assertIsNot(first, second)

  def test_closing_is_no_result_for_a_running_command(self):
    pool = sandbox.BoxPool(1, _CONFIG, _LEVEL)

    def use():
      with pool.box() as box:
        return box.exec(['sleep', '98705'], seconds=30)

    with futures.ThreadPoolExecutor(1) as threads:
      running = threads.submit(use)
      while not processes.survivors('sleep\x0098705'):
        self.assertFalse(running.done())
      pool.close()
      with self.assertRaises(sandbox.SandboxError):
        running.result()
    self.assertTrue(processes.wait_until_gone('sleep\x0098705'))
    with self.assertRaisesRegex(sandbox.SandboxError, 'closed'):
      with pool.box():
        pass

  def test_folders_of_dead_runs_are_removed(self):
    process = subprocess.Popen(['true'])
    process.wait()
    folder = tempfile.mkdtemp(prefix=f'composer_jax-box-{process.pid}-')
    mine = tempfile.mkdtemp(prefix=f'composer_jax-box-{os.getpid()}-')
    self.addCleanup(os.rmdir, mine)
    with sandbox.BoxPool(1, _CONFIG, _LEVEL):
      self.assertFalse(os.path.exists(folder))
      self.assertTrue(os.path.exists(mine))


class ProbeTest(absltest.TestCase):
  def hide(self, *finders):
    for name in finders:
      self.enter_context(
        absltest.mock.patch.object(isolation, name, lambda: None)
      )

  def test_weak_alone_is_refused_with_the_flag_that_accepts_it(self):
    self.hide('find_bwrap', 'find_unshare')
    with self.assertRaisesRegex(
      sandbox.SandboxError, r'bubblewrap.*--set sandbox\.allow_weak=true'
    ):
      sandbox.probe(sandbox.SandboxConfig())
    weak = sandbox.probe(sandbox.SandboxConfig(allow_weak=True))
    self.assertIs(weak, sandbox.Level.WEAK)
    with self.assertRaises(trajectory.InfrastructureError):
      sandbox.Box(sandbox.Level.UNSHARE, _CONFIG)
    self.assertEmpty(_folders(os.getpid()))

  @absltest.skipIf(
    sandbox.why_not(sandbox.Level.UNSHARE, _CONFIG), 'no namespaces here'
  )
  def test_without_bubblewrap_namespaces_isolate(self):
    self.hide('find_bwrap')
    level = sandbox.probe(sandbox.SandboxConfig())
    self.assertIs(level, sandbox.Level.UNSHARE)


if __name__ == '__main__':
  absltest.main()
