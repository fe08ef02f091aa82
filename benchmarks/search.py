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

from composer_jax.tools import chunks
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
  ranks = collections.defaultdict(list)  # Of each method, by question.
  seconds = collections.defaultdict(list)
  symbols, cutting, embedding = 0, 0.0, 0.0
  for package, version in data['versions'].items():
    files = read_archive(archive(package, version, pathlib.Path(_CACHE.value)))
    words = semantic.Library(semantic.SearchConfig(embedding='none'), None)
    started = time.perf_counter()
    index = words.index(files)
    cut = time.perf_counter()
    library = semantic.Library(config, encoder)
    index = library.index(files)
    ended = time.perf_counter()
    symbols += len(index.chunks)
    cutting += cut - started
    embedding += max(0.0, (ended - cut) - (cut - started))
    grep = Grep(files, index.chunks)
    methods = {'grep': grep.rank, 'BM25': index.rank_words}
    if encoder is not None:
      methods['embedding'] = index.rank_meanings
      methods['hybrid'] = lambda question, index=index: list(
        semantic.fuse(
          [index.rank_words(question), index.rank_meanings(question)]
        )
      )
    for entry in data['questions']:
      if entry['package'] != package:
        continue
      _ask(entry, index.chunks, methods, ranks, seconds)
    grep.close()
    print(f'{package} {version}: {len(index.chunks)} symbols', flush=True)
  _report(library.method, symbols, cutting, embedding, ranks, seconds)


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


def _report(method, symbols, cutting, embedding, ranks, seconds) -> None:
  asked = len(ranks['grep'])
  print(f'{asked} questions, {symbols} symbols; a search takes {method}')
  print(f'{1e3 * cutting / symbols:.2f} ms per symbol to cut and count')
  print(f'{1e3 * embedding / symbols:.1f} ms per symbol to embed')
  print(f'{"":10} hit@1 hit@{_CONTEXT}   MRR  ms per question (median)')
  for name, found in ranks.items():
    first = sum(rank == 1 for rank in found) / asked
    near = sum(rank is not None and rank <= _CONTEXT for rank in found) / asked
    mrr = sum(1 / rank for rank in found if rank is not None) / asked
    ms = 1e3 * statistics.median(seconds[name])
    print(f'{name:10} {first:5.3f} {near:5.3f} {mrr:5.3f} {ms:8.1f}')


if __name__ == '__main__':
  app.run(main)
