"""How a run comes up and is saved; its phases are modules of their own."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import dataclasses
import enum
import time

from composer_jax import trajectory
from composer_jax.checkpoint import train_state
from composer_jax.loop import config as config_lib
from composer_jax.loop import environment
from composer_jax.loop import evaluate
from composer_jax.loop import metrics
from composer_jax.loop import supervise
from composer_jax.loop import wiring
from composer_jax.text import chat as chat_lib
from composer_jax.tools import registry
from composer_jax.tools import sandbox


class Stream(enum.IntEnum):
  """What a seed is spent on; each draws numbers of its own."""

  INIT = 0
  DEMONSTRATE = 1
  EXERCISE = 2
  PACK = 3
  ORDER = 4
  ROLLOUT = 5
  EVALUATE = 6


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

  def seed_of(self, stream: Stream, *parts: int) -> int:
    return evaluate.seed_of(self.seed, stream, *parts)

  @property
  def seconds(self) -> float:
    return time.monotonic() - self.started

  def split(self, name: str) -> list[trajectory.Task]:
    return [task for task in self.tasks if task.split == name]


@contextlib.contextmanager
def open_run(
  config: config_lib.Config, seed: int, paths: wiring.Paths
) -> Iterator[Run]:
  """Boxes, tasks and format; printed as they come up, ended on leaving."""
  crew = supervise.Crew()
  with contextlib.ExitStack() as stack:
    stack.enter_context(supervise.signals(crew))
    stack.callback(crew.end)
    level = sandbox.probe(config.sandbox)
    print(f'Sandbox level: {level.value}', flush=True)
    boxes = stack.enter_context(
      sandbox.BoxPool(
        config.sampler.slots, wiring.sandbox_config(config), level
      )
    )
    tasks, trees = wiring.load_tasks(config, boxes, crew)
    for split in ('train', 'heldout'):
      if not any(task.split == split for task in tasks):
        raise ValueError(
          f'a run needs tasks to train on and tasks held out; of {len(tasks)}'
          f' none is {split}'
        )
    cache = registry.ResultCache()
    chat = wiring.make_chat(
      config, tasks, trees, boxes, cache, paths.workdir, crew
    )
    kept = {'warm_start': train_state.latest(paths.checkpoints('warm')) or 0}
    kept['rl'] = train_state.latest(paths.checkpoints('rl')) or 0
    log = metrics.MetricsWriter(paths.workdir, keep=kept)
    stack.callback(log.close)
    spent = metrics.read_json(paths.evaluation('seconds')) or 0.0
    yield Run(
      config=config,
      seed=seed,
      paths=paths,
      crew=crew,
      log=log,
      tasks=tasks,
      chat=chat,
      env=environment.Environment(config, boxes, chat, cache, trees),
      level=level.value,
      started=time.monotonic() - spent,
    )


def save(run: Run, phase: str, state, metadata) -> None:
  """A checkpoint of the phase, and the time spent until then."""
  train_state.save(
    run.paths.checkpoints(phase), int(state.step), state, metadata
  )
  metrics.write_json(run.paths.evaluation('seconds'), run.seconds)
