"""The configs of the rooms, composed; overrides by dotted name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import difflib
import json
import typing
from typing import Any

from composer_jax.actor import episode
from composer_jax.actor import scripted
from composer_jax.learner import optimizer
from composer_jax.learner import step
from composer_jax.model import config as model_config
from composer_jax.replay import buffer
from composer_jax.rewards import shaping
from composer_jax.sampler import engine
from composer_jax.tasks import curriculum
from composer_jax.tasks import validate
from composer_jax.tools import registry
from composer_jax.tools import sandbox


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepositoriesConfig:
  """Tasks from real packages, in place of those of HumanEval."""

  folder: str = ''  # Made by composer_jax.tasks.make; '' = HumanEval.
  kinds: tuple[str, ...] = ()  # Of bugs; () = every kind.
  pointed: bool = False  # Prompts say which lines are broken, and no more.


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmStartConfig:
  """Supervised training on scripted demonstrations."""

  demonstrations: int = 2000  # Episodes recorded, training problems only.
  exercises: int = 4000  # Lines of code with the edits that apply to them.
  exercise_tokens: int = 256  # Length of one at most.
  exercise_share: float = 0.5  # Of the sequences trained on.
  steps: int = 500  # Optimizer steps, one micro-batch each.
  script: scripted.DemonstrationConfig = scripted.DemonstrationConfig()
  optimizer: optimizer.OptimizerConfig = optimizer.OptimizerConfig(
    muon_rate=0.05, adam_rate=0.01, decay_steps=500
  )

  def __post_init__(self):
    if min(self.demonstrations, self.exercises) < 1 or self.steps < 0:
      raise ValueError(
        'a warm start needs demonstrations and exercises, got'
        f' demonstrations={self.demonstrations} exercises={self.exercises}'
        f' steps={self.steps}'
      )
    if not 0 < self.exercise_share < 1:
      raise ValueError(
        f'exercise_share={self.exercise_share} must lie between 0 and 1'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
  """Held-out evaluation, before and after."""

  tasks: int = 240  # Held-out tasks, spread over the held-out problems.
  greedy: bool = True  # Also at temperature 0.

  def __post_init__(self):
    if self.tasks < 1:
      raise ValueError(f'nothing to evaluate on: tasks={self.tasks}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
  """The loop itself."""

  steps: int = 180  # Learner steps of reinforcement learning.
  temperature: float = 1.0  # Of the behaviour policy.
  save_every: int = 20  # Learner steps between two checkpoints.
  patience_s: float = 300.0  # Without any progress for so long, the run fails.

  def __post_init__(self):
    if min(self.steps, self.save_every) < 1:
      raise ValueError(
        f'steps={self.steps} and save_every={self.save_every} must be >= 1'
      )
    if min(self.temperature, self.patience_s) <= 0:
      raise ValueError(
        f'temperature={self.temperature} and patience_s={self.patience_s}'
        ' must be > 0'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """Everything that a run is made of, room by room."""

  name: str
  tasks: validate.Config = validate.Config()
  repositories: RepositoriesConfig = RepositoriesConfig()
  model: model_config.ModelConfig = model_config.ModelConfig()
  warm: WarmStartConfig = WarmStartConfig()
  sampler: engine.SamplerConfig = engine.SamplerConfig()
  actor: episode.ActorConfig = episode.ActorConfig()
  tools: registry.ToolsConfig = registry.ToolsConfig()
  sandbox: sandbox.SandboxConfig = sandbox.SandboxConfig()
  rewards: shaping.RewardConfig = shaping.RewardConfig()
  curriculum: curriculum.CurriculumConfig = curriculum.CurriculumConfig()
  replay: buffer.ReplayConfig = buffer.ReplayConfig()
  learner: step.LearnerConfig = step.LearnerConfig()
  evaluate: EvaluateConfig = EvaluateConfig()
  run: RunConfig = RunConfig()

  def __post_init__(self):
    for name in self.tools.allowed:
      if name not in registry.TOOLS:
        known = ', '.join(registry.TOOLS)
        raise ValueError(f'tools.allowed: no tool {name!r}; there are {known}')
    sampler = 'sampler.max_tokens', self.sampler.max_tokens
    learner = 'learner.row_tokens', self.learner.row_tokens
    actor = 'actor.max_tokens', self.actor.max_tokens
    exercise = 'warm.exercise_tokens', self.warm.exercise_tokens
    for (user, longest), (name, room) in (
      (actor, sampler),
      (actor, learner),
      (exercise, learner),
    ):
      if longest > room:
        raise ValueError(
          f'{user}={longest} does not fit {name}={room}; change one of the two'
        )


def to_json(config: Any) -> dict[str, Any]:
  """Nested plain values, comparable with what config.json holds."""
  return json.loads(json.dumps(dataclasses.asdict(config)))


def from_json(values: Mapping[str, Any], kind: Any = Config) -> Any:
  """The config that `to_json` was given.

  Raises:
    ValueError: a field is missing or unknown, or the config refuses a value.
  """
  types = typing.get_type_hints(kind)
  if types.keys() != values.keys():
    odd = ', '.join(sorted(types.keys() ^ values.keys()))
    raise ValueError(f'a {kind.__name__} of another version: {odd}')
  fields = {
    name: from_json(values[name], hint)
    if dataclasses.is_dataclass(hint)
    else tuple(values[name])
    if typing.get_origin(hint) is tuple
    else values[name]
    for name, hint in types.items()
  }
  return kind(**fields)


def differences(ours: Mapping, theirs: Mapping, prefix: str = '') -> list[str]:
  """Lines 'room.field: ours, theirs' for every value that differs."""
  lines = []
  for key in sorted({*ours, *theirs}):
    left, right = ours.get(key, '(absent)'), theirs.get(key, '(absent)')
    if isinstance(left, Mapping) and isinstance(right, Mapping):
      lines.extend(differences(left, right, f'{prefix}{key}.'))
    elif left != right:
      lines.append(f'{prefix}{key}: {left!r}, {right!r}')
  return lines


def override(config: Any, settings: Sequence[str]) -> Any:
  """Applies 'room.field=value' settings, each checked against its type.

  They take effect together, so their order does not matter.

  Raises:
    ValueError: an unknown name (the nearest ones are named), a value of the
      wrong type, or one that the config itself refuses.
  """
  changes = {}
  for setting in settings:
    name, equals, value = setting.partition('=')
    if not equals:
      raise ValueError(f'--set {setting}: expected room.field=value')
    *rooms, field = name.strip().split('.')
    kind, group = type(config), changes
    for room in rooms:
      kind, group = _kind(kind, room, setting), group.setdefault(room, {})
      if not dataclasses.is_dataclass(kind):
        raise ValueError(f'--set {setting}: {room!r} is a value, not a group')
    kind = _kind(kind, field, setting)
    if dataclasses.is_dataclass(kind):
      fields = ', '.join(typing.get_type_hints(kind))
      raise ValueError(f'--set {setting}: {field!r} is a group of {fields}')
    group[field] = _parse(value.strip(), kind, setting)
  return _replaced(config, changes)


def _kind(owner: type, name: str, setting: str) -> Any:
  """The type of the field `name`."""
  types = typing.get_type_hints(owner)
  if name in types:
    return types[name]
  near = difflib.get_close_matches(name, types, n=3, cutoff=0.4)
  raise ValueError(
    f'--set {setting}: there is no {name!r} here; '
    + ('did you mean ' if near else 'there are ')
    + ', '.join(near or sorted(types))
    + '?' * bool(near)
  )


def _replaced(config: Any, changes: Mapping[str, Any]) -> Any:
  new = {
    name: _replaced(getattr(config, name), value)
    if isinstance(value, Mapping)
    else value
    for name, value in changes.items()
  }
  return dataclasses.replace(config, **new)


def _parse(text: str, kind: Any, setting: str):
  if typing.get_origin(kind) is tuple:
    (item, *_) = typing.get_args(kind)
    parts = [part.strip() for part in text.strip('()').split(',')]
    return tuple(_parse(part, item, setting) for part in parts if part)
  if kind is bool:
    values = {'true': True, 'false': False, '1': True, '0': False}
    if text.lower() in values:
      return values[text.lower()]
  elif kind in (int, float):
    try:
      return kind(text)
    except ValueError:
      pass
  elif kind is str:
    return text
  raise ValueError(f'--set {setting}: {text!r} is no {kind.__name__}')
