"""Words are cut at their seams, and weighed as the formula says."""

import math

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from composer_jax.tools import lexical


class WordsTest(parameterized.TestCase):
  @parameterized.parameters(
    ('iter_chunks', ['iter', 'chunk', 'iter_chunks']),
    ('parseHTTPReply', ['parse', 'http', 'reply', 'parsehttpreply']),
    ('HTTP', ['http']),
    ('utf8', ['utf', '8', 'utf8']),
    ('__init__', ['init']),
    ('café', ['café']),
    ('Where is the entry?', ['entry']),
    ('self.queries[i]', ['self', 'query']),
  )
  def test_identifiers_give_their_parts_and_themselves(self, text, words):
    self.assertEqual(list(lexical.words(text)), words)

  @parameterized.parameters(
    ('queries', 'query'),
    ('boxes', 'boxe'),
    ('box', 'box'),
    ('class', 'class'),
    ('status', 'status'),
    ('items', 'item'),
    ('goes', 'goe'),
  )
  def test_plurals_lose_their_s(self, word, stem):
    self.assertEqual(lexical.stem(word), stem)


class ScoreTest(absltest.TestCase):
  def test_three_texts_by_hand(self):
    counts = [
      {'cat': 1, 'sat': 1},  # Two words.
      {'cat': 2, 'dog': 2},  # Four words.
      {'dog': 3},  # Three words, the mean length.
    ]
    # 'cat' is in two of three texts; 'bird' is in none.
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    first = 1 * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 2 / 3))
    second = 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 4 / 3))
    np.testing.assert_allclose(
      lexical.score('cats, birds', counts),
      [idf * first, idf * second, 0],
      rtol=1e-6,
    )
    # In numbers: idf 0.470, gains 1.158 and 1.257.
    np.testing.assert_allclose(
      lexical.score('cat', counts), [0.544, 0.591, 0], atol=1e-3
    )

  def test_a_rare_word_weighs_more_and_scores_add_up(self):
    counts = [{'a1': 1}, {'b1': 1}, {'b1': 1}, {'c1': 1}]
    rare, common = lexical.score('a1 b1', counts)[:2]
    self.assertGreater(rare, common)
    np.testing.assert_allclose(
      lexical.score('a1', counts) + lexical.score('b1', counts),
      lexical.score('a1 b1', counts),
    )

  def test_nothing_to_ask_or_to_find_scores_zero(self):
    np.testing.assert_array_equal(lexical.score('how is it', [{'x': 1}]), [0])
    self.assertEmpty(lexical.score('x', []))
    np.testing.assert_array_equal(lexical.score('x', [{}, {}]), [0, 0])


if __name__ == '__main__':
  absltest.main()
