"""Tools that find things: list_dir, grep, semantic_search."""

from __future__ import annotations

import functools

from composer_jax import trajectory
from composer_jax.tools import isolation
from composer_jax.tools import sandbox
from composer_jax.tools import semantic
from composer_jax.tools import workspace as workspace_lib

_SECONDS = 5.0
_GREP_COLUMNS = 200
_LIST = """
test -d "$1" || { echo "no such folder"; exit 2; }
find "$1" -mindepth 1 -maxdepth "$2" \
  \\( -name .git -o -name __pycache__ \\) -prune \
  -o -type d -printf '%P/\\n' -o -printf '%P\\n' | sort
"""

Answer = workspace_lib.Answer
Workspace = workspace_lib.Workspace


def list_dir(workspace: Workspace, path: str, depth: int) -> Answer:
  """The paths below a folder, in order; those of folders end with a slash."""
  path = workspace_lib.relative(path)
  if _outside(path):
    return _not_here(path)
  result = workspace.box.exec(
    ['sh', '-c', _LIST, 'sh', f'./{path}', str(depth)], seconds=_SECONDS
  )
  if result.exit_code == 0 and not result.output:
    return Answer(text='nothing in it', exit_code=0)
  return _found(result)


def grep(
  workspace: Workspace, pattern: str, path: str, glob: str, limit: int
) -> Answer:
  """The lines that match a regular expression, as `path:line:text`."""
  path = workspace_lib.relative(path)
  if _outside(path):
    return _not_here(path)
  result = workspace.box.exec(
    [
      isolation.RIPGREP,
      *('--no-config', '--line-number', '--no-heading', '--sort=path'),
      *('--with-filename', f'--max-columns={_GREP_COLUMNS}'),
      *([f'--glob={glob}'] if glob else []),
      f'--regexp={pattern}',
      '.' if path == '.' else f'./{path}',
    ],
    seconds=_SECONDS,
  )
  if result.exit_code == 1:
    return Answer(text='no match', exit_code=1)
  return _found(result, limit)


def semantic_search(workspace: Workspace, query: str, limit: int) -> Answer:
  """The parts of the repository that a question in plain words is about."""
  config = semantic.SearchConfig(
    embedding=workspace.config.embedding,
    cache_directory=workspace.config.vectors,
  )
  files, edits = workspace.texts()
  return Answer(
    text=semantic.search_text(library(config), files, query, limit, edits)
  )


@functools.cache
def library(config: semantic.SearchConfig) -> semantic.Library:
  """The one of this process: what it has read serves every episode.

  Raises:
    ValueError: the embedding that is asked for is not installed.
  """
  return semantic.Library(config, semantic.make_encoder(config))


def _found(result: sandbox.RunResult, limit: int | None = None) -> Answer:
  if result.timed_out:
    return Answer(text='timed out', status=trajectory.Status.TIMEOUT)
  status = trajectory.Status.ERROR
  if result.exit_code == 0:
    status = trajectory.Status.OK
  lines = result.output.removesuffix('\n').split('\n')
  shown = [line.removeprefix('./') for line in lines[:limit]]
  if len(shown) < len(lines):
    shown.append(f'[{len(lines) - len(shown)} more lines]')
  return Answer(
    text='\n'.join(shown),
    status=status,
    exit_code=result.exit_code,
    dropped_bytes=result.dropped_bytes,
  )


def _outside(path: str) -> bool:
  return path.startswith(('/', '../')) or path == '..'


def _not_here(path: str) -> Answer:
  return Answer(
    text=f'{path} is not below /repo', status=trajectory.Status.ERROR
  )
