import dataclasses
import json
import socket

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from composer_jax import trajectory
from composer_jax.actor import episode
from composer_jax.loop import remote
from composer_jax.text import chat as chat_lib
from composer_jax.text import tokenizer as tokenizer_lib
from composer_jax.tools import catalog
from composer_jax.tools import documentation
from composer_jax.tools import schema
from tests import completions
from tests import fakes

Ending, Status = trajectory.Ending, trajectory.Status
CHAT = chat_lib.Chat(
  tokenizer_lib.byte_level(chat_lib.fragments(fakes.SIGNATURES)),
  fakes.SIGNATURES,
)
TOOLS = documentation.chat_tools(['undo'])
SUBMIT = completions.message('', ('submit', {}))
LIMITS = episode.ActorConfig(
  max_turns=6, max_tokens=100_000, max_turn_tokens=50_000
)


class RemoteTest(parameterized.TestCase):
  def serve(self, *script):
    server = completions.Server(script)
    self.addCleanup(server.close)
    return server

  def client(self, url, *, key='', stopped=False, clock=None, **fields):
    """A client that waits for nothing and notes how long it was to wait."""
    self.waits = []

    def wait(seconds):
      self.waits.append(seconds)
      return stopped

    config = remote.RemoteConfig(
      **{'base_url': url, 'model': 'small', 'request_s': 20.0, **fields}
    )
    clock = {'clock': clock} if clock else {}
    return remote.Client(config, key=key, wait=wait, **clock)

  def play(self, client, tools=None):
    """(trajectory, agent, tools) of one episode."""
    agents = []
    tools = tools or fakes.RecordingTools()
    agents.append(
      remote.Agent(
        client, prompt='Do it.', tools=TOOLS, chat=CHAT, call_tools=tools
      )
    )
    done = episode.run_episode(
      fakes.TASK,
      agents[0].sample,
      agents[0].call_tools,
      chat=CHAT,
      config=LIMITS,
    )
    return done, agents[0], tools


