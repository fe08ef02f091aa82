"""Episodes that outgrow their context and go on from their own notes."""

import dataclasses
import random

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from composer_jax import trajectory
from composer_jax.actor import episode
from composer_jax.actor import scripted
from tests import fakes

Ending, Status = trajectory.Ending, trajectory.Status

CHAT = fakes.chat(summaries=True)
PROMPT = CHAT.prompt(fakes.TASK.prompt)


def turn(name, **arguments):
  return CHAT.calls(
    [trajectory.ToolCall(id='', name=name, arguments=arguments)]
  )


def results(*texts):
  return CHAT.results(
    [
      trajectory.ToolResult(call_id='', status=Status.OK, text=text)
      for text in texts
    ]
  )


READ, UNDO, SUBMIT = turn('read_file', path='a'), turn('undo'), turn('submit')
NOTES = CHAT.summary('a returns 1')
ASK = CHAT.summarise()
FULL = len(PROMPT + READ + results('ok'))  # A context after its first turn.


def config(**limits):
  return episode.ActorConfig(
    **{
      'max_turns': 6,
      'max_tokens': 200,
      'max_turn_tokens': 40,
      'summary_at': FULL,
      'summary_tokens': 20,
      'max_parts': 3,
      **limits,
    }
  )


def run(turns, tools=None, **limits):
  """(Trajectory, sampler, tools) of an episode with these sampled turns."""
  sampler = fakes.ScriptedSampler(turns)
  tools = tools or fakes.RecordingTools()
  done = episode.run_episode(
    fakes.TASK, sampler, tools, chat=CHAT, config=config(**limits)
  )
  return done, sampler, tools


class ChainTest(absltest.TestCase):
  def test_goes_on_from_the_task_its_notes_and_its_last_step(self):
    done, sampler, tools = run([READ, NOTES, SUBMIT])
    second = PROMPT + NOTES[:-1] + READ + results('ok')
    self.assertEqual(sampler.histories, [PROMPT, PROMPT + READ + ASK, second])
    first = PROMPT + READ + ASK + NOTES
    self.assertEqual(done.token_T.tolist(), first + second + SUBMIT)
    self.assertEqual(done.starts, (0, len(first)))
    self.assertEqual(done.ending, Ending.SUBMITTED)
    names = [[call.name for call in calls] for calls in tools.calls]
    self.assertEqual(names, [['read_file'], ['submit']])
    self.assertEqual(
      CHAT.decode(second),
      '<|im_start|>user\nRepair it.<|im_end|>\n<|im_start|>assistant\n'
      'a returns 1<tool_call>\n{"name": "read_file", "arguments": {"path":'
      ' "a"}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n'
      'ok\n</tool_response><|im_end|>\n<|im_start|>assistant\n',
    )

  def test_what_is_carried_over_counts_as_chosen_only_where_it_was(self):
    done, sampler, _ = run([READ, NOTES, SUBMIT])
    chosen = [0, 0, done.starts[1]]  # Where the histories begin in the stream.
    sampled_T = np.zeros(len(done), bool)
    logprobs, spans = [], []
    said = (READ, NOTES, SUBMIT)
    for number, (first, history, tokens) in enumerate(
      zip(chosen, sampler.histories, said, strict=True), 1
    ):
      start = first + len(history)
      sampled_T[start : start + len(tokens)] = True
      # As the sampler told: place times turn.
      logprobs.extend(-np.arange(1.0, len(tokens) + 1) * number)
      spans.append((start, start + len(tokens)))
    np.testing.assert_array_equal(done.sampled_T, sampled_T)
    np.testing.assert_array_equal(done.logprob_T[sampled_T], logprobs)
    self.assertEqual(done.sampled_T.sum(), len(READ + NOTES + SUBMIT))
    self.assertEqual([(t.start, t.stop) for t in done.turns], spans)

  def test_sampled_ids_are_carried_where_encoding_again_would_merge_them(self):
    apart = [*fakes.encode('a'), *fakes.encode('b'), CHAT.end_id]
    self.assertLen(fakes.encode('ab'), 1)
    done, _, _ = run([READ, apart, SUBMIT])
    second = done.contexts()[1].token_T.tolist()
    self.assertEqual(second[len(PROMPT) : len(PROMPT) + 2], apart[:2])

  def test_each_context_has_the_routes_of_its_own_last_sample(self):
    done, sampler, _ = run([READ, NOTES, READ], max_turns=2)
    first, second = done.contexts()
    self.assertTrue((first.route_TLX == 2).all())
    known = len(sampler.histories[2]) + len(READ)
    self.assertTrue((second.route_TLX[:known] == 3).all())
    self.assertTrue((second.route_TLX[known:] == -1).all())
    self.assertGreater(len(second), known)

  def test_the_final_reward_reaches_every_context(self):
    done, _, _ = run([READ, NOTES, SUBMIT])
    done = dataclasses.replace(done, rewards={'solved': 1.0})
    self.assertEqual([part.reward for part in done.contexts()], [1.0, 1.0])


