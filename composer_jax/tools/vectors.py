"""Keeps vectors of texts on disk, so that a repository is read once.

One file per list of texts, named by a digest of the texts and of the model:
what changes has another name, and nothing is ever out of date. Each file begins
with a digest of the rest. A reader believes nothing else, so a writer that was
killed, or a disk that lost its end, costs time and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
import hashlib
import json
import os
import pathlib
import tempfile

import numpy as np

_DIGEST_BYTES = 32  # Of SHA-256.


class VectorCache:
  """A directory of vectors. Any process may use it at the same time."""

  def __init__(self, directory: str, model: str):
    self._directory = pathlib.Path(directory)
    self._model = model

  def path(self, texts: Sequence[str]) -> pathlib.Path:
    """Where the vectors of these texts lie, or would."""
    content = json.dumps([self._model, list(texts)]).encode()
    key = hashlib.sha256(content).hexdigest()
    return self._directory / key[:2] / key[2:]

  def read(self, texts: Sequence[str]) -> np.ndarray | None:
    """The vectors, float32, one row per text; None where there are none."""
    try:
      content = self.path(texts).read_bytes()
    except FileNotFoundError:
      return None
    digest, rows = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if not texts or hashlib.sha256(rows).digest() != digest:
      return None
    return np.frombuffer(rows, np.float32).reshape(len(texts), -1)

  def write(self, texts: Sequence[str], vectors: np.ndarray) -> None:
    """Keeps the vectors: all of them, or none if this process dies."""
    path = self.path(texts)
    rows = np.ascontiguousarray(vectors, np.float32).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix='.tmp')
    with os.fdopen(descriptor, 'wb') as file:
      file.write(hashlib.sha256(rows).digest())
      file.write(rows)
    os.replace(temporary, path)
