"""What was left behind, and what was said about the work."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
import io
import re
import tokenize

from composer_jax import trajectory

_LEFTOVER = re.compile(
  r'.*(?:\.(?:orig|rej|bak|tmp|log|swp|pyc|patch|diff|old)|~)$|nohup\.out'
  r'|core|a\.out|\.DS_Store'
)
_TODO = re.compile(r'#.*\b(?:TODO|FIXME|XXX|HACK)\b')
_DEBUGGERS = frozenset(('breakpoint', 'pdb.set_trace', 'ipdb.set_trace'))
_SENTENCE = re.compile(r'[.!?;\n]+(?:\s|$)|\bbut\b|\bhowever\b', re.IGNORECASE)
_CLAIM = re.compile(
  r'\btests?\b[^,]*\b(?:pass|passes|passed|passing|succeeds?|succeeded|green)\b'
  r'|\bpass(?:es|ed|ing)?\b[^,]*\btests?\b'
  r'|\b(?:ran|executed|run)\b[^,]*\btests?\b|\b(?:verified|tested)\b',
  re.IGNORECASE,
)
_HEDGE = re.compile(
  r"\b(?:not|n't|never|without|no|fail\w*|should|would|could|might|may|can"
  r'|cannot|to|untested|unverified|until|if|please|unable|expect\w*)\b'
  r"|n't\b",
  re.IGNORECASE,
)


def claims_tests(message: str) -> bool:
  """Whether a message says as a fact that tests pass or were run.

  Sentence by sentence; what is denied, hoped for or conditional is no claim.
  """
  return any(
    _CLAIM.search(sentence) and not _HEDGE.search(sentence)
    for sentence in _SENTENCE.split(message)
  )


def stray_files(
  before: Collection[str], after: Mapping[str, str], gold: Collection[str]
) -> list[str]:
  """New files that nobody asked for: leftovers, and modules nothing names.

  A test is none, nor is what the known fix brings too.
  """
  new = [p for p in after if p not in before and p not in gold]
  return sorted(path for path in new if _stray(path, after))


def debug_marks(text: str, lines: Collection[int]) -> int:
  """Calls of print and of debuggers on these lines (numbers from 1)."""
  try:
    nodes = list(ast.walk(ast.parse(text)))
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return 0
  return sum(
    isinstance(node, ast.Call)
    and node.lineno in lines
    and ast.unparse(node.func) in {'print', *_DEBUGGERS}
    for node in nodes
  )


def todo_marks(text: str, lines: Collection[int]) -> int:
  """Comments on these lines (numbers from 1) that leave something to do."""
  if '\0' in text:  # No Python; CPython 3.12's tokenizer fails on it.
    return 0
  try:
    return sum(
      token.type == tokenize.COMMENT
      and token.start[0] in lines
      and bool(_TODO.match(token.string))
      for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )
  except (tokenize.TokenError, SyntaxError):
    return 0


def _stray(path: str, after: Mapping[str, str]) -> bool:
  folder, _, name = path.rpartition('/')
  if _LEFTOVER.fullmatch(name):
    return True
  if trajectory.is_test(path):
    # Beside the tests it is one; at the root a try-out.
    return False
  if not name.endswith('.py') or name == '__init__.py':
    return False
  word = re.compile(rf'\b{re.escape(name.removesuffix(".py"))}\b')
  return not any(
    other != path and word.search(text) for other, text in after.items()
  )
