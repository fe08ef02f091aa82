"""How good is an agent at a set of tasks?

python -m experiments.evaluate --agent=oracle --tasks=humaneval --out=DIR

Agents: `oracle` knows the fix, `random` calls tools at random, `enumerator`
tries every small edit in turn, `policy` is the one trained in --workdir, and
`openai` is any model behind an OpenAI-compatible door (--base_url, --model,
--api_key_env). Prints tables and writes DIR/results.json, every episode under
DIR/trajectories. The same command goes on where it was stopped; with more
--attempts or a higher --limit it makes only what is missing.
"""

from collections.abc import Sequence
import dataclasses
import json
import os
import sys
from typing import Any
import zlib

from absl import app
from absl import flags
from absl import logging

from composer_jax import trajectory
from composer_jax.checkpoint import weights as weights_lib
from composer_jax.loop import agents
from composer_jax.loop import arena as arena_lib
from composer_jax.loop import attempts
from composer_jax.loop import behaviour
from composer_jax.loop import config as config_lib
from composer_jax.loop import evaluate
from composer_jax.loop import metrics
from composer_jax.loop import remote
from composer_jax.loop import supervise
from composer_jax.loop import wiring
from composer_jax.rewards import facts as facts_lib
from composer_jax.viewer import scoreboard
from experiments import train

_AGENTS = ('oracle', 'random', 'enumerator', 'openai', 'policy')
AGENT = flags.DEFINE_enum('agent', None, _AGENTS, 'Who acts.')
TASKS = flags.DEFINE_string(
  'tasks',
  'humaneval',
  'Which tasks: humaneval, or the folder of a set that tasks.make made.',
)
SPLIT = flags.DEFINE_enum(
  'split', 'heldout', ('heldout', 'train', 'all'), 'Which of the tasks.'
)
ATTEMPTS = flags.DEFINE_integer(
  'attempts', 1, 'Attempts at each task: k of pass@k.', lower_bound=1
)
LIMIT = flags.DEFINE_integer(
  'limit', 0, 'Most tasks, spread over the problems; 0: all.', lower_bound=0
)
THREADS = flags.DEFINE_integer(
  'threads', os.cpu_count(), 'Attempts at once.', lower_bound=1
)
MOST_EDITS = flags.DEFINE_integer(
  'most_edits',
  60,
  'Of enumerator on repositories: edits tried at one task.',
  lower_bound=1,
)
OUT = flags.DEFINE_string('out', None, 'Directory for what is found.')
TEMPERATURE = flags.DEFINE_float(
  'temperature',
  None,
  'Of policy (1 if not given) and openai (else as the server likes).',
  lower_bound=0.0,
)
BASE_URL = flags.DEFINE_string(
  'base_url', None, 'Of openai: what stands before /chat/completions.'
)
MODEL = flags.DEFINE_string('model', None, 'Of openai: name of the model.')
API_KEY_ENV = flags.DEFINE_string(
  'api_key_env', None, 'Of openai: environment variable that holds the key.'
)
REQUEST_S = flags.DEFINE_float(
  'request_seconds', 600.0, 'Of openai: longest wait for one answer.'
)
TRIES = flags.DEFINE_integer(
  'tries', 6, 'Of openai: how often one turn is asked for.', lower_bound=1
)
EXTRA = flags.DEFINE_string(
  'request_extra', '{}', 'Of openai: JSON object added to each request.'
)
DOLLARS_IN = flags.DEFINE_float(
  'dollars_in', 0.0, 'Of openai: price of a million prompt tokens.'
)
DOLLARS_OUT = flags.DEFINE_float(
  'dollars_out', 0.0, 'Of openai: price of a million tokens of answers.'
)


def _config() -> config_lib.Config:
  if AGENT.value == 'policy':
    if train.WORKDIR.value is None:
      raise ValueError('--agent=policy needs --workdir, of a trained run')
    base = arena_lib.config_of_run(train.WORKDIR.value)
  else:
    base = arena_lib.config(TASKS.value)
  config = config_lib.override(base, train.SET.value)
  return arena_lib.with_tasks(config, TASKS.value)


def _remote_config() -> remote.RemoteConfig | None:
  """What the flags say of the remote model; None for other agents."""
  if AGENT.value != 'openai':
    for flag in (BASE_URL, MODEL, API_KEY_ENV):
      if flag.value is not None:
        raise ValueError(
          f'--{flag.name} is for --agent=openai, not {AGENT.value}'
        )
    return None
  for flag in (BASE_URL, MODEL):
    if flag.value is None:
      raise ValueError(f'--agent=openai needs --{flag.name}')
  try:
    extra = json.loads(EXTRA.value)
  except ValueError as error:
    raise ValueError(f'--request_extra is no JSON: {error}') from error
  if not isinstance(extra, dict):
    raise ValueError(f'--request_extra={EXTRA.value} is no JSON object')
  return remote.RemoteConfig(
    base_url=BASE_URL.value,
    model=MODEL.value,
    temperature=TEMPERATURE.value,
    extra=extra,
    request_s=REQUEST_S.value,
    tries=TRIES.value,
    dollars_in=DOLLARS_IN.value,
    dollars_out=DOLLARS_OUT.value,
  )