class EpisodeTest(RemoteTest):
  def test_calls_and_their_results_go_to_and_fro_by_id(self):
    calls = ('grep', {'pattern': 'é <tool_call>'}), ('undo', {})
    server = self.serve(completions.message('Looking.', *calls), SUBMIT)
    client = self.client(server.url, key='secret', temperature=0.5)
    tools = fakes.RecordingTools(lambda call: (Status.OK, f'{call.name}!'))
    done, _, _ = self.play(client, tools)
    self.assertEqual(done.ending, Ending.SUBMITTED)
    self.assertEqual(
      [[(c.name, dict(c.arguments)) for c in turn] for turn in tools.calls],
      [list(calls), [('submit', {})]],
    )
    first, second = server.requests
    self.assertEqual(first['model'], 'small')
    self.assertEqual(first['temperature'], 0.5)
    self.assertEqual(
      first['tools'],
      [
        {
          'type': 'function',
          'function': schema.json_schema(catalog.TOOLS['undo']),
        }
      ],
    )
    system, user = first['messages']
    self.assertEqual(system['content'], remote.INSTRUCTIONS)
    self.assertEqual(user, {'role': 'user', 'content': 'Do it.'})
    said, *answers = second['messages'][2:]
    self.assertEqual(said['content'], 'Looking.')
    self.assertEqual([c['id'] for c in said['tool_calls']], ['id0', 'id1'])
    self.assertEqual(
      [json.loads(c['function']['arguments']) for c in said['tool_calls']],
      [arguments for _, arguments in calls],
    )
    self.assertEqual(
      answers,
      [
        {'role': 'tool', 'tool_call_id': 'id0', 'content': 'grep!'},
        {'role': 'tool', 'tool_call_id': 'id1', 'content': 'undo!'},
      ],
    )
    path, headers = server.headers[0]
    self.assertEqual(path, '/v1/chat/completions')
    self.assertEqual(headers['Authorization'], 'Bearer secret')

  def test_the_trajectory_holds_what_was_said_and_marks_the_models_part(self):
    server = self.serve(
      completions.message('Näh.', ('undo', {})), completions.message('Done.')
    )
    done, _, _ = self.play(self.client(server.url))
    self.assertEqual(done.ending, Ending.NO_CALL)
    sampled = [CHAT.decode(done.token_T[t.start : t.stop]) for t in done.turns]
    undo = chat_lib.written('undo', {})
    self.assertEqual(sampled, [f'Näh.\n{undo}<|im_end|>', 'Done.<|im_end|>'])
    marked = np.zeros(len(done), bool)
    for turn in done.turns:
      marked[turn.start : turn.stop] = True
    np.testing.assert_array_equal(done.sampled_T, marked)
    self.assertFalse(done.logprob_T.any())
    given = CHAT.decode(done.token_T[~done.sampled_T])
    self.assertIn(fakes.TASK.prompt, given)
    self.assertIn('<tool_response>\nok\n', given)

  def test_unreadable_arguments_are_invalid_and_the_others_run(self):
    bad = '{"path": "</tool_call>'
    server = self.serve(
      completions.message('', ('read_file', bad), ('undo', {})), SUBMIT
    )
    done, _, tools = self.play(self.client(server.url))
    statuses = [result.status for result in done.turns[0].results]
    self.assertEqual(statuses, [Status.INVALID, Status.OK])
    self.assertEqual(tools.calls[0][1].name, 'undo')
    said, first, _ = server.requests[1]['messages'][2:]
    # What goes back can be read by every server.
    sent = json.loads(said['tool_calls'][0]['function']['arguments'])
    self.assertEqual(sent, {'unreadable': bad})
    self.assertEqual(first['tool_call_id'], 'id0')
    self.assertIn('an object', first['content'])

  def test_calls_left_in_the_text_are_answered_in_a_user_message(self):
    text = chat_lib.written('grep', {'pattern': 'x'})
    server = self.serve(completions.message(text, ('undo', {})), SUBMIT)
    tools = fakes.RecordingTools(lambda call: (Status.OK, f'{call.name}!'))
    self.play(self.client(server.url), tools)
    self.assertEqual([c.name for c in tools.calls[0]], ['grep', 'undo'])
    _, answer, left = server.requests[1]['messages'][2:]
    self.assertEqual((answer['role'], answer['content']), ('tool', 'undo!'))
    self.assertEqual((left['role'], left['content']), ('user', 'grep!'))

  def test_a_turn_cut_by_its_length_executes_nothing(self):
    server = self.serve(
      completions.message('', ('undo', {}), finish='length'), SUBMIT
    )
    done, _, tools = self.play(self.client(server.url))
    self.assertEqual(done.ending, Ending.TOKEN_LIMIT)
    self.assertEqual(done.turns[0].results[0].status, Status.TRUNCATED)
    self.assertEmpty(tools.calls)

  def test_a_conversation_too_long_for_the_model_is_its_own_limit(self):
    said = "{'error': 'maximum context length is 4096 tokens'}"
    server = self.serve(
      completions.message('', ('undo', {})), completions.error(400, said)
    )
    done, _, _ = self.play(self.client(server.url))
    self.assertEqual(done.ending, Ending.TOKEN_LIMIT)
    self.assertLen(done.turns, 2)

  def test_usage_is_added_up_and_priced(self):
    server = self.serve(
      completions.error(503),
      completions.message('', ('undo', {}), usage=(1000, 20)),
      completions.message('', ('submit', {}), usage=(2000, 30)),
    )
    client = self.client(server.url, dollars_in=2.0, dollars_out=10.0)
    _, agent, _ = self.play(client)
    facts = agent.usage.facts(client.config)
    self.assertAlmostEqual(facts.pop('usage_dollars'), 0.006 + 0.0005)
    self.assertEqual(
      facts,
      {
        'usage_requests': 3,
        'usage_retries': 1,
        'usage_prompt_tokens': 3000,
        'usage_completion_tokens': 50,
      },
    )

  def test_an_answer_without_usage_costs_nothing_known(self):
    status, headers, body = SUBMIT
    answer = json.loads(body) | {'usage': {'prompt_tokens': 'many'}}
    server = self.serve((status, headers, json.dumps(answer).encode()))
    client = self.client(server.url)
    _, agent, _ = self.play(client)
    self.assertEqual(agent.usage, remote.Usage(requests=1))
    self.assertNotIn('usage_dollars', agent.usage.facts(client.config))


