"""Asynchronous reinforcement learning: actors, replay and learner at work."""

from __future__ import annotations

from collections.abc import Sequence
import time
from typing import Any

from absl import logging
import numpy as np
import tqdm

from composer_jax import trajectory
from composer_jax.checkpoint import train_state
from composer_jax.checkpoint import weights as weights_lib
from composer_jax.learner import batch as batch_lib
from composer_jax.learner import step as step_lib
from composer_jax.loop import behaviour
from composer_jax.loop import heldout
from composer_jax.loop import metrics
from composer_jax.loop import run as run_lib
from composer_jax.model import serving
from composer_jax.replay import buffer as buffer_lib
from composer_jax.replay import record
from composer_jax.tasks import curriculum
from composer_jax.tasks import source

_COUNTED = ('episodes', 'tool_calls', 'max_lag_seen', 'weights_published')


def reinforce(run: run_lib.Run, params) -> dict[str, Any]:
  """Trains on from the warm start; returns the result of the whole run."""
  loop = begin(run, params)
  if int(loop.state.step) == 0:
    heldout.evaluate_heldout(run, loop.policy, 'before', 0)
  try:
    loop.run()
  finally:
    loop.save()
  last = run.config.run.steps
  loop.policy.wait_for(last)
  after = heldout.evaluate_heldout(run, loop.policy, 'after', last)
  return _write_result(run, loop, after)


def begin(run: run_lib.Run, params) -> Loop:
  """A loop that has published where it stands: at the start, or as saved."""
  state = step_lib.fresh(params, run.config.learner)
  counters, progress = dict.fromkeys(_COUNTED, 0), None
  restored = train_state.restore(run.paths.checkpoints('rl'), state)
  if restored is not None:
    state, counters = restored.tree, dict(restored.metadata['counters'])
    if run.config.curriculum.enabled:
      progress = curriculum.from_json(restored.metadata['curriculum'])
  version = int(state.step)
  publisher = weights_lib.Publisher(run.paths.weights)
  publisher.rewind(version)
  publisher.publish(version, serving.ship(state.params, run.config.model))
  counters['weights_published'] += restored is None
  policy = heldout.serve(run, state.params)
  return Loop(run, policy, publisher, state, counters, progress)


