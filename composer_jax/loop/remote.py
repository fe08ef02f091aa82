"""Models behind an OpenAI-compatible door, as agents of our episodes.

The door is `POST {base_url}/chat/completions` with tools, as OpenAI, vLLM,
llama.cpp and others have it; the standard library is all it takes. Every wait
is bounded. What is not covered: streaming, images, log-probabilities, and the
reasoning that some servers return beside the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import http.client
import json
import time
from typing import Any
import urllib.error
import urllib.request

import numpy as np

from composer_jax import trajectory
from composer_jax.actor import episode
from composer_jax.text import chat as chat_lib

INSTRUCTIONS = (
  'You are a software developer. Work on the repository by calling tools;'
  ' several calls in one turn are allowed. A turn without a call ends the work.'
  ' When you are done, call submit.'
)
USAGE = 'usage_'  # Facts of this prefix are amounts, to be added up.
_AGAIN = frozenset((408, 409, 425, 429))  # And all from 500 on.
_HOPELESS = frozenset((401, 403, 404))
_CHUNK = 65536  # Bytes.
_SHOWN = 300  # Characters of an answer that an error quotes.


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoteConfig:
  """Whom to ask, and for how long."""

  base_url: str  # Up to and without '/chat/completions'.
  model: str
  temperature: float | None = None  # None: as the server likes.
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  request_s: float = 600.0  # One request, from the first byte to the last.
  tries: int = 6  # Of one turn; then the attempt counts as our fault.
  first_wait_s: float = 1.0  # Doubles with every try.
  longest_wait_s: float = 60.0  # Whatever the server asks for.
  dollars_in: float = 0.0  # Per million tokens of the prompt.
  dollars_out: float = 0.0  # Per million tokens of the answer.

  def __post_init__(self):
    if not self.base_url.startswith(('http://', 'https://')):
      raise ValueError(f'base_url={self.base_url!r} is no http(s) address')
    if self.tries < 1 or min(self.request_s, self.first_wait_s) <= 0:
      raise ValueError(
        f'tries={self.tries}, request_s={self.request_s} and'
        f' first_wait_s={self.first_wait_s} must be positive'
      )
    if min(self.dollars_in, self.dollars_out) < 0:
      raise ValueError(
        f'prices are not negative: {self.dollars_in}, {self.dollars_out}'
      )


@dataclasses.dataclass
class Usage:
  """What an episode has cost so far."""

  requests: int = 0
  retries: int = 0
  prompt_tokens: int = 0
  completion_tokens: int = 0

  def facts(self, config: RemoteConfig) -> dict[str, float]:
    """Amounts by name; dollars only if there is a price."""
    values = {USAGE + k: float(v) for k, v in dataclasses.asdict(self).items()}
    if config.dollars_in or config.dollars_out:
      values[f'{USAGE}dollars'] = 1e-6 * (
        config.dollars_in * self.prompt_tokens
        + config.dollars_out * self.completion_tokens
      )
    return values


class ContextExceededError(ValueError):
  """The conversation no longer fits the model: its own limit, not our fault."""


class _TransientError(Exception):
  """Worth another try, after `wait_s` if the server says so."""

  def __init__(self, reason: str, wait_s: float | None = None):
    super().__init__(reason)
    self.wait_s = wait_s


class _NoRedirect(urllib.request.HTTPRedirectHandler):
  """A redirection is an error: it would take the key to another host."""

  def redirect_request(self, *unused):
    return None


class Client:
  """Asks for completions. Usable from many threads."""

  def __init__(
    self,
    config: RemoteConfig,
    *,
    key: str,
    wait: Callable[[float], bool],
    clock: Callable[[], float] = time.monotonic,
  ):
    """Opens nothing yet.

    Args:
      config: whom to ask.
      key: sent as bearer token unless empty.
      wait: for so many seconds; True if the run was stopped meanwhile.
      clock: monotonic seconds.
    """
    self.config = config
    self._key = key
    self._wait = wait
    self._clock = clock
    self._opener = urllib.request.build_opener(_NoRedirect)

  def complete(
    self,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    usage: Usage,
  ) -> dict[str, Any]:
    """The first choice of the answer; what it cost goes to `usage`.

    Raises:
      trajectory.InfrastructureError: no answer, however often asked.
      ContextExceededError: the messages are too long.
      ValueError: the server will never answer: wrong key, model or address.
    """
    config = self.config
    body = {'model': config.model, 'messages': list(messages)}
    if tools:
      body['tools'] = list(tools)
    if config.temperature is not None:
      body['temperature'] = config.temperature
    data = json.dumps(body | dict(config.extra)).encode()
    reason = ''
    for number in range(config.tries):
      usage.requests += 1
      try:
        answer = self._post(data)
        choice = _choice(answer)
      except _TransientError as error:
        reason = str(error)
        if number + 1 < config.tries:
          usage.retries += 1
          if self._wait(self._pause(number, error.wait_s)):
            raise trajectory.InfrastructureError('stopped') from error
        continue
      usage.prompt_tokens += _spent(answer, 'prompt_tokens')
      usage.completion_tokens += _spent(answer, 'completion_tokens')
      return choice
    raise trajectory.InfrastructureError(
      f'{config.base_url} gave no answer in {config.tries} tries; the last:'
      f' {reason}'
    )

  def _pause(self, number: int, asked_s: float | None) -> float:
    """Seconds until the next try."""
    pause = max(self.config.first_wait_s * 2**number, asked_s or 0.0)
    return min(pause, self.config.longest_wait_s)

  def _post(self, data: bytes) -> dict[str, Any]:
    headers = {'Content-Type': 'application/json'}
    if self._key:
      headers['Authorization'] = f'Bearer {self._key}'
    url = self.config.base_url.rstrip('/') + '/chat/completions'
    request = urllib.request.Request(url, data, headers)
    try:
      return json.loads(self._read(request))
    except urllib.error.HTTPError as error:
      with error:
        raise _refusal(error, url) from error
    except (OSError, http.client.HTTPException) as error:
      raise _TransientError(f'{type(error).__name__}: {error}') from error
    except ValueError as error:
      raise _TransientError(f'the answer is not JSON: {error}') from error

  def _read(self, request: urllib.request.Request) -> bytes:
    """The whole answer; a server that drips is not waited for any longer."""
    limit = self.config.request_s
    deadline, parts = self._clock() + limit, []
    with self._opener.open(request, timeout=limit) as response:
      while part := response.read1(_CHUNK):
        parts.append(part)
        if self._clock() > deadline:
          raise TimeoutError(f'no whole answer in {limit:g} s')
    return b''.join(parts)


class Agent:
  """One episode of a remote model: `sample` and `call_tools` for it.

  The conversation is kept as messages, as the server had it; the trajectory
  holds a rendering of it, in which the turns of the model are marked as
  sampled. The instructions are in the messages alone.
  """

  def __init__(
    self,
    client: Client,
    *,
    prompt: str,
    tools: Sequence[Mapping[str, Any]],
    chat: chat_lib.Chat,
    call_tools: episode.Tools,
  ):
    self.usage = Usage()
    self.messages: list[dict[str, Any]] = [
      {'role': 'system', 'content': INSTRUCTIONS},
      {'role': 'user', 'content': prompt},
    ]
    self._client = client
    self._tools = tools
    self._chat = chat
    self._call_tools = call_tools

  def sample(self, history_T: np.ndarray, max_new: int) -> trajectory.Sample:
    """The next turn of the model (log-probability 0)."""
    try:
      choice = self._client.complete(self.messages, self._tools, self.usage)
    except ContextExceededError:
      choice = {'message': {}, 'finish_reason': 'length'}
    message, text = _assistant(choice['message'])
    self.messages.append(message)
    token_T = self._chat.plain(text)
    finished = choice.get('finish_reason') != 'length'
    kept_T = np.asarray(token_T[:max_new], np.int32)
    return trajectory.Sample(
      token_T=kept_T,
      logprob_T=np.zeros(len(kept_T), np.float32),
      version_T=np.zeros(len(kept_T), np.int32),
      route_TLX=np.zeros((len(history_T) + len(kept_T), 0, 0), np.int8),
      finished=finished and len(token_T) <= max_new,
    )

  def call_tools(
    self, calls: Sequence[trajectory.ToolCall]
  ) -> list[trajectory.ToolResult]:
    """Runs the calls; answers those that the server took for calls by id.

    A server that leaves calls in the text has them answered in a user message.
    """
    results = self._call_tools(calls)
    asked = self.messages[-1].get('tool_calls', ())
    unasked = len(results) - len(asked)
    for call, result in zip(asked, results[unasked:], strict=True):
      content = result.text or f'({result.status.value})'
      self.messages.append(
        {'role': 'tool', 'tool_call_id': call['id'], 'content': content}
      )
    if unasked:
      texts = '\n\n'.join(result.text for result in results[:unasked])
      self.messages.append({'role': 'user', 'content': texts})
    return results


def _refusal(error: urllib.error.HTTPError, url: str) -> Exception:
  """What an answer other than success means."""
  try:
    text = error.read(_CHUNK).decode('utf-8', 'replace')
  except (OSError, http.client.HTTPException):
    text = ''
  said = f'{url} answered {error.code}: {text[:_SHOWN].strip()}'
  if error.code in _AGAIN or error.code >= 500:
    return _TransientError(said, _seconds(error.headers.get('Retry-After')))
  if error.code in _HOPELESS:
    return ValueError(
      f'{said}; check --base_url, --model and the key that --api_key_env names'
    )
  if error.code in (400, 413) and _names_the_context(text):
    return ContextExceededError(said)
  return trajectory.InfrastructureError(said)


def _names_the_context(text: str) -> bool:
  words = text.lower().replace('_', ' ')
  return 'context length' in words or 'context size' in words


def _seconds(header: str | None) -> float | None:
  """The seconds of a Retry-After; a date is not understood."""
  try:
    return max(0.0, float(header or ''))
  except ValueError:
    return None


def _choice(answer: Any) -> dict[str, Any]:
  """The first choice, with a message in it."""
  try:
    choice = answer['choices'][0]
    for call in choice['message'].get('tool_calls') or ():
      if not isinstance(call['function']['name'], str):
        raise TypeError('a call without a name')
  except (KeyError, IndexError, TypeError, AttributeError) as error:
    said = json.dumps(answer)[:_SHOWN]
    raise _TransientError(f'no chat completion ({error!r}): {said}') from error
  return choice


def _spent(answer: Mapping[str, Any], name: str) -> int:
  """Tokens that the server says it used; 0 if it does not say."""
  usage = answer.get('usage')
  amount = usage.get(name) if isinstance(usage, dict) else None
  return amount if isinstance(amount, int) else 0


def _assistant(message: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
  """The message as it is sent back, and as our format has it.

  Arguments that are no JSON stay as they are in the latter; sent back as they
  are, they would make some servers refuse all that follows.
  """
  content = message.get('content') or ''
  if not isinstance(content, str):
    content = json.dumps(content)
  written, calls = [content] * bool(content), []
  for index, call in enumerate(message.get('tool_calls') or ()):
    name, arguments = call['function']['name'], _arguments(call['function'])
    written.append(chat_lib.written(name, arguments))
    if not isinstance(arguments, dict):
      arguments = {'unreadable': arguments}
    function = {'name': name, 'arguments': json.dumps(arguments)}
    call_id = str(call.get('id') or f'call_{index}')
    calls.append({'id': call_id, 'type': 'function', 'function': function})
  sent = {'role': 'assistant', 'content': content}
  if calls:
    sent['tool_calls'] = calls
  return sent, '\n'.join(written).encode('utf-8', 'replace').decode()


def _arguments(function: Mapping[str, Any]) -> Any:
  """Usually a text with JSON; some servers send the object itself."""
  arguments = function.get('arguments') or '{}'
  if isinstance(arguments, str):
    try:
      return json.loads(arguments)
    except (ValueError, RecursionError):
      pass
  return arguments
