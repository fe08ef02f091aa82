"""The main job: warm start, reinforcement learning, before and after."""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
import dataclasses
import time
from typing import Any

from absl import logging
import jax
import numpy as np
import tqdm

from composer_jax import trajectory
from composer_jax.checkpoint import train_state
from composer_jax.checkpoint import weights as weights_lib
from composer_jax.learner import batch as batch_lib
from composer_jax.learner import step as step_lib
from composer_jax.loop import behaviour
from composer_jax.loop import config as config_lib
from composer_jax.loop import environment
from composer_jax.loop import evaluate
from composer_jax.loop import exercises
from composer_jax.loop import metrics
from composer_jax.loop import policy as policy_lib
from composer_jax.loop import supervise
from composer_jax.loop import warmstart
from composer_jax.loop import wiring
from composer_jax.replay import buffer as buffer_lib
from composer_jax.replay import record
from composer_jax.sampler import engine as engine_lib
from composer_jax.tasks import source
from composer_jax.text import chat as chat_lib
from composer_jax.tools import registry
from composer_jax.tools import sandbox

# What a seed is spent on; each part draws from its own stream.
_INIT, _DEMONSTRATE, _EXERCISE, _PACK, _ORDER, _ROLLOUT, _EVALUATE = range(7)


@dataclasses.dataclass
class Run:
  """A run under way: what its phases share."""

  config: config_lib.Config
  seed: int
  paths: wiring.Paths
  crew: supervise.Crew
  log: metrics.MetricsWriter
  tasks: tuple[trajectory.Task, ...]
  chat: chat_lib.Chat
  env: environment.Environment
  level: str  # Of the sandbox.
  started: float  # Monotonic seconds, less what earlier sessions took.

  @property
  def seconds(self) -> float:
    return time.monotonic() - self.started

  @property
  def route_shape(self) -> tuple[int, int]:
    return self.config.model.layers, self.config.model.experts_per_token

  def split(self, name: str) -> list[trajectory.Task]:
    return [task for task in self.tasks if task.split == name]


def train(config: config_lib.Config, workdir: str, seed: int) -> dict[str, Any]:
  """Runs or resumes the whole job; returns what it wrote to result.json.

  Raises:
    supervise.Stopped: a signal asked to; the same call resumes.
    ValueError: the directory or the config cannot be used.
  """
  paths = wiring.open_workdir(workdir, config, seed)
  done = metrics.read_json(paths.result)
  if done is not None:
    print(f'{workdir} is finished; nothing to do.', flush=True)
    return done
  crew = supervise.Crew()
  with contextlib.ExitStack() as stack:
    stack.enter_context(supervise.signals(crew))
    stack.callback(crew.end)
    run = _open(config, seed, paths, crew, stack)
    params = _warm_start(run)
    return _reinforce(run, params)


def _open(config, seed, paths, crew, stack) -> Run:
  """Boxes, tasks and format; printed as they come up."""
  level = sandbox.probe(config.sandbox)
  print(f'Sandbox level: {level.value}', flush=True)
  boxes = stack.enter_context(
    sandbox.BoxPool(config.sampler.slots, config.sandbox, level)
  )
  tasks = wiring.load_tasks(config, boxes, crew)
  cache = registry.ResultCache()
  chat = wiring.make_chat(config, tasks, boxes, cache, paths.workdir, crew)
  kept = {'warm_start': train_state.latest(paths.checkpoints('warm')) or 0}
  kept['rl'] = train_state.latest(paths.checkpoints('rl')) or 0
  log = metrics.MetricsWriter(paths.workdir, keep=kept)
  stack.callback(log.close)
  spent = metrics.read_json(paths.evaluation('seconds')) or 0.0
  return Run(
    config=config,
    seed=seed,
    paths=paths,
    crew=crew,
    log=log,
    tasks=tasks,
    chat=chat,
    env=environment.Environment(config, boxes, chat, cache),
    level=level.value,
    started=time.monotonic() - spent,
  )


# --- Warm start ---------------------------------------------------------------