class Loop:
  """Actors, replay and learner at work; the learner is the calling thread."""

  def __init__(self, run, policy, publisher, state, counters, progress=None):
    self._run = run
    self.policy = policy
    self._publisher = publisher
    self.state = state
    self.counters = counters
    self._saved = int(state.step)
    tasks, seed = run.split('train'), run.seed_of(run_lib.Stream.ORDER)
    self._order = source.order(tasks, seed)
    self._course, self._progress = None, progress
    if run.config.curriculum.enabled:
      self._course = curriculum.Course(
        tasks=tuple(tasks),
        config=run.config.curriculum,
        seed=seed,
        groups=run.config.replay.groups_per_step,
        max_lag=run.config.replay.max_lag,
      )
      self._progress = progress or curriculum.start(self._course)
    self._buffer = buffer_lib.ReplayBuffer(
      run.config.replay,
      time.monotonic,
      cursor=int(state.step) * run.config.replay.groups_per_step,
    )
    run.crew.on_stop(lambda _: self._buffer.close())

  def run(self) -> None:
    """Trains until the last step."""
    config = self._run.config
    first = int(self.state.step)
    if first >= config.run.steps:
      return
    for index in range(config.sampler.slots):
      self._run.crew.start(f'actor {index}', self._act)
    self._run.crew.start('versions', self._follow_versions)
    with tqdm.tqdm(
      total=config.run.steps, initial=first, desc='reinforce'
    ) as bar:
      while int(self.state.step) < config.run.steps:
        values = self._learn()
        bar.set_postfix_str(_postfix(values))
        bar.update()
        if int(self.state.step) % config.run.save_every == 0:
          self.save()
    self._buffer.close()

  def save(self) -> None:
    """Saves the run unless nothing has changed since the last time."""
    step = int(self.state.step)
    if step > self._saved:
      metadata = {'counters': self.counters}
      if self._course is not None:
        metadata['curriculum'] = curriculum.to_json(self._progress)
      run_lib.save(self._run, 'rl', self.state, metadata)
      self._saved = step

  @property
  def retired(self) -> dict[str, str]:
    """Tasks that the curriculum has given up, with the reasons."""
    return curriculum.retired(self._progress) if self._progress else {}

  def _task(self, group: int) -> trajectory.Task:
    if self._course is None:
      return self._order[group]
    return curriculum.task_of(self._progress, self._course, group)

  def _act(self) -> None:
    """An actor: one attempt after the other, as they are admitted."""
    run = self._run
    end = run.config.run.steps * run.config.replay.groups_per_step
    while not self._buffer.closed:
      place = self._buffer.admit(timeout=1.0)
      if place is None:
        continue
      group, member = place
      if group >= end:
        return  # No step is left that would train on it.
      seed = run.seed_of(run_lib.Stream.ROLLOUT, group, member)
      try:
        with self.policy.session(
          seed=seed, temperature=run.config.run.temperature
        ) as play:
          done = run.env.attempt(
            self._task(group), play, group=group, member=member
          )
      except trajectory.InfrastructureError as error:
        logging.warning('Attempt %d.%d lost: %s', group, member, error)
        self._buffer.fail(group, member, str(error))
        continue
      self._buffer.put(done)

  def _follow_versions(self) -> None:
    """Tells the replay which policy is in use, hence what may be admitted."""
    while not self._run.crew.stop.wait(0.01):
      if self._buffer.closed:
        return
      self._buffer.set_version(self.policy.version)

  def _learn(self) -> dict[str, float]:
    """One learner step, published and logged."""
    run, config = self._run, self._run.config
    started, sampled = time.monotonic(), self.policy.tokens_sampled
    groups = self._take()
    waited = time.monotonic() - started
    pairs = batch_lib.group_advantages(groups)
    useful = [pair for pair in pairs if pair[1] != 0]
    about_tasks, progress = self._recorded(groups)
    self.state, values = step_lib.update(
      self.state,
      batch_lib.pack(
        useful,
        rows=config.learner.micro_rows,
        length=config.learner.row_tokens,
        route_shape=config.model.route_shape,
      ),
      config=config.learner,
      model=config.model,
      denominator=sum(int(t.sampled_T.sum()) for t, _ in pairs),
      temperature=config.run.temperature,
    )
    # Before anybody may begin what the new version admits.
    self._progress = progress
    version = int(self.state.step)
    shipped = serving.ship(self.state.params, config.model)
    self._publisher.publish(version, shipped)
    self.counters['weights_published'] += 1
    episodes = [episode for episode, _ in pairs]
    record.write_step(run.paths.trajectories, version, episodes)
    stats = self._buffer.stats()
    calls = sum(len(t.calls) for e in episodes for t in e.turns)
    self.counters['episodes'] += len(episodes)
    self.counters['tool_calls'] += calls
    self.counters['max_lag_seen'] = max(
      self.counters['max_lag_seen'], stats.lag
    )
    seconds = time.monotonic() - started
    values |= behaviour.summary(episodes, config.tools.allowed)
    values |= about_tasks | {
      'version': version,
      'lag_max': stats.lag,
      'lag_mean': _mean_lag(episodes, version - 1),
      'useful_share': len(useful) / max(1, len(pairs)),
      'episodes': self.counters['episodes'],
      'lost_attempts': stats.failed + stats.late + stats.stale,
      'skipped': int(self.state.skipped),
      'tokens_per_s': sum(map(len, episodes)) / seconds,
      'sampled_per_s': (self.policy.tokens_sampled - sampled) / seconds,
      'tool_calls_per_s': calls / seconds,
      'waited_share': waited / seconds,
      'seconds': run.seconds,
    }
    run.log.write('rl', version, values)
    return values

  def _recorded(self, groups: Sequence[trajectory.Group]):
    """(numbers about what was drawn, the curriculum after these groups)."""
    if self._course is None:
      return {}, None
    outcomes = [
      (len(group.trajectories), sum(map(behaviour.solved, group.trajectories)))
      for group in groups
    ]
    return (
      curriculum.summary(self._progress, self._course),
      curriculum.record(self._progress, self._course, outcomes),
    )

  def _take(self):
    """The groups of the next step; watches for the run going nowhere."""
    deadline = time.monotonic() + self._run.config.run.patience_s
    while True:
      self._run.crew.check()
      try:
        groups = self._buffer.take(timeout=0.5)
      except TimeoutError:
        if time.monotonic() > deadline:
          raise
        continue
      if groups is not None:
        return groups


def _mean_lag(episodes: Sequence[trajectory.Trajectory], version: int) -> float:
  lags = [
    version - e.version_T[e.sampled_T].mean()
    for e in episodes
    if e.sampled_T.any()
  ]
  return float(np.mean(lags)) if lags else 0.0


def _postfix(values: dict[str, float]) -> str:
  return (
    f'solved {values.get("solve_rate", 0):.2f}'
    f' reward {values.get("reward", 0):.2f}'
    f' lag {values["lag_max"]}'
    f' {values["tokens_per_s"]:.0f} tok/s'
    f' {values["tool_calls_per_s"]:.0f} calls/s'
  )


def _write_result(run: run_lib.Run, loop: Loop, after) -> dict[str, Any]:
  before = metrics.read_json(run.paths.evaluation('before'))
  result = {
    'heldout_solve_rate_before': before['solve_rate'],
    'heldout_solve_rate_after': after['solve_rate'],
    'heldout_greedy_before': before.get('solve_rate_greedy'),
    'heldout_greedy_after': after.get('solve_rate_greedy'),
    'heldout_tasks': after['tasks'],
    'train_tasks': len(run.split('train')),
    'visible_share': float(
      np.mean([task.provenance.visible_fails for task in run.tasks])
    ),
    'tests_cached': run.config.tools.cache_tests,
    **loop.counters,
    **({'retired_tasks': loop.retired} if loop.retired else {}),
    'sandbox_level': run.level,
    'learner_steps': run.config.run.steps,
    'skipped_steps': int(loop.state.skipped),
    'wall_seconds': run.seconds,
    'seed': run.seed,
  }
  metrics.write_json(run.paths.result, result)
  return result
