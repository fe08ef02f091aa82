"""What every test runs under; must be imported before jax is."""

import os
import pathlib

from absl import flags

_CACHE = pathlib.Path(
  os.environ.get('XDG_CACHE_HOME') or pathlib.Path.home() / '.cache'
)

# The environment, so that the processes which tests start inherit it.
os.environ.setdefault(
  'JAX_COMPILATION_CACHE_DIR', str(_CACHE / 'composer_jax' / 'jax')
)
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0.2')
os.environ['JAX_NUMPY_RANK_PROMOTION'] = 'raise'
os.environ.setdefault('JAX_PLATFORMS', 'cpu')

flags.FLAGS.mark_as_parsed()  # absltest's temporary directories ask for it.
