"""All the tools, as the model and people are told of them."""

from __future__ import annotations

from collections.abc import Mapping
import types

from composer_jax.tools import files
from composer_jax.tools import linting
from composer_jax.tools import lookup
from composer_jax.tools import progress
from composer_jax.tools import schema
from composer_jax.tools import terminal
from composer_jax.tools import testing

Parameter = schema.Parameter
ToolSpec = schema.ToolSpec

_FILE = 'Path of the file below /repo.'
_MOST_SECONDS = 600

_FILES = (
  ToolSpec(
    name='read_file',
    description=(
      'Shows a file. Strings that fill several lines, as docstrings do, are'
      ' shown as one line unless `full` or a range of lines is asked for.'
    ),
    run=files.read_file,
    parameters={
      'path': Parameter(str, _FILE),
      'first': Parameter(int, 'First line to show, from 1.', 1, least=1),
      'last': Parameter(
        int, 'Last line to show; 0 for the end of the file.', 0, least=0
      ),
      'full': Parameter(bool, 'Whether to show docstrings in full.', False),
      'numbers': Parameter(
        bool, 'Whether to put its number and a tab before each line.', False
      ),
    },
    mutates=False,
  ),
  ToolSpec(
    name='write_file',
    description=(
      'Makes a file with its folders, or replaces all that a file holds. Tests'
      ' and what configures them cannot be written.'
    ),
    run=files.write_file,
    parameters={
      'path': Parameter(str, _FILE),
      'text': Parameter(str, 'All that the file is to hold.'),
    },
    mutates=True,
  ),
  ToolSpec(
    name='edit_file',
    description=(
      'Replaces `old` by `new` in a file. `old` has to occur exactly once, so'
      ' take in as many lines around it as make it unique. Tests and what'
      ' configures them cannot be edited.'
    ),
    run=files.edit_file,
    parameters={
      'path': Parameter(str, _FILE),
      'old': Parameter(
        str, 'The text to replace, exactly as in the file, blanks included.'
      ),
      'new': Parameter(str, 'The text to put in its place.'),
    },
    mutates=True,
  ),
  ToolSpec(
    name='undo',
    description='Takes the last write_file or edit_file back; again, the next.',
    run=files.undo,
    parameters={},
    mutates=True,
  ),
)

_LOOKUP = (
  ToolSpec(
    name='list_dir',
    description=(
      'Lists what is in a folder, one path a line; folders end with a slash.'
    ),
    run=lookup.list_dir,
    parameters={
      'path': Parameter(str, 'Path of the folder below /repo.', '.'),
      'depth': Parameter(
        int, 'How many levels of folders to list.', 1, least=1, most=9
      ),
    },
    mutates=False,
  ),
  ToolSpec(
    name='grep',
    description=(
      'Finds the lines that match a regular expression (of Rust), as'
      ' `path:line:text`.'
    ),
    run=lookup.grep,
    parameters={
      'pattern': Parameter(str, 'The regular expression.', least=1),
      'path': Parameter(
        str, 'File or folder below /repo to search.', '.', least=1
      ),
      'glob': Parameter(
        str, 'Which files to search, such as `*.py`; all if empty.', ''
      ),
      'max': Parameter(int, 'Most lines to show.', 100, least=1, most=1000),
    },
    mutates=False,
  ),
  ToolSpec(
    name='semantic_search',
    description=(
      'Finds the classes, functions and sections that a question is about,'
      ' best first, as `path:first-last  name`. For what you cannot spell; use'
      ' grep for what you can.'
    ),
    run=lookup.semantic_search,
    parameters={
      'query': Parameter(
        str, 'The question, in plain words.', least=1, most=500
      ),
      'limit': Parameter(int, 'Most parts to show.', 8, least=1, most=50),
    },
    mutates=False,
  ),
)

_RUNNING = (
  ToolSpec(
    name='run_terminal',
    description=(
      'Runs a command in a bash shell that stays for the whole episode: its'
      ' folder, its variables and what it runs in the background live on.'
      ' There is no network.'
    ),
    run=terminal.run_terminal,
    parameters={
      'command': Parameter(str, 'What to type into the shell.', least=1),
      'seconds': Parameter(
        int,
        'How long it may take before it is stopped.',
        30,
        least=1,
        most=_MOST_SECONDS,
      ),
    },
    mutates=True,
  ),
  ToolSpec(
    name='run_tests',
    description=(
      'Runs the visible tests: how many passed and failed, and where the'
      ' first ones failed.'
    ),
    run=testing.run_tests,
    parameters={
      'tests': Parameter(
        list,
        'Which to run, by path or by `path::name`; all if empty.',
        (),
        most=100,
        items=Parameter(str, 'A path, or `path::name`.', least=1),
      ),
    },
    mutates=False,
  ),
  ToolSpec(
    name='lint',
    description='Finds faults in Python code without running it, with ruff.',
    run=linting.lint,
    parameters={
      'paths': Parameter(
        list,
        'Files or folders below /repo; all if empty.',
        (),
        most=100,
        items=Parameter(str, 'A path.', least=1),
      ),
    },
    mutates=False,
  ),
)

_PROGRESS = (
  ToolSpec(
    name='todo',
    description='Keeps a list of what is to be done, and shows it.',
    run=progress.todo,
    parameters={
      'items': Parameter(
        list,
        'The whole list, in place of the last one; empty to see that.',
        (),
        most=50,
        items=Parameter(
          dict,
          'One thing to do.',
          fields={
            'text': Parameter(str, 'What it is.', least=1, most=500),
            'status': Parameter(str, 'How it stands.', choices=progress.STATES),
          },
        ),
      ),
    },
    mutates=True,
  ),
  ToolSpec(
    name='submit',
    description='Hands the work in and ends the episode.',
    run=progress.submit,
    parameters={
      'message': Parameter(
        str,
        'What was done and how it was checked, for whoever asked for it.',
        '',
        most=4000,
      ),
    },
    mutates=True,
  ),
)

TOOLS: Mapping[str, ToolSpec] = types.MappingProxyType(
  {spec.name: spec for spec in (*_FILES, *_LOOKUP, *_RUNNING, *_PROGRESS)}
)
