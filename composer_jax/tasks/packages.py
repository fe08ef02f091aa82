"""Real packages that carry their tests: what is known of each, and its tree.

A source archive becomes a snapshot: its regular files, without anything from
which deleted code could be read again (history, compiled files, metadata of a
build). Nothing here touches the network.
"""

from collections.abc import Mapping
import dataclasses
import email.parser
import pathlib
import re
import tarfile

from composer_jax import trajectory

LARGEST_FILE = 1 << 20  # Bytes; larger ones are data, and stay behind.
_SCRUBBED_FOLDERS = frozenset(
  (
    *('.git', '.hg', '.svn', '__pycache__', '.eggs', 'build', 'dist'),
    *('.mypy_cache', '.pytest_cache', '.ruff_cache', '.tox', '.nox'),
    *('.hypothesis', 'htmlcov', 'node_modules', '.venv', 'venv'),
  )
)
_SCRUBBED_ENDINGS = ('.egg-info', '.dist-info')
_SCRUBBED_FILES = ('.pyc', '.pyo', '.so', '.pyd', '.egg', '.whl', '.orig')
_PERMISSIVE = re.compile(
  r'\b(MIT|BSD|Apache|ISC|PSF|0BSD|Unlicense|Zlib)\b',
  re.IGNORECASE,
)
_CLASSIFIER = 'License :: OSI Approved ::'


class UnfitError(ValueError):
  """A package that makes no tasks, and why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Package:
  """One package: where its code and tests lie, and what they need."""

  name: str
  version: str
  tests: tuple[str, ...] = ('tests',)  # Files and folders that pytest is given.
  path: str = ''  # Folder that must be on the import path, like 'src'.
  needs: tuple[str, ...] = ()  # Pinned distributions, installed as wheels.

  @property
  def requirement(self) -> str:
    return f'{self.name}=={self.version}'

  @property
  def paths(self) -> tuple[str, ...]:
    """Arguments of the test runner that set the import path."""
    return (f'--path={self.path}',) if self.path else ()

  def is_source(self, path: str) -> bool:
    """Whether tasks may change this file."""
    outside = bool(self.path) and not path.startswith(f'{self.path}/')
    folders = path.split('/')[:-1]
    return (
      path.endswith('.py')
      and not outside
      and (bool(folders) or path not in ('setup.py', 'noxfile.py'))
      and not {'docs', 'doc', 'examples', 'scripts', 'tools'} & set(folders[:1])
      and not {'benchmark', 'benchmarks'} & set(folders[:1])
      and not trajectory.is_test(path)
    )


KNOWN = (
  Package(name='toolz', version='1.2.0', tests=('toolz', 'tlz')),
  Package(name='inflection', version='0.5.1', tests=('test_inflection.py',)),
  Package(name='parse', version='1.22.4'),
  Package(name='semver', version='3.1.2', path='src'),
  Package(
    name='python-slugify',
    version='9.2.0',
    needs=('text-unidecode==1.3',),
  ),
  Package(name='tabulate', version='0.10.0', tests=('test',)),
  Package(name='boltons', version='26.2.0'),
  Package(
    name='humanize',
    version='4.17.0',
    path='src',
    needs=('freezegun==1.5.5', 'python-dateutil==2.9.0.post0', 'six==1.17.0'),
  ),
  Package(name='more-itertools', version='11.2.1'),
)


def find(requirement: str) -> Package:
  """The package for `NAME` or `NAME==VERSION`.

  One that is not known is taken to have its tests in `tests`.

  Raises:
    ValueError: it is not known, and no version is given.
  """
  name, _, version = requirement.partition('==')
  known = {package.name: package for package in KNOWN}.get(name)
  if known is not None and version in ('', known.version):
    return known
  if not version:
    raise ValueError(
      f'{name} is not among {", ".join(p.name for p in KNOWN)}: give a version,'
      f' {name}==VERSION'
    )
  if known is not None:
    return dataclasses.replace(known, version=version)
  return Package(name=name, version=version)


def unpack(archive: pathlib.Path) -> dict[str, bytes]:
  """The regular files of a source archive, below its top folder.

  Links, devices, names that lead outside and files beyond `LARGEST_FILE` are
  left out; owners and times are not read at all.
  """
  found = {}
  with tarfile.open(archive) as opened:
    for member in opened:
      _, *parts = member.name.split('/')
      plain = all(part not in ('', '.', '..') for part in parts)
      if member.isreg() and parts and plain and member.size <= LARGEST_FILE:
        found['/'.join(parts)] = opened.extractfile(member).read()
  return found


def scrub(files: Mapping[str, bytes]) -> dict[str, bytes]:
  """The files without history, caches, and what a build leaves."""
  return {path: data for path, data in files.items() if not _is_residue(path)}


def _is_residue(path: str) -> bool:
  *folders, name = path.split('/')
  return (
    not _SCRUBBED_FOLDERS.isdisjoint(folders)
    or any(folder.endswith(_SCRUBBED_ENDINGS) for folder in folders)
    or name.endswith((*_SCRUBBED_FILES, *_SCRUBBED_ENDINGS))
    or name.endswith('~')
    or name == '.git'
  )


def licence(files: Mapping[str, bytes]) -> str:
  """The licence that PKG-INFO declares.

  Raises:
    UnfitError: none, or one that is not known to permit this use.
  """
  text = files.get('PKG-INFO', b'').decode('utf-8', 'replace')
  metadata = email.parser.Parser().parsestr(text, headersonly=True)
  declared = [metadata.get('License-Expression', '')]
  declared += [
    line.removeprefix(_CLASSIFIER).strip()
    for line in metadata.get_all('Classifier', [])
    if line.startswith(_CLASSIFIER)
  ]
  declared.append(metadata.get('License', '').strip().partition('\n')[0])
  for name in filter(None, declared):
    parts = re.split(r'\bAND\b', name)
    if not all(map(_PERMISSIVE.search, parts)) or re.search(
      r'\b[AL]?GPL', name
    ):
      raise UnfitError(f'its licence {name!r} is not known to be permissive')
    return name
  raise UnfitError('PKG-INFO declares no licence')
