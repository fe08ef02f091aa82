"""Agents that follow a script: demonstrations to imitate, yardsticks to beat.

They act on the same episode as the policy: an agent is asked for calls and
answers with the tokens that it would have sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import random
from typing import Any

import numpy as np

from composer_jax import trajectory
from composer_jax.text import chat as chat_lib

Calls = list[tuple[str, dict]]  # (tool, arguments)
Candidates = Callable[[str], Sequence[trajectory.Edit]]  # edits of a text

_OK = trajectory.Status.OK


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemonstrationConfig:
  """How good, how patient and how careless the demonstrator is.

  Probabilities, each drawn anew at every decision.
  """

  insight: float = 0.3  # The next edit is the right one.
  tests_first: float = 0.7  # Runs the tests together with the first read.
  tests_after_edit: float = 0.8  # Else it submits what it has edited.
  same_turn: float = 0.8  # Edits and tests in one turn.
  gives_up: float = 0.35  # Submits although the tests still fail.
  forgets_undo: float = 0.15  # Leaves a useless edit in place.
  mistypes: float = 0.04  # Edits text that is not there.
  max_edits: int = 8


class Script:
  """An agent written as a generator of turns; it sees each turn's results."""

  def __init__(
    self,
    turns: Callable[[Script], Iterator[Calls]],
    chat: chat_lib.Chat,
    call_tools: Callable[
      [Sequence[trajectory.ToolCall]], list[trajectory.ToolResult]
    ],
  ):
    self._turns = turns(self)
    self._chat = chat
    self._call_tools = call_tools
    self._results: Sequence[trajectory.ToolResult] = ()
    self._turn = 0
    self._notes: list[str] = []

  @property
  def results(self) -> Sequence[trajectory.ToolResult]:
    """What the tools said to the last turn."""
    return self._results

  @property
  def passed(self) -> bool:
    """Whether the last call of the last turn went well."""
    return bool(self._results) and self._results[-1].status is _OK

  def sample(self, history_T: np.ndarray, max_new: int) -> trajectory.Sample:
    """What it says next, as a sampler would return it (log-probability 0).

    Asked for a summary, it writes down its calls and how they went, the latest
    first: should the summary be cut, the oldest are lost.
    """
    if self._chat.asks_summary(history_T):
      token_T = self._chat.summary('\n'.join(reversed(self._notes)))
    else:
      token_T = self._chat.calls(self._next_calls())
    kept_T = np.asarray(token_T[:max_new], np.int32)
    return trajectory.Sample(
      token_T=kept_T,
      logprob_T=np.zeros(len(kept_T), np.float32),
      version_T=np.zeros(len(kept_T), np.int32),
      route_TLX=np.zeros((len(history_T) + len(kept_T), 0, 0), np.int8),
      finished=len(token_T) <= max_new,
    )

  def _next_calls(self) -> list[trajectory.ToolCall]:
    calls = [
      trajectory.ToolCall(
        id=f'{self._turn}.{index}', name=name, arguments=arguments
      )
      for index, (name, arguments) in enumerate(next(self._turns))
    ]
    self._turn += 1
    return calls

  def call_tools(
    self, calls: Sequence[trajectory.ToolCall]
  ) -> list[trajectory.ToolResult]:
    self._results = self._call_tools(calls)
    for call, result in zip(calls, self._results, strict=True):
      said = ', '.join(map(repr, call.arguments.values()))
      self._notes.append(f'{call.name}({said}): {result.status.value}')
    return self._results


def demonstrator(
  *,
  read: Mapping[str, Any],
  text: str,
  fix: trajectory.Edit,
  candidates: Candidates,
  rng: random.Random,
  config: DemonstrationConfig,
) -> Callable[[Script], Iterator[Calls]]:
  """A developer of limited insight and patience, who knows the fix sometimes.

  Reads, edits, tests, undoes, tries again, and submits: when the tests pass,
  when it gives up, or without having tested.
  """

  def turns(script: Script) -> Iterator[Calls]:
    def chance(probability):
      return rng.random() < probability

    first = [('read_file', read)]
    yield first + [('run_tests', {})] * chance(config.tests_first)
    texts = [text]  # What undo goes back through.
    for _ in range(config.max_edits):
      calls = []
      if len(texts) > 1 and not chance(config.forgets_undo):
        calls.append(('undo', {}))
        texts.pop()
      right = chance(config.insight) and _applies(fix, texts[-1])
      edit = fix if right else rng.choice(candidates(texts[-1]))
      shown = edit
      if chance(config.mistypes):
        # Two letters too many: with one, '*' for '**' would be no edit at all.
        shown = dataclasses.replace(edit, old=edit.old + 2 * edit.old[-1])
      calls.append(('edit_file', _arguments(shown)))
      if _applies(shown, texts[-1]):
        texts.append(shown.apply(texts[-1]))
      tested = chance(config.tests_after_edit)
      if tested and chance(config.same_turn):
        calls.append(('run_tests', {}))
        yield calls
      else:
        yield calls
        if tested:
          yield [('run_tests', {})]
      if not tested or script.passed or chance(config.gives_up):
        break
    while True:
      yield [('submit', {})]

  return turns


def enumerator(
  *,
  read: Mapping[str, Any],
  text: str,
  candidates: Candidates,
  rng: random.Random,
) -> Callable[[Script], Iterator[Calls]]:
  """Tries the candidate edits one by one in random order, never the same twice.

  The yardstick: perfect discipline, no idea which edit is likely.
  """

  def turns(script: Script) -> Iterator[Calls]:
    yield [('read_file', read), ('run_tests', {})]
    edits = candidates(text)
    for attempt, edit in enumerate(rng.sample(edits, len(edits))):
      undo = [('undo', {})] * bool(attempt)
      yield undo + [('edit_file', _arguments(edit)), ('run_tests', {})]
      if script.passed:
        break
    while True:
      yield [('submit', {})]

  return turns


def _arguments(edit: trajectory.Edit) -> dict:
  return dataclasses.asdict(edit)


def _applies(edit: trajectory.Edit, text: str) -> bool:
  try:
    edit.apply(text)
  except ValueError:
    return False
  return True