class TriggerTest(parameterized.TestCase):
  @parameterized.parameters((FULL, 2), (FULL + 1, 1), (0, 1))
  def test_results_that_reach_it_come_in_a_new_context(self, at, contexts):
    said = [READ, NOTES, SUBMIT] if contexts == 2 else [READ, SUBMIT]
    done, _, _ = run(said, summary_at=at)
    self.assertLen(done.starts, contexts)
    self.assertEqual(done.ending, Ending.SUBMITTED)

  def test_a_result_too_long_for_the_old_context_finds_room_in_the_new(self):
    text = 'x y z ' * 15
    tools = lambda: fakes.RecordingTools(lambda call: (Status.OK, text))
    one = len(PROMPT + READ + results(text))
    limits = dict(
      summary_at=one + 1,  # One such result stays below it, two do not fit.
      max_turn_tokens=len(READ),
      summary_tokens=1,
      max_tokens=one + 1 + len(READ) + 1,
    )
    said = [READ, READ, [CHAT.end_id], SUBMIT]
    done, _, _ = run(said, tools(), **limits)
    self.assertEqual(done.ending, Ending.SUBMITTED)
    self.assertLen(done.starts, 2)
    off, _, _ = run([READ, READ], tools(), **(limits | dict(summary_at=0)))
    self.assertEqual(off.ending, Ending.TOKEN_LIMIT)

  def test_nothing_is_summarised_when_no_turn_is_left(self):
    done, _, _ = run([READ], max_turns=1)
    self.assertEqual(done.ending, Ending.TURN_LIMIT)
    self.assertLen(done.starts, 1)
    self.assertEqual(done.token_T.tolist(), PROMPT + READ + results('ok'))

  def test_summaries_do_not_count_as_turns(self):
    done, _, _ = run([READ, NOTES, READ, NOTES, READ], max_turns=3)
    self.assertEqual(done.ending, Ending.TURN_LIMIT)
    self.assertLen(done.turns, 5)
    self.assertLen({c.id for t in done.turns for c in t.calls}, 3)

  def test_the_chain_is_bounded(self):
    done, _, _ = run([READ, NOTES, READ, NOTES] + [READ] * 99, max_turns=99)
    self.assertLen(done.starts, 3)
    self.assertEqual(done.ending, Ending.TOKEN_LIMIT)
    self.assertLessEqual(max(map(len, done.contexts())), 200)

  def test_a_new_context_without_room_ends_it_and_is_left_out(self):
    tools = fakes.RecordingTools(lambda call: (Status.OK, 'x y z ' * 100))
    done, _, _ = run([READ, NOTES], tools)
    self.assertEqual(done.ending, Ending.TOKEN_LIMIT)
    self.assertEqual(done.token_T.tolist(), PROMPT + READ + ASK + NOTES)

  def test_the_summary_has_its_room_whatever_the_last_turn_took(self):
    asked = []

    def sample(history_T, max_new):
      asked.append((len(history_T), max_new))
      said = NOTES if CHAT.asks_summary(history_T) else READ
      return fakes.ScriptedSampler([said])(history_T, max_new)

    tight = config(
      summary_at=FULL + 1,
      max_turn_tokens=len(READ),
      max_tokens=FULL + 1 + len(READ) + 20,
      max_turns=3,
    )
    episode.run_episode(
      fakes.TASK, sample, fakes.RecordingTools(), chat=CHAT, config=tight
    )
    rooms = [room for _, room in asked]
    self.assertEqual(rooms, [len(READ), len(READ), 20, len(READ)])
    # The request and the largest turn, one token below the trigger.
    self.assertEqual(asked[2][0], FULL + len(READ) + 1)


