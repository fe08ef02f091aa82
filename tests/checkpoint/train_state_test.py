import os
import pathlib
import signal
import subprocess
import sys
import time

from absl.testing import absltest
import jax
import jax.numpy as jnp
import numpy as np
import optax

from composer_jax.checkpoint import leaves
from composer_jax.checkpoint import snapshot
from composer_jax.checkpoint import train_state

# Saves steps 1, 2, ...; while saving step 2 it kills itself at a named instant.
WRITER = """
import os, signal, sys
import numpy as np
from composer_jax.checkpoint import train_state

directory, instant = sys.argv[1:]

def die_in(module, name, when):
  original = getattr(module, name)
  def wrapped(*args, **options):
    if when(*args):
      os.kill(os.getpid(), signal.SIGKILL)
    return original(*args, **options)
  setattr(module, name, wrapped)

for step in range(1, 1000):
  if step == 2 and instant == 'arrays written':
    die_in(os, 'fsync', lambda descriptor: True)
  if step == 2 and instant == 'named':
    die_in(os, 'rename', lambda old, new: str(new).endswith('/2'))
  if step == 2 and instant == 'announced':
    die_in(os, 'replace', lambda old, new: str(new).endswith('LATEST'))
  tree = {'x': np.full(50_000, step), 'y': np.full(3, step)}
  train_state.save(directory, step, tree, {'step': step})
"""
LIKE = {'x': np.zeros(50_000, int), 'y': np.zeros(3, int)}


def start_writer(directory, instant):
  return subprocess.Popen(
    [sys.executable, '-c', WRITER, directory, instant],
    env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
    cwd=pathlib.Path(__file__).parents[2],
  )


def save(directory, *steps):
  for step in steps:
    tree = {'x': np.full(50_000, step), 'y': np.full(3, step)}
    train_state.save(directory, step, tree, {'step': step})


class TrainStateTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.directory = self.create_tempdir().full_path

  def assert_whole(self, restored, step):
    self.assertEqual(restored.step, step)
    self.assertEqual(restored.metadata, {'step': step})
    self.assertEqual(set(restored.tree['x']), {step})
    self.assertEqual(set(restored.tree['y']), {step})
    self.assertEqual(restored.refused, ())

  def test_the_whole_state_survives(self):
    params = {
      'w': jnp.arange(6.0).reshape(2, 3),
      'b': jnp.ones(3, jnp.bfloat16),
    }
    optimizer = optax.adamw(1e-3)
    tree = {
      'params': params,
      'optimizer': optimizer.init(params),
      'rng': jax.random.key(7),
      'version': 12,
    }
    metadata = {'cursor': 96, 'config': {'lr': 1e-3}, 'seen': ['a', 'b']}
    train_state.save(self.directory, 12, tree, metadata)
    restored = train_state.restore(self.directory, tree)
    self.assertEqual((restored.step, restored.metadata), (12, metadata))
    self.assertEqual(
      jax.tree.structure(restored.tree), jax.tree.structure(tree)
    )
    arrays, wanted = leaves.flatten(restored.tree), leaves.flatten(tree)
    self.assertEqual(list(arrays), list(wanted))
    for name, array in arrays.items():
      np.testing.assert_array_equal(array, wanted[name], strict=True)

  def test_nothing_saved_is_none(self):
    self.assertIsNone(train_state.restore(self.directory, LIKE))
    self.assertIsNone(train_state.restore(f'{self.directory}/no', LIKE))
    os.mkdir(f'{self.directory}/3')
    self.assertIsNone(train_state.restore(self.directory, LIKE))
    self.assertIsNone(train_state.latest(self.directory))

  def test_the_last_two_are_kept(self):
    save(self.directory, 10, 20, 30)
    self.assertCountEqual(os.listdir(self.directory), ['20', '30', 'LATEST'])
    self.assertEqual(train_state.latest(self.directory), 30)
    self.assert_whole(train_state.restore(self.directory, LIKE), 30)

  def test_a_whole_save_is_not_overwritten(self):
    save(self.directory, 10)
    with self.assertRaisesRegex(ValueError, 'already holds 10'):
      save(self.directory, 10)

  def damage(self, step):
    path = pathlib.Path(self.directory) / str(step) / 'manifest.ocdbt'
    path.write_bytes(path.read_bytes()[:-1] + b'\0')

  def test_a_damaged_save_gives_way_to_the_one_before(self):
    save(self.directory, 10, 20)
    self.damage(20)
    restored = train_state.restore(self.directory, LIKE)
    self.assertEqual(restored.step, 10)
    self.assertRegex(restored.refused[0], '20: manifest.ocdbt is not the file')
    save(self.directory, 15)
    self.assert_whole(train_state.restore(self.directory, LIKE), 15)
    self.damage(15)
    save(self.directory, 15)
    self.assert_whole(train_state.restore(self.directory, LIKE), 15)

  def test_a_run_does_not_start_afresh_over_damaged_saves(self):
    save(self.directory, 10)
    self.damage(10)
    with self.assertRaisesRegex(snapshot.DamagedError, 'no whole save is left'):
      train_state.restore(self.directory, LIKE)

  def test_a_writer_killed_in_a_save_leaves_the_one_before(self):
    instants = ('arrays written', 'named', 'announced')
    writers = {
      instant: start_writer(f'{self.directory}/{instant}', instant)
      for instant in instants
    }
    for instant, writer in writers.items():
      with self.subTest(instant):
        self.assertEqual(writer.wait(60), -signal.SIGKILL)
        store = f'{self.directory}/{instant}'
        self.assertGreater(len(os.listdir(store)), 2)  # Something is left.
        self.assert_whole(train_state.restore(store, LIKE), 1)
        save(store, 2)
        self.assert_whole(train_state.restore(store, LIKE), 2)
        self.assertCountEqual(os.listdir(store), ['1', '2', 'LATEST'])

  def test_a_reader_beside_a_writer_that_dies_sees_whole_saves_only(self):
    writer = start_writer(self.directory, 'never')
    steps = []
    give_up = time.monotonic() + 60
    try:
      while len(set(steps)) < 8 and time.monotonic() < give_up:
        restored = train_state.restore(self.directory, LIKE)
        if restored:
          self.assert_whole(restored, restored.step)
          steps.append(restored.step)
    finally:
      writer.kill()
      writer.wait(60)
    self.assertLen(set(steps), 8)
    self.assertEqual(steps, sorted(steps))
    restored = train_state.restore(self.directory, LIKE)
    self.assert_whole(restored, restored.step)
    self.assertGreaterEqual(restored.step, steps[-1])


if __name__ == '__main__':
  absltest.main()
