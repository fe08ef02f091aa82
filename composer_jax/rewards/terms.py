"""Step two of a reward: from facts to terms, before any price.

Only tests that pass are worth something; every other term is a cost, at most
0. So there is nothing to collect but the solution, and the cheapest way
around all costs, doing nothing, earns nothing. Each term says its range and
how it can be gamed. None: its fact was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping

Facts = Mapping[str, float]


def correctness(facts: Facts) -> float:
  """1 if all hidden tests pass, those to mend and those to keep; else 0.

  Binary outcome rewards: Chen et al. 2021 (arXiv 2107.03374, functional
  correctness); SWE-bench (Jimenez et al. 2023, arXiv 2310.06770) for the two
  sets of tests. Range {0, 1}. Gamed by code that recognises the tests'
  inputs, and by whatever the guards watch for.
  """
  return facts['solved']


def fraction(facts: Facts) -> float | None:
  """The share of the tests to mend that pass.

  Partial credit as in APPS (Hendrycks et al. 2021, arXiv 2105.09938). Range
  [0, 1]. Gamed by special cases for the easy tests: the last test, which
  needs the real solution, pays no more than the first.
  """
  return facts.get('fraction')


def regression(facts: Facts) -> float | None:
  """Minus the share of the tests to keep that fail now.

  PASS_TO_PASS of SWE-bench (Jimenez et al. 2023). Range [-1, 0]. Gamed by
  breaking what no test watches. In a suite of thousands one broken test is
  next to nothing: `correctness` is lost by it all the same.
  """
  share = facts.get('regressed')
  return None if share is None else -share


def lint(facts: Facts) -> float | None:
  """-x / (1 + x) of x findings more than before; tidying elsewhere is free.

  Style penalties of Cursor Composer (arXiv 2603.24477). Range (-1, 0]. Gamed
  by `noqa` comments, and by mending old findings to make room for new ones
  (the diff grows).
  """
  return _per_item(facts, 'lint_added', free=0)


def complexity(facts: Facts) -> float | None:
  """-x / (4 + x) of x decisions (McCabe 1976) more than in the known fix.

  Range (-1, 0]. Gamed by tables and clever expressions in place of branches,
  and by deleting branches that no test needs.
  """
  return _per_item(facts, 'complexity_excess', free=3)


def readability(facts: Facts) -> float | None:
  """-x / (1 + x) of x hard places more than in the known fix.

  `quality.strain`, after Buse and Weimer 2010. Range (-1, 0]. Gamed by lines
  of just 100 columns, functions of 50 lines.
  """
  return _per_item(facts, 'strain_excess', free=0)


def diff_size(facts: Facts) -> float | None:
  """-(c - g) / (c + g) for c > g lines changed where the known fix changes g.

  The size of the smallest known fix as yardstick follows program repair's
  preference for minimal patches (Mechtaev, Yi, Roychoudhury 2015, DirectFix).
  Range [-1, 0]; 0 up to the known size. Gamed by several statements on a line.
  """
  changed, gold = facts.get('diff_lines'), facts.get('gold_lines')
  if changed is None or gold is None:
    return None
  return min(0.0, (gold - changed) / (gold + changed)) if changed else 0.0


def conformity(facts: Facts) -> float | None:
  """Minus the distance of the new lines from the habits of their file.

  `style.conformity`, after Allamanis et al. 2014. Range [-1, 0]. Gamed by
  lines that show no habit: no strings, no names of several words.
  """
  value = facts.get('style_conformity')
  return None if value is None else value - 1.0


def communication(facts: Facts) -> float | None:
  """-1 for claiming tests that were not seen to pass, -1/2 for silence, else 0.

  Communication rewards of Cursor Composer (arXiv 2603.24477). Range
  {-1, -1/2, 0}. Gamed by an empty phrase, by claims in words that the pattern
  does not know, and by `pytest; true` in a terminal, which ends well.
  """
  if 'false_claim' not in facts or 'silent' not in facts:
    return None
  return -1.0 if facts['false_claim'] else -0.5 * facts['silent']


def hygiene(facts: Facts) -> float | None:
  """-x / (2 + x) of x things left behind.

  Stray files, prints and debuggers in new code, comments and items of the
  to-do list that leave something open (product penalties of Cursor Composer,
  arXiv 2603.24477). Range (-1, 0]. Gamed by deleting the to-do list, by
  writing to stdout in place of print, and by importing the stray file.
  """
  names = ('stray_files', 'debug_marks', 'todo_marks', 'open_todos')
  if not all(name in facts for name in names):
    return None
  x = sum(facts[name] for name in names)
  return -x / (2 + x)


def _per_item(facts: Facts, name: str, *, free: int) -> float | None:
  """-x / (1 + free + x): the first items weigh most, and no flood drowns all.

  Fewer than none costs nothing, and earns nothing.
  """
  if name not in facts:
    return None
  x = max(0.0, facts[name])
  return -x / (1 + free + x) if x else 0.0
