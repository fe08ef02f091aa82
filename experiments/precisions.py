"""Does training in MXFP8 follow training in float32?

python -m experiments.precisions --experiment=quickstart --workdir=DIR --seed=0

DIR is a run whose warm start is done, the other flags are those that it was
made with. Its demonstrations are imitated anew, once in each precision, from
the same parameters over the same batches. Writes precisions.csv (the loss of
every step) and precisions.png into DIR, and prints the gaps.
"""

from collections.abc import Sequence
import csv
import dataclasses
import os
import pathlib
import sys

from absl import app
from absl import flags
from absl import logging
import jax
import numpy as np
import tqdm

from composer_jax.learner import step as step_lib
from composer_jax.loop import config as config_lib
from composer_jax.loop import evaluate
from composer_jax.loop import metrics
from composer_jax.loop import run as run_lib
from composer_jax.loop import supervised
from composer_jax.loop import wiring
from composer_jax.pallas_kernels import implementations
from composer_jax.viewer import curves
from experiments import train

_WINDOW = 100  # Steps that a reported loss is the mean of.
_STEPS = flags.DEFINE_integer(
  'steps', 1000, 'Optimizer steps in each precision.', lower_bound=_WINDOW
)


def losses(
  config: config_lib.Config, paths: wiring.Paths, seed: int, steps: int
) -> dict[str, np.ndarray]:
  """The training loss of each step, by precision."""
  schedule = dataclasses.replace(config.warm.optimizer, decay_steps=steps)
  learner = dataclasses.replace(config.learner, optimizer=schedule)
  key = jax.random.key(evaluate.seed_of(seed, run_lib.Stream.INIT))
  models, states = {}, {}
  for precision in implementations.PRECISIONS:
    models[precision] = dataclasses.replace(config.model, precision=precision)
    states[precision] = step_lib.init(key, learner, models[precision])
  found = {precision: np.zeros(steps) for precision in models}
  data = supervised.batches(config, paths, seed)
  for index in tqdm.trange(steps, desc='steps'):
    batch = next(data)
    for precision, model in models.items():
      states[precision], values = step_lib.update(
        states[precision],
        [batch],
        config=learner,
        model=model,
        supervised=True,
      )
      found[precision][index] = values['loss']
  return found


def gaps(found: dict[str, np.ndarray], window: int) -> str:
  """Mean losses of the first and last steps, and how far from float32's."""
  lines = [f'{"loss":<10}{"first":>9}{"last":>9}{"gap":>9}{"largest":>9}']
  smooth = {
    name: curves.running_mean(loss, window) for name, loss in found.items()
  }
  reference = smooth['float32']
  for name, loss in smooth.items():
    gap = loss / reference - 1
    largest = gap[np.argmax(np.abs(gap))]
    lines.append(
      f'{name:<10}{loss[0]:9.4f}{loss[-1]:9.4f}{gap[-1]:9.2%}{largest:9.2%}'
    )
  lines.append(f'(means of {window} steps; largest gap of any such mean)')
  return '\n'.join(lines)


def _write(workdir: str, found: dict[str, np.ndarray]) -> str:
  path = os.path.join(workdir, 'precisions.csv')
  with open(path, 'w', newline='') as file:
    writer = csv.writer(file)
    writer.writerow(['step', *found])
    for step, row in enumerate(zip(*found.values(), strict=True), 1):
      writer.writerow([step, *(f'{loss:.6f}' for loss in row)])
  return path


def main(argv: Sequence[str]) -> int:
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {argv[1:]}')
  workdir, steps = train.WORKDIR.value, _STEPS.value
  seed = train.SEED.value
  try:
    config = train.load(train.EXPERIMENT.value, train.SET.value)
    if metrics.read_json(wiring.Paths(workdir=workdir).config) is None:
      raise ValueError(
        f'--workdir={workdir} holds no run; run experiments.train first'
      )
    paths = wiring.open_workdir(workdir, config, seed)
    wiring.use_compilation_cache()
    found = losses(config, paths, seed, steps)
  except ValueError as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  print(gaps(found, _WINDOW))
  print(f'Losses: {_write(workdir, found)}')
  picture = pathlib.Path(workdir, 'precisions.png')
  picture.write_bytes(curves.loss_curves_png(found, 'float32', _WINDOW))
  print(f'Curves: {picture}')
  return 0


if __name__ == '__main__':
  flags.mark_flags_as_required(['experiment', 'workdir'])
  logging.set_verbosity(logging.WARNING)
  app.run(main)