class FaultTest(RemoteTest):
  def complete(self, client):
    return client.complete([], [], remote.Usage())

  def test_a_busy_server_is_asked_again_when_it_says(self):
    server = self.serve(
      completions.error(429, Retry_After='7'), completions.error(500), SUBMIT
    )
    self.complete(self.client(server.url))
    self.assertEqual(self.waits, [7.0, 2.0])
    self.assertLen(server.requests, 3)

  def test_no_wait_is_longer_than_the_longest(self):
    server = self.serve(
      *[completions.error(429, Retry_After='9999')] * 2, SUBMIT
    )
    self.complete(self.client(server.url, longest_wait_s=30.0))
    self.assertEqual(self.waits, [30.0, 30.0])

  def test_a_server_that_always_fails_is_our_fault_after_bounded_waits(self):
    server = self.serve(completions.error(500, 'out of memory'))
    with self.assertRaisesRegex(
      trajectory.InfrastructureError, 'in 4 tries.* 500: out of memory'
    ):
      self.complete(self.client(server.url, tries=4))
    self.assertEqual(self.waits, [1.0, 2.0, 4.0])
    self.assertLen(server.requests, 4)

  def test_nobody_there_is_our_fault(self):
    with socket.socket() as taken:  # Bound, but nothing listens.
      taken.bind(('127.0.0.1', 0))
      url = f'http://127.0.0.1:{taken.getsockname()[1]}'
      with self.assertRaisesRegex(
        trajectory.InfrastructureError, 'in 3 tries.*refused'
      ):
        self.complete(self.client(url, tries=3))

  def test_a_server_that_is_silent_is_not_waited_for(self):
    server = self.serve('silence')
    client = self.client(server.url, tries=2, request_s=0.05)
    usage = remote.Usage()
    with self.assertRaisesRegex(trajectory.InfrastructureError, 'timed out'):
      client.complete([], [], usage)
    self.assertEqual((usage.requests, usage.retries), (2, 1))

  def test_a_server_that_drips_is_not_waited_for(self):
    server = self.serve((200, {}, b' ' * 10**6))  # Comes in many pieces.
    now = iter(range(0, 10**6, 30))
    client = self.client(
      server.url, tries=1, request_s=60.0, clock=lambda: next(now)
    )
    with self.assertRaisesRegex(
      trajectory.InfrastructureError, 'no whole answer in 60 s'
    ):
      self.complete(client)

  @parameterized.parameters(
    (b'<html>', 'is not JSON'),
    (b'{"choices": []}', 'no chat completion'),
    (b'{"error": "overloaded"}', 'overloaded'),
    (b'[]', 'no chat completion'),
    (b'{"choices": [{"message": null}]}', 'no chat completion'),
    (
      b'{"choices": [{"message": {"tool_calls": [{"function": {}}]}}]}',
      'no chat completion',
    ),
  )
  def test_an_answer_that_is_none_is_asked_for_again(self, body, hint):
    server = self.serve((200, {}, body), SUBMIT)
    self.complete(self.client(server.url))
    self.assertLen(self.waits, 1)
    server = self.serve((200, {}, body))
    with self.assertRaisesRegex(trajectory.InfrastructureError, hint):
      self.complete(self.client(server.url, tries=2))

  @parameterized.parameters(401, 403, 404)
  def test_a_wrong_key_or_model_stops_at_once(self, status):
    server = self.serve(completions.error(status, 'who are you'))
    with self.assertRaisesRegex(ValueError, f'{status}: who.*--api_key_env'):
      self.complete(self.client(server.url))
    self.assertLen(server.requests, 1)

  def test_another_refusal_loses_the_attempt_without_a_retry(self):
    server = self.serve(completions.error(422, 'bad schema'))
    with self.assertRaisesRegex(trajectory.InfrastructureError, 'bad schema'):
      self.complete(self.client(server.url))
    self.assertLen(server.requests, 1)

  def test_the_key_does_not_follow_a_redirection(self):
    elsewhere = self.serve(SUBMIT)
    server = self.serve(
      completions.error(302, Location=f'{elsewhere.url}/chat/completions')
    )
    with self.assertRaisesRegex(trajectory.InfrastructureError, '302'):
      self.complete(self.client(server.url, key='secret'))
    self.assertEmpty(elsewhere.requests)

  def test_a_stop_ends_the_waiting(self):
    server = self.serve(completions.error(500))
    with self.assertRaisesRegex(trajectory.InfrastructureError, 'stopped'):
      self.complete(self.client(server.url, stopped=True))
    self.assertLen(server.requests, 1)


class ConfigTest(parameterized.TestCase):
  @parameterized.parameters(
    (dict(base_url='localhost:1'), 'no http'),
    (dict(tries=0), 'tries=0'),
    (dict(request_s=0.0), 'request_s=0.0'),
    (dict(dollars_in=-1.0), '-1.0'),
  )
  def test_refuses_what_cannot_work(self, change, hint):
    good = remote.RemoteConfig(base_url='http://a/v1', model='m')
    with self.assertRaisesRegex(ValueError, hint):
      dataclasses.replace(good, **change)


if __name__ == '__main__':
  absltest.main()
