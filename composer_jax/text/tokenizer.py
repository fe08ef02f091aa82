"""A byte-level BPE for code, plus whole fragments as single tokens.

Plain text never encodes to a fragment, whatever it contains: a file that holds
'<|im_end|>' is text to read, not the end of a turn. Only `fragment_id` yields
those ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
import json
import os

import tokenizers
from tokenizers import decoders
from tokenizers import models
from tokenizers import pre_tokenizers
from tokenizers import trainers

# Lexical pieces with their leading space, as they stand in source code, so that
# an operator in an edit is the very token it is in the file.
_PIECE = (
  r' ?[A-Za-z_]+(?:\.py)?'
  r'| ?\d{1,2}'
  r'| ?(?:==|!=|<=|>=|//|\*\*|->|\+=|-=|\*=|/=|%=)'
  r'| ?[^\s\w]'
  r'|\t *'
  r'|\n *'
  r'|\s+'
)
_FILE = 'tokenizer.json'


class Tokenizer:
  """Ids [0, len(text vocabulary)) are text; the fragments follow."""

  def __init__(self, bpe: tokenizers.Tokenizer, fragments: Sequence[str]):
    if len(set(fragments)) != len(fragments):
      raise ValueError(f'fragments repeat: {sorted(fragments)}')
    self._bpe = bpe
    self._fragments = tuple(fragments)
    self._first = bpe.get_vocab_size()
    self._ids = {f: self._first + i for i, f in enumerate(fragments)}

  @property
  def vocab_size(self) -> int:
    return self._first + len(self._fragments)

  def encode(self, text: str) -> list[int]:
    return self._bpe.encode(text, add_special_tokens=False).ids

  def has_fragment(self, fragment: str) -> bool:
    return fragment in self._ids

  def fragment_id(self, fragment: str) -> int:
    return self._ids[fragment]

  def decode(self, token_T: Iterable[int]) -> str:
    """Text of the ids; ids beyond the vocabulary read as U+FFFD."""
    parts, run = [], []
    for token in map(int, token_T):
      if token < self._first:
        run.append(token)
        continue
      parts.append(self._bpe.decode(run, skip_special_tokens=False))
      index = token - self._first
      known = index < len(self._fragments)
      parts.append(
        self._fragments[index] if known else '\N{REPLACEMENT CHARACTER}'
      )
      run = []
    parts.append(self._bpe.decode(run, skip_special_tokens=False))
    return ''.join(parts)

  def save(self, directory: str) -> None:
    body = {'bpe': self._bpe.to_str(), 'fragments': self._fragments}
    path = os.path.join(directory, _FILE)
    with open(path + '.tmp', 'w', encoding='utf-8') as f:
      json.dump(body, f)
    os.replace(path + '.tmp', path)


def train(
  texts: Iterable[str], fragments: Sequence[str], vocab_size: int
) -> Tokenizer:
  """Learns a vocabulary of at most `vocab_size`, fragments included."""
  smallest = 256 + len(fragments)
  if vocab_size < smallest:
    raise ValueError(
      f'vocab_size={vocab_size} is too small: 256 bytes and'
      f' {len(fragments)} fragments need {smallest}'
    )
  bpe = tokenizers.Tokenizer(models.BPE())
  bpe.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(tokenizers.Regex(_PIECE), behavior='isolated'),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  )
  bpe.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
    vocab_size=vocab_size - len(fragments),
    min_frequency=2,
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    show_progress=False,
  )
  bpe.train_from_iterator(texts, trainer)
  return Tokenizer(bpe, fragments)


def byte_level(fragments: Sequence[str]) -> Tokenizer:
  """One token per byte of UTF-8: reads everything, learned from nothing."""
  return train((), fragments, 256 + len(fragments))


def load(directory: str) -> Tokenizer:
  with open(os.path.join(directory, _FILE), encoding='utf-8') as f:
    body = json.load(f)
  return Tokenizer(
    tokenizers.Tokenizer.from_str(body['bpe']), body['fragments']
  )
