from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from composer_jax.model import transformer
from composer_jax.sampler import decode

SIZE = 4000
P_V = np.array([0.1, 0.0, 0.6, 0.3])
LOGITS_V = np.array([np.log(0.1), -1e9, np.log(0.6), np.log(0.3)]) + 5

sample_token = jax.jit(decode.sample_token)


def rows(seed_B, start_B=7, temperature_B=1.0):
  size = len(seed_B)
  return decode.Rows(
    slot_B=np.zeros(size, np.int32),
    token_B=np.zeros(size, np.int32),
    before_BP=np.zeros((size, transformer.CONTEXT), np.int32),
    start_B=np.broadcast_to(np.int32(start_B), size),
    remaining_B=np.ones(size, np.int32),
    seed_B=np.asarray(seed_B, np.uint32),
    temperature_B=np.broadcast_to(np.float32(temperature_B), size),
  )


def draw(temperature=1.0, start_B=7):
  logits_BV = np.tile(LOGITS_V.astype(np.float32), (SIZE, 1))
  return sample_token(logits_BV, rows(np.arange(SIZE), start_B, temperature))


class SampleTokenTest(parameterized.TestCase):
  @parameterized.parameters(1.0, 0.5)
  def test_follows_the_tempered_distribution(self, temperature):
    p_V = P_V ** (1 / temperature)
    p_V /= p_V.sum()
    token_B, logprob_B = draw(temperature)
    frequency_V = np.bincount(token_B, minlength=4) / SIZE
    self.assertEqual(frequency_V[1], 0)
    deviation_V = np.sqrt(p_V * (1 - p_V) / SIZE)
    self.assertTrue((np.abs(frequency_V - p_V) <= 4 * deviation_V).all())
    np.testing.assert_allclose(logprob_B, np.log(p_V[token_B]), atol=1e-5)

  def test_temperature_zero_takes_the_likeliest(self):
    token_B, logprob_B = draw(temperature=0.0)
    self.assertEqual(set(token_B.tolist()), {2})
    np.testing.assert_allclose(logprob_B, np.log(0.6), atol=1e-5)

  def test_depends_on_the_rows_own_seed_and_position(self):
    token_B, _ = draw()
    backwards_B, _ = sample_token(
      np.tile(LOGITS_V.astype(np.float32), (SIZE, 1)),
      rows(np.arange(SIZE)[::-1]),
    )
    np.testing.assert_array_equal(backwards_B[::-1], token_B)
    later_B, _ = draw(start_B=8)
    differ = np.mean(np.asarray(later_B) != token_B)
    # Independent draws differ as often as two tokens of the distribution do.
    self.assertAlmostEqual(differ, 1 - (P_V**2).sum(), delta=0.04)


if __name__ == '__main__':
  absltest.main()