def _key() -> str:
  name = API_KEY_ENV.value
  if name is None:
    return ''
  if not os.environ.get(name):
    raise ValueError(f'--api_key_env={name}: that variable is not set')
  return os.environ[name]


def _agent(
  arena: agents.Arena, config: remote.RemoteConfig | None
) -> agents.Agent:
  match AGENT.value:
    case 'oracle':
      return agents.oracle(arena)
    case 'random':
      return agents.random_caller(arena)
    case 'enumerator':
      return agents.enumerator(arena, MOST_EDITS.value)
    case 'policy':
      paths = wiring.Paths(workdir=train.WORKDIR.value)
      temperature = 1.0 if TEMPERATURE.value is None else TEMPERATURE.value
      return agents.policy(arena, paths.weights, temperature)
  client = remote.Client(config, key=_key(), wait=arena.crew.stop.wait)
  return agents.remote(arena, client)


def _identity(
  config: config_lib.Config, remote_config: remote.RemoteConfig | None
) -> dict[str, Any]:
  """All that a finished attempt depends on."""
  who: dict[str, Any] = {'agent': AGENT.value}
  if remote_config is not None:
    fields = config_lib.to_json(remote_config)
    who |= {name: fields[name] for name in ('base_url', 'model', 'extra')}
    who['temperature'] = TEMPERATURE.value
  if AGENT.value == 'policy':
    paths = wiring.Paths(workdir=train.WORKDIR.value)
    who['workdir'] = os.path.abspath(train.WORKDIR.value)
    who['version'] = weights_lib.latest(paths.weights)
    who['temperature'] = TEMPERATURE.value
  if AGENT.value == 'enumerator':
    who['most_edits'] = MOST_EDITS.value
  return {
    **who,
    'tasks': TASKS.value,
    'split': SPLIT.value,
    'seed': train.SEED.value,
    'config': config_lib.to_json(config),
  }


def run() -> dict[str, Any]:
  """Makes the attempts that are missing; returns the summary of all."""
  config, remote_config = _config(), _remote_config()
  identity = _identity(config, remote_config)
  if AGENT.value == 'policy':
    chat = arena_lib.chat_of_run(train.WORKDIR.value, config)
  else:
    chat = arena_lib.chat_of_bytes(config)
  crew, seed = supervise.Crew(), train.SEED.value
  with arena_lib.open_boxes(config, THREADS.value, crew) as boxes:
    tasks, trees = wiring.load_tasks(config, boxes, crew)
    tasks = arena_lib.choose(tasks, SPLIT.value, LIMIT.value)
    arena = arena_lib.enter(config, boxes, chat, trees, crew)
    agent = _agent(arena, remote_config)
    wiring.claim(OUT.value, identity, flag='out', owner='evaluation')
    journal = attempts.Journal(os.path.join(OUT.value, 'trajectories'))
    planned = {one.key: one for one in attempts.plan(tasks, ATTEMPTS.value)}
    done = {(e.task_id, e.member) for e in journal}

    def attempt(one: attempts.Attempt) -> trajectory.Trajectory:
      name = zlib.crc32(one.task.id.encode())
      episode = agent(one.task, evaluate.seed_of(seed, name, one.member))
      return dataclasses.replace(episode, member=one.member)

    lost = attempts.run(
      [one for key, one in planned.items() if key not in done],
      attempt,
      journal,
      threads=THREADS.value,
      label=AGENT.value,
      crew=crew,
    )
  scores = [
    _score(episode)
    for episode in journal
    if (episode.task_id, episode.member) in planned
  ]
  summary = scoreboard.summarise(
    tasks, scores, k=ATTEMPTS.value, lost=lost, seed=seed
  )
  results = {**identity, 'limit': LIMIT.value, **summary}
  metrics.write_json(os.path.join(OUT.value, 'results.json'), results)
  return summary


def _score(episode: trajectory.Trajectory) -> scoreboard.Score:
  usage = _facts(episode, remote.USAGE)
  guards = _facts(episode, facts_lib.GUARD)
  return scoreboard.score(
    episode,
    solved=behaviour.solved(episode),
    guards=[name for name, fired in guards.items() if fired],
    usage=usage,
  )


def _facts(episode: trajectory.Trajectory, prefix: str) -> dict[str, float]:
  """The facts of this prefix, named without it."""
  return {
    name.removeprefix(prefix): value
    for name, value in episode.facts.items()
    if name.startswith(prefix)
  }


def main(argv: Sequence[str]) -> int:
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {argv[1:]}')
  try:
    wiring.use_compilation_cache()
    summary = run()
  except supervise.Stopped:
    print(f'Stopped; the same command goes on from {OUT.value}')
    return supervise.ASKED_EXIT_CODE
  except (ValueError, trajectory.InfrastructureError) as error:
    print(f'error: {error}', file=sys.stderr)
    return 2
  print(scoreboard.text(summary))
  print(f'Results: {os.path.join(OUT.value, "results.json")}')
  return 0


if __name__ == '__main__':
  flags.mark_flags_as_required(['agent', 'out'])
  logging.set_verbosity(logging.WARNING)
  app.run(main)
