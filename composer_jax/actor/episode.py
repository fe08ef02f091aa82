"""One Task → one Trajectory, with the sampler and the tools it is handed.

The same function serves training, evaluation, demonstrations and tests: what
differs is `sample` and `call_tools`.
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

  max_turns: int = 12
  max_tokens: int = 384  # Whole episode, prompt and tool output included.
  max_turn_tokens: int = 64
  final_tool: str = 'submit'


class _Stream:
  """The token stream of an episode; knows who chose each token."""

  def __init__(self):
    self.token_T: list[int] = []
    self.sampled_T: list[bool] = []
    self.logprob_T: list[float] = []
    self.version_T: list[int] = []
    self.route_TLX: np.ndarray | None = None

  def append(self, token_T: Sequence[int]) -> None:
    """Tokens that the policy did not choose."""
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
      return np.zeros((len(self.token_T), 0, 0), np.int8)
    missing = len(self.token_T) - len(self.route_TLX)
    return np.pad(
      self.route_TLX,
      ((0, missing), (0, 0), (0, 0)),
      constant_values=trajectory.UNKNOWN_ROUTE,
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
  TRUNCATED and the episode ends.

  Raises:
    ValueError: the prompt alone fills `max_tokens`.
  """
  stream, turns = _Stream(), []
  stream.append(chat.prompt(task.prompt))
  if len(stream.token_T) >= config.max_tokens:
    raise ValueError(
      f'{task.id}: the prompt has {len(stream.token_T)} tokens,'
      f' max_tokens is {config.max_tokens}'
    )
  ending = Ending.TURN_LIMIT
  for index in range(config.max_turns):
    turn, complete = _take_turn(stream, sample, call_tools, chat, config, index)
    turns.append(turn)
    if not complete:
      ending = Ending.TOKEN_LIMIT
      break
    if not turn.calls:
      ending = Ending.NO_CALL
      break
    if _submitted(turn, config.final_tool):
      ending = Ending.SUBMITTED
      break
    answer = chat.results(turn.results)
    if len(stream.token_T) + len(answer) >= config.max_tokens:
      ending = Ending.TOKEN_LIMIT
      break
    stream.append(answer)
  return trajectory.Trajectory(
    task_id=task.id,
    group=group,
    member=member,
    token_T=np.asarray(stream.token_T, np.int32),
    sampled_T=np.asarray(stream.sampled_T, bool),
    logprob_T=np.asarray(stream.logprob_T, np.float32),
    version_T=np.asarray(stream.version_T, np.int32),
    route_TLX=stream.routes(),
    turns=tuple(turns),
    ending=ending,
    final_files={},
  )


def _take_turn(stream, sample, call_tools, chat, config, index):
  """(Turn, whether the policy finished it)."""
  start = len(stream.token_T)
  room = min(config.max_tokens - start, config.max_turn_tokens)
  answer = sample(np.asarray(stream.token_T, np.int32), room)
  stream.extend(answer)
  calls = chat.parse(answer.token_T, index)
  if answer.finished:
    results = call_tools(calls) if calls else []
  else:
    results = [
      trajectory.ToolResult(
        call_id=call.id,
        status=Status.TRUNCATED,
        text='cut by the token limit; nothing was executed',
      )
      for call in calls
    ]
  turn = trajectory.Turn(
    start=start,
    stop=len(stream.token_T),
    calls=tuple(calls),
    results=tuple(results),
  )
  return turn, answer.finished


def _submitted(turn: trajectory.Turn, final_tool: str) -> bool:
  return any(
    call.name == final_tool and result.status is Status.OK
    for call, result in zip(turn.calls, turn.results, strict=True)
  )
