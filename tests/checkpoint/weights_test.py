import fcntl
import os
import pathlib
import shutil
import threading

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from composer_jax.checkpoint import snapshot
from composer_jax.checkpoint import weights


def params(value):
  return {'embed': jnp.full((4, 3), value), 'layers': [jnp.full(2, value)]}


def files(directory, version):
  root = pathlib.Path(directory) / str(version)
  return sorted(p for p in root.rglob('*') if p.is_file())


def flip_bit(path, position):
  content = bytearray(path.read_bytes())
  content[position] ^= 1
  path.write_bytes(content)


class WeightsTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.directory = self.create_tempdir().full_path
    self.publisher = weights.Publisher(self.directory)

  def publish(self, *versions):
    for version in versions:
      self.publisher.publish(version, params(float(version)))

  def assert_holds(self, loaded, version):
    self.assertEqual(loaded.version, version)
    for leaf in jax.tree.leaves(loaded.params):
      np.testing.assert_array_equal(leaf, np.full(leaf.shape, float(version)))

  def test_what_is_published_is_loaded(self):
    self.assertIsNone(weights.latest(self.directory))
    published = self.publisher.publish(0, params(0.0))
    self.assertEqual(weights.latest(self.directory), 0)
    loaded = weights.load(self.directory, 0, params(9.0))
    self.assert_holds(loaded, 0)
    self.assertEqual(loaded.digest, published.digest)

  def test_the_digest_is_of_the_values(self):
    first = self.publisher.publish(0, params(1.0)).digest
    self.assertEqual(self.publisher.publish(1, params(1.0)).digest, first)
    self.assertNotEqual(self.publisher.publish(2, params(2.0)).digest, first)

  def test_it_is_an_orbax_checkpoint(self):
    self.publish(5)
    found = ocp.PyTreeCheckpointer().restore(f'{self.directory}/5')
    np.testing.assert_array_equal(found['embed'], np.full((4, 3), 5.0))
    np.testing.assert_array_equal(found['layers.0'], [5.0, 5.0])

  def test_the_last_three_are_kept(self):
    self.publish(1, 2, 3, 4, 5)
    self.assertCountEqual(os.listdir(self.directory), ['3', '4', '5', 'LATEST'])
    with self.assertRaises(FileNotFoundError):
      weights.load(self.directory, 2, params(0.0))

  def test_versions_only_rise(self):
    self.publish(3)
    for version in (2, 3):
      with self.assertRaisesRegex(ValueError, f'{version} must be above'):
        self.publish(version)
    self.assert_holds(weights.load(self.directory, 3, params(0.0)), 3)

  def test_a_restart_rewinds(self):
    self.publish(3, 4, 5)
    self.publisher.rewind(4)
    self.assertEqual(weights.latest(self.directory), 3)
    self.publisher.publish(4, params(40.0))
    loaded = weights.load_latest(self.directory, params(0.0)).weights
    self.assertEqual(loaded.version, 4)
    np.testing.assert_array_equal(loaded.params['layers'][0], [40.0, 40.0])

  def test_every_flipped_bit_is_noticed(self):
    self.publish(1)
    for path in files(self.directory, 1):
      for position in {0, path.stat().st_size // 2, path.stat().st_size - 1}:
        flip_bit(path, position)
        with self.assertRaises(snapshot.DamagedError, msg=str(path)):
          weights.load(self.directory, 1, params(0.0))
        flip_bit(path, position)
    self.assert_holds(weights.load(self.directory, 1, params(0.0)), 1)

  def test_every_missing_file_is_noticed(self):
    self.publish(1)
    for path in files(self.directory, 1):
      hidden = path.rename(pathlib.Path(self.directory) / 'hidden')
      with self.assertRaises(snapshot.DamagedError, msg=str(path)):
        weights.load(self.directory, 1, params(0.0))
      hidden.rename(path)

  def test_damage_falls_back_and_says_so(self):
    self.publish(1, 2, 3)
    flip_bit(files(self.directory, 3)[0], 0)
    shutil.rmtree(f'{self.directory}/2')
    os.mkdir(f'{self.directory}/2')  # Orbax would call it a checkpoint.
    loaded = weights.load_latest(self.directory, params(0.0))
    self.assert_holds(loaded.weights, 1)
    self.assertLen(loaded.refused, 2)
    self.assertRegex(loaded.refused[0], '/3: the manifest is not')
    self.assertRegex(loaded.refused[1], '/2 has no manifest')

  def test_a_version_that_is_being_removed_is_passed_over(self):
    self.publish(1, 2)
    with open(f'{self.directory}/2/MANIFEST', 'rb') as pruner:
      fcntl.flock(pruner, fcntl.LOCK_EX)
      with self.assertRaisesRegex(FileNotFoundError, 'being removed'):
        weights.load(self.directory, 2, params(0.0))
      loaded = weights.load_latest(self.directory, params(0.0))
    self.assert_holds(loaded.weights, 1)
    self.assertEqual(loaded.refused, ())

  def test_arrays_without_elements_survive(self):
    tree = {'none': jnp.zeros((0, 4), jnp.bfloat16), 'some': jnp.ones(2)}
    self.publisher.publish(1, tree)
    loaded = weights.load(self.directory, 1, tree)
    self.assertEqual(loaded.params['none'].shape, (0, 4))
    self.assertEqual(loaded.params['none'].dtype, jnp.bfloat16)

  def test_nothing_whole_is_none(self):
    self.publish(1)
    flip_bit(files(self.directory, 1)[0], 0)
    loaded = weights.load_latest(self.directory, params(0.0))
    self.assertIsNone(loaded.weights)
    self.assertLen(loaded.refused, 1)

  def test_a_version_that_is_not_announced_is_not_seen(self):
    self.publish(1, 2)
    (pathlib.Path(self.directory) / 'LATEST').write_text('1\n')
    self.assertEqual(weights.latest(self.directory), 1)
    loaded = weights.load_latest(self.directory, params(0.0)).weights
    self.assert_holds(loaded, 1)
    self.publish(2)  # And its place is free.
    self.assertEqual(weights.latest(self.directory), 2)

  def test_an_unreadable_announcement_does_not_hide_whole_versions(self):
    self.publish(1, 2)
    (pathlib.Path(self.directory) / 'LATEST').write_bytes(b'\xff\n')
    self.assertEqual(weights.latest(self.directory), 2)

  def test_another_structure_is_refused(self):
    self.publish(1)
    with self.assertRaisesRegex(ValueError, 'another tree'):
      weights.load_latest(self.directory, {'embed': jnp.ones((4, 3))})

  def test_nothing_is_pruned_under_a_reader(self):
    self.publish(1, 2, 3)
    with open(f'{self.directory}/1/MANIFEST', 'rb') as lease:
      fcntl.flock(lease, fcntl.LOCK_SH)
      self.publish(4, 5)
      self.assert_holds(weights.load(self.directory, 1, params(0.0)), 1)
    self.publish(6)
    self.assertCountEqual(os.listdir(self.directory), ['4', '5', '6', 'LATEST'])

  def test_nothing_is_rewound_under_a_reader(self):
    self.publish(1)
    with open(f'{self.directory}/1/MANIFEST', 'rb') as lease:
      fcntl.flock(lease, fcntl.LOCK_SH)
      with self.assertRaisesRegex(BlockingIOError, '/1 is being read'):
        self.publisher.rewind(1)
    self.assert_holds(weights.load(self.directory, 1, params(0.0)), 1)

  def test_reading_holds_the_lease(self):
    self.publish(1)
    with snapshot._lease(pathlib.Path(self.directory) / '1'):
      with open(f'{self.directory}/1/MANIFEST', 'rb') as other:
        with self.assertRaises(BlockingIOError):
          fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)

  def test_readers_beside_a_hasty_writer_see_whole_versions(self):
    publisher = weights.Publisher(self.directory, keep=1)
    publisher.publish(0, params(0.0))
    stop = threading.Event()
    seen = [[], []]

    def poll(into):
      while not stop.is_set():
        into.append(weights.load_latest(self.directory, params(0.0)))

    readers = [threading.Thread(target=poll, args=(s,)) for s in seen]
    for reader in readers:
      reader.start()
    for version in range(1, 15):
      publisher.publish(version, params(float(version)))
    stop.set()
    for reader in readers:
      reader.join(20)
    for loads in seen:
      self.assertNotEmpty(loads)
      for loaded in loads:
        self.assertEqual(loaded.refused, ())
        self.assert_holds(loaded.weights, loaded.weights.version)
      versions = [loaded.weights.version for loaded in loads]
      self.assertEqual(versions, sorted(versions))

  def test_keeping_nothing_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'keep=0'):
      weights.Publisher(self.directory, keep=0)


if __name__ == '__main__':
  absltest.main()
