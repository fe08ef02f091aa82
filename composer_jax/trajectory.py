"""The nouns that rooms exchange, and the key of dimension letters.

Every type here is frozen and refuses to exist wrong: a value that was built is
a value that can be trusted. Arrays are numpy (host side); what is traced by JAX
lives beside the code that traces it.

Dimension letters, used as suffixes of tensor names (`logits_BTV`):

  B packed rows        T query / token time   S key / cache time
  D model width        F expert hidden width  H query heads
  K key-value heads    C head channels        E experts
  V vocabulary         L MoE layers           G groups
  R rollouts per task  N flattened tokens     X experts chosen per token
  P tokens that stand before one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import enum
import itertools
import types
from typing import Any, NamedTuple

import numpy as np

UNKNOWN_ROUTE = -1  # No expert recorded: the learner routes by itself.
TEST_CONFIGURATION = frozenset(
  (
    *('conftest.py', 'tox.ini', 'setup.cfg', 'pyproject.toml'),
    *('pytest.ini', '.pytest.ini', 'pytest.toml', '.pytest.toml'),
  )
)


class Status(enum.Enum):
  """How a tool call ended."""

  OK = 'ok'
  ERROR = 'error'  # The tool ran and reports a failure.
  TIMEOUT = 'timeout'  # The call's own time limit ended it.
  INVALID = 'invalid'  # Not a call: bad JSON, unknown tool, wrong arguments.
  DENIED = 'denied'  # Well formed, but not permitted here.
  TRUNCATED = 'truncated'  # Cut by the token limit, hence never executed.


class Ending(enum.Enum):
  """How an episode ended. Every one of these is the policy's own doing."""

  SUBMITTED = 'submitted'
  NO_CALL = 'no_call'  # A turn without any tool call.
  TURN_LIMIT = 'turn_limit'
  TOKEN_LIMIT = 'token_limit'


class InfrastructureError(RuntimeError):
  """A fault of ours (sandbox, sampler). Never turned into a reward."""


@dataclasses.dataclass(frozen=True)
class Edit:
  """Replaces `old`, which occurs exactly once in the file, by `new`.

  A file that does not exist is an empty text here, and so is one that an edit
  empties: `Edit(path, '', text)` creates a file.
  """

  path: str
  old: str
  new: str

  def __post_init__(self):
    if self.old == self.new:
      raise ValueError(
        f'an edit changes something: old={self.old!r} new={self.new!r}'
      )

  def inverse(self) -> Edit:
    return Edit(self.path, self.new, self.old)

  def apply(self, text: str) -> str:
    """The edited text; ValueError unless `old` occurs once."""
    found = text.count(self.old)
    if found == 1 and text.find(self.old) != text.rfind(self.old):
      found = 2  # The one overlaps the other.
    if found != 1:
      raise ValueError(f'{self.old!r} occurs {found} times, not once')
    return text.replace(self.old, self.new)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Provenance:
  """Where a task's code came from and how it was broken."""

  package: str
  licence: str
  problem: str  # The unit that is never split between train and held-out.
  kind: str  # Name of the mutation.
  bugs: tuple[Edit, ...]  # What was done to the correct code, in order.
  visible_fails: bool  # Whether the visible tests notice the bug.

  @property
  def fix(self) -> tuple[Edit, ...]:
    """The edits that give the correct code back, in order."""
    return tuple(bug.inverse() for bug in reversed(self.bugs))


