"""Finds the parts of a repository that a question in plain words is about.

Two rankings of its symbols are fused: by shared words (BM25), and by the angle
between vectors of meaning where an embedding is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import threading

import numpy as np

from composer_jax.tools import chunks
from composer_jax.tools import embedding
from composer_jax.tools import lexical
from composer_jax.tools import vectors
from composer_jax.tools import workspace

_NAME_WEIGHT = 3  # A word of a symbol's name counts as so many in its text.
_FUSION_RANKS = 60  # Cormack et al. (2009) found it; they call it k.
_VECTORS_KEPT = 65_536  # In memory, 1.5 KB each.
_QUESTION_CHARS = 1000  # What is asked beyond does not count.
_SIGNATURE_CHARS, _DOC_CHARS = 120, 160
EMBEDDINGS = ('auto', 'none', 'minilm')


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchConfig:
  """How a repository is searched."""

  embedding: str = 'auto'  # 'none', 'minilm', or 'auto': if it is installed.
  cache_directory: str = ''  # Of vectors; empty: they are kept in memory only.
  file_chars: int = 400_000  # A longer file is data, and is left out.
  file_vectors: int = 1000  # What follows in one file is found by words only.
  files_kept: int = 2048  # In memory; of more, some are cut at each question.

  def __post_init__(self):
    if self.embedding not in EMBEDDINGS:
      raise ValueError(f'embedding is one of {EMBEDDINGS}: {self.embedding!r}')


@dataclasses.dataclass(frozen=True)
class Hit:
  """A part of a repository, and how well it answers."""

  chunk: chunks.Chunk
  score: float  # Comparable within one answer only.


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Document:
  """One file, cut and counted; `vector_ND` is None without an embedding."""

  chunks: Sequence[chunks.Chunk]
  counts: Sequence[Mapping[str, int]]
  vector_ND: np.ndarray | None


def make_encoder(config: SearchConfig) -> embedding.Encoder | None:
  """The encoder that the configuration asks for; None: words alone.

  Raises ValueError where 'minilm' is asked for and not installed.
  """
  if config.embedding == 'none':
    return None
  if config.embedding == 'auto' and embedding.find_model() is None:
    return None
  return embedding.MiniLM()


class Library:
  """Cuts, counts and embeds each file once. Any thread may use it."""

  def __init__(self, config: SearchConfig, encoder: embedding.Encoder | None):
    self._config = config
    self._encoder = encoder
    self._cache = None
    if encoder is not None and config.cache_directory:
      self._cache = vectors.VectorCache(config.cache_directory, encoder.name)
    self._documents = workspace.ResultCache(config.files_kept)
    self._vectors = workspace.ResultCache(_VECTORS_KEPT)
    self._encoding = threading.Lock()  # Two would do the same work twice.

  @property
  def method(self) -> str:
    """What ranks: 'BM25', or 'BM25 + ' and the name of the embedding."""
    return 'BM25' + (f' + {self._encoder.name}' if self._encoder else '')

  def index(
    self,
    files: Mapping[str, str],
    edits: Mapping[str, str | None] | None = None,
  ) -> Index:
    """What can be asked about files, with edits laid over them.

    Vectors of `files` are kept on disk; an edit's are not, for edits are many
    and seldom met again. An edit to None takes a file away. Of an edited file
    only the parts that changed are embedded.
    """
    edits = edits or {}
    texts = dict(files) | dict(edits)
    return Index(
      [
        self._document(path, text, keep=path not in edits)
        for path, text in sorted(texts.items())
        if text is not None and len(text) <= self._config.file_chars
      ],
      self._encode,
    )

  def _encode(self, question: str) -> np.ndarray:
    return self._encoder.encode([question])[0]

  def _document(self, path: str, text: str, keep: bool) -> _Document:
    document = self._documents.get((path, text))
    if document is None:
      found = chunks.chunk(path, text)
      document = _Document(
        chunks=found,
        counts=[_count(chunk) for chunk in found],
        vector_ND=self._embed(found, keep),
      )
      self._documents.put((path, text), document)
    return document

  def _embed(
    self, found: Sequence[chunks.Chunk], keep: bool
  ) -> np.ndarray | None:
    """Vectors of the parts of a file; zero beyond the limit."""
    if self._encoder is None or not found:
      return None
    texts = [_describe(chunk) for chunk in found[: self._config.file_vectors]]
    with self._encoding:
      stored = self._cache.read(texts) if self._cache and keep else None
      if stored is not None:
        rows = dict(zip(texts, stored, strict=True))
      else:
        rows = {text: self._vectors.get(text) for text in texts}
        missing = [text for text, row in rows.items() if row is None]
        if missing:
          made = self._encoder.encode(missing)
          rows |= dict(zip(missing, made, strict=True))
      for text, row in rows.items():
        self._vectors.put(text, row)
      vector_ND = np.stack([rows[text] for text in texts])
      if self._cache and keep and stored is None:
        self._cache.write(texts, vector_ND)
    return np.pad(vector_ND, ((0, len(found) - len(texts)), (0, 0)))


class Index:
  """The parts of some files, ready to be asked about."""

  def __init__(
    self, documents: Sequence[_Document], encode: Callable[[str], np.ndarray]
  ):
    self.chunks = [c for document in documents for c in document.chunks]
    self._counts = [c for document in documents for c in document.counts]
    self._encode = encode
    rows = [d.vector_ND for d in documents if d.vector_ND is not None]
    self._vector_ND = np.concatenate(rows) if rows else None
    self._read_N = self._vector_ND.any(axis=1) if rows else None

  @property
  def has_vectors(self) -> bool:
    return self._vector_ND is not None

  def search(self, question: str, limit: int) -> list[Hit]:
    """The best parts, best first."""
    scores = self.rank(question)
    best = list(scores)[: max(0, limit)]
    return [Hit(self.chunks[i], scores[i]) for i in best]

  def rank(self, question: str) -> dict[int, float]:
    """Positions in `chunks` and their scores, best first.

    By words alone where there are no vectors.
    """
    question = question[:_QUESTION_CHARS]
    ranked = [self.rank_words(question)]
    if self.has_vectors:
      ranked.append(self.rank_meanings(question))
    scores = fuse(ranked)
    return dict(sorted(scores.items(), key=lambda item: (-item[1], item[0])))

  def rank_words(self, question: str) -> list[int]:
    """Positions in `chunks` of those that share words with the question."""
    score_N = lexical.score(question, self._counts)
    return [i for i in np.argsort(-score_N, kind='stable') if score_N[i] > 0]

  def rank_meanings(self, question: str) -> list[int]:
    """Positions in `chunks` of those that have a vector, by the cosine."""
    score_N = self._vector_ND @ self._encode(question)
    return [i for i in np.argsort(-score_N, kind='stable') if self._read_N[i]]


def fuse(rankings: Sequence[Sequence[int]]) -> dict[int, float]:
  """Reciprocal rank fusion (Cormack, Clarke & Büttcher 2009): Σ 1/(60 + rank).

  Ranks count from 1. What a ranking leaves out gets nothing from it.
  """
  scores: dict[int, float] = {}
  for ranking in rankings:
    for rank, i in enumerate(ranking, start=1):
      scores[int(i)] = scores.get(int(i), 0.0) + 1 / (_FUSION_RANKS + rank)
  return scores


def search_text(
  library: Library,
  files: Mapping[str, str],
  question: str,
  limit: int,
  edits: Mapping[str, str | None] | None = None,
) -> str:
  """The answer as the model reads it: where, what, its signature and doc."""
  hits = library.index(files, edits).search(question, limit)
  return '\n'.join(render(hit.chunk) for hit in hits) or 'no match'


def render(chunk: chunks.Chunk) -> str:
  """`path:first-last  name`, then the signature and what the docstring says."""
  lines = [f'{chunk.path}:{chunk.first_line}-{chunk.last_line}  {chunk.name}']
  for text, limit in (
    (chunk.signature, _SIGNATURE_CHARS),
    (chunk.doc, _DOC_CHARS),
  ):
    if text:
      lines.append('  ' + (text if len(text) <= limit else text[:limit] + '…'))
  return '\n'.join(lines)


def _count(chunk: chunks.Chunk) -> Mapping[str, int]:
  name = f'{chunk.name} ' * _NAME_WEIGHT
  return lexical.count(f'{name}{chunk.path} {chunk.text}')


def _describe(chunk: chunks.Chunk) -> str:
  return f'{chunk.path} {chunk.name}\n{chunk.text}'
