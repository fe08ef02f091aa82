"""What code of a policy might try against its box, as data.

A case is a script and a check of what it reached. Scripts print a line that
starts with ESCAPED when they succeed; checks look at the box from outside.
Tests run every case at every level that isolates, and a benchmark counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import dataclasses
import pathlib
import time

from composer_jax.tools import sandbox

SLEEP = 'sleep 98799'  # How scripts leave something behind.
_CALLS = 10_000


@dataclasses.dataclass(frozen=True)
class Case:
  """One thing to try; `check` says how it broke out, '' if it was held."""

  name: str
  script: str
  language: str = 'python'  # Or 'sh', or 'session'.
  seconds: float = 10.0
  check: Callable[[sandbox.RunResult, sandbox.Box], str] = lambda result, box: (
    ''
  )


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What became of a case, the box, and the machine."""

  name: str
  escaped: str  # '' if it was held.
  survivors: int  # Processes that outlived a reset.
  result: sandbox.RunResult


def attempt(box: sandbox.Box, case: Case) -> Outcome:
  """Runs a case in a reset box, and resets the box again.

  Raises:
    sandbox.SandboxError: the box can be used no more.
  """
  box.reset({'case.py': case.script})
  if case.language == 'session':
    with box.shell() as shell:
      result = shell.exec(case.script, seconds=case.seconds)
  else:
    command = {
      'python': ['python', 'case.py'],
      'sh': ['bash', '-c', case.script],
    }
    result = box.exec(command[case.language], seconds=case.seconds)
  escaped = '; '.join(
    line for line in result.output.splitlines() if line.startswith('ESCAPED')
  )
  if box.alive:
    escaped = escaped or case.check(result, box)
  box.reset({'alive.py': 'print("alive")'})
  survivors = len(list(_left(box)))
  if box.exec(['python', 'alive.py'], seconds=10).output != 'alive\n':
    escaped = escaped or 'the box does not work any more'
  return Outcome(case.name, escaped, survivors, result)


def processes(mark: str) -> Iterator[int]:
  """Processes of this machine whose command line contains `mark`."""
  for folder in pathlib.Path('/proc').glob('[0-9]*'):
    try:
      line = (folder / 'cmdline').read_bytes().replace(b'\0', b' ')
    except OSError:
      continue
    if mark.encode() in line:
      yield int(folder.name)


def _left(box: sandbox.Box) -> Iterator[str]:
  """What runs in a reset box beside process 1, and sleepers of this machine."""
  yield from map(str, processes(SLEEP))
  listing = box.exec(['sh', '-c', 'echo /proc/[0-9]*'], seconds=10).output
  # Process 1, the handler, and the shell that looks.
  yield from listing.split()[3:]


def _is_small(result: sandbox.RunResult, box: sandbox.Box) -> str:
  del box
  return 'output without a bound' if len(result.output) > 1 << 16 else ''


def _reads_nothing_outside(result: sandbox.RunResult, box: sandbox.Box) -> str:
  """Every way of reading files back stays inside."""
  del result
  texts = [*box.files().values(), box.snapshot().decode('latin-1')]
  for path in ('link', 'folder/status', '../etc/passwd', '/etc/passwd', 'hard'):
    try:
      texts.append(box.read(path))
    except OSError:
      pass
    try:
      box.write(path, 'x')
      if path != 'hard':
        return f'wrote {path}'
    except OSError:
      pass
  return 'read a linked file' if any('root:' in t for t in texts) else ''


def _can_be_read_back(result: sandbox.RunResult, box: sandbox.Box) -> str:
  """Whatever the tree looks like, reading it ends, and in good order."""
  del result
  box.files()
  tree = box.snapshot()
  with box.fork() as other:
    other.reset({}, tree)
  return ''


