from typing import NamedTuple

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np

from composer_jax.checkpoint import leaves


class Pair(NamedTuple):
  first: object
  second: object


class LeavesTest(parameterized.TestCase):
  def test_names_are_paths(self):
    tree = {'a': [jnp.ones(2), Pair(1, 2.0)], 'rng': jax.random.key(0)}
    self.assertEqual(
      list(leaves.flatten(tree)),
      ['a.0', 'a.1.first', 'a.1.second', 'rng@threefry2x32'],
    )

  @parameterized.parameters(
    (jnp.arange(3),),
    (jnp.ones((2, 3), jnp.bfloat16),),
    (np.float32(1.5),),
    (np.zeros((0, 4), np.int8),),
    (7,),
    (True,),
    (0.1,),
  )
  def test_kind_and_value_survive(self, leaf):
    tree = {'x': leaf, 'nothing': None, 'empty': {}}
    back = leaves.unflatten(tree, leaves.flatten(tree))
    self.assertEqual(jax.tree.structure(back), jax.tree.structure(tree))
    self.assertIs(type(back['x']), type(leaf))
    np.testing.assert_array_equal(back['x'], leaf)

  @parameterized.parameters('threefry2x32', 'rbg')
  def test_typed_keys_draw_the_same_numbers(self, algorithm):
    keys = jax.random.split(jax.random.key(3, impl=algorithm), 2)
    back = leaves.unflatten(keys, leaves.flatten(keys))
    self.assertEqual(back.dtype, keys.dtype)
    np.testing.assert_array_equal(
      jax.random.normal(back[1], 4), jax.random.normal(keys[1], 4)
    )

  def test_a_compiled_function_is_not_compiled_again(self):
    compiled = []

    @jax.jit
    def double(x):
      compiled.append(x)
      return 2 * x

    tree = {'x': jnp.ones(3)}
    double(tree['x'])
    back = leaves.unflatten(tree, leaves.flatten(tree))
    self.assertEqual(back['x'].committed, tree['x'].committed)
    double(back['x'])
    self.assertLen(compiled, 1)

  @parameterized.parameters(
    ({'x': np.ones(2)}, "lacks .'y'. and also has .'x'."),
    ({'y': np.ones(3)}, r'y: saved float64\[3\], wanted float32\[2\]'),
    ({'y': np.ones(2, np.int32)}, r'y: saved int32\[2\], wanted float32\[2\]'),
  )
  def test_another_tree_is_refused(self, arrays, message):
    with self.assertRaisesRegex(ValueError, message):
      leaves.unflatten({'y': np.ones(2, np.float32)}, arrays)

  def test_another_kind_of_key_is_refused(self):
    saved = leaves.flatten({'rng': jax.random.key(0)})
    with self.assertRaisesRegex(ValueError, 'rng@rbg'):
      leaves.unflatten({'rng': jax.random.key(0, impl='rbg')}, saved)

  def test_ambiguous_names_are_refused(self):
    with self.assertRaisesRegex(ValueError, "one name: .'a.b'."):
      leaves.flatten({'a': {'b': 1}, 'a.b': 2})

  def test_text_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'x is not an array of numbers'):
      leaves.flatten({'x': 'text'})


if __name__ == '__main__':
  absltest.main()
