import pathlib

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.tasks import packages
from composer_jax.tasks import snapshots
from tests.tasks import tiny


class ArchiveTest(absltest.TestCase):
  def unpacked(self):
    path = pathlib.Path(self.create_tempdir().full_path, 'tiny-1.0.tar.gz')
    tiny.archive(path, {**tiny.FILES, **tiny.RESIDUE})
    return packages.unpack(path)

  def test_regular_files_come_out_and_nothing_that_leads_elsewhere(self):
    self.assertEqual(set(self.unpacked()), {*tiny.FILES, *tiny.RESIDUE})

  def test_history_caches_and_builds_are_scrubbed(self):
    files = packages.scrub(self.unpacked())
    self.assertEqual(set(files), set(tiny.FILES))
    tree = snapshots.pack(files)
    self.assertEqual(tree.count(tiny.SECRET.encode()), 1)

  def test_a_worktree_pointer_to_history_is_scrubbed(self):
    self.assertEmpty(packages.scrub({'.git': b'gitdir: /elsewhere'}))


class LicenceTest(parameterized.TestCase):
  @parameterized.parameters(
    ('License-Expression: BSD-3-Clause\n', 'BSD-3-Clause'),
    (
      'Classifier: License :: OSI Approved :: BSD License\n',
      'BSD License',
    ),
    ('License: MIT\n', 'MIT'),
  )
  def test_is_read_from_the_metadata(self, text, expected):
    files = {'PKG-INFO': f'Name: x\n{text}\nLicense: GPL'.encode()}
    self.assertEqual(packages.licence(files), expected)

  @parameterized.parameters(
    'License-Expression: GPL-3.0-only\n',
    'License-Expression: MIT AND LGPL-2.1-only\n',
    'License-Expression: Apache-2.0 AND MPL-2.0\n',
    'License: All rights reserved\n',
    'Name: x\n',
  )
  def test_what_is_not_known_to_be_permissive_is_refused(self, text):
    with self.assertRaisesRegex(packages.UnfitError, 'licence'):
      packages.licence({'PKG-INFO': text.encode()})


class PackageTest(parameterized.TestCase):
  def test_a_known_package_is_pinned(self):
    self.assertEqual(packages.find('semver').path, 'src')
    self.assertEqual(packages.find('semver==1.0').version, '1.0')

  def test_an_unknown_package_needs_a_version(self):
    with self.assertRaisesRegex(ValueError, 'tiny==VERSION'):
      packages.find('tiny')
    self.assertEqual(packages.find('tiny==1.0').tests, ('tests',))

  @parameterized.parameters(
    ('tiny/core.py', True),
    ('tiny.py', True),
    ('tests/test_tiny.py', False),
    ('tiny/tests/data.py', False),
    ('setup.py', False),
    ('docs/conf.py', False),
    ('README.md', False),
  )
  def test_tasks_change_the_code_of_the_package_alone(self, path, expected):
    package = packages.find('tiny==1.0')
    self.assertEqual(package.is_source(path), expected)

  def test_code_outside_the_import_path_is_left_alone(self):
    self.assertFalse(packages.find('semver').is_source('noxfile/x.py'))
    self.assertTrue(packages.find('semver').is_source('src/semver/cli.py'))


if __name__ == '__main__':
  absltest.main()