def _calls_are_quick(result: sandbox.RunResult, box: sandbox.Box) -> str:
  """Many tiny calls, in a session and apart; nothing piles up."""
  del result
  started = time.monotonic()
  with box.shell() as shell:
    for i in range(_CALLS):
      answer = shell.exec(f'echo {i}', seconds=10)
      if answer.output != f'{i}\n':
        return f'call {i} said {answer.output!r}'
  for _ in range(_CALLS // 100):
    box.exec(['true'], seconds=10)
  count = box.exec(['sh', '-c', 'echo /proc/[0-9]*'], seconds=10).output
  if len(count.split()) > 3:
    return f'processes pile up: {count}'
  seconds = time.monotonic() - started
  return f'{_CALLS} calls took {seconds:.0f} s' if seconds > 600 else ''


def _disk_is_bounded(result: sandbox.RunResult, box: sandbox.Box) -> str:
  del result
  used = box.exec(['df', '-k', '--output=used', '/repo', '/tmp'], seconds=10)
  kilobytes = sum(int(x) for x in used.output.split() if x.isdigit())
  return f'{kilobytes} KB of disk' if kilobytes > 128 << 10 else ''


def _few_inodes(result: sandbox.RunResult, box: sandbox.Box) -> str:
  del result
  used = box.exec(['df', '--output=iused', '/repo', '/tmp'], seconds=10)
  count = sum(int(x) for x in used.output.split() if x.isdigit())
  return f'{count} inodes' if count > 300_000 else ''


def _killed_for_memory(result: sandbox.RunResult, box: sandbox.Box) -> str:
  del box
  held = 'bytes of memory]' in result.output or 'MemoryError' in result.output
  return '' if held else f'memory was not bounded: {result}'


_TRY = """
import ctypes, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, f):
  try:
    value = f()
  except (OSError, ValueError) as error:
    return
  if value != -1:
    print('ESCAPED', name, value)
def call(number, *arguments):
  return libc.syscall(number, *arguments)
"""

RESOURCES = (
  Case(
    'fork bomb of python',
    'import os\nwhile True:\n  try: os.fork()\n  except OSError: pass',
    seconds=1,
  ),
  Case('fork bomb of the shell', ':(){ :|:& };:', 'sh', seconds=1),
  Case('fork bomb in a session', ':(){ :|:& };:; sleep 1', 'session'),
  Case(
    'fork and leave',
    'import os\nwhile True:\n  if os.fork(): os._exit(0)',
    seconds=1,
  ),
  Case(
    'thread bomb',
    'import threading, time\n'
    'try:\n  while True: threading.Thread(target=time.sleep, args=(9,),'
    ' daemon=True).start()\nexcept RuntimeError: pass',
    seconds=2,
  ),
  Case(
    'memory of one process', 'x = bytearray(1 << 30)', check=_killed_for_memory
  ),
  Case(
    'memory of many processes',
    'import os, time\nfor _ in range(4): os.fork()\n'
    'x = bytearray(b"x") * (150 << 20)\ntime.sleep(60)',
    seconds=60,
    check=_killed_for_memory,
  ),
  Case(
    'memory of jobs in the background',
    'for i in 1 2 3 4 5; do python -c \'x = bytearray(b"x") * (200 << 20)\n'
    "while True: pass' & done; wait",
    'session',
    seconds=60,
    check=_killed_for_memory,
  ),
  Case(
    'disk',
    'for d in /repo /tmp /dev/shm; do for i in $(seq 30); do'
    ' head -c 8000000 /dev/zero > $d/$i; done; done 2>/dev/null',
    'sh',
    check=_disk_is_bounded,
  ),
  Case(
    'inodes',
    'import itertools, os\nfor i in itertools.count():\n'
    '  if i % 1000 == 0: os.mkdir(f"/tmp/{i // 1000}")\n'
    '  open(f"/tmp/{i // 1000}/{i}", "w").close()',
    seconds=30,
    check=_few_inodes,
  ),
  Case(
    'sparse file',
    'f = open("big", "wb")\n'
    'try:\n  f.truncate(1 << 40); print("ESCAPED a file of 1 TB")\n'
    'except OSError: pass',
    check=_can_be_read_back,
  ),
  Case('output', 'yes | head -c 300000000', 'sh', 20, _is_small),
  Case('output for ever', 'exec yes', 'sh', 1, _is_small),
  Case('output of a job', 'yes & sleep 1', 'session', check=_is_small),
  Case(
    'descriptors',
    'import os, socket\nkept = []\n'
    'try:\n  while True: kept.append(socket.socketpair())\n'
    'except OSError: pass\n'
    'if len(kept) > 4096: print("ESCAPED", len(kept))',
  ),
  Case(
    'limits upward',
    'import resource\nfor name in (resource.RLIMIT_AS, resource.RLIMIT_CPU,'
    ' resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CORE):\n'
    '  try:\n    resource.setrlimit(name, (resource.RLIM_INFINITY,) * 2)\n'
    '    print("ESCAPED limit", name)\n'
    '  except (OSError, ValueError): pass\n'
    'import os\ntry: os.nice(-5); print("ESCAPED nice")\n'
    'except OSError: pass',
  ),
  Case(
    'core dump',
    'import os, signal; os.kill(os.getpid(), signal.SIGQUIT)',
    check=lambda result, box: ''.join(
      f'dumped {path}' for path in box.files() if 'core' in path
    ),
  ),
  Case('tiny calls', 'pass', check=_calls_are_quick),
)

PROCESSES = (
  Case('child that holds the pipe', f'{SLEEP} & echo x', 'sh'),
  Case('job that holds the pipe', f'{SLEEP} & echo x', 'session'),
  Case(
    'daemon',
    f"(trap '' TERM INT HUP; setsid setsid {SLEEP} &) ; (setsid {SLEEP} &)",
    'sh',
  ),
  Case(
    'daemon of a session',
    f"trap '' TERM HUP; nohup setsid {SLEEP} & disown; (setsid {SLEEP} &)",
    'session',
  ),
  Case(
    'double fork',
    'import os, signal, time\nfor _ in range(2):\n  if os.fork(): os._exit(0)\n'
    '  os.setsid()\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n'
    f'os.execvp("sleep", {SLEEP.split()!r})',
  ),
  Case('kill everything', 'kill -9 -1', 'sh'),
  Case('kill everything from a session', 'kill -9 -1', 'session'),
  Case('kill process 1', f'kill -9 1; kill -15 1; kill -2 1; {SLEEP}', 'sh', 1),
  Case('stop everything', 'kill -STOP -1; kill -STOP 1; sleep 2', 'sh', 1),
  Case('stop the shell', 'kill -STOP $$; echo on', 'session', 5),
  Case(
    'stop the handler',
    'kill -STOP $PPID; sleep 3; kill -CONT $PPID',
    'sh',
    1,
  ),
  Case('no signals', "trap '' TERM INT HUP; while :; do :; done", 'session', 1),
  Case('no output', 'exec 0<&- 1>&- 2>&-; sleep 5', 'session', 1),
  Case(
    'closed descriptors',
    'import os\nos.closerange(0, 1024)\nos.fork()',
  ),
  Case(
    'descriptors that are not its own',
    'import os\nfor fd in range(3, 1024):\n'
    '  try: os.write(fd, b"x"); print("ESCAPED wrote to", fd)\n'
    '  except OSError: pass',
  ),
  Case(
    'time bomb',
    f'(sleep 2; {SLEEP}) & nohup {SLEEP} & echo {SLEEP} | at now;'
    f' echo "* * * * * {SLEEP}" | crontab -; systemd-run {SLEEP}',
    'sh',
  ),
)

FILES = (
  Case(
    'links out of the repository',
    'ln -s /etc/passwd link; ln -s /proc/self folder; mkdir inner;'
    ' ln -s / inner/root; ln /opt/box/worker.py hard && echo ESCAPED hard link',
    'sh',
    check=_reads_nothing_outside,
  ),
  Case(
    'links where the next tree goes',
    'rm -rf case.py; ln -s /usr alive.py; ln -s /tmp/x case.py; ln -s . loop',
    'sh',
    check=_can_be_read_back,
  ),
  Case(
    'pipes and closed folders',
    'mkfifo p; mkdir -p a/b/c; touch a/b/c/d; chmod 0 a/b; chmod 0 .;'
    ' mkdir z; chmod 111 z; touch q; chmod 0 q',
    'sh',
    check=_can_be_read_back,
  ),
  Case(
    'socket and odd names',
    'import os, socket\nsocket.socket(socket.AF_UNIX).bind("s")\n'
    'for n in (b"\\xff\\xfe", b"a\\nb", b" ", b"-rf", b"n" * 255, b"\\\\"):\n'
    '  open(n, "w").close()',
    check=_can_be_read_back,
  ),
  Case(
    'ten thousand levels',
    'import os\nfor _ in range(10000):\n  os.mkdir("d"); os.chdir("d")\n',
    seconds=30,
    check=_can_be_read_back,
  ),
  Case(
    'deep and closed',
    'import os\nfor _ in range(3000):\n  os.mkdir("d"); os.chdir("d")\n'
    '  os.chmod(".", 0o300)\n',
    seconds=30,
    check=_can_be_read_back,
  ),
  Case(
    'tree that changes while it is read',
    'while :; do mkdir -p a/b; echo x > a/b/c; mv a e; ln -s /proc a; rm a;'
    ' rm -r e; done 2>/dev/null & sleep 0.2',
    'session',
    check=_can_be_read_back,
  ),
  Case(
    'writing to what is not its own',
    'import glob, os, sys\n'
    'for folder in ("/", "/usr", "/usr/bin", "/opt", "/opt/box",'
    ' "/opt/box/bin", "/lib", "/etc", "/root", "/home", "/dev", "/sys",'
    ' "/run", "/var",'
    ' sys.prefix, os.__file__[:-5], *glob.glob("/opt/*")):\n'
    '  try: open(folder + "/x", "w"); print("ESCAPED wrote to", folder)\n'
    '  except OSError: pass\n'
    '  try: os.chmod(folder, 0o777); print("ESCAPED changed", folder)\n'
    '  except OSError: pass\n'
    'for file in glob.glob("/opt/box/*") + ["/usr/bin/env", os.__file__]:\n'
    '  for act in (lambda: open(file, "a"), lambda: os.chmod(file, 0o777),\n'
    '      lambda: os.utime(file), lambda: os.remove(file),\n'
    '      lambda: os.rename(file, file + "x")):\n'
    '    try: act(); print("ESCAPED changed", file)\n'
    '    except OSError: pass',
  ),
  Case(
    'files of this machine',
    'for f in /etc/shadow /etc/passwd /etc/hostname /root/.bashrc /home/*'
    ' /var/log/* /run/* /sys/* /boot/* /mnt/* /srv/* /work/* /root/.ssh;'
    ' do [ -e "$f" ] && echo ESCAPED sees $f; done',
    'sh',
  ),
  Case(
    'packages of this machine',
    'import importlib.metadata, sys\n'
    'sys.path += [p + "/site-packages" for p in sys.path]\n'
    'names = {d.name.lower() for d in importlib.metadata.distributions()}\n'
    'if names - {"pytest", "iniconfig", "packaging", "pluggy", "pygments"}:\n'
    '  print("ESCAPED", names)',
  ),
)

KERNEL = (
  Case(
    'memory of others through /proc',
    'import os\nfor pid in os.listdir("/proc"):\n'
    '  if not pid.isdigit() or int(pid) == os.getpid(): continue\n'
    '  for name in ("environ", "mem", "maps", "auxv", "stack", "syscall",\n'
    '      "io", "pagemap", "smaps"):\n'
    '    try:\n      with open(f"/proc/{pid}/{name}", "rb") as f: f.read(1)\n'
    '      print("ESCAPED", pid, name)\n'
    '    except OSError: pass\n'
    '  for name in ("root", "cwd", "exe", "fd/0", "fd/3", "fd/4", "ns/mnt"):\n'
    '    try: os.stat(f"/proc/{pid}/{name}"); print("ESCAPED", pid, name)\n'
    '    except OSError: pass',
  ),
  Case(
    'settings of the kernel',
    'import glob, os\n'
    'for folder, folders, names in os.walk("/proc"):\n'
    '  folders[:] = [f for f in folders if not f.isdigit()'
    ' and f not in ("self", "thread-self")]\n'
    '  for name in names:\n    path = folder + "/" + name\n'
    '    try: os.close(os.open(path, os.O_WRONLY)); print("ESCAPED", path)\n'
    '    except OSError: pass\n'
    'for name in ("kcore", "kmsg", "kallsyms_", "keys"):\n'
    '  try:\n    if open("/proc/" + name, "rb").read(1):'
    ' print("ESCAPED reads", name)\n'
    '  except OSError: pass',
  ),
  Case(
    'network',
    _TRY
    + """
def connect(family, address):
  with socket.socket(family) as s:
    s.settimeout(1)
    s.connect(address)
attempt('tcp', lambda: connect(socket.AF_INET, ('8.8.8.8', 53)))
attempt('tcp6', lambda: connect(socket.AF_INET6, ('2001:4860:4860::8888', 53)))
attempt('udp', lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(
  b'x', ('8.8.8.8', 53)))
attempt('name', lambda: socket.getaddrinfo('example.org', 80))
for family, kind in ((2, 3), (17, 3), (16, 3), (40, 1), (38, 5), (21, 5)):
  attempt(f'socket {family}', lambda: socket.socket(family, kind))
for line in open('/proc/net/unix').read().splitlines()[1:]:
  if '@' in line: print('ESCAPED sees', line)
for line in open('/proc/net/dev').read().splitlines()[2:]:
  if not line.strip().startswith('lo:'): print('ESCAPED sees', line)
""",
  ),
  Case(
    'calls that are refused',
    _TRY
    + """
attempt('ptrace', lambda: libc.ptrace(16, 1, 0, 0))
attempt('traceme', lambda: libc.ptrace(0, 0, 0, 0))
attempt('mount', lambda: libc.mount(b'x', b'/tmp', b'tmpfs', 0, 0))
attempt('bind', lambda: libc.mount(b'/usr', b'/tmp', None, 4096, 0))
attempt('umount', lambda: libc.umount2(b'/proc', 2))
attempt('chroot', lambda: libc.chroot(b'/tmp'))
attempt('setuid', lambda: libc.setuid(1 if os.getuid() != 1 else 2))
attempt('hostname', lambda: libc.sethostname(b'x', 1))
attempt('reboot', lambda: libc.reboot(0))
attempt('swap', lambda: libc.swapon(b'/tmp/x', 0))
attempt('clock', lambda: libc.settimeofday(ctypes.create_string_buffer(16), 0))
attempt('quota', lambda: libc.quotactl(0, 0, 0, 0))
for flag in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x8000000):
  attempt(f'unshare {flag:x}', lambda: libc.unshare(flag))
attempt('device', lambda: os.mknod('/tmp/sda', 0o60666, os.makedev(8, 0)))
attempt('keys', lambda: call(248, b'user', b'a', b'b', 1, -3))
attempt('keyctl', lambda: call(250, 0, -3, 1))
attempt('bpf', lambda: call(321, 0, 0, 0))
attempt('perf', lambda: call(298, bytes(128), 0, -1, -1, 0))
attempt('module', lambda: call(175, b'', 0, b''))
attempt('module of a file', lambda: call(313, 0, b'', 0))
attempt('kexec', lambda: call(246, 0, 0, 0, 0))
attempt('uring', lambda: call(425, 1, ctypes.create_string_buffer(128)))
attempt('userfaultfd', lambda: call(323, 0))
attempt('fsopen', lambda: call(430, b'tmpfs', 0))
attempt('open_tree', lambda: call(428, -100, b'/', 1))
attempt('mount_setattr', lambda: call(442, -100, b'/', 0,
  ctypes.create_string_buffer(32), 32))
attempt('handle', lambda: call(304, -100, ctypes.create_string_buffer(64), 0))
attempt('pidfd_getfd', lambda: call(438, os.pidfd_open(1), 0, 0))
attempt('process_vm', lambda: call(310, 1, 0, 0, 0, 0, 0))
attempt('kcmp', lambda: call(312, os.getpid(), 1, 0, 0, 0))
attempt('memfd', lambda: call(319, b'x', 0))
attempt('i386', lambda: call(0x40000000 | 39))
""",
  ),
  Case(
    'program of a memory file',
    'import os\ntry:\n  fd = os.memfd_create("x")\n'
    '  os.write(fd, open("/bin/true", "rb").read())\n'
    '  os.execve(fd, ["x"], {})\nexcept OSError: pass',
  ),
  Case(
    'devices',
    'import os\nfor folder, _, names in os.walk("/dev"):\n'
    '  for name in names:\n    path = folder + "/" + name\n'
    '    if name in ("null", "zero", "full", "random", "urandom", "tty",'
    ' "ptmx", "stdin", "stdout", "stderr", "console"): continue\n'
    '    try: os.close(os.open(path, os.O_RDWR)); print("ESCAPED", path)\n'
    '    except OSError: pass',
  ),
  Case(
    'privileges',
    'while read key value; do case $key in CapEff:|CapPrm:|CapBnd:|CapInh:|'
    'CapAmb:) [ $value = 0000000000000000 ] || echo ESCAPED $key $value;;'
    ' NoNewPrivs:) [ $value = 1 ] || echo ESCAPED $key;;'
    ' Seccomp:) [ $value = 2 ] || echo ESCAPED $key;; esac;'
    ' done < /proc/self/status',
    'sh',
  ),
  Case(
    'programs that change the user',
    'for p in "su -c id" "mount -t tmpfs x /tmp" "sudo id" "newgrp" "passwd -S"'
    ' "unshare -Ur id" "chroot / id" "nsenter -t 1 -a id";'
    ' do $p </dev/null >/dev/null 2>&1 && echo ESCAPED $p; done',
    'sh',
  ),
)

CASES = RESOURCES + PROCESSES + FILES + KERNEL
