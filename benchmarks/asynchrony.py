"""Asynchronous beside synchronous training on the same episodes.

python -m benchmarks.asynchrony --workdir=DIR

DIR is a run of the quickstart whose warm start is done. Both ways start there
and attempt the same tasks with the same tools; they differ in `replay.max_lag`
alone.
"""

from collections.abc import Sequence
import os
import shutil
import statistics
import tempfile

from absl import app
from absl import flags
from absl import logging

from composer_jax.loop import config as config_lib
from composer_jax.loop import metrics
from composer_jax.loop import reinforce
from composer_jax.loop import run as run_lib
from composer_jax.loop import supervised
from composer_jax.loop import wiring

_WORKDIR = flags.DEFINE_string(
  'workdir', None, 'Directory of a run whose warm start is done.'
)
_QUICKSTART = config_lib.Config(name='quickstart')
_STEPS = 12
_SKIPPED = 2  # Steps that compile.
_REPEATS = 2


def steps_of(lag: int, workdir: str) -> list[dict[str, float]]:
  """The log of a short run with this `max_lag`."""
  settings = [f'replay.max_lag={lag}', f'run.steps={_STEPS}']
  config = config_lib.override(_QUICKSTART, settings)
  with tempfile.TemporaryDirectory() as copy:
    source, target = wiring.Paths(workdir=workdir), wiring.Paths(workdir=copy)
    shutil.copytree(source.checkpoints('warm'), target.checkpoints('warm'))
    shutil.copy(os.path.join(workdir, 'tokenizer.json'), copy)
    seed = metrics.read_json(source.config)['seed']
    wiring.open_workdir(copy, config, seed)
    with run_lib.open_run(config, seed, target) as run:
      loop = reinforce.begin(run, supervised.warm_start(run))
      loop.run()
    return [d for d in metrics.read(copy) if d['phase'] == 'rl']


def summary(log: Sequence[dict[str, float]]) -> tuple[float, float]:
  """(episodes per second, share of the time that the learner waits)."""
  timed = log[_SKIPPED:]
  seconds = timed[-1]['seconds'] - log[_SKIPPED - 1]['seconds']
  replay = _QUICKSTART.replay
  episodes = len(timed) * replay.groups_per_step * replay.group_size
  waited = statistics.mean(line['waited_share'] for line in timed)
  return episodes / seconds, waited


def main(argv: Sequence[str]) -> None:
  del argv
  wiring.use_compilation_cache()
  rates = {0: [], _QUICKSTART.replay.max_lag: []}
  for _ in range(_REPEATS):
    for lag, found in rates.items():
      found.append(summary(steps_of(lag, _WORKDIR.value)))
  medians = {}
  for lag, found in rates.items():
    rate, waited = (statistics.median(x) for x in zip(*found, strict=True))
    medians[lag] = rate
    print(f'max_lag={lag}: {rate:.2f} episodes/s, learner waits {waited:.0%}')
    if lag == 0:
      # Acting and learning at once can at best hide the shorter of the two.
      bound = 1 / max(waited, 1 - waited)
      print(f'at best, on a machine that runs both at once: {bound:.2f} x')
  print(f'ratio {medians[_QUICKSTART.replay.max_lag] / medians[0]:.2f}')


if __name__ == '__main__':
  flags.mark_flag_as_required('workdir')
  logging.set_verbosity(logging.WARNING)
  app.run(main)
