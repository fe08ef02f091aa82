"""Runs an experiment: python -m experiments.train --experiment=quickstart ..."""

from collections.abc import Sequence
import importlib
import pkgutil
import sys

from absl import app
from absl import flags
from absl import logging
import jax

from composer_jax import trajectory
from composer_jax.loop import config as config_lib
from composer_jax.loop import supervise
from composer_jax.loop import train
from composer_jax.loop import wiring
import experiments

_EXPERIMENT = flags.DEFINE_string(
  'experiment', None, 'Name of a file in experiments/ that has a config().'
)
_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Directory of the run; resumes what it holds.'
)
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of everything random.')
_SET = flags.DEFINE_multi_string(
  'set', [], 'A change to the config, as room.field=value. Repeatable.'
)


def load(name: str, settings: Sequence[str]) -> config_lib.Config:
  """The config of an experiment with the settings applied.

  Raises:
    ValueError: no such experiment, or a bad setting.
  """
  known = [
    module.name
    for module in pkgutil.iter_modules(experiments.__path__)
    if module.name not in ('train', 'ablations')
  ]
  if name not in known:
    raise ValueError(f'--experiment={name} is not one of {", ".join(known)}')
  module = importlib.import_module(f'experiments.{name}')
  return config_lib.override(module.config(), settings)


def main(argv: Sequence[str]) -> int:
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {argv[1:]}')
  logging.set_verbosity(logging.WARNING)
  jax.config.update(
    'jax_compilation_cache_dir', str(wiring.cache_directory() / 'xla')
  )
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.5)
  try:
    config = load(_EXPERIMENT.value, _SET.value)
    result = train.train(config, _WORKDIR.value, _SEED.value)
  except supervise.Stopped:
    print(f'Stopped. The same command resumes from {_WORKDIR.value}.')
    return 130
  except (ValueError, trajectory.InfrastructureError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  print(result)
  return 0


if __name__ == '__main__':
  flags.mark_flags_as_required(['experiment', 'workdir'])
  app.run(main)
