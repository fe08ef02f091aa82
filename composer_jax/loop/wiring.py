"""Builds the rooms of a run from its config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent import futures
import dataclasses
import math
import os
import pathlib
import time
from typing import Any

import jax

from composer_jax import trajectory
from composer_jax.loop import config as config_lib
from composer_jax.loop import focus
from composer_jax.loop import metrics
from composer_jax.loop import supervise
from composer_jax.loop import warmstart
from composer_jax.tasks import humaneval
from composer_jax.tasks import source
from composer_jax.tasks import validate
from composer_jax.text import chat as chat_lib
from composer_jax.text import tokenizer as tokenizer_lib
from composer_jax.tools import registry
from composer_jax.tools import sandbox

_LINES = ('first', 'last')  # A repository's files are read in part.
_OBSERVED = 1000  # Tasks whose files and tests the tokenizer learns from.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Paths:
  """Where things lie in a run's directory."""

  workdir: str

  @property
  def config(self) -> str:
    return os.path.join(self.workdir, 'config.json')

  @property
  def result(self) -> str:
    return os.path.join(self.workdir, 'result.json')

  @property
  def weights(self) -> str:
    return os.path.join(self.workdir, 'weights')

  @property
  def demonstrations(self) -> str:
    return os.path.join(self.workdir, 'demonstrations')

  @property
  def exercises(self) -> str:
    return os.path.join(self.workdir, 'exercises')

  @property
  def trajectories(self) -> str:
    return os.path.join(self.workdir, 'trajectories')

  def trajectories_of(self, evaluation: str) -> str:
    return f'{self.trajectories}_{evaluation}'

  def checkpoints(self, phase: str) -> str:
    return os.path.join(self.workdir, 'checkpoints', phase)

  def evaluation(self, name: str) -> str:
    return os.path.join(self.workdir, f'evaluation_{name}.json')


def open_workdir(workdir: str, config: config_lib.Config, seed: int) -> Paths:
  """Makes the directory, or checks that it belongs to this very run.

  Raises:
    ValueError: it cannot be written, or holds a run of another config.
  """
  ours = {'seed': seed, **config_lib.to_json(config)}
  claim(workdir, ours, flag='workdir', owner='run')
  return Paths(workdir=workdir)


def claim(
  directory: str, ours: Mapping[str, Any], *, flag: str, owner: str
) -> None:
  """Makes a directory of these settings, or checks that it is theirs already.

  Args:
    directory: where config.json keeps them.
    ours: the settings.
    flag: that named the directory.
    owner: what such a directory belongs to.

  Raises:
    ValueError: it cannot be written, or belongs to other settings.
  """
  path = Paths(workdir=directory).config
  try:
    os.makedirs(directory, exist_ok=True)
    theirs = metrics.read_json(path)
    if theirs is None:
      metrics.write_json(path, ours)
  except OSError as error:
    raise ValueError(
      f'--{flag}={directory} cannot be used: {error.strerror or error}'
    ) from error
  if theirs is not None and theirs != ours:
    lines = '\n  '.join(config_lib.differences(ours, theirs))
    raise ValueError(
      f'--{flag}={directory} belongs to another {owner}. Give a new one, or the'
      f' same settings (yours, its):\n  {lines}'
    )


def cache_directory() -> pathlib.Path:
  """What may be deleted at any time: task sets, compiled programs."""
  default = pathlib.Path.home() / '.cache'
  root = pathlib.Path(os.environ.get('XDG_CACHE_HOME') or default)
  return root / 'composer_jax'


def use_compilation_cache() -> None:
  """Compiled programs are kept between runs."""
  jax.config.update('jax_compilation_cache_dir', str(cache_directory() / 'jax'))
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.5)


def sandbox_config(config: config_lib.Config) -> sandbox.SandboxConfig:
  """That of the run's boxes: they see what the packages' tests need."""
  if not config.repositories.folder:
    return config.sandbox
  libraries = os.path.join(config.repositories.folder, source.LIBRARIES)
  return dataclasses.replace(config.sandbox, libraries=libraries)


