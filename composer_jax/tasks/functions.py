"""Short functions of Python's standard library: real code to practise on.

They come with every interpreter, belong to no benchmark, and are only read,
never run.
"""

import ast
import importlib.util
import pathlib
import textwrap

# Pure Python, written for people to read, stable over versions.
MODULES = (
  'argparse', 'ast', 'base64', 'bdb', 'bisect', 'calendar', 'cmd', 'code',
  'codecs', 'collections', 'colorsys', 'compileall', 'configparser',
  'contextlib', 'copy', 'csv', 'dataclasses', 'difflib', 'dis', 'doctest',
  'enum', 'filecmp', 'fileinput', 'fnmatch', 'fractions', 'ftplib',
  'functools', 'getopt', 'gettext', 'glob', 'graphlib', 'gzip', 'hashlib',
  'heapq', 'hmac', 'imaplib', 'inspect', 'ipaddress', 'keyword', 'linecache',
  'locale', 'mailbox', 'mimetypes', 'netrc', 'ntpath', 'numbers', 'optparse',
  'os', 'pathlib', 'pdb', 'pickle', 'pickletools', 'platform', 'plistlib',
  'poplib', 'posixpath', 'pprint', 'profile', 'pstats', 'pyclbr', 'queue',
  'quopri', 'random', 'reprlib', 'sched', 'selectors', 'shelve', 'shlex',
  'shutil', 'smtplib', 'socket', 'socketserver', 'statistics', 'string',
  'stringprep', 'subprocess', 'tarfile', 'tempfile', 'textwrap', 'threading',
  'timeit', 'token', 'tokenize', 'trace', 'traceback', 'typing', 'uuid',
  'warnings', 'weakref', 'zipfile',
)  # fmt: skip


def functions(*, fewest_lines: int = 3, most_lines: int = 16) -> list[str]:
  """Every function of that length, dedented, without its docstring."""
  found = []
  for name in MODULES:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.origin or not spec.origin.endswith('.py'):
      continue
    text = pathlib.Path(spec.origin).read_text(encoding='utf-8')
    for node in ast.walk(ast.parse(text)):
      if isinstance(node, ast.FunctionDef):
        function = _plain(text, node)
        if fewest_lines <= function.count('\n') + 1 <= most_lines:
          found.append(function)
  return list(dict.fromkeys(found))


def _plain(text: str, node: ast.FunctionDef) -> str:
  lines = text.split('\n')[node.lineno - 1 : node.end_lineno]
  if ast.get_docstring(node, clean=False) is not None:
    doc = node.body[0]
    first = doc.lineno - node.lineno
    last = doc.end_lineno - node.lineno
    lines = lines[:first] + lines[last + 1 :]
  return textwrap.dedent('\n'.join(lines)).rstrip()