class Difficulty(NamedTuple):
  """How hard a task looks from outside, before anybody has tried it."""

  failing: int  # Hidden tests that fail.
  files: int  # Files that the known fix touches.
  lines: int  # Lines that it adds.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
  """One piece of work: files to repair, tests to see, tests to pass.

  `hidden_files` only ever enter a fresh grading sandbox; where a test file is
  among `files` too, that one shows a part of it. Commands are argument vectors
  that run in the directory of the files.

  The work starts from `snapshot`, the name of a stored tree, with `files` laid
  over it; without a snapshot, from `files` alone. Tests are named as pytest
  does, `path::name`; where `fail_to_pass` is empty, the exit status of the
  grading command is the verdict.
  """

  id: str
  prompt: str
  files: Mapping[str, str]
  test_command: Sequence[str]
  hidden_files: Mapping[str, str]
  grade_command: Sequence[str]
  provenance: Provenance
  split: str  # 'train' or 'heldout'.
  test_seconds: float = 2.0  # Wall-clock limit of either command.
  snapshot: str = ''
  fail_to_pass: tuple[str, ...] = ()  # Hidden tests that the work must mend.
  pass_to_pass: tuple[str, ...] = ()  # Hidden tests that it must not break.

  def __post_init__(self):
    if self.split not in ('train', 'heldout'):
      raise ValueError(f'{self.id}: split is train or heldout: {self.split!r}')
    if not self.files and not self.snapshot:
      raise ValueError(f'{self.id}: a task needs at least one file')
    leaked = sorted(
      path
      for path in set(self.files) & set(self.hidden_files)
      if not is_test(path) or self.files[path] == self.hidden_files[path]
    )
    if leaked:
      raise ValueError(
        f'{self.id}: hidden files may replace a shorter test that is visible,'
        f' not be visible nor replace work: {leaked}'
      )
    object.__setattr__(self, 'files', types.MappingProxyType(dict(self.files)))
    object.__setattr__(
      self, 'hidden_files', types.MappingProxyType(dict(self.hidden_files))
    )

  @property
  def difficulty(self) -> Difficulty:
    fix = self.provenance.fix
    return Difficulty(
      failing=len(self.fail_to_pass),
      files=len({edit.path for edit in fix}),
      lines=sum(edit.new.count('\n') + 1 for edit in fix),
    )


