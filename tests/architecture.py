"""Reads BUILD and the tree, and lists where the two disagree.

Every check takes the root of a tree and yields one sentence per fault, so that
the test can run it on this tree and on small wrong ones.
"""

import ast
from collections.abc import Iterator, Mapping
import dataclasses
import functools
import graphlib
import pathlib

LAYERS = {
  'trajectory': 0,
  'pallas_kernels': 0,
  'model': 1,
  'text': 1,
  'tasks': 2,
  'tools': 2,
  'rewards': 2,
  'actor': 2,
  'sampler': 2,
  'replay': 2,
  'learner': 2,
  'checkpoint': 2,
  'loop': 3,
  'make_tasks': 3,
  'viewer': 3,
  'experiments': 4,
  'benchmarks': 4,
  'tests': 5,
  'tests_aot': 5,
}
VAGUE_NAMES = {'utils', 'common', 'helpers', 'base', 'manager', 'v2'}
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80
_TOP_LEVEL = (
  'composer_jax',
  'experiments',
  'benchmarks',
  'tests',
  'tests_aot',
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Library:
  """One py_library of BUILD."""

  name: str
  files: tuple[str, ...]  # Relative to the root, sorted.
  deps: tuple[str, ...]


@functools.cache
def libraries(root: pathlib.Path) -> Mapping[str, Library]:
  """The libraries of root/BUILD by name, their globs expanded."""
  found = {}
  for node in ast.parse((root / 'BUILD').read_text()).body:
    match node:
      case ast.Expr(
        value=ast.Call(func=ast.Name(id='py_library'), args=[]) as call
      ):
        library = _library(root, call)
      case _:
        raise ValueError(f'BUILD:{node.lineno}: not a py_library(name=, ...)')
    if library.name in found:
      raise ValueError(f'BUILD:{node.lineno}: {library.name} appears twice')
    found[library.name] = library
  return found


def _library(root: pathlib.Path, call: ast.Call) -> Library:
  fields = {keyword.arg: keyword.value for keyword in call.keywords}
  if set(fields) != {'name', 'srcs', 'deps'}:
    raise ValueError(
      f'BUILD:{call.lineno}: a library has name, srcs and deps: {set(fields)}'
    )
  match fields['srcs']:
    case ast.Call(func=ast.Name(id='glob'), args=[patterns], keywords=[]):
      files = _glob(root, patterns)
    case ast.Call(
      func=ast.Name(id='glob'),
      args=[patterns],
      keywords=[ast.keyword(arg='exclude', value=excluded)],
    ):
      files = _glob(root, patterns) - _glob(root, excluded)
    case plain:
      files = set(ast.literal_eval(plain))
  deps = ast.literal_eval(fields['deps'])
  return Library(
    name=ast.literal_eval(fields['name']),
    files=tuple(sorted(files)),
    deps=tuple(dep.removeprefix(':') for dep in deps),
  )


def _glob(root: pathlib.Path, patterns: ast.expr) -> set[str]:
  return {
    str(path.relative_to(root))
    for pattern in ast.literal_eval(patterns)
    for path in root.glob(pattern)
  }


@functools.cache
def python_files(root: pathlib.Path) -> tuple[str, ...]:
  """All Python files of the project, relative to the root."""
  found = [
    str(path.relative_to(root))
    for top in _TOP_LEVEL
    for path in sorted((root / top).rglob('*.py'))
  ]
  return (*found, *sorted(path.name for path in root.glob('*.py')))


@functools.cache
def _tree(root: pathlib.Path, file: str) -> ast.Module:
  return ast.parse((root / file).read_text(), filename=file)


def _module(file: str) -> str:
  return file.removesuffix('.py').removesuffix('/__init__').replace('/', '.')


def _imports(root: pathlib.Path, file: str) -> Iterator[tuple[int, str]]:
  """(line, dotted name) of each import of ours, wherever it stands."""
  modules = {_module(known) for known in python_files(root)}
  for node in ast.walk(_tree(root, file)):
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
      origin = '.' * node.level + (node.module or '')
      inner = [f'{origin}.{alias.name}' for alias in node.names]
      # A name inside a module counts as the module.
      names = [name if name in modules else origin for name in inner]
    else:
      continue
    for name in names:
      if name.partition('.')[0] in ('', *_TOP_LEVEL):
        yield node.lineno, name


def room_faults(root: pathlib.Path) -> Iterator[str]:
  """Files without a library, files in two, libraries without files."""
  owners = {file: [] for file in python_files(root)}
  for library in libraries(root).values():
    written = [f for f in library.files if not f.endswith('__init__.py')]
    if not written:
      yield f'BUILD: {library.name} is a room with nothing in it'
    if library.name not in LAYERS:
      yield f'BUILD: {library.name} has no layer'
    for file in library.files:
      if file in owners:
        owners[file].append(library.name)
      else:
        yield f'BUILD: {library.name} lists {file}, which is not there'
  for file, names in owners.items():
    if len(names) != 1:
      yield f'{file}: belongs to {names or "no library"}, not to exactly one'


def layer_faults(root: pathlib.Path) -> Iterator[str]:
  """Dependencies that point up or sideways, or nowhere."""
  known = libraries(root)
  for library in known.values():
    for dep in library.deps:
      if dep not in known:
        yield f'BUILD: {library.name} depends on {dep}, which is not there'
      elif LAYERS[dep] >= LAYERS[library.name]:
        yield (
          f'BUILD: {library.name} (layer {LAYERS[library.name]}) may not'
          f' depend on {dep} (layer {LAYERS[dep]})'
        )


def import_faults(root: pathlib.Path) -> Iterator[str]:
  """Imports that BUILD does not allow, and those of names, not modules."""
  owner = {
    _module(file): library.name
    for library in libraries(root).values()
    for file in library.files
  }
  for library in libraries(root).values():
    for file in library.files:
      for line, name in _imports(root, file):
        if name not in owner:
          yield f'{file}:{line}: imports {name}, which is no module here'
        elif owner[name] not in (library.name, *library.deps):
          yield (
            f'{file}:{line}: {library.name} may not import {name} of'
            f' {owner[name]}'
          )
  for file in python_files(root):
    yield from _name_import_faults(root, file)


def _name_import_faults(root: pathlib.Path, file: str) -> Iterator[str]:
  modules = {_module(known) for known in python_files(root)}
  for node in ast.walk(_tree(root, file)):
    match node:
      case ast.ImportFrom(module=str(origin), names=names, level=0):
        for alias in names:
          ours = origin.partition('.')[0] in _TOP_LEVEL
          if ours and f'{origin}.{alias.name}' not in modules:
            yield (
              f'{file}:{node.lineno}: import the module {origin}, not its'
              f' {alias.name}'
            )


def cycle_faults(root: pathlib.Path) -> Iterator[str]:
  """Modules that import each other, directly or through others."""
  graph = {
    _module(file): {name for _, name in _imports(root, file)}
    for file in python_files(root)
  }
  try:
    graphlib.TopologicalSorter(graph).prepare()
  except graphlib.CycleError as error:
    yield 'import cycle: ' + ' -> '.join(reversed(error.args[1]))


def name_faults(root: pathlib.Path) -> Iterator[str]:
  """Files and folders whose name says nothing."""
  for file in python_files(root):
    parts = pathlib.PurePath(file).with_suffix('').parts
    for part in parts:
      if VAGUE_NAMES & set(part.split('_')):
        yield f'{file}: the name {part} says nothing'


def idiom_faults(
  root: pathlib.Path, doors: frozenset[str] = frozenset()
) -> Iterator[str]:
  """hasattr, getattr with a default, **kwargs, and catching everything.

  Files in `doors` may catch Exception: behind them stands somebody else's code,
  or a thread has nobody above it. In tests a builder may take **kwargs: the
  fields that it changes.
  """
  for file in python_files(root):
    for node in ast.walk(_tree(root, file)):
      fault = _guess(node)
      if not fault and not file.startswith('tests/'):
        fault = _open_signature(node)
      if not fault and file not in doors and _catches_everything(node):
        fault = 'catches everything; name the exceptions'
      if fault:
        yield f'{file}:{node.lineno}: {fault}'


def _guess(node: ast.AST) -> str:
  match node:
    case ast.Call(func=ast.Name(id='hasattr')):
      return 'hasattr'
    case ast.Call(func=ast.Name(id='getattr'), args=[_, _, _]):
      return 'getattr with a default'
  return ''


def _open_signature(node: ast.AST) -> str:
  match node:
    case (
      ast.FunctionDef(args=arguments)
      | ast.AsyncFunctionDef(args=arguments)
      | ast.Lambda(args=arguments)
    ) if arguments.kwarg and not _is_wrapper(node):
      return '**kwargs; write the arguments down'
  return ''


def _is_wrapper(node: ast.AST) -> bool:
  """Whether a function is what a decorator puts around another one."""
  if isinstance(node, ast.Lambda):
    return False
  return any('functools.wraps' in ast.unparse(d) for d in node.decorator_list)


def _catches_everything(node: ast.AST) -> bool:
  if not isinstance(node, ast.ExceptHandler):
    return False
  match node.body[-1]:
    case ast.Raise(exc=None):
      return False  # Cleans up and passes it on.
  if node.type is None:
    return True
  names = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)}
  return bool(names & {'Exception', 'BaseException'})


def size_faults(
  root: pathlib.Path, long_functions: frozenset[str] = frozenset()
) -> Iterator[str]:
  """Files and functions too long to be read at once; docstrings are free."""
  for file in python_files(root):
    lines = len((root / file).read_text().splitlines())
    if lines > MAX_FILE_LINES:
      yield f'{file}: {lines} lines, {MAX_FILE_LINES} at most'
    for node in ast.walk(_tree(root, file)):
      if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        continue
      length = node.end_lineno - node.lineno + 1
      if ast.get_docstring(node, clean=False) is not None:
        docstring = node.body[0]
        length -= docstring.end_lineno - docstring.lineno + 1
      if length > MAX_FUNCTION_LINES and node.name not in long_functions:
        yield (
          f'{file}:{node.lineno}: {node.name} has {length} lines,'
          f' {MAX_FUNCTION_LINES} at most'
        )