def _warm_start(run: Run):
  """Parameters trained on demonstrations."""
  config = run.config.warm
  learner = dataclasses.replace(run.config.learner, optimizer=config.optimizer)
  key = jax.random.key(evaluate.seed_of(run.seed, _INIT))
  state = step_lib.init(key, learner, run.config.model)
  restored = train_state.restore(run.paths.checkpoints('warm'), state)
  if restored is not None:
    state = restored.tree
  if int(state.step) >= config.steps:
    return state.params
  _record(run.paths.demonstrations, lambda: _demonstrations(run))
  _record(run.paths.exercises, lambda: _exercises(run))
  batches = warmstart.batches(
    [
      record.TrajectorySource(run.paths.demonstrations),
      record.TrajectorySource(run.paths.exercises),
    ],
    [1 - config.exercise_share, config.exercise_share],
    rows=run.config.learner.micro_rows,
    length=run.config.learner.row_tokens,
    seed=evaluate.seed_of(run.seed, _PACK),
    route_shape=run.route_shape,
  )
  if restored is not None:
    batches.set_state(dict(restored.metadata['data']))
  first = int(state.step)
  while int(state.step) < config.steps and not run.crew.stop.is_set():
    state = _supervised_steps(run, state, batches, learner)
  if int(state.step) > first:
    _save(run, 'warm', state, {'data': batches.get_state()})
  run.crew.check()
  return state.params


def _supervised_steps(run, state, batches, learner):
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
      batch = next(batches)
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


def _exercises(run: Run) -> list[trajectory.Trajectory]:
  made = []
  for exercise in exercises.make(
    run.split('train'),
    run.chat,
    count=run.config.warm.exercises,
    max_tokens=256,
    seed=evaluate.seed_of(run.seed, _EXERCISE),
  ):
    run.crew.check()
    made.append(exercise)
  return made


