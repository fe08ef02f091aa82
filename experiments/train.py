"""Runs an experiment, or resumes it.

python -m experiments.train --experiment=quickstart --workdir=DIR --seed=0
"""

from collections.abc import Sequence
import importlib
import pkgutil
import sys

from absl import app
from absl import flags
from absl import logging
import numpy as np

from composer_jax import trajectory
from composer_jax.loop import behaviour
from composer_jax.loop import config as config_lib
from composer_jax.loop import supervise
from composer_jax.loop import train
from composer_jax.loop import wiring
from composer_jax.replay import record
from composer_jax.text import tokenizer as tokenizer_lib
from composer_jax.viewer import report
import experiments

EXPERIMENT = flags.DEFINE_string(
  'experiment', None, 'Name of a file in experiments/ that has a config().'
)
WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Directory of the run; resumes what it holds.'
)
SEED = flags.DEFINE_integer(
  'seed', 0, 'Seed of everything random.', lower_bound=0
)
SET = flags.DEFINE_multi_string(
  'set', [], 'A change to the config, as room.field=value. Repeatable.'
)
# All else has a config().
COMMANDS = ('train', 'evaluate', 'ablations', 'precisions')


def load(name: str, settings: Sequence[str]) -> config_lib.Config:
  """The config of an experiment with the settings applied.

  Raises:
    ValueError: no such experiment, or a bad setting.
  """
  known = [
    module.name
    for module in pkgutil.iter_modules(experiments.__path__)
    if module.name not in COMMANDS
  ]
  if name not in known:
    raise ValueError(f'--experiment={name} is not one of {", ".join(known)}')
  module = importlib.import_module(f'experiments.{name}')
  return config_lib.override(module.config(), settings)


def episodes_to_show(workdir: str) -> list[report.Episode]:
  """Three held-out episodes after training: patient, short, and unsolved."""
  paths = wiring.Paths(workdir=workdir)
  tokenizer = tokenizer_lib.load(workdir)
  source = record.TrajectorySource(paths.trajectories_of('after'))
  done = [source[i] for i in range(len(source))]
  solved = sorted(filter(behaviour.solved, done), key=len)
  unsolved = sorted((e for e in done if not behaviour.solved(e)), key=len)
  chosen = [
    ('Solved with the most work', solved[-1:]),
    ('Solved with the least work', solved[:1]),
    ('Not solved', unsolved[len(unsolved) // 2 :][:1]),
  ]
  return [
    report.Episode(
      title=f'{title}: {episode.task_id}',
      trajectory=episode,
      segments=_segments(episode, tokenizer),
    )
    for title, found in chosen
    for episode in found
  ]


def _segments(episode, tokenizer) -> list[report.Segment]:
  """Cut where the author or the context changes."""
  edges = np.flatnonzero(np.diff(episode.sampled_T)) + 1
  bounds = sorted({*episode.starts, *edges.tolist(), len(episode)})
  segments = []
  for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
    sampled = bool(episode.sampled_T[start])
    given = 'prompt' if start in episode.starts else 'tool'
    logprob = float(episode.logprob_T[start:stop].mean()) if sampled else None
    segments.append(
      report.Segment(
        kind='policy' if sampled else given,
        text=tokenizer.decode(episode.token_T[start:stop]),
        logprob=logprob,
      )
    )
  return segments


def main(argv: Sequence[str]) -> int:
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {argv[1:]}')
  workdir = WORKDIR.value
  try:
    config = load(EXPERIMENT.value, SET.value)
    wiring.use_compilation_cache()
    result = train.train(config, workdir, SEED.value)
  except supervise.Stopped:
    print(f'Stopped; the same command resumes from {workdir}')
    return supervise.ASKED_EXIT_CODE
  except (ValueError, trajectory.InfrastructureError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  page = report.write_report(workdir, episodes_to_show(workdir))
  print(report.summary_table(result))
  print(f'Report: {page}')
  return 0


if __name__ == '__main__':
  flags.mark_flags_as_required(['experiment', 'workdir'])
  # Orbax would tell of every save in twenty lines; --verbosity=0 lets it.
  logging.set_verbosity(logging.WARNING)
  app.run(main)
