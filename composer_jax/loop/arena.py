"""What an evaluation needs beside an agent: boxes, tasks, a directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import os

from composer_jax import trajectory
from composer_jax.actor import episode
from composer_jax.learner import step
from composer_jax.loop import agents
from composer_jax.loop import config as config_lib
from composer_jax.loop import environment
from composer_jax.loop import evaluate
from composer_jax.loop import metrics
from composer_jax.loop import supervise
from composer_jax.loop import wiring
from composer_jax.sampler import engine
from composer_jax.text import chat as chat_lib
from composer_jax.text import tokenizer as tokenizer_lib
from composer_jax.tools import registry
from composer_jax.tools import sandbox

HUMANEVAL = 'humaneval'
_BYTES = 4 << 20  # One context of an agent that has no tokenizer of its own.
_TEXT_CHARS = 8000  # Of a result, where files are as long as they are.


def config(tasks: str) -> config_lib.Config:
  """Settings for agents whose tokens are bytes; of a policy, its run has them.

  On repositories all tools are allowed.
  """
  base = config_lib.Config(
    name='evaluate',
    actor=episode.ActorConfig(
      max_turns=200, max_tokens=_BYTES, max_turn_tokens=_BYTES
    ),
    # Never built here: they only have to be as large.
    sampler=engine.SamplerConfig(max_tokens=_BYTES),
    learner=step.LearnerConfig(row_tokens=_BYTES),
  )
  if tasks == HUMANEVAL:
    return base
  tools = registry.ToolsConfig(
    allowed=tuple(registry.TOOLS), text_chars=_TEXT_CHARS
  )
  return dataclasses.replace(base, tools=tools)


def with_tasks(config: config_lib.Config, tasks: str) -> config_lib.Config:
  """The config with the tasks called so: 'humaneval', or a task set's folder.

  Raises:
    ValueError: there are none of that name.
  """
  if tasks != HUMANEVAL and not os.path.isdir(tasks):
    raise ValueError(
      f'--tasks={tasks} is neither {HUMANEVAL} nor the folder of a task set'
    )
  folder = '' if tasks == HUMANEVAL else tasks
  repositories = dataclasses.replace(config.repositories, folder=folder)
  return dataclasses.replace(config, repositories=repositories)


def config_of_run(workdir: str) -> config_lib.Config:
  """The settings that a run was made with.

  Raises:
    ValueError: there is no run, or one of another version of this code.
  """
  values = metrics.read_json(wiring.Paths(workdir=workdir).config)
  if values is None:
    raise ValueError(
      f'--workdir={workdir} holds no run; run experiments.train first'
    )
  del values['seed']
  try:
    return config_lib.from_json(values)
  except ValueError as error:
    raise ValueError(f'--workdir={workdir}: {error}') from error


def chat_of_run(workdir: str, config: config_lib.Config) -> chat_lib.Chat:
  """The chat format over the tokenizer of a run."""
  try:
    tokenizer = tokenizer_lib.load(workdir)
  except FileNotFoundError as error:
    raise ValueError(f'--workdir={workdir} has no tokenizer yet') from error
  return chat_lib.Chat(tokenizer, wiring.signatures_of(config))


def chat_of_bytes(config: config_lib.Config) -> chat_lib.Chat:
  """The chat format for agents that speak text."""
  signatures = wiring.signatures_of(config)
  tokenizer = tokenizer_lib.byte_level(chat_lib.fragments(signatures))
  return chat_lib.Chat(tokenizer, signatures)


@contextlib.contextmanager
def open_boxes(
  config: config_lib.Config, threads: int, crew: supervise.Crew
) -> Iterator[sandbox.BoxPool]:
  """Boxes for so many attempts at once; signals are heard, threads ended."""
  with contextlib.ExitStack() as stack:
    stack.enter_context(supervise.signals(crew))
    stack.callback(crew.end)
    level = sandbox.probe(config.sandbox)
    print(f'Sandbox level: {level.value}', flush=True)
    pool = sandbox.BoxPool(threads, wiring.sandbox_config(config), level)
    yield stack.enter_context(pool)


def choose(
  tasks: Sequence[trajectory.Task], split: str, limit: int
) -> list[trajectory.Task]:
  """Tasks of the split, `limit` of them unless 0, the same in every run.

  Raises:
    ValueError: there is none.
  """
  found = [task for task in tasks if split in (task.split, 'all')]
  if not found:
    have = ', '.join(sorted({task.split for task in tasks})) or 'no tasks'
    raise ValueError(f'--split={split}: no task is in it; there are {have}')
  return evaluate.choose(found, limit or len(found))


def enter(
  config: config_lib.Config,
  boxes: sandbox.BoxPool,
  chat: chat_lib.Chat,
  trees: Mapping[str, bytes],
  crew: supervise.Crew,
) -> agents.Arena:
  """Where agents act; `trees` are what the tasks start from, by name."""
  cache = registry.ResultCache()
  env = environment.Environment(config, boxes, chat, cache, trees)
  return agents.Arena(config=config, env=env, chat=chat, crew=crew)