class PoorSummaryTest(absltest.TestCase):
  def test_of_a_cut_one_what_there_is_is_carried_over(self):
    done, sampler, _ = run([READ, NOTES, SUBMIT], summary_tokens=3)
    self.assertEqual(done.ending, Ending.SUBMITTED)
    self.assertEqual(
      sampler.histories[-1], PROMPT + NOTES[:3] + READ + results('ok')
    )

  def test_an_empty_one_leaves_the_task_and_the_last_step(self):
    done, sampler, _ = run([READ, [CHAT.end_id], SUBMIT])
    self.assertEqual(done.ending, Ending.SUBMITTED)
    self.assertEqual(sampler.histories[-1], PROMPT + READ + results('ok'))

  def test_calls_in_it_are_refused_and_kept(self):
    done, sampler, tools = run([READ, SUBMIT, UNDO, SUBMIT], max_parts=2)
    self.assertEqual(
      [[c.name for c in calls] for calls in tools.calls],
      [['read_file'], ['undo'], ['submit']],
    )
    (refused,) = done.turns[1].results
    self.assertEqual(refused.status, Status.DENIED)
    self.assertEqual(
      sampler.histories[2], PROMPT + SUBMIT[:-1] + READ + results('ok')
    )


class LimitsTest(parameterized.TestCase):
  @parameterized.parameters(
    (dict(max_tokens=FULL + 59), f'{FULL + 59} has no room .* {FULL + 60}'),
    (dict(max_parts=1), 'max_parts >= 2'),
    (dict(summary_tokens=0), 'summary_tokens >= 1'),
    (dict(summary_at=-1), 'summary_at'),
  )
  def test_those_that_leave_no_room_are_refused(self, limits, message):
    config(max_tokens=FULL + 60)
    with self.assertRaisesRegex(ValueError, message):
      config(**limits)

  def test_a_tokenizer_made_without_summaries_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'summaries=True'):
      episode.run_episode(
        fakes.TASK,
        fakes.ScriptedSampler([READ]),
        fakes.RecordingTools(),
        chat=fakes.chat(),
        config=config(),
      )


PATH = 'solution.py'
EDITS = [trajectory.Edit(PATH, 'x = 1', f'x = {n}') for n in range(2, 12)]
GOLD = random.Random(1).sample(EDITS, len(EDITS))[-1].apply('x = 1\n')


class ScriptTest(absltest.TestCase):
  def solve(self, limits):
    """(Trajectory, texts of the file) of an enumerating agent."""
    texts = ['x = 1\n']

    def answer(call):
      match call.name:
        case 'edit_file':
          texts.append(trajectory.Edit(**call.arguments).apply(texts[-1]))
        case 'undo':
          texts.append('x = 1\n')
        case 'run_tests':
          good = texts[-1] == GOLD
          return (Status.OK if good else Status.ERROR), 'x' * 20
      return Status.OK, ''

    agent = scripted.enumerator(
      read={'path': PATH},
      text=texts[0],
      candidates=lambda text: EDITS,
      rng=random.Random(1),
    )
    script = scripted.Script(agent, CHAT, fakes.RecordingTools(answer))
    done = episode.run_episode(
      fakes.TASK,
      script.sample,
      script.call_tools,
      chat=CHAT,
      config=episode.ActorConfig(
        max_turns=20, max_tokens=400, max_turn_tokens=100, **limits
      ),
    )
    return done, texts

  def test_solves_in_several_contexts_what_does_not_fit_into_one(self):
    alone, texts = self.solve({})
    self.assertEqual(alone.ending, Ending.TOKEN_LIMIT)
    self.assertNotEqual(texts[-1], GOLD)

    done, texts = self.solve(
      {'summary_at': 200, 'summary_tokens': 100, 'max_parts': 20}
    )
    self.assertEqual(done.ending, Ending.SUBMITTED)
    self.assertEqual(texts[-1], GOLD)
    self.assertGreater(len(done.starts), 2)
    self.assertLessEqual(max(map(len, done.contexts())), 400)

  def test_its_notes_are_what_it_did_the_latest_first(self):
    done, _ = self.solve(
      {'summary_at': 200, 'summary_tokens': 100, 'max_parts': 20}
    )
    notes = [t for t in done.turns if not t.calls][0]
    text = CHAT.decode(done.token_T[notes.start : notes.stop])
    self.assertStartsWith(text, 'run_tests(): error\nedit_file(')
    self.assertIn("'x = 1', 'x = ", text)


if __name__ == '__main__':
  absltest.main()