def _demonstrations(run: Run) -> list[trajectory.Trajectory]:
  """Recorded episodes of the demonstrator; those that end in a submission."""
  tasks = run.split('train')
  order = source.order(tasks, evaluate.seed_of(run.seed, _DEMONSTRATE))
  chosen = [order[i] for i in range(run.config.warm.demonstrations)]

  def attempt(task, index):
    return warmstart.demonstrate(
      task,
      run.env,
      run.chat,
      config=run.config.warm.script,
      seed=evaluate.seed_of(run.seed, _DEMONSTRATE, index),
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
  return [e for e in episodes if e.ending is trajectory.Ending.SUBMITTED]


# --- Reinforcement learning ---------------------------------------------------


def _reinforce(run: Run, params) -> dict[str, Any]:
  config = run.config
  state = step_lib.fresh(params, config.learner)
  counters = {'episodes': 0, 'tool_calls': 0, 'max_lag_seen': 0}
  restored = train_state.restore(run.paths.checkpoints('rl'), state)
  if restored is not None:
    state, counters = restored.tree, dict(restored.metadata['counters'])
  version = int(state.step)
  publisher = weights_lib.Publisher(run.paths.weights)
  publisher.rewind(version)
  publisher.publish(version, state.params)
  policy = _serve(run, state.params)
  if version == 0:
    _evaluate(run, policy, 'before', 0)
  loop = _Loop(run, policy, publisher, state, counters)
  try:
    state = loop.run()
  finally:
    loop.save()
  policy.wait_for(config.run.steps)
  after = _evaluate(run, policy, 'after', config.run.steps)
  return _write_result(run, loop, after)


def _serve(run: Run, like) -> policy_lib.Policy:
  """A sampler that has its weights from the published checkpoints only."""
  loaded = weights_lib.load_latest(run.paths.weights, like)
  engine = engine_lib.Engine(
    run.config.sampler,
    run.config.model,
    loaded.weights,
    stop_id=run.chat.end_id,
  )
  return policy_lib.Policy(engine, run.paths.weights, like, run.crew)


class _Loop:
  """Actors, replay and learner at work; the learner is the calling thread."""

  def __init__(self, run, policy, publisher, state, counters):
    self._run = run
    self._policy = policy
    self._publisher = publisher
    self.state = state
    self.counters = counters
    self._saved = int(state.step)
    self._order = source.order(
      run.split('train'), evaluate.seed_of(run.seed, _ORDER)
    )
    self._buffer = buffer_lib.ReplayBuffer(
      run.config.replay,
      time.monotonic,
      cursor=int(state.step) * run.config.replay.groups_per_step,
    )
    run.crew.on_stop(lambda _: self._buffer.close())

  def run(self) -> step_lib.TrainState:
    config = self._run.config
    first = int(self.state.step)
    if first >= config.run.steps:
      return self.state
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
    return self.state

  def save(self) -> None:
    """Saves the run unless nothing has changed since the last time."""
    step = int(self.state.step)
    if step > self._saved:
      _save(self._run, 'rl', self.state, {'counters': self.counters})
      self._saved = step

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
      seed = evaluate.seed_of(run.seed, _ROLLOUT, group, member)
      try:
        with self._policy.session(
          seed=seed, temperature=run.config.run.temperature
        ) as play:
          done = run.env.attempt(
            self._order[group], play, group=group, member=member
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
      self._buffer.set_version(self._policy.version)

  def _learn(self) -> dict[str, float]:
    """One learner step, published and logged."""
    run, config = self._run, self._run.config
    started, sampled = time.monotonic(), self._policy.tokens_sampled
    groups = self._take()
    waited = time.monotonic() - started
    pairs = batch_lib.group_advantages(groups)
    useful = [pair for pair in pairs if pair[1] != 0]
    self.state, values = step_lib.update(
      self.state,
      batch_lib.pack(
        useful,
        rows=config.learner.micro_rows,
        length=config.learner.row_tokens,
        route_shape=run.route_shape,
      ),
      config=config.learner,
      model=config.model,
      denominator=sum(int(t.sampled_T.sum()) for t, _ in pairs),
      temperature=config.run.temperature,
    )
    version = int(self.state.step)
    self._publisher.publish(version, self.state.params)
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
    values |= {
      'version': version,
      'lag_max': stats.lag,
      'lag_mean': _mean_lag(episodes, version - 1),
      'useful_share': len(useful) / max(1, len(pairs)),
      'episodes': self.counters['episodes'],
      'lost_attempts': stats.failed + stats.late + stats.stale,
      'skipped': int(self.state.skipped),
      'tokens_per_s': sum(map(len, episodes)) / seconds,
      'sampled_per_s': (self._policy.tokens_sampled - sampled) / seconds,
      'tool_calls_per_s': calls / seconds,
      'waited_share': waited / seconds,
      'seconds': run.seconds,
    }
    run.log.write('rl', version, values)
    return values

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


def _save(run: Run, phase: str, state, metadata) -> None:
  train_state.save(
    run.paths.checkpoints(phase), int(state.step), state, metadata
  )
  metrics.write_json(run.paths.evaluation('seconds'), run.seconds)


# --- Evaluation and result ----------------------------------------------------


def _evaluate(run: Run, policy, name: str, step: int) -> dict[str, Any]:
  """Held-out solve rate, kept on disk: a resumed run does not repeat it."""
  path = run.paths.evaluation(name)
  known = metrics.read_json(path)
  if known is not None:
    return known
  chosen = evaluate.choose(run.split('heldout'), run.config.evaluate.tasks)
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
  run: Run,
  policy: policy_lib.Policy,
  tasks: Sequence[trajectory.Task],
  *,
  temperature: float,
  label: str,
  blank: bool = False,
) -> list[trajectory.Trajectory]:
  """One attempt of the served policy at each task."""

  def attempt(task, index):
    seed = evaluate.seed_of(run.seed, _EVALUATE, index)
    with policy.session(seed=seed, temperature=temperature) as play:
      return run.env.attempt(task, play, group=index, blank=blank)

  return evaluate.run(
    tasks,
    attempt,
    threads=run.config.sampler.slots,
    label=label,
    crew=run.crew,
  )


def _write_result(run: Run, loop: _Loop, after) -> dict[str, Any]:
  before = metrics.read_json(run.paths.evaluation('before'))
  result = {
    'heldout_solve_rate_before': before['solve_rate'],
    'heldout_solve_rate_after': after['solve_rate'],
    'heldout_greedy_before': before.get('solve_rate_greedy'),
    'heldout_greedy_after': after.get('solve_rate_greedy'),
    'heldout_tasks': after['tasks'],
    **loop.counters,
    'sandbox_level': run.level,
    'weights_published': run.config.run.steps + 1,
    'learner_steps': run.config.run.steps,
    'skipped_steps': int(loop.state.skipped),
    'wall_seconds': run.seconds,
    'seed': run.seed,
  }
  metrics.write_json(run.paths.result, result)
  return result
