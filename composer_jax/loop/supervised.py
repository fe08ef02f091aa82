"""The warm start: demonstrations and exercises recorded, then imitated."""

from __future__ import annotations

import dataclasses
import time

import jax
import numpy as np
import tqdm

from composer_jax import trajectory
from composer_jax.checkpoint import train_state
from composer_jax.learner import step as step_lib
from composer_jax.loop import behaviour
from composer_jax.loop import config as config_lib
from composer_jax.loop import evaluate
from composer_jax.loop import exercises
from composer_jax.loop import run as run_lib
from composer_jax.loop import warmstart
from composer_jax.loop import wiring
from composer_jax.replay import record
from composer_jax.tasks import source


def warm_start(run: run_lib.Run):
  """Parameters trained on demonstrations."""
  config = run.config.warm
  learner = dataclasses.replace(run.config.learner, optimizer=config.optimizer)
  key = jax.random.key(run.seed_of(run_lib.Stream.INIT))
  state = step_lib.init(key, learner, run.config.model)
  restored = train_state.restore(run.paths.checkpoints('warm'), state)
  if restored is not None:
    state = restored.tree
  if int(state.step) >= config.steps:
    return state.params
  _record(run.paths.demonstrations, lambda: _demonstrations(run))
  _record(run.paths.exercises, lambda: _exercises(run))
  data = batches(run.config, run.paths, run.seed)
  if restored is not None:
    data.set_state(dict(restored.metadata['data']))
  first = int(state.step)
  while int(state.step) < config.steps and not run.crew.stop.is_set():
    state = _supervised_steps(run, state, data, learner)
  if int(state.step) > first:
    run_lib.save(run, 'warm', state, {'data': data.get_state()})
  run.crew.check()
  return state.params


def batches(config: config_lib.Config, paths: wiring.Paths, seed: int):
  """Endless micro-batches of what a run has recorded, mixed as configured."""
  share = config.warm.exercise_share
  return warmstart.batches(
    [
      record.TrajectorySource(paths.demonstrations),
      record.TrajectorySource(paths.exercises),
    ],
    [1 - share, share],
    rows=config.learner.micro_rows,
    length=config.learner.row_tokens,
    seed=evaluate.seed_of(seed, run_lib.Stream.PACK),
    route_shape=config.model.route_shape,
  )


def _supervised_steps(run, state, data, learner):
  """Steps until the next line of the log."""
  first, started = int(state.step), time.monotonic()
  last = min(first + 20, run.config.warm.steps)
  tokens = 0
  with tqdm.tqdm(
    total=run.config.warm.steps, initial=first, desc='warm start'
  ) as bar:
    for _ in range(first, last):
      if run.crew.stop.is_set():
        return state
      batch = next(data)
      state, values = step_lib.update(
        state,
        [batch],
        config=learner,
        model=run.config.model,
        supervised=True,
      )
      tokens += int((np.asarray(batch.segment_BT) > 0).sum())
      bar.set_postfix(loss=f'{values["loss"]:.3f}')
      bar.update()
  seconds = time.monotonic() - started
  values |= {'tokens_per_s': tokens / seconds, 'seconds': run.seconds}
  run.log.write('warm_start', last, values)
  return state


def _record(directory: str, make) -> None:
  """Writes what `make` returns, unless a whole record is there."""
  try:
    record.TrajectorySource(directory)
  except ValueError:  # Not recorded yet.
    record.write_step(directory, 0, make())


def _exercises(run: run_lib.Run) -> list[trajectory.Trajectory]:
  made = []
  for exercise in exercises.make(
    run.split('train'),
    run.chat,
    count=run.config.warm.exercises,
    max_tokens=run.config.warm.exercise_tokens,
    seed=run.seed_of(run_lib.Stream.EXERCISE),
  ):
    run.crew.check()
    made.append(exercise)
  return made


def _demonstrations(run: run_lib.Run) -> list[trajectory.Trajectory]:
  """Recorded contexts of the demonstrator's episodes, if it submitted."""
  tasks = run.split('train')
  order = source.order(tasks, run.seed_of(run_lib.Stream.DEMONSTRATE))
  chosen = [order[i] for i in range(run.config.warm.demonstrations)]

  def attempt(task, index):
    return warmstart.demonstrate(
      task,
      run.env,
      run.chat,
      config=run.config.warm.script,
      seed=run.seed_of(run_lib.Stream.DEMONSTRATE, index),
    )

  episodes = evaluate.run(
    chosen,
    attempt,
    threads=run.config.sampler.slots,
    label='demonstrations',
    crew=run.crew,
  )
  run.log.write(
    'demonstrations',
    0,
    behaviour.summary(episodes, run.config.tools.allowed),
  )
  return [
    context
    for episode in episodes
    if episode.ending is trajectory.Ending.SUBMITTED
    for context in episode.contexts()
  ]
