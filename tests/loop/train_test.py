"""The whole main job at toy size; one run is shared by many tests."""

import contextlib
import dataclasses
import io
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import flagsaver
import jax
import numpy as np

from composer_jax import trajectory
from composer_jax.checkpoint import leaves
from composer_jax.checkpoint import snapshot
from composer_jax.checkpoint import train_state
from composer_jax.checkpoint import weights as weights_lib
from composer_jax.learner import batch as batch_lib
from composer_jax.learner import step as step_lib
from composer_jax.loop import environment
from composer_jax.loop import evaluate
from composer_jax.loop import metrics
from composer_jax.loop import reinforce
from composer_jax.loop import run as run_lib
from composer_jax.loop import supervise
from composer_jax.loop import train
from composer_jax.loop import warmstart
from composer_jax.loop import wiring
from composer_jax.model import serving
from composer_jax.model import transformer
from composer_jax.replay import record
from composer_jax.sampler import engine as engine_lib
from composer_jax.tasks import source
from composer_jax.text import tokenizer as tokenizer_lib
from composer_jax.tools import registry
from composer_jax.tools import sandbox
from experiments import precisions
from experiments import train as main_module
from tests import fakes
from tests.loop import toy

SEED = 3
ROOT = pathlib.Path(__file__).parents[2]
_shared = contextlib.ExitStack()
_run = {}  # 'workdir', 'exit_code' and 'output' of the shared run.


def setUpModule():
  workdir = _shared.enter_context(tempfile.TemporaryDirectory())
  output = io.StringIO()
  flags = flagsaver.flagsaver(
    experiment='quickstart', workdir=workdir, seed=SEED, set=[*toy.SETTINGS]
  )
  with flags, contextlib.redirect_stdout(output):
    exit_code = main_module.main(['train'])
  _run.update(workdir=workdir, exit_code=exit_code, output=output.getvalue())


def tearDownModule():
  _shared.close()


def recorded(workdir, name='trajectories'):
  found = record.TrajectorySource(os.path.join(workdir, name))
  return [found[i] for i in range(len(found))]


def final_arrays(workdir):
  paths = wiring.Paths(workdir=workdir)
  directory = pathlib.Path(paths.checkpoints('rl'))
  return dict(snapshot.read(directory, toy.STEPS).arrays)


class WholeRunTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.workdir = _run['workdir']
    self.paths = wiring.Paths(workdir=self.workdir)
    self.result = metrics.read_json(self.paths.result)

  def test_ends_well_and_shows_a_table(self):
    self.assertEqual(_run['exit_code'], 0, _run['output'])
    self.assertIn('held-out solved after', _run['output'])
    self.assertIn('Sandbox level: ', _run['output'])

  def test_result_says_what_happened(self):
    self.assertContainsSubset(
      {
        'heldout_solve_rate_before',
        'heldout_solve_rate_after',
        'sandbox_level',
        'wall_seconds',
      },
      self.result,
    )
    episodes = recorded(self.workdir)
    calls = sum(len(turn.calls) for e in episodes for turn in e.turns)
    self.assertGreater(calls, 0)
    expected = {
      'heldout_tasks': 4,
      'train_tasks': 20,
      'tests_cached': True,
      'episodes': toy.STEPS * 2 * 4,
      'tool_calls': calls,
      'weights_published': toy.STEPS + 1,
      'max_lag_seen': 0,
      'learner_steps': toy.STEPS,
      'skipped_steps': 0,
      'seed': SEED,
    }
    self.assertEqual({k: self.result[k] for k in expected}, expected)
    self.assertBetween(self.result['visible_share'], 0.5, 1.0)

  def test_records_every_attempt_once_graded_in_a_box(self):
    episodes = recorded(self.workdir)
    self.assertEqual(
      [(e.group, e.member) for e in episodes],
      [(g, m) for g in range(2 * toy.STEPS) for m in range(4)],
    )
    for episode in episodes:
      self.assertEqual(episode.sandbox_level, self.result['sandbox_level'])
      self.assertIn('solved', episode.rewards)
      self.assertEqual(
        set(episode.version_T[episode.sampled_T].tolist()), {episode.group // 2}
      )

  def test_writes_a_line_per_step_and_a_page(self):
    lines = metrics.read(self.workdir)
    steps = [line['step'] for line in lines if line['phase'] == 'rl']
    self.assertEqual(steps, [*range(1, toy.STEPS + 1)])
    self.assertContainsSubset(
      {'solve_rate', 'reward', 'lag_max', 'tokens_per_s', 'tool_calls_per_s'},
      lines[-2],
    )
    phases = [line['phase'] for line in lines]
    self.assertEqual(phases.count('eval'), 2)
    self.assertEqual(phases.count('warm_start'), 3)
    page = pathlib.Path(self.workdir, 'report.html').read_text('utf-8')
    self.assertIn('Not solved: HumanEval/6', page)
    self.assertNotEmpty(os.listdir(os.path.join(self.workdir, 'tensorboard')))

  def test_publishes_what_it_trained(self):
    final = final_arrays(self.workdir)
    self.assertEqual(weights_lib.latest(self.paths.weights), toy.STEPS)
    published = snapshot.read(pathlib.Path(self.paths.weights), toy.STEPS)
    model = toy.config().model
    like = jax.eval_shape(lambda: transformer.init(jax.random.key(0), model))
    arrays = {
      name.removeprefix('params.'): array
      for name, array in final.items()
      if name.startswith('params.')
    }
    expected = serving.ship(leaves.unflatten(like, arrays), model)
    for name, array in leaves.flatten(expected).items():
      self.assertEqual(published.arrays[name].tobytes(), array.tobytes(), name)
    elements = published.arrays['layers.0.gate_EDF.elements']
    self.assertEqual(elements.dtype.itemsize, 1)

  def test_its_warm_start_can_be_repeated_in_each_precision(self):
    found = precisions.losses(toy.config(), self.paths, SEED, 8)
    self.assertEqual([*found], ['float32', 'bfloat16', 'mxfp8'])
    reference = found.pop('float32')
    self.assertLess(reference[-1], reference[0])
    for losses in found.values():
      np.testing.assert_allclose(losses, reference, rtol=0.05)
      self.assertFalse(np.array_equal(losses, reference))

  def test_trains_on_training_problems_only(self):
    problem = lambda episode: episode.task_id.rsplit('/', 1)[0]
    trained = recorded(self.workdir) + recorded(self.workdir, 'demonstrations')
    self.assertEqual(
      set(map(problem, trained)), {f'HumanEval/{i}' for i in range(6)}
    )
    for name in ('trajectories_before', 'trajectories_after'):
      found = set(map(problem, recorded(self.workdir, name)))
      self.assertEqual(found, {'HumanEval/6'})
    tokenizer = tokenizer_lib.load(self.workdir)
    text = '\n'.join(
      tokenizer.decode(e.token_T) for e in recorded(self.workdir, 'exercises')
    )
    self.assertTrue('solution.py' in text)
    self.assertFalse('parse_nested_parens' in text)  # Number 6.

  def test_a_finished_run_is_left_alone(self):
    with mock.patch.object(run_lib, 'open_run', side_effect=AssertionError):
      again = train.train(toy.config(), self.workdir, SEED)
    self.assertEqual(again, self.result)

  def test_ablations_repeat_the_evaluation_beside_two_others(self):
    log = pathlib.Path(self.workdir, 'metrics.jsonl').read_text()
    attempt = environment.Environment.attempt
    with mock.patch.object(
      environment.Environment, 'attempt', autospec=True, side_effect=attempt
    ) as attempts:
      values = train.ablate(toy.config(), self.workdir, SEED)
    blanks = [c.kwargs['blank'] for c in attempts.call_args_list[:12]]
    self.assertEqual(blanks[:4], [None] * 4)
    for name in ('run_tests', 'read_file', 'no such tool'):
      said = [blank(name) for blank in blanks[4:]]
      self.assertEqual(said, [name == 'run_tests'] * 4 + [True] * 4)
    after = metrics.read_json(self.paths.evaluation('after'))
    self.assertEqual(
      values['policy'], {key: after[key] for key in values['policy']}
    )
    self.assertEqual(
      list(values), ['policy', 'untested', 'blind', 'enumerator']
    )
    self.assertGreater(values['enumerator']['tries_per_episode'], 0)
    self.assertEqual(
      pathlib.Path(self.workdir, 'metrics.jsonl').read_text(), log
    )

  def test_a_blind_agent_is_shown_nothing_but_its_work_counts(self):
    with run_lib.open_run(toy.config(), SEED, self.paths) as run:
      task = run.split('heldout')[0]
      turns = [
        [('read_file', {'path': 'solution.py'})],
        [('edit_file', dataclasses.asdict(task.provenance.fix[0]))],
        [('submit', {})],
      ]
      play = warmstart.scripted_player(lambda _: iter(turns), run.chat)
      blind = run.env.attempt(task, play, blank=lambda _: True)
      play = warmstart.scripted_player(lambda _: iter(turns), run.chat)
      seeing = run.env.attempt(task, play)
    shown = [result.text for turn in blind.turns for result in turn.results]
    self.assertEqual(shown, [''] * 3)
    self.assertLess(len(blind), len(seeing))
    self.assertEqual(blind.rewards['solved'], 1.0)
    self.assertEqual(blind.final_files, seeing.final_files)

  def test_ablations_of_an_unfinished_run_are_refused(self):
    workdir = os.path.join(self.create_tempdir().full_path, 'run')
    with self.assertRaisesRegex(ValueError, 'no finished run'):
      train.ablate(toy.config(), workdir, SEED)
    self.assertFalse(os.path.exists(workdir))

  def test_another_run_is_refused_with_the_difference(self):
    with self.assertRaisesRegex(ValueError, r'run\.steps: 9, 5'):
      train.train(toy.config('run.steps=9'), self.workdir, SEED)
    with self.assertRaisesRegex(ValueError, 'seed: 4, 3'):
      train.train(toy.config(), self.workdir, 4)


class SynchronousTest(absltest.TestCase):
  def test_without_lag_it_is_the_sequential_algorithm(self):
    """Sample every attempt with the newest weights, update, and again."""
    config = toy.config()
    paths = wiring.Paths(workdir=_run['workdir'])
    learner, replay = config.learner, config.replay
    key = jax.random.key(evaluate.seed_of(SEED, run_lib.Stream.INIT))
    warm = train_state.restore(
      paths.checkpoints('warm'), step_lib.init(key, learner, config.model)
    )
    state = step_lib.fresh(warm.tree.params, learner)
    level = sandbox.probe(config.sandbox)
    crew, cache = supervise.Crew(), registry.ResultCache()
    with sandbox.BoxPool(1, config.sandbox, level) as boxes:
      tasks, trees = wiring.load_tasks(config, boxes, crew)
      chat = wiring.make_chat(
        config, tasks, trees, boxes, cache, paths.workdir, crew
      )
      env = environment.Environment(config, boxes, chat, cache)
      order = source.order(
        [task for task in tasks if task.split == 'train'],
        evaluate.seed_of(SEED, run_lib.Stream.ORDER),
      )
      for step in range(toy.STEPS):
        engine = engine_lib.Engine(
          config.sampler,
          config.model,
          trajectory.Weights(
            version=step,
            params=serving.ship(state.params, config.model),
            digest='',
          ),
          stop_id=chat.end_id,
        )
        groups = []
        for group in range(step * 2, step * 2 + 2):
          attempts = []
          for member in range(replay.group_size):
            seed = evaluate.seed_of(SEED, run_lib.Stream.ROLLOUT, group, member)
            sample = alone(engine, session=(group, member), seed=seed)
            attempts.append(
              env.attempt(
                order[group],
                lambda call_tools, sample=sample: (sample, call_tools),
                group=group,
                member=member,
              )
            )
          groups.append(
            trajectory.Group(
              index=group,
              task_id=order[group].id,
              trajectories=tuple(attempts),
              size=replay.group_size,
            )
          )
        state = updated(state, groups, config)
    expected = leaves.flatten(state)
    found = final_arrays(_run['workdir'])
    self.assertEqual(sorted(found), sorted(expected))
    for name, array in expected.items():
      np.testing.assert_array_equal(found[name], array, err_msg=name)


def alone(engine, *, session, seed):
  """Sampling one sequence at a time, by the calling thread."""

  def sample(history_T, max_new):
    request = engine_lib.Request(
      session=hash(session), history_T=history_T, max_new=max_new, seed=seed
    )
    future = engine.submit(request)
    while not future.done():
      engine.step()
    if len(history_T) + max_new >= 320 or not future.result().finished:
      engine.release(request.session)
    return future.result()

  return sample


def updated(state, groups, config):
  pairs = batch_lib.group_advantages(groups)
  batches = batch_lib.pack(
    [(t, value) for t, value in pairs if value],
    rows=config.learner.micro_rows,
    length=config.learner.row_tokens,
    route_shape=config.model.route_shape,
  )
  state, _ = step_lib.update(
    state,
    batches,
    config=config.learner,
    model=config.model,
    denominator=sum(int(t.sampled_T.sum()) for t, _ in pairs),
  )
  return state


class AsynchronousTest(absltest.TestCase):
  def test_lag_is_bounded_and_nothing_is_begun_in_vain(self):
    workdir = self.create_tempdir().full_path
    config = toy.config('replay.max_lag=2', 'evaluate.greedy=false')
    begun = []
    attempt = environment.Environment.attempt

    def counted(self, task, play, *, group=0, member=0, blank=None):
      begun.append((group, member))
      return attempt(self, task, play, group=group, member=member, blank=blank)

    with mock.patch.object(environment.Environment, 'attempt', counted):
      result = train.train(config, workdir, SEED)
    self.assertBetween(result['max_lag_seen'], 1, 2)
    rollouts = toy.STEPS * 2 * 4
    self.assertLen(recorded(workdir), rollouts)
    self.assertLen(begun, config.warm.demonstrations + rollouts + 2 * 4)


class StopTest(absltest.TestCase):
  def test_two_stops_change_nothing(self):
    workdir = self.create_tempdir().full_path
    paths = wiring.Paths(workdir=workdir)

    self._interrupt(workdir, rb'warm start:[^\r\n]* [1-9]\d*/60 ')
    self.assertBetween(train_state.latest(paths.checkpoints('warm')), 1, 59)
    self._interrupt(workdir, rb'reinforce:[^\r\n]* [1-9]/5 ')
    self.assertBetween(
      train_state.latest(paths.checkpoints('rl')), 1, toy.STEPS - 1
    )
    result = train.train(toy.config(), workdir, SEED)

    self.assertEqual(result['episodes'], toy.STEPS * 2 * 4)
    self.assertEqual(
      [(e.group, e.member) for e in recorded(workdir)],
      [(g, m) for g in range(2 * toy.STEPS) for m in range(4)],
    )
    expected, found = final_arrays(_run['workdir']), final_arrays(workdir)
    self.assertEqual(sorted(found), sorted(expected))
    for name, array in expected.items():
      np.testing.assert_array_equal(found[name], array, err_msg=name)

  def _interrupt(self, workdir, moment):
    """Starts or resumes the run, and ends it by SIGTERM at that moment."""
    temporary = self.create_tempdir().full_path
    command = [sys.executable, '-m', 'experiments.train']
    command += ['--experiment=quickstart', f'--workdir={workdir}']
    command += [f'--seed={SEED}', *(f'--set={s}' for s in toy.SETTINGS)]
    process = subprocess.Popen(
      command,
      cwd=ROOT,
      env=os.environ | {'TMPDIR': temporary, 'PYTHONUNBUFFERED': '1'},
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
    )
    with process:
      output = b''
      while not re.search(moment, output):
        chunk = process.stdout.read1()
        self.assertTrue(chunk, output.decode())
        output += chunk
      children = [os.pidfd_open(pid) for pid in descendants(process.pid)]
      self.assertNotEmpty(children)  # Its boxes.
      started = time.monotonic()
      process.send_signal(signal.SIGTERM)
      output += process.stdout.read()
      process.wait()
    self.assertLess(time.monotonic() - started, 10)
    output = output.decode()
    self.assertEqual(process.returncode, 130, output)
    self.assertIn(f'resumes from {workdir}', output)
    self.assertNotIn('Traceback', output)
    for child in children:
      with os.fdopen(child) as pidfd:
        ended, _, _ = select.select([pidfd], [], [], 5.0)
        self.assertTrue(ended, 'a process is left')
    self.assertEmpty(os.listdir(temporary))


def descendants(pid):
  parents = {}
  for path in pathlib.Path('/proc').glob('[0-9]*/stat'):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
      fields = path.read_text().rpartition(')')[2].split()
      parents.setdefault(int(fields[1]), []).append(int(path.parent.name))
  found, waiting = [], [pid]
  while waiting:
    children = parents.get(waiting.pop(), [])
    found += children
    waiting += children
  return found


class _Policy:
  """Serves nothing, at version 0."""

  version = 0
  tokens_sampled = 0

  @contextlib.contextmanager
  def session(self, *, seed, temperature):
    del seed, temperature
    yield None


class FailureTest(absltest.TestCase):
  def _loop(self, attempt, *settings):
    self.crew = supervise.Crew()
    self.addCleanup(self.crew.end)
    env = mock.create_autospec(environment.Environment, instance=True)
    env.attempt.side_effect = attempt
    run = run_lib.Run(
      config=toy.config(*settings),
      seed=SEED,
      paths=wiring.Paths(workdir=self.create_tempdir().full_path),
      crew=self.crew,
      log=None,
      tasks=(fakes.TASK,),
      chat=None,
      env=env,
      level='',
      started=0.0,
    )
    zero = np.zeros((), np.int32)
    state = step_lib.TrainState(
      step=zero, params={}, opt_state=(), skipped=zero
    )
    return reinforce.Loop(run, _Policy(), None, state, {})

  def test_the_error_of_an_actor_ends_the_run(self):
    error = RuntimeError('this very error')

    def fail(*args, **kwargs):
      raise error

    started = time.monotonic()
    with self.assertRaises(RuntimeError) as caught:
      self._loop(fail).run()
    self.assertIs(caught.exception, error)
    self.assertLess(time.monotonic() - started, 5)

  def test_no_progress_ends_the_run_and_names_who_is_awaited(self):
    def hang(task, play, *, group, member):
      if (group, member) in ((0, 2), (1, 0)):
        self.crew.stop.wait()
      return fakes.sequence([1], [0], group=group, member=member)

    loop = self._loop(hang, 'run.patience_s=0.1')
    with self.assertRaisesRegex(
      TimeoutError, r'group 0: members \[2\]; group 1: members \[0\]'
    ):
      loop.run()


if __name__ == '__main__':
  absltest.main()
