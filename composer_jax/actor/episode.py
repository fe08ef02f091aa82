"""One Task → one Trajectory, with the sampler and the tools it is handed.

The same function serves training, evaluation, demonstrations and tests: what
differs is `sample` and `call_tools`.

An episode that outgrows its context goes on in a new one: the policy is asked
for notes, and the new context is the task, the notes, and the last turn with
its results. All of it is one trajectory with one reward. What is carried over
was chosen once, in the old context, and counts as sampled only there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses

import numpy as np

from composer_jax import trajectory
from composer_jax.text import chat as chat_lib

Ending = trajectory.Ending
Status = trajectory.Status

# (history_T, max_new) → Sample
Sampler = Callable[[np.ndarray, int], trajectory.Sample]
# calls → results, in call order
Tools = Callable[[Sequence[trajectory.ToolCall]], list[trajectory.ToolResult]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorConfig:
  """Limits of an episode."""

  max_turns: int = 12  # Summaries not counted.
  max_tokens: int = 384  # One context, prompt and tool output included.
  max_turn_tokens: int = 64
  final_tool: str = 'submit'
  summary_at: int = 0  # Tokens of a context that call for a summary; 0: never.
  summary_tokens: int = 96  # Longest summary.
  max_parts: int = 4  # Contexts of one episode.

  def __post_init__(self):
    if not self.summary_at:
      return
    if min(self.summary_at, self.summary_tokens, self.max_parts - 1) < 1:
      raise ValueError(
        'summaries need summary_at and summary_tokens >= 1, max_parts >= 2, got'
        f' {self.summary_at}, {self.summary_tokens} and {self.max_parts}'
      )
    # A turn begins below the trigger; the request is one token.
    needed = self.summary_at + self.max_turn_tokens + self.summary_tokens
    if needed > self.max_tokens:
      raise ValueError(
        f'a context of max_tokens={self.max_tokens} has no room for'
        f' summary_at={self.summary_at}, a turn of {self.max_turn_tokens} and a'
        f' summary of {self.summary_tokens} tokens: they need {needed}'
      )


class _Context:
  """The tokens of one context; knows who chose each.

  `first` is where it begins in the token stream of the episode.
  """

  def __init__(self, first: int, token_T: Sequence[int]):
    self.first = first
    self.token_T: list[int] = []
    self.sampled_T: list[bool] = []
    self.logprob_T: list[float] = []
    self.version_T: list[int] = []
    self.route_TLX: np.ndarray | None = None
    self.append(token_T)

  def __len__(self) -> int:
    return len(self.token_T)

  def append(self, token_T: Sequence[int]) -> None:
    """Tokens that the policy does not choose here."""
    self.token_T.extend(token_T)
    self.sampled_T.extend([False] * len(token_T))
    self.logprob_T.extend([0.0] * len(token_T))
    self.version_T.extend([-1] * len(token_T))

  def extend(self, sample: trajectory.Sample) -> None:
    """Tokens that the policy chose, as it chose them."""
    self.token_T.extend(sample.token_T.tolist())
    self.sampled_T.extend([True] * len(sample.token_T))
    self.logprob_T.extend(sample.logprob_T.tolist())
    self.version_T.extend(sample.version_T.tolist())
    self.route_TLX = sample.route_TLX

  def routes(self) -> np.ndarray:
    """Routes of all tokens; those after the last sample are unknown."""
    if self.route_TLX is None:
      return np.zeros((len(self), 0, 0), np.int8)
    missing = len(self) - len(self.route_TLX)
    return np.pad(
      self.route_TLX,
      ((0, missing), (0, 0), (0, 0)),
      constant_values=trajectory.UNKNOWN_ROUTE,
    )


@dataclasses.dataclass
class _Play:
  """An episode under way: its contexts, and the turns taken in them."""

  sample: Sampler
  call_tools: Tools
  chat: chat_lib.Chat
  contexts: list[_Context]
  turns: list[trajectory.Turn] = dataclasses.field(default_factory=list)

  def take_turn(self, room: int) -> bool:
    """Samples one turn and executes its calls; False if it was cut."""
    context, start = self.contexts[-1], len(self.contexts[-1])
    answer = self.sample(np.asarray(context.token_T, np.int32), room)
    context.extend(answer)
    calls = self.chat.parse(answer.token_T, len(self.turns))
    if answer.finished:
      results = self.call_tools(calls) if calls else []
    else:
      results = _refused(
        calls,
        Status.TRUNCATED,
        'cut by the token limit; nothing was executed',
      )
    self._note(start, calls, results)
    return answer.finished

  def summarise(self, room: int) -> np.ndarray:
    """Asks for a summary; calls in it are refused. Returns its tokens."""
    context = self.contexts[-1]
    context.append(self.chat.summarise())
    start = len(context)
    answer = self.sample(np.asarray(context.token_T, np.int32), room)
    context.extend(answer)
    calls = self.chat.parse(answer.token_T, len(self.turns))
    refused = _refused(
      calls, Status.DENIED, 'part of a summary; nothing was executed'
    )
    self._note(start, calls, refused)
    return answer.token_T

  def _note(self, start: int, calls, results) -> None:
    context = self.contexts[-1]
    self.turns.append(
      trajectory.Turn(
        start=context.first + start,
        stop=context.first + len(context),
        calls=tuple(calls),
        results=tuple(results),
      )
    )


def run_episode(
  task: trajectory.Task,
  sample: Sampler,
  call_tools: Tools,
  *,
  chat: chat_lib.Chat,
  config: ActorConfig,
  group: int = 0,
  member: int = 0,
) -> trajectory.Trajectory:
  """Alternates turns and tool results until the policy submits or runs out.

  A turn cut by a token limit executes nothing: its calls are answered with
  TRUNCATED and the episode ends. A summary that is cut or empty is the policy's
  own loss: the episode goes on from what there is of it.

  Raises:
    ValueError: the prompt alone fills `max_tokens`.
  """
  opening = _Context(0, chat.prompt(task.prompt))
  if len(opening) >= config.max_tokens:
    raise ValueError(
      f'{task.id}: the prompt has {len(opening)} tokens,'
      f' max_tokens is {config.max_tokens}'
    )
  play = _Play(sample, call_tools, chat, [opening])
  ending = Ending.TURN_LIMIT
  for index in range(config.max_turns):
    room = min(
      config.max_tokens - len(play.contexts[-1]), config.max_turn_tokens
    )
    complete = play.take_turn(room)
    turn = play.turns[-1]
    if not complete:
      ending = Ending.TOKEN_LIMIT
      break
    if not turn.calls:
      ending = Ending.NO_CALL
      break
    if _submitted(turn, config.final_tool):
      ending = Ending.SUBMITTED
      break
    goes_on = index + 1 < config.max_turns
    if not _proceed(play, task, config, goes_on):
      ending = Ending.TOKEN_LIMIT
      break
  return _finish(play, ending, task_id=task.id, group=group, member=member)


def _proceed(
  play: _Play, task: trajectory.Task, config: ActorConfig, goes_on: bool
) -> bool:
  """Shows the results of the last turn; False if there is no room for them.

  They come in a new context if the old one would reach `summary_at`, provided
  that a turn is still to come.
  """
  context, turn = play.contexts[-1], play.turns[-1]
  answer = play.chat.results(turn.results)
  due = config.summary_at and len(context) + len(answer) >= config.summary_at
  if not due or not goes_on or len(play.contexts) == config.max_parts:
    if len(context) + len(answer) >= config.max_tokens:
      return False
    context.append(answer)
    return True
  # The request is one token.
  room = min(config.max_tokens - len(context) - 1, config.summary_tokens)
  if room < 1:
    return False
  turn_T = context.token_T[turn.start - context.first :]
  notes_T = play.summarise(room)
  following = play.chat.carry_on(
    task.prompt, notes_T.tolist(), turn_T, turn.results
  )
  if len(following) >= config.max_tokens:
    return False
  play.contexts.append(_Context(context.first + len(context), following))
  return True


def _finish(
  play: _Play, ending: Ending, *, task_id: str, group: int, member: int
) -> trajectory.Trajectory:
  """The contexts as one token stream."""
  parts = play.contexts

  def joined(name, dtype):
    return np.concatenate([np.asarray(getattr(p, name), dtype) for p in parts])

  return trajectory.Trajectory(
    task_id=task_id,
    group=group,
    member=member,
    token_T=joined('token_T', np.int32),
    sampled_T=joined('sampled_T', bool),
    logprob_T=joined('logprob_T', np.float32),
    version_T=joined('version_T', np.int32),
    route_TLX=np.concatenate([part.routes() for part in parts]),
    turns=tuple(play.turns),
    ending=ending,
    final_files={},
    starts=tuple(part.first for part in parts),
  )


def _refused(calls, status: Status, reason: str) -> list[trajectory.ToolResult]:
  return [
    trajectory.ToolResult(call_id=call.id, status=status, text=reason)
    for call in calls
  ]


def _submitted(turn: trajectory.Turn, final_tool: str) -> bool:
  return any(
    call.name == final_tool and result.status is Status.OK
    for call, result in zip(turn.calls, turn.results, strict=True)
  )
