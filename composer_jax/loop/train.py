"""The main job: warm start, reinforcement learning, before and after."""

from __future__ import annotations

from typing import Any

import jax

from composer_jax.loop import config as config_lib
from composer_jax.loop import heldout
from composer_jax.loop import metrics
from composer_jax.loop import precision
from composer_jax.loop import reinforce
from composer_jax.loop import run as run_lib
from composer_jax.loop import supervised
from composer_jax.loop import wiring
from composer_jax.model import transformer


def train(config: config_lib.Config, workdir: str, seed: int) -> dict[str, Any]:
  """Runs or resumes the whole job; returns what it wrote to result.json.

  Raises:
    supervise.Stopped: a signal asked to; the same call resumes.
    ValueError: the directory or the config cannot be used.
    RuntimeError: its programs have another precision than was asked for.
  """
  found = precision.check(config)  # Before the directory is taken.
  paths = wiring.open_workdir(workdir, config, seed)
  done = metrics.read_json(paths.result)
  if done is not None:
    print(f'{workdir} is finished; nothing to do.', flush=True)
    return done
  with run_lib.open_run(config, seed, paths) as run:
    print(found, flush=True)
    params = supervised.warm_start(run)
    return reinforce.reinforce(run, params)


def ablate(
  config: config_lib.Config, workdir: str, seed: int
) -> dict[str, Any]:
  """Ablations of a finished run; returns what it wrote to ablations.json.

  Raises:
    ValueError: the run is of another config, or not finished.
  """
  if metrics.read_json(wiring.Paths(workdir=workdir).result) is None:
    raise ValueError(
      f'--workdir={workdir} holds no finished run; run experiments.train first'
    )
  paths = wiring.open_workdir(workdir, config, seed)
  with run_lib.open_run(config, seed, paths) as run:
    like = transformer.init(jax.random.key(0), config.model)
    values = heldout.ablate(run, like)
  metrics.write_json(paths.evaluation('ablations'), values)
  return values
