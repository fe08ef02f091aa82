"""Turns ⇄ tokens: the only place that knows the chat format.

ChatML turns with tool calls as JSON between <tool_call> tags (the format of
Hermes and Qwen). What is constant in it, down to the argument names of a tool,
is one token each; what the policy has to choose, the values, is ordinary text.

Nothing is ever tokenised twice: a prompt is the exact ids of the past plus the
ids of the new tool results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import json
import re
from typing import Any

from composer_jax import trajectory
from composer_jax.text import tokenizer as tokenizer_lib

_USER = '<|im_start|>user\n'
_ASSISTANT = '<|im_end|>\n<|im_start|>assistant\n'
_END = '<|im_end|>'
_RESULTS = '\n<|im_start|>user\n<tool_response>\n'
_NEXT_RESULT = '\n</tool_response>\n<tool_response>\n'
_LAST_RESULT = '\n</tool_response><|im_end|>\n<|im_start|>assistant\n'
_SUMMARISE = (
  '\n<|im_start|>user\nThe context is almost full. Write down what you have'
  ' found out, what you have done and what is left to do: you go on from the'
  ' task, your notes and your last step.<|im_end|>\n<|im_start|>assistant\n'
)
# A tag inside a JSON string, which stays on its line, is a value.
_CALL = re.compile(
  r'<tool_call>((?:"(?:[^"\\\n]|\\[^\n])*"|.)*?)'
  r'(</tool_call>|(?=<tool_call>)|\Z)',
  re.S,
)

# name of a tool → its arguments in order, with their types.
Signatures = Mapping[str, Sequence[tuple[str, type]]]


def _call_pieces(name: str, arguments: Sequence[tuple[str, type]]) -> list[str]:
  """The constant text around the values of a call to `name`."""
  pieces = [f'<tool_call>\n{{"name": "{name}", "arguments": {{']
  for index, (argument, kind) in enumerate(arguments):
    quote = '"' if kind is str else ''
    pieces[-1] += f'{", " if index else ""}"{argument}": {quote}'
    pieces.append(quote)
  pieces[-1] += '}}\n</tool_call>'
  return pieces


def written(name: str, arguments: Any) -> str:
  """A call as plain text; `parse` refuses arguments that are no object."""
  call = {'name': name, 'arguments': arguments}
  body = json.dumps(call, ensure_ascii=False)
  return f'<tool_call>\n{body}\n</tool_call>'


def fragments(signatures: Signatures, *, summaries: bool = False) -> list[str]:
  """Everything that the format holds constant, each a token of its own.

  Args:
    signatures: of the tools.
    summaries: whether the policy can be asked for one; see `Chat.summarise`.
  """
  fixed = [_USER, _ASSISTANT, _END, _RESULTS, _NEXT_RESULT, _LAST_RESULT]
  for name, arguments in signatures.items():
    fixed.extend(_call_pieces(name, arguments))
  fixed += [_SUMMARISE] * summaries
  return list(dict.fromkeys(fixed))


class Chat:
  """Encodes what the environment says and parses what the policy says."""

  def __init__(
    self, tokenizer: tokenizer_lib.Tokenizer, signatures: Signatures
  ):
    self._tokenizer = tokenizer
    self._signatures = dict(signatures)
    self.end_id = tokenizer.fragment_id(_END)

  def prompt(self, text: str) -> list[int]:
    """The opening user message, up to where the policy speaks."""
    return self._join(_USER, text, _ASSISTANT)

  def results(self, results: Sequence[trajectory.ToolResult]) -> list[int]:
    """What follows a finished turn, up to where the policy speaks again."""
    parts = [_RESULTS]
    for index, result in enumerate(results):
      if index:
        parts.append(_NEXT_RESULT)
      parts.append(result.text)
    return self._join(*parts, _LAST_RESULT)

  def summarise(self) -> list[int]:
    """What follows a finished turn in place of its results: asks for notes.

    Raises:
      ValueError: the tokenizer was made without summaries.
    """
    if not self._tokenizer.has_fragment(_SUMMARISE):
      raise ValueError(
        'the tokenizer lacks the request for a summary; make it with'
        ' fragments(signatures, summaries=True)'
      )
    return self._join(_SUMMARISE)

  def asks_summary(self, history_T: Sequence[int]) -> bool:
    """Whether what the policy is to write now is a summary."""
    return (
      self._tokenizer.has_fragment(_SUMMARISE)
      and list(history_T[-1:]) == self.summarise()
    )

  def summary(self, text: str) -> list[int]:
    """A summary as the policy would write it, end included."""
    return [*self._tokenizer.encode(text), self.end_id]

  def carry_on(
    self,
    text: str,
    summary_T: Sequence[int],
    turn_T: Sequence[int],
    results: Sequence[trajectory.ToolResult],
  ) -> list[int]:
    """A new context for an episode that outgrew its old one.

    The task, then as one turn of the policy its notes and its last calls, then
    the results of these.

    Args:
      text: the opening user message.
      summary_T: the notes as they were sampled; they may be cut or empty.
      turn_T: the last turn as it was sampled, end included.
      results: what the tools said to it.
    """
    notes_T = [token for token in summary_T if token != self.end_id]
    return [*self.prompt(text), *notes_T, *turn_T, *self.results(results)]

  def calls(self, calls: Sequence[trajectory.ToolCall]) -> list[int]:
    """A turn of these calls as the policy would write it, end included."""
    ids = [token for call in calls for token in self._call(call)]
    return [*ids, self.end_id]

  def _call(self, call: trajectory.ToolCall) -> list[int]:
    signature = self._signatures.get(call.name)
    if signature is None or dict(signature).keys() != call.arguments.keys():
      return self._tokenizer.encode(written(call.name, dict(call.arguments)))
    first, *pieces = _call_pieces(call.name, signature)
    parts = [first]
    for (name, kind), piece in zip(signature, pieces, strict=True):
      value = json.dumps(call.arguments[name], ensure_ascii=False)
      parts += [value[1:-1] if kind is str else value, piece]
    return self._join(*parts)

  def plain(self, text: str) -> list[int]:
    """A turn of plain text, calls as `written` in it, end included."""
    return [*self._tokenizer.encode(text), self.end_id]

  def parse(
    self, token_T: Sequence[int], turn: int
  ) -> list[trajectory.ToolCall]:
    """The calls of a turn; one that cannot be read carries its error."""
    text = self._tokenizer.decode(token_T)
    return [
      _parse_call(match.group(1), bool(match.group(2)), f'{turn}.{index}')
      for index, match in enumerate(_CALL.finditer(text))
    ]

  def said(self, token_T: Sequence[int]) -> str:
    """The text of a turn beside its calls."""
    text = _CALL.sub(' ', self._tokenizer.decode(token_T))
    return text.replace(_END, '').strip()

  def decode(self, token_T: Sequence[int]) -> str:
    return self._tokenizer.decode(token_T)

  def _join(self, *parts: str) -> list[int]:
    """Ids of alternating fragments and plain text.

    A part is a fragment only where this module put one; text from outside that
    happens to equal a fragment is caught by position, not by its looks.
    """
    ids = []
    for index, part in enumerate(parts):
      if index % 2 == 0:
        ids.append(self._tokenizer.fragment_id(part))
      else:
        ids.extend(self._tokenizer.encode(part))
    return ids


def _parse_call(body: str, closed: bool, call_id: str) -> trajectory.ToolCall:
  def invalid(reason):
    return trajectory.ToolCall(id=call_id, name='', error=reason)

  if not closed:
    return invalid('the call has no </tool_call>')
  try:
    call = json.loads(body)
    # Half a surrogate pair is refused: nothing could print or store it.
    json.dumps(call, ensure_ascii=False).encode()
  except (ValueError, RecursionError):
    return invalid('the call is not JSON')
  if not isinstance(call, dict) or set(call) != {'name', 'arguments'}:
    return invalid('a call has exactly "name" and "arguments"')
  name, arguments = call['name'], call['arguments']
  if not isinstance(name, str) or not isinstance(arguments, dict):
    return invalid('"name" is a string and "arguments" an object')
  return trajectory.ToolCall(id=call_id, name=name, arguments=arguments)
