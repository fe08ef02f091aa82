"""How well and how fast a question in plain words finds its symbol.

python -m benchmarks.search

Questions are in search_questions.json. They were written from the packages'
lists of names, with other words where there were some, before any of the
rankings had been run, and neither they nor the rankings were changed after.
Every ranking orders the same symbols: all that a source archive holds, its
tests and documents too. A hit is one of the symbols that answer the question.
Archives are downloaded once, by pip.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time

from absl import app
from absl import flags
import numpy as np

from composer_jax.tools import chunks
from composer_jax.tools import embedding
from composer_jax.tools import isolation
from composer_jax.tools import semantic

_CACHE = flags.DEFINE_string(
  'archives',
  str(pathlib.Path.home() / '.cache' / 'composer_jax' / 'archives'),
  'Directory of source archives.',
)
_EMBEDDING = flags.DEFINE_enum(
  'embedding', 'auto', semantic.EMBEDDINGS, 'Which embedding ranks.'
)
_VECTORS = flags.DEFINE_string(
  'vectors', '', 'Directory of vectors; empty: all are made anew.'
)
_PACKAGES = flags.DEFINE_list('packages', [], 'Only these; empty: all.')
_QUESTIONS = pathlib.Path(__file__).with_name('search_questions.json')
_SUFFIXES = ('.py', '.pyi', '.md', '.rst', '.txt', '.toml', '.cfg')
_GREP_LETTERS = 4  # A developer would not search for shorter words.
_CONTEXT = 5  # Hits that are looked at.


def archive(package: str, version: str, directory: pathlib.Path):
  """Path of a package's source archive, which is downloaded if need be."""
  directory.mkdir(parents=True, exist_ok=True)
  pattern = re.sub('[-_]', '[-_]', package) + f'-{version}.tar.gz'
  if not list(directory.glob(pattern)):
    command = [
      *(sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps'),
      *(f'--no-binary={package}', f'--dest={directory}'),
      f'{package}=={version}',
    ]
    subprocess.run(command, check=True)
  return next(directory.glob(pattern))


def read_archive(path: pathlib.Path) -> dict[str, str]:
  """Its texts, by their paths below the archive's one folder."""
  files = {}
  with tarfile.open(path) as tar:
    for member in tar:
      if member.isfile() and member.name.endswith(_SUFFIXES):
        name = member.name.partition('/')[2]
        files[name] = tar.extractfile(member).read().decode('utf-8', 'replace')
  return files


class TimedEncoder:
  """An encoder that counts the texts, and this process's CPU seconds."""

  def __init__(self, encoder: embedding.Encoder):
    self._encoder = encoder
    self.name = encoder.name
    self.texts, self.seconds = 0, 0.0

  def encode(self, texts: Sequence[str]) -> np.ndarray:
    started = time.process_time()
    vectors = self._encoder.encode(texts)
    self.seconds += time.process_time() - started
    self.texts += len(texts)
    return vectors


class Grep:
  """Ranks symbols by how many lines of them match a word of the question."""

  def __init__(self, files: Mapping[str, str], found: Sequence[chunks.Chunk]):
    self._folder = tempfile.TemporaryDirectory()
    for name, text in files.items():
      path = pathlib.Path(self._folder.name, name)
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(text)
    self._at = collections.defaultdict(list)
    for i, chunk in enumerate(found):
      for line in range(chunk.first_line, chunk.last_line + 1):
        self._at[chunk.path, line].append(i)

  def rank(self, question: str) -> list[int]:
    words = set(re.findall(rf'\w{{{_GREP_LETTERS},}}', question))
    output = subprocess.run(
      [
        *(isolation.find_ripgrep(), '--no-config', '--line-number'),
        *('--no-heading', '--ignore-case', '--only-matching', '--sort=path'),
        *(f'--regexp={word}' for word in sorted(words)),
      ],
      cwd=self._folder.name,
      capture_output=True,
      text=True,
    ).stdout
    matches = collections.Counter()
    for line in output.splitlines():
      path, number, _ = line.split(':', 2)
      for i in self._at[path, int(number)]:
        matches[i] += 1
    return [i for i, _ in matches.most_common()]

  def close(self) -> None:
    self._folder.cleanup()


def rank_of(
  ranking: Sequence[int], found: Sequence[chunks.Chunk], answers: set[str]
) -> int | None:
  """Of the first symbol that answers, from 1; None if none is ranked."""
  for rank, i in enumerate(ranking, start=1):
    if f'{found[i].path}::{found[i].name}' in answers:
      return rank
  return None


def main(argv: Sequence[str]) -> None:
  del argv
  data = json.loads(_QUESTIONS.read_text())
  config = semantic.SearchConfig(
    embedding=_EMBEDDING.value, cache_directory=_VECTORS.value
  )
  encoder = semantic.make_encoder(config)
  if encoder is not None:
    encoder = TimedEncoder(encoder)
  ranks = collections.defaultdict(list)  # Of each method, by question.
  seconds = collections.defaultdict(list)
  symbols, cutting = 0, 0.0
  for package in _PACKAGES.value or data['versions']:
    version = data['versions'][package]
    path = archive(package, version, pathlib.Path(_CACHE.value))
    files = read_archive(path)
    started = time.process_time()
    semantic.Library(semantic.SearchConfig(embedding='none'), None).index(files)
    cutting += time.process_time() - started
    index = semantic.Library(config, encoder).index(files)
    symbols += len(index.chunks)
    grep = Grep(files, index.chunks)
    for entry in data['questions']:
      if entry['package'] == package:
        _ask(entry, index.chunks, _methods(index, grep), ranks, seconds)
    grep.close()
    print(f'{package} {version}: {len(index.chunks)} symbols', flush=True)
  print(
    f'{symbols} symbols, CPU ms for each: cut {1e3 * cutting / symbols:.2f}'
  )
  if encoder is not None and encoder.texts:
    each = 1e3 * encoder.seconds / encoder.texts
    print(f'{encoder.texts} texts embedded, CPU ms for each: {each:.1f}')
  _report(ranks, seconds)


def _methods(
  index: semantic.Index, grep: Grep
) -> dict[str, Callable[[str], list[int]]]:
  """What ranks symbols for a question, by name."""
  methods = {'grep': grep.rank, 'BM25': index.rank_words}
  if index.has_vectors:
    methods['embedding'] = index.rank_meanings
    methods['hybrid'] = lambda question: list(index.rank(question))
  return methods


def _ask(
  entry: Mapping,
  found: Sequence[chunks.Chunk],
  methods: Mapping[str, Callable[[str], list[int]]],
  ranks: dict[str, list],
  seconds: dict[str, list],
) -> None:
  """Asks every method one question; appends to ranks and seconds."""
  answers = set(entry['answers'])
  known = {f'{chunk.path}::{chunk.name}' for chunk in found}
  if not answers <= known:
    raise ValueError(f'{entry["package"]} has no {sorted(answers - known)}')
  for name, rank in methods.items():
    started = time.perf_counter()
    ranking = rank(entry['question'])
    seconds[name].append(time.perf_counter() - started)
    ranks[name].append(rank_of(ranking, found, answers))


def _report(ranks: Mapping[str, list], seconds: Mapping[str, list]) -> None:
  asked = len(ranks['grep'])
  print(f'{asked} questions')
  print(f'{"":10} hit@1 hit@{_CONTEXT}   MRR  ms per question (median)')
  for name, found in ranks.items():
    first = sum(rank == 1 for rank in found) / asked
    near = sum(rank is not None and rank <= _CONTEXT for rank in found) / asked
    mrr = sum(1 / rank for rank in found if rank is not None) / asked
    ms = 1e3 * statistics.median(seconds[name])
    print(f'{name:10} {first:5.3f} {near:5.3f} {mrr:5.3f} {ms:8.1f}')


if __name__ == '__main__':
  app.run(main)
