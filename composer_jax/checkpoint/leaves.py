"""A pytree as a flat mapping from names to numpy arrays, and back.

A leaf's name is its path, joined by dots: `layers.0.attention.query`. A typed
random key is stored as its words and carries its algorithm in the name:
`rng@threefry2x32`. Arrays pass through the memory of one process.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


def flatten(tree: Any) -> dict[str, np.ndarray]:
  """Every leaf as a numpy array, under its name.

  Raises:
    ValueError: two leaves have one name, or a leaf is not an array of numbers.
  """
  names, values = _named_leaves(tree)
  raw = [jax.random.key_data(x) if _is_key(x) else x for x in values]
  arrays = [np.asarray(x) for x in jax.device_get(raw)]
  for name, array in zip(names, arrays, strict=True):
    if array.dtype.kind in 'OSUMm':
      raise ValueError(f'{name} is not an array of numbers: {array.dtype}')
  return dict(zip(names, arrays, strict=True))


def unflatten(like: Any, arrays: Mapping[str, np.ndarray]) -> Any:
  """The arrays as a tree like `like`, on the devices of its leaves.

  Args:
    like: A tree of the wanted structure, shapes and dtypes. A `jax.Array`, or
      a `jax.ShapeDtypeStruct` with a sharding, says where its leaf goes; a
      Python number stays one; any other leaf becomes a numpy array.
    arrays: What `flatten` gave. Typed keys in `like` must be real arrays.

  Raises:
    ValueError: names, shapes or dtypes differ; the message lists them.
  """
  names, values = _named_leaves(like)
  _check_same(dict(zip(names, values, strict=True)), arrays)
  leaves = [
    _restore_leaf(value, arrays[name])
    for name, value in zip(names, values, strict=True)
  ]
  return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _named_leaves(tree: Any) -> tuple[list[str], list[Any]]:
  names, values = [], []
  for path, value in jax.tree_util.tree_leaves_with_path(tree):
    name = jax.tree_util.keystr(path, simple=True, separator='.')
    suffix = f'@{jax.random.key_impl(value)}' if _is_key(value) else ''
    names.append(name + suffix)
    values.append(value)
  doubled = [name for name, n in collections.Counter(names).items() if n > 1]
  if doubled:
    raise ValueError(f'several leaves have one name: {doubled}')
  return names, values


def _is_key(leaf: Any) -> bool:
  return isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)) and (
    jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
  )


def _restore_leaf(like: Any, array: np.ndarray) -> Any:
  if isinstance(like, (bool, int, float, complex)):
    return type(like)(array.item())
  if _is_key(like):
    key = jax.random.wrap_key_data(array, impl=jax.random.key_impl(like))
    return jax.device_put(key, _placement(like))
  if isinstance(like, (jax.Array, jax.ShapeDtypeStruct)):
    return jax.device_put(array, _placement(like))
  return array[()] if isinstance(like, np.generic) else array


def _placement(like: Any) -> jax.sharding.Sharding | None:
  # An array that nobody placed must not come back placed: jit would compile
  # its users once more.
  free = isinstance(like, jax.Array) and not like.committed
  return None if free else like.sharding


def _check_same(
  wanted: Mapping[str, Any], found: Mapping[str, np.ndarray]
) -> None:
  missing = sorted(set(wanted) - set(found))
  surplus = sorted(set(found) - set(wanted))
  if missing or surplus:
    raise ValueError(
      f'another tree was saved: it lacks {missing} and also has {surplus}'
    )
  differing = [
    f'{name}: saved {_kind(found[name])}, wanted {_kind(value)}'
    for name, value in wanted.items()
    if _kind(found[name]) != _kind(value)
  ]
  if differing:
    raise ValueError('leaves differ: ' + '; '.join(differing))


def _kind(leaf: Any) -> str:
  if _is_key(leaf):
    leaf = jax.eval_shape(jax.random.key_data, leaf)
  elif isinstance(leaf, (bool, int, float, complex)):
    leaf = np.asarray(leaf)
  return f'{leaf.dtype}{list(leaf.shape)}'