def load_tasks(
  config: config_lib.Config, boxes: sandbox.BoxPool, crew: supervise.Crew
) -> tuple[tuple[trajectory.Task, ...], Mapping[str, bytes]]:
  """The tasks, and the trees that they start from, by name.

  Those of HumanEval are built at first use and cached.

  Raises:
    ValueError: the folder of repositories holds no task of these kinds.
    supervise.Stopped: the run is asked to stop.
  """
  if config.repositories.folder:
    return _repositories(config.repositories)
  return _humaneval(config, boxes, crew), {}


def _repositories(
  config: config_lib.RepositoriesConfig,
) -> tuple[tuple[trajectory.Task, ...], Mapping[str, bytes]]:
  tasks, trees = source.read_set(config.folder)
  known = sorted({task.provenance.kind for task in tasks})
  chosen = [
    focus.point(task) if config.pointed else task
    for task in tasks
    if not config.kinds or task.provenance.kind in config.kinds
  ]
  if not chosen:
    raise ValueError(
      f'{config.folder} has no task of repositories.kinds='
      f'{",".join(config.kinds)}; there are {", ".join(known)}'
    )
  return tuple(chosen), trees


def _humaneval(
  config: config_lib.Config, boxes: sandbox.BoxPool, crew: supervise.Crew
) -> tuple[trajectory.Task, ...]:
  command = ('python', sandbox.ASSERT_RUNNER, humaneval.TEST_FILE)

  def run(files, command, stdin, seconds):
    crew.check()
    with boxes.box() as box:
      box.reset(files)
      ended = box.exec(command, seconds=seconds, stdin=stdin)
    code = None if ended.timed_out else (ended.exit_code or 0)
    if ended.exit_code is None and not ended.timed_out:
      code = 1  # Killed by one of its own limits.
    return code, ended.output

  def build():
    print('Building the task set (cached afterwards) ...', flush=True)
    # Few at once: a crowded machine makes correct code look like a hang.
    with futures.ThreadPoolExecutor(os.cpu_count()) as executor:
      report = validate.build(
        humaneval.problems()[: config.tasks.problems or None],
        run=run,
        executor=executor,
        clock=time.monotonic,
        test_command=command,
        config=config.tasks,
      )
    print(validate.describe(report), flush=True)
    return report.tasks

  key = validate.key(command, config.tasks)
  path = cache_directory() / 'tasks' / f'humaneval-{key[:16]}.array_record'
  return source.cached(path, key, build)


def signatures_of(config: config_lib.Config) -> chat_lib.Signatures:
  """What the chat format holds constant of the tools that are allowed."""
  repositories = bool(config.repositories.folder)
  return {
    name: [
      (argument, parameter.type)
      for argument, parameter in registry.TOOLS[name].parameters.items()
      if parameter.required or (repositories and argument in _LINES)
    ]
    for name in config.tools.allowed
  }


def make_chat(
  config: config_lib.Config,
  tasks: Sequence[trajectory.Task],
  trees: Mapping[str, bytes],
  boxes: sandbox.BoxPool,
  cache: registry.ResultCache,
  workdir: str,
  crew: supervise.Crew,
) -> chat_lib.Chat:
  """The chat format over the run's own tokenizer, kept in its directory.

  It is learned from what the tools say about the training tasks.
  """
  signatures = signatures_of(config)

  def observe(task: trajectory.Task) -> str:
    crew.check()
    with (
      boxes.box() as box,
      registry.Toolbox(
        task, box, config.tools, cache, trees.get(task.snapshot, b'')
      ) as toolbox,
    ):
      calls = [
        trajectory.ToolCall(
          id='read',
          name='read_file',
          arguments=focus.find(task).arguments,
        ),
        trajectory.ToolCall(id='test', name='run_tests'),
        trajectory.ToolCall(id='submit', name='submit'),
      ]
      texts = [result.text for result in toolbox.call_all(calls)]
    return '\n'.join([task.prompt, *texts])

  try:
    tokenizer = tokenizer_lib.load(workdir)
  except FileNotFoundError:
    training = [task for task in tasks if task.split == 'train']
    training = training[:: max(1, math.ceil(len(training) / _OBSERVED))]
    with futures.ThreadPoolExecutor(config.sampler.slots) as executor:
      observations = list(executor.map(observe, training))
    tokenizer = tokenizer_lib.train(
      warmstart.corpus(observations),
      chat_lib.fragments(signatures, summaries=bool(config.actor.summary_at)),
      config.model.vocab_size,
    )
    tokenizer.save(workdir)
  return chat_lib.Chat(tokenizer, signatures)
