"""Asynchronous beside synchronous training on the same episodes.

python -m benchmarks.asynchrony --workdir=DIR

DIR is a run of the quickstart whose warm start is done. Both ways start there
and attempt the same tasks with the same tools, from the first admission to the
last update; they differ in `replay.max_lag` alone. Nothing else may run on the
machine: how busy it is counts.

Two things bound what overlap can gain over the synchronous run. Acting and
learning at once hides the shorter of the two at best; and the cores cannot be
more than busy, so a synchronous run that keeps them busy for a share s of the
time can be made faster by 1 / s at best, unless less is computed.
"""

from collections.abc import Sequence
import os
import shutil
import statistics
import tempfile
import time
from typing import NamedTuple

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
_STEPS = 16
_REPEATS = 2


class Timed(NamedTuple):
  """A run, or the median of several."""

  rate: float  # Episodes per second.
  waited: float  # Share of the time that the learner waits for episodes.
  busy: float  # Share of the machine's cores that computes.


def run(lag: int, workdir: str, steps: int) -> Timed:
  """A short run with this `max_lag`."""
  settings = [f'replay.max_lag={lag}', f'run.steps={steps}']
  config = config_lib.override(_QUICKSTART, settings)
  with tempfile.TemporaryDirectory() as copy:
    source, target = wiring.Paths(workdir=workdir), wiring.Paths(workdir=copy)
    shutil.copytree(source.checkpoints('warm'), target.checkpoints('warm'))
    shutil.copy(os.path.join(workdir, 'tokenizer.json'), copy)
    seed = metrics.read_json(source.config)['seed']
    wiring.open_workdir(copy, config, seed)
    with run_lib.open_run(config, seed, target) as opened:
      loop = reinforce.begin(opened, supervised.warm_start(opened))
      started, computed = time.monotonic(), busy_seconds()
      loop.run()
      seconds = time.monotonic() - started
      computed = busy_seconds() - computed
    log = [d for d in metrics.read(copy) if d['phase'] == 'rl']
  return Timed(
    rate=loop.counters['episodes'] / seconds,
    waited=statistics.mean(line['waited_share'] for line in log),
    busy=computed / seconds / os.cpu_count(),
  )


def busy_seconds() -> float:
  """Seconds that all cores together have computed since the machine started.

  Boxes are process trees of their own, so the kernel is asked about all.
  """
  with open('/proc/stat') as file:
    user, nice, system, _, _, irq, softirq, *_ = map(
      int, file.readline().split()[1:]
    )
  ticks = user + nice + system + irq + softirq
  return ticks / os.sysconf('SC_CLK_TCK')


def main(argv: Sequence[str]) -> None:
  del argv
  wiring.use_compilation_cache()
  lags = (0, _QUICKSTART.replay.max_lag)
  found = {lag: [] for lag in lags}
  run(lags[1], _WORKDIR.value, steps=2)  # Compiles.
  for _ in range(_REPEATS):
    for lag in lags:
      found[lag].append(run(lag, _WORKDIR.value, _STEPS))
  median = {
    lag: Timed(*map(statistics.median, zip(*runs, strict=True)))
    for lag, runs in found.items()
  }
  for lag, timed in median.items():
    print(
      f'max_lag={lag}: {timed.rate:.2f} episodes/s, learner waits'
      f' {timed.waited:.0%}, cores are busy {timed.busy:.0%}'
    )
  slow, fast = (median[lag] for lag in lags)
  hidden, cores = 1 / max(slow.waited, 1 - slow.waited), 1 / slow.busy
  print(f'bounds: {hidden:.2f} (hides the shorter), {cores:.2f} (busy cores)')
  ratio = fast.rate / slow.rate
  print(f'ratio {ratio:.2f}, {ratio / min(hidden, cores):.0%} of the bound')


if __name__ == '__main__':
  flags.mark_flag_as_required('workdir')
  logging.set_verbosity(logging.WARNING)
  app.run(main)
