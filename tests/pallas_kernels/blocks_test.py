from absl.testing import absltest
import jax
import jax.numpy as jnp
import numpy as np

from composer_jax.pallas_kernels import blocks


class LayoutTest(absltest.TestCase):
  def test_each_expert_begins_a_block(self):
    # Blocks of 4 rows: expert 0 needs two, 1 none, 2 one, 3 one.
    layout = blocks.layout(jnp.array([5, 0, 4, 1]), 10, 4)
    self.assertEqual(layout.first_slot_E.tolist(), [0, 8, 8, 12])
    # Three for 10 rows and one more for each expert, in the worst case.
    self.assertEqual(layout.expert_of_block.tolist(), [0, 0, 2, 3, 3, 3, 3])
    self.assertEqual(layout.slots, 28)

  def test_the_worst_case_fits(self):
    for sizes in ([1, 1, 1, 7], [9, 1, 0, 0], [0, 0, 0, 10], [2, 3, 2, 3]):
      layout = blocks.layout(jnp.array(sizes), 10, 4)
      end = layout.first_slot_E + jnp.array(sizes)
      self.assertLessEqual(int(end.max()), layout.slots)


class SlotsTest(absltest.TestCase):
  X_MD = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
  SLOT_MX = jnp.array([[4, 0], [1, 2], [6, 6]])  # The last row is nowhere.

  def test_put_fills_the_slots_and_take_empties_them(self):
    x_PD = blocks.put(self.X_MD, self.SLOT_MX, 6)
    self.assertEqual(x_PD[:, 0].tolist(), [1, 3, 3, 0, 1, 0])
    x_MXD = blocks.take(x_PD, self.SLOT_MX)
    self.assertEqual(x_MXD[:, :, 1].tolist(), [[2, 2], [4, 4], [0, 0]])

  def test_gradients_are_those_of_plain_indexing(self):
    weight_PD = jnp.arange(12.0).reshape(6, 2)

    def plainly(x_MD):
      x_PD = jnp.zeros((6, 2))
      x_PD = x_PD.at[jnp.array([4, 0])].set(x_MD[0])
      return (x_PD.at[jnp.array([1, 2])].set(x_MD[1]) * weight_PD).sum()

    put = lambda x: (blocks.put(x, self.SLOT_MX, 6) * weight_PD).sum()
    np.testing.assert_array_equal(
      jax.grad(put)(self.X_MD), jax.grad(plainly)(self.X_MD)
    )
    weight_MXD = jnp.arange(12.0).reshape(3, 2, 2)
    take = lambda x: (blocks.take(x, self.SLOT_MX) * weight_MXD).sum()
    wanted = np.zeros((6, 2))
    for slot, weight in ((4, [0, 1]), (0, [2, 3]), (1, [4, 5]), (2, [6, 7])):
      wanted[slot] = weight
    np.testing.assert_array_equal(jax.grad(take)(weight_PD), wanted)


if __name__ == '__main__':
  absltest.main()
