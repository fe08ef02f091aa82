import random

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax import trajectory
from composer_jax.actor import baselines
from composer_jax.actor import scripted
from composer_jax.text import chat as chat_lib
from composer_jax.text import tokenizer as tokenizer_lib
from tests import fakes

CHAT = chat_lib.Chat(
  tokenizer_lib.byte_level(chat_lib.fragments(fakes.SIGNATURES)),
  fakes.SIGNATURES,
)
FIX = (
  trajectory.Edit('a.py', 'x', 'y'),
  trajectory.Edit('pkg/new.py', '', 'z = 1\n'),
)
SCHEMAS = [
  {
    'name': 'look',
    'parameters': {
      'type': 'object',
      'properties': {
        'path': {'type': 'string', 'minLength': 1},
        'old': {'type': 'string', 'maxLength': 5},
        'line': {'type': 'integer', 'minimum': 100, 'maximum': 103},
        'deep': {'type': 'boolean'},
        'state': {'type': 'string', 'enum': ['open', 'done']},
        'items': {
          'type': 'array',
          'minItems': 1,
          'items': {
            'type': 'object',
            'properties': {'text': {'type': 'string'}},
            'required': ['text'],
          },
        },
        'seldom': {'type': 'integer'},
      },
      'required': ['path', 'old', 'line', 'deep', 'state', 'items'],
    },
  }
]


def turns_of(agent, count, answer=None):
  """The first `count` turns, as lists of (name, arguments)."""
  tools = fakes.RecordingTools(answer)
  script = scripted.Script(agent, CHAT, tools)
  for index in range(count):
    token_T = script.sample([], 100_000).token_T
    script.call_tools(CHAT.parse(token_T, index))
  return [[(c.name, dict(c.arguments)) for c in turn] for turn in tools.calls]


class OracleTest(parameterized.TestCase):
  @parameterized.parameters(('', {}), ('Mended.', {'message': 'Mended.'}))
  def test_applies_the_fix_tests_it_and_submits(self, message, submission):
    agent = baselines.oracle(FIX, tools=('run_tests',), message=message)
    edit = {'path': 'a.py', 'old': 'x', 'new': 'y'}
    file = {'path': 'pkg/new.py', 'text': 'z = 1\n'}
    self.assertEqual(
      turns_of(agent, 3),
      [
        [('edit_file', edit), ('write_file', file)],
        [('run_tests', {})],
        [('submit', submission)],
      ],
    )

  def test_runs_no_tests_where_there_are_none(self):
    agent = baselines.oracle(FIX, tools=())
    self.assertEqual(turns_of(agent, 2)[-1], [('submit', {})])


class RandomCallerTest(absltest.TestCase):
  def arguments(self, seed, count=200, answer=None):
    agent = baselines.random_caller(
      'Repair pkg/sums.py, please.', SCHEMAS, random.Random(seed)
    )
    turns = turns_of(agent, count, answer)
    return [arguments for ((_, arguments),) in turns]

  def test_arguments_are_what_the_schema_allows(self):
    drawn = self.arguments(0)
    for one in drawn:
      self.assertLessEqual(len(one['old']), 5)
      self.assertNotEmpty(one['items'])
      for item in one['items']:
        self.assertEqual(item.keys(), {'text'})
    self.assertEqual({one['line'] for one in drawn}, {100, 101, 102, 103})
    self.assertEqual({one['state'] for one in drawn}, {'open', 'done'})
    self.assertEqual({one['deep'] for one in drawn}, {True, False})
    seldom = sum('seldom' in one for one in drawn)
    self.assertBetween(seldom, 20, 100)

  def test_paths_and_lines_are_those_it_has_heard_of(self):
    ok = trajectory.Status.OK
    drawn = self.arguments(1, answer=lambda call: (ok, 'see b/c.py\nx=1'))
    self.assertEqual({one['path'] for one in drawn}, {'pkg/sums.py', 'b/c.py'})
    self.assertEqual({one['old'] for one in drawn}, {'Repai', 'see b', 'x=1'})

  def test_is_decided_by_the_seed(self):
    self.assertEqual(self.arguments(2, 9), self.arguments(2, 9))
    self.assertNotEqual(self.arguments(2, 9), self.arguments(3, 9))


if __name__ == '__main__':
  absltest.main()
