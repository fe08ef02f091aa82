import random
import re

from absl.testing import absltest

from composer_jax import trajectory
from composer_jax.actor import episode
from composer_jax.actor import repairer
from composer_jax.actor import scripted
from composer_jax.text import chat as chat_lib
from composer_jax.text import tokenizer as tokenizer_lib
from tests import fakes

Ending, Status = trajectory.Ending, trajectory.Status
CHAT = chat_lib.Chat(
  tokenizer_lib.byte_level(chat_lib.fragments(fakes.SIGNATURES)),
  fakes.SIGNATURES,
)
LIMITS = episode.ActorConfig(
  max_turns=100, max_tokens=1_000_000, max_turn_tokens=10_000
)
GOLD = {
  'pkg/api.py': (
    'from pkg import inner\n\n\n'
    'def unused(x):\n  return x + 9\n\n\n'
    'def total(\n  xs,\n):\n  return inner.add(xs, 1)\n'
  ),
  'pkg/inner.py': (
    'class Sum:\n  def far(self):\n    return 5\n\n\n'
    'def add(xs, start):\n  return helper(xs) + start\n\n\n'
    'def helper(xs):\n  return sum(xs) * 1\n'
  ),
}
TRACE = """\
2 failed, 1 passed
FAILED tests/test_api.py::test_total[a b]
tests/test_api.py:4: in test_total
    assert api.total([1]) == 2
E   assert 3 == 2
FAILED tests/test_api.py::test_more
tests/test_api.py:9: in test_more
    api.total([2])
pkg/api.py:11: in total
    return inner.add(xs, 1)
pkg/inner.py:7: in add
    return helper(xs) + start
E   TypeError: no"""


def candidates(text, path):
  """Each number that occurs once, one up and one down."""
  edits = []
  for match in re.finditer(r'\S+ (?:[+*] )?(\d)\b|, (\d)\)', text):
    old, number = match[0], match[1] or match[2]
    for new in (int(number) + 1, int(number) - 1):
      edit = trajectory.Edit(path, old, old.replace(number, str(new)))
      if text.count(old) == 1 and edit.apply(text).count(edit.new) == 1:
        edits.append(edit)
  return edits


class Repository:
  """Files, tools on them that answer as ours do, and every call."""

  def __init__(self, path, old, new, *, report, cut=10_000):
    self.files = dict(GOLD)
    self.files[path] = GOLD[path].replace(old, new)
    self.report = report
    self.cut = cut
    self.calls = []

  def __call__(self, calls):
    return [self._answer(call) for call in calls]

  def _answer(self, call):
    self.calls.append((call.name, dict(call.arguments)))
    good, text = self._run(call.name, **call.arguments)
    if call.name == 'read_file' and len(text) > self.cut:
      half = self.cut // 2
      text = f'{text[:half]}\n[99 characters left out]\n{text[-half:]}'
    status = Status.OK if good else Status.ERROR
    return trajectory.ToolResult(call_id=call.id, status=status, text=text)

  def _run(self, name, path='', **given):
    if name == 'run_tests':
      return self.files == GOLD, self.report
    if name == 'grep':
      pattern = re.compile(given['pattern'])
      found = [
        f'{path}:{number}:{line}'
        for path, text in sorted(self.files.items())
        for number, line in enumerate(text.split('\n'), 1)
        if pattern.search(line)
      ]
      return bool(found), '\n'.join(found) or 'no match'
    if name == 'read_file':
      lines = self.files[path].rstrip('\n').split('\n')
      last = min(given['last'], len(lines))
      body = '\n'.join(lines[given['first'] - 1 : last])
      return True, f'[lines {given["first"]} to {last} of {len(lines)}]\n{body}'
    if name == 'edit_file':
      edit = trajectory.Edit(path, given['old'], given['new'])
      self.files[path] = edit.apply(self.files[path])
    return True, 'ok'

  def named(self, name):
    return [arguments for called, arguments in self.calls if called == name]


def play(repository, most_edits=50, seed=0):
  turns = repairer.repairer(
    candidates=candidates, rng=random.Random(seed), most_edits=most_edits
  )
  script = scripted.Script(turns, CHAT, repository)
  return episode.run_episode(
    fakes.TASK, script.sample, script.call_tools, chat=CHAT, config=LIMITS
  )


