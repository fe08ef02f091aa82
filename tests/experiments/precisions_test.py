import contextlib
import io
import pathlib

from absl.testing import absltest
from absl.testing import flagsaver
import numpy as np

from composer_jax.viewer import curves
from experiments import precisions

LOSSES = {
  'float32': np.array([4.0, 2.0, 2.0, 1.0]),
  'mxfp8': np.array([4.0, 2.2, 1.8, 1.3]),
}


class GapsTest(absltest.TestCase):
  def test_by_hand(self):
    # Means of two: 3, 2, 1.5 and 3.1, 2, 1.55.
    _, float32, mxfp8, _ = precisions.gaps(LOSSES, 2).splitlines()
    self.assertEqual(
      float32.split()[1:], ['3.0000', '1.5000', '0.00%', '0.00%']
    )
    self.assertEqual(mxfp8.split()[1:], ['3.1000', '1.5500', '3.33%', '3.33%'])

  def test_the_picture_is_one(self):
    picture = curves.loss_curves_png(LOSSES, 'float32', 2)
    self.assertStartsWith(picture, b'\x89PNG')


class BadInputTest(absltest.TestCase):
  def test_a_directory_without_a_run_is_left_alone(self):
    workdir = pathlib.Path(self.create_tempdir().full_path, 'none')
    errors = io.StringIO()
    flags = flagsaver.flagsaver(
      experiment='quickstart', workdir=str(workdir), seed=0, set=[]
    )
    with flags, contextlib.redirect_stderr(errors):
      self.assertEqual(precisions.main(['precisions']), 2)
    self.assertIn('holds no run', errors.getvalue())
    self.assertFalse(workdir.exists())


if __name__ == '__main__':
  absltest.main()