def is_test(path: str) -> bool:
  """Whether a file belongs to the tests: not to be edited, never handed in.

  By the usual names: `test_x.py`, `x_test.py`, `conftest.py`, all below a
  folder `test` or `tests`, and what configures pytest.
  """
  *folders, name = path.split('/')
  return (
    name.startswith('test_')
    or name.endswith('_test.py')
    or name in TEST_CONFIGURATION
    or not {'test', 'tests'}.isdisjoint(folders)
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolCall:
  """One call as the policy wrote it.

  A call that could not be parsed carries its `error` and no arguments; it is
  answered, counted and kept like any other.
  """

  id: str
  name: str
  arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  error: str = ''


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolResult:
  """The answer to one call, text already capped."""

  call_id: str
  status: Status
  text: str
  exit_code: int | None = None
  seconds: float = 0.0
  dropped_bytes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
  """What the sampler appended to a history of n tokens.

  token_T, logprob_T and version_T have the length of the appended part.
  route_TLX covers history and appended part together (n + T rows), with
  UNKNOWN_ROUTE where a position has not been through the model.
  """

  token_T: np.ndarray  # int32
  logprob_T: np.ndarray  # float32 nats, at the temperature used
  version_T: np.ndarray  # int32
  route_TLX: np.ndarray  # int8
  finished: bool  # False: cut by the token limit.

  def __post_init__(self):
    _same_length(self, ('token_T', 'logprob_T', 'version_T'))
    if len(self.route_TLX) < len(self.token_T):
      raise ValueError(
        f'{len(self.route_TLX)} routes for {len(self.token_T)} tokens'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turn:
  """One turn of an episode; tokens [start, stop) are the policy's."""

  start: int
  stop: int
  calls: tuple[ToolCall, ...]
  results: tuple[ToolResult, ...]

  def __post_init__(self):
    if not 0 <= self.start <= self.stop:
      raise ValueError(f'a turn needs 0 <= start <= stop: {self}')
    if [c.id for c in self.calls] != [r.call_id for r in self.results]:
      raise ValueError('results must answer the calls, in call order')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trajectory:
  """One finished episode as a single token stream of length T.

  An episode that ran out of context and went on from its own summary has
  several parts, each a context of its own: no token was chosen in sight of
  another part. `starts` says where they begin.
  """

  task_id: str
  group: int
  member: int
  token_T: np.ndarray  # int32
  sampled_T: np.ndarray  # bool: True where the policy chose the token
  logprob_T: np.ndarray  # float32 nats of the behaviour policy, else 0
  version_T: np.ndarray  # int32: policy that chose the token, else -1
  route_TLX: np.ndarray  # int8: experts, UNKNOWN_ROUTE where unknown
  turns: tuple[Turn, ...]
  ending: Ending
  final_files: Mapping[str, str]
  rewards: Mapping[str, float] = dataclasses.field(default_factory=dict)
  facts: Mapping[str, float] = dataclasses.field(default_factory=dict)
  sandbox_level: str = ''
  seconds: float = 0.0
  starts: tuple[int, ...] = (0,)

  def __post_init__(self):
    edges = (*self.starts, max(1, len(self)))
    if self.starts[:1] != (0,) or any(
      start >= stop for start, stop in itertools.pairwise(edges)
    ):
      raise ValueError(f'parts of {len(self)} tokens start at {self.starts}')
    _same_length(
      self,
      ('token_T', 'sampled_T', 'logprob_T', 'version_T', 'route_TLX'),
    )
    stray = ~self.sampled_T & ((self.logprob_T != 0) | (self.version_T != -1))
    if stray.any():
      raise ValueError(
        f'{int(stray.sum())} tokens the policy did not choose carry a'
        ' log-probability or a version'
      )
    if (self.version_T[self.sampled_T] < 0).any():
      raise ValueError('every sampled token needs the version that chose it')

  def __len__(self) -> int:
    return len(self.token_T)

  @property
  def parts(self) -> tuple[slice, ...]:
    """Where the contexts of the episode lie in its token stream."""
    edges = (*self.starts, len(self))
    return tuple(itertools.starmap(slice, itertools.pairwise(edges)))

  def contexts(self) -> tuple[Trajectory, ...]:
    """Each part as an episode of its own, which has the turns begun in it.

    All else, rewards and ending included, is that of the whole.
    """
    if len(self.starts) == 1:
      return (self,)
    return tuple(
      dataclasses.replace(
        self,
        token_T=self.token_T[part],
        sampled_T=self.sampled_T[part],
        logprob_T=self.logprob_T[part],
        version_T=self.version_T[part],
        route_TLX=self.route_TLX[part],
        turns=tuple(
          dataclasses.replace(
            turn, start=turn.start - part.start, stop=turn.stop - part.start
          )
          for turn in self.turns
          if part.start <= turn.start < part.stop
        ),
        starts=(0,),
      )
      for part in self.parts
    )

  @property
  def reward(self) -> float:
    return float(sum(self.rewards.values()))

  @property
  def oldest_version(self) -> int:
    """The oldest policy that chose a token here; -1 if none was chosen."""
    versions = self.version_T[self.sampled_T]
    return int(versions.min()) if len(versions) else -1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
  """The attempts at one task, or those that came back before the deadline."""

  index: int  # Position in the run's order of prompts: used exactly once.
  task_id: str
  trajectories: tuple[Trajectory, ...]
  size: int  # How many attempts were asked for.
  closed: str = ''  # Why members are missing; empty when complete.

  def __post_init__(self):
    if len(self.trajectories) > self.size:
      raise ValueError(f'{len(self.trajectories)} members in {self.size}')
    if len(self.trajectories) < self.size and not self.closed:
      raise ValueError(
        f'group {self.index} lacks {self.size - len(self.trajectories)}'
        ' members and gives no reason'
      )
    for member in self.trajectories:
      if member.group != self.index or member.task_id != self.task_id:
        raise ValueError(f'{member.task_id} is no member of {self.task_id}')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights:
  """Parameters as the sampler holds them, and proof of which they are."""

  version: int
  params: Any  # A pytree.
  digest: str


def _same_length(owner: Any, names: Sequence[str]) -> None:
  lengths = {name: len(getattr(owner, name)) for name in names}
  if len(set(lengths.values())) > 1:
    raise ValueError(f'per-token fields differ in length: {lengths}')