class ReportTest(absltest.TestCase):
  def test_names_failures_frames_and_what_the_tests_call(self):
    report = repairer.read_report(TRACE)
    self.assertEqual(
      report.failing,
      ('tests/test_api.py::test_total[a b]', 'tests/test_api.py::test_more'),
    )
    self.assertEqual(report.frames, (('pkg/inner.py', 7), ('pkg/api.py', 11)))
    self.assertEqual(report.names, ('total',))


class OutlineTest(absltest.TestCase):
  def test_sees_where_functions_and_classes_end(self):
    self.assertEqual(
      [tuple(symbol) for symbol in repairer.outline(GOLD['pkg/inner.py'])],
      [
        ('class', 'Sum', 1, 3),
        ('def', 'far', 2, 3),
        ('def', 'add', 6, 7),
        ('def', 'helper', 10, 11),
      ],
    )

  def test_a_signature_of_several_lines_does_not_end_the_function(self):
    last = repairer.outline(GOLD['pkg/api.py'])[-1]
    self.assertEqual(tuple(last), ('def', 'total', 8, 11))


class RepairerTest(absltest.TestCase):
  def test_repairs_a_function_in_the_traceback_and_submits(self):
    repository = Repository('pkg/api.py', 'xs, 1', 'xs, 2', report=TRACE)
    done = play(repository)
    self.assertEqual(done.ending, Ending.SUBMITTED)
    self.assertEqual(repository.files, GOLD)
    first, judged, *_ = repository.named('run_tests')
    self.assertEqual(first, {})
    self.assertEqual(
      judged['tests'],
      ['tests/test_api.py::test_total[a b]', 'tests/test_api.py::test_more'],
    )
    self.assertEqual(repository.calls[-2], ('run_tests', {}))  # All of them.
    self.assertIn('pass', repository.calls[-1][1]['message'])

  def test_finds_what_a_function_that_the_test_names_calls(self):
    trace = TRACE.split('FAILED tests/test_api.py::test_more')[0]
    repository = Repository('pkg/inner.py', '* 1', '* 2', report=trace)
    done = play(repository)
    self.assertEqual(done.ending, Ending.SUBMITTED)
    self.assertEqual(repository.files, GOLD)
    edited = {edit['old'] for edit in repository.named('edit_file')}
    self.assertNotIn('x + 9', edited)  # `unused` is called by nobody.
    self.assertNotIn('return 5', edited)

  def test_tries_nothing_twice_and_undoes_what_did_not_help(self):
    repository = Repository(
      'pkg/inner.py', 'return 5', 'return 7', report=TRACE
    )
    start = dict(repository.files)
    done = play(repository)
    self.assertEqual(done.ending, Ending.SUBMITTED)
    self.assertEqual(repository.files, start)
    self.assertIn('still fail', repository.calls[-1][1]['message'])
    edits = [tuple(edit.values()) for edit in repository.named('edit_file')]
    self.assertNotEmpty(edits)
    self.assertLen(set(edits), len(edits))  # Undoing is the inverse edit.

  def test_gives_up_after_so_many_edits(self):
    repository = Repository(
      'pkg/inner.py', 'return 5', 'return 7', report=TRACE
    )
    play(repository, most_edits=1)
    self.assertLen(repository.named('edit_file'), 2)  # One, and its undo.

  def test_reads_a_file_that_one_answer_does_not_hold(self):
    trace = TRACE.split('FAILED tests/test_api.py::test_more')[0]
    repository = Repository('pkg/inner.py', '* 1', '* 2', report=trace, cut=100)
    play(repository)
    self.assertEqual(repository.files, GOLD)
    self.assertGreater(len(repository.named('read_file')), 4)

  def test_submits_at_once_where_nothing_fails(self):
    repository = Repository('pkg/api.py', 'xs, 1', 'xs, 1', report='1 passed')
    play(repository)
    self.assertEqual(
      [name for name, _ in repository.calls], ['run_tests', 'submit']
    )


if __name__ == '__main__':
  absltest.main()
