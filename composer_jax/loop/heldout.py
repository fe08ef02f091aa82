"""How good a policy is on tasks that nothing was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from composer_jax import trajectory
from composer_jax.checkpoint import weights as weights_lib
from composer_jax.loop import behaviour
from composer_jax.loop import config as config_lib
from composer_jax.loop import environment
from composer_jax.loop import evaluate
from composer_jax.loop import metrics
from composer_jax.loop import policy as policy_lib
from composer_jax.loop import run as run_lib
from composer_jax.loop import supervise
from composer_jax.loop import warmstart
from composer_jax.model import serving
from composer_jax.replay import record
from composer_jax.sampler import engine as engine_lib


def serve_weights(
  config: config_lib.Config,
  weights: str,
  like,
  *,
  stop_id: int,
  crew: supervise.Crew,
) -> policy_lib.Policy:
  """A sampler that has its weights from the published checkpoints only.

  Args:
    config: of the run.
    weights: where they are published.
    like: parameters of the learner, for their shapes.
    stop_id: ends a turn.
    crew: runs the threads.

  Raises:
    ValueError: nothing is published there.
  """
  like = jax.eval_shape(lambda: serving.ship(like, config.model))
  loaded = weights_lib.load_latest(weights, like)
  if loaded.weights is None:
    said = '; '.join(loaded.refused) or 'there are none'
    raise ValueError(f'no usable weights in {weights}: {said}')
  engine = engine_lib.Engine(
    config.sampler, config.model, loaded.weights, stop_id=stop_id
  )
  return policy_lib.Policy(engine, weights, like, crew)


def serve(run: run_lib.Run, like) -> policy_lib.Policy:
  """The sampler of a run under way."""
  return serve_weights(
    run.config,
    run.paths.weights,
    like,
    stop_id=run.chat.end_id,
    crew=run.crew,
  )


def evaluate_heldout(
  run: run_lib.Run, policy, name: str, step: int
) -> dict[str, Any]:
  """Held-out solve rate, kept on disk: a resumed run does not repeat it."""
  path = run.paths.evaluation(name)
  known = metrics.read_json(path)
  if known is not None:
    return known
  chosen = _tasks(run)
  values = {}
  temperatures = {'': 1.0}
  if run.config.evaluate.greedy:
    temperatures['_greedy'] = 0.0
  for suffix, temperature in temperatures.items():
    episodes = evaluate_policy(
      run, policy, chosen, temperature=temperature, label=name + suffix
    )
    summary = behaviour.summary(episodes, run.config.tools.allowed)
    values |= {f'{key}{suffix}': value for key, value in summary.items()}
    if not suffix:
      values['tasks'] = len(episodes)
      record.write_step(run.paths.trajectories_of(name), step, episodes)
  run.log.write('eval', step, values)
  metrics.write_json(path, values)
  return values


def evaluate_policy(
  run: run_lib.Run,
  policy: policy_lib.Policy,
  tasks: Sequence[trajectory.Task],
  *,
  temperature: float,
  label: str,
  blank: environment.Blank | None = None,
) -> list[trajectory.Trajectory]:
  """One attempt of the served policy at each task."""

  def attempt(task, index):
    seed = run.seed_of(run_lib.Stream.EVALUATE, index)
    with policy.session(seed=seed, temperature=temperature) as play:
      return run.env.attempt(task, play, group=index, blank=blank)

  return evaluate.run(
    tasks,
    attempt,
    threads=run.config.sampler.slots,
    label=label,
    crew=run.crew,
  )


def ablate(run: run_lib.Run, like) -> dict[str, dict[str, float]]:
  """The trained policy beside what it should and should not need.

  Returns:
    Summaries of `policy`; of the same policy that is shown empty texts instead
    of what the tests say (`untested`) and what any tool says (`blind`); and of
    `enumerator`, which tries every edit in turn, within the same tokens.
  """
  policy, tasks = serve(run, like), _tasks(run)

  def enumerate_edits(task, index):
    seed = run.seed_of(run_lib.Stream.EVALUATE, index)
    return warmstart.enumerate_edits(task, run.env, run.chat, seed=seed)

  blanks = {
    'policy': None,
    'untested': lambda name: name == 'run_tests',
    'blind': lambda _: True,
  }
  episodes = {
    label: evaluate_policy(
      run, policy, tasks, temperature=1.0, label=label, blank=blank
    )
    for label, blank in blanks.items()
  }
  episodes['enumerator'] = evaluate.run(
    tasks,
    enumerate_edits,
    threads=run.config.sampler.slots,
    label='enumerator',
    crew=run.crew,
  )
  return {
    name: behaviour.summary(done, run.config.tools.allowed)
    for name, done in episodes.items()
  }


def _tasks(run: run_lib.Run) -> list[trajectory.Task]:
  return evaluate.choose(run.split('heldout'), run.config.evaluate.tasks)
