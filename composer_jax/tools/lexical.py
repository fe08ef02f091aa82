"""Ranks texts by the words that they share with a question: BM25.

Written out here, not taken from a library: an edit must cost one file, so the
words of each text are counted once and nothing is built over all of them. With
a few thousand texts a question takes milliseconds.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
import re

import numpy as np

_K1, _B = 1.2, 0.75  # Robertson & Zaragoza (2009), section 3.5.
# A run of letters or digits; a capital begins a word in camelCase, and the last
# of several capitals does in HTTPServer.
_WORD = re.compile(
  r'[A-Z]+(?![^\W\d_A-Z])|[A-Z]?[^\W\d_A-Z]+|[A-Z]+(?=[A-Z])|\d+'
)
_IDENTIFIER = re.compile(r'\w+')
_STOP_WORDS = frozenset(
  'a an and are as at be by can do does for from has have how i if in is it its'
  ' me my of on or so some such that the their them then there they this to was'
  ' we what when where which who why will with would you your'.split()
)


def words(text: str) -> Iterator[str]:
  """The stemmed words of a text; an identifier gives itself and its parts.

  Words that say nothing in English (the, of, how, ...) are left out.
  """
  for identifier in _IDENTIFIER.findall(text):
    parts = [part.lower() for part in _WORD.findall(identifier)]
    for part in parts:
      if part not in _STOP_WORDS:
        yield stem(part)
    if len(parts) > 1:
      yield identifier.lower()


def stem(word: str) -> str:
  """Takes the s of a plural off, as Harman (1991), 'S stemmer', does."""
  if word.endswith('ies') and not word.endswith(('eies', 'aies')):
    return word[:-3] + 'y'
  if word.endswith('es') and not word.endswith(('aes', 'ees', 'oes')):
    return word[:-1]
  if word.endswith('s') and not word.endswith(('us', 'ss')):
    return word[:-1]
  return word


def count(text: str) -> Mapping[str, int]:
  """How often each word occurs."""
  return collections.Counter(words(text))


def score(question: str, counts: Sequence[Mapping[str, float]]) -> np.ndarray:
  """BM25 of each text, from the counts of its words.

  Robertson & Zaragoza (2009), equation 3.15, with the idf kept above zero by
  the 1 that Lucene adds. A word counts once however often it is asked for.
  """
  terms = sorted(set(words(question)))
  texts = len(counts)
  if not terms or not texts:
    return np.zeros(texts)
  frequency_NT = np.array(
    [[count.get(term, 0.0) for term in terms] for count in counts]
  )
  length_N = np.array([sum(count.values()) for count in counts], float)
  found_T = np.count_nonzero(frequency_NT, axis=0)
  idf_T = np.log1p((texts - found_T + 0.5) / (found_T + 0.5))
  norm_N = _K1 * (1 - _B + _B * length_N / max(length_N.mean(), 1e-9))
  gain_NT = frequency_NT * (_K1 + 1) / (frequency_NT + norm_N[:, None] + 1e-9)
  return gain_NT @ idf_T
