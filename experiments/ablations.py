"""Is a finished run as clever as it looks?

python -m experiments.ablations --experiment=quickstart --workdir=DIR --seed=0

Evaluates its policy again, then blind to the results of the tests, then to all
that the tools say, and beside an agent that tries every edit in turn. Takes the
flags that the run was made with.
"""

from collections.abc import Mapping, Sequence
import sys

from absl import app
from absl import flags
from absl import logging

from composer_jax import trajectory
from composer_jax.loop import supervise
from composer_jax.loop import train as train_lib
from composer_jax.loop import wiring
from experiments import train

_COLUMNS = (
  ('solve_rate', 'solved'),
  ('tries_per_episode', 'tries'),
  ('repeated_edits', 'repeated'),
  ('submitted', 'submitted'),
  ('solved_of_submitted', 'rightly'),
  ('tokens_per_episode', 'tokens'),
)


def table(summaries: Mapping[str, Mapping[str, float]]) -> str:
  """One line per agent."""
  lines = [' ' * 12 + ''.join(f'{title:>10}' for _, title in _COLUMNS)]
  for name, values in summaries.items():
    cells = ''.join(f'{values[key]:>10.3f}' for key, _ in _COLUMNS)
    lines.append(f'{name:<12}{cells}')
  return '\n'.join(lines)


def main(argv: Sequence[str]) -> int:
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {argv[1:]}')
  try:
    config = train.load(train.EXPERIMENT.value, train.SET.value)
    wiring.use_compilation_cache()
    summaries = train_lib.ablate(config, train.WORKDIR.value, train.SEED.value)
  except supervise.Stopped:
    print('Stopped; nothing was written.')
    return supervise.ASKED_EXIT_CODE
  except (ValueError, trajectory.InfrastructureError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  print(table(summaries))
  return 0


if __name__ == '__main__':
  flags.mark_flags_as_required(['experiment', 'workdir'])
  logging.set_verbosity(logging.WARNING)
  app.run(main)
