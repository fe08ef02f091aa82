"""Does a small model get better at repairing real functions by practising?"""

from composer_jax.loop import config as config_lib


def config() -> config_lib.Config:
  return config_lib.Config(name='quickstart')
