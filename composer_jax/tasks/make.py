"""Makes tasks out of real packages: downloads, breaks, tries, writes.

  python -m composer_jax.tasks.make --packages=toolz,parse --out=DIR

DIR then holds `tasks.array_record`, `tasks.json` (how hard each is, and what
was rejected), `snapshots/` and `libraries/`, see `source.read_set`. Each try is
noted at once: after Ctrl-C or a kill the same command goes on, and at most what
the boxes were at is tried again. Run it under `nice` on a machine that has
other work.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
import dataclasses
import itertools
import json
import os
import pathlib
import sys
import threading
from typing import Any

from absl import app
from absl import flags
import tqdm

from composer_jax import trajectory
from composer_jax.tasks import candidates as candidates_lib
from composer_jax.tasks import definitions
from composer_jax.tasks import journal as journal_lib
from composer_jax.tasks import make_bench
from composer_jax.tasks import make_inputs
from composer_jax.tasks import packages as packages_lib
from composer_jax.tasks import snapshots
from composer_jax.tasks import source
from composer_jax.tasks import suite as suite_lib
from composer_jax.tasks import trials
from composer_jax.tools import isolation
from composer_jax.tools import sandbox

_DEFAULT = (
  'toolz,inflection,parse,semver,python-slugify,tabulate,boltons,humanize'
)
_BASELINES = 3  # Runs of all tests on correct code.

# CPython 3.11 cannot make syntax trees in two threads at once: gh-106905.
_one_parser = threading.Lock()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
  """What is made, and where."""

  packages: tuple[str, ...]
  out: str
  heldout: tuple[str, ...] = ()
  limit: int = 0  # Tasks of one package at most; 0: all.
  hidden: tuple[str, ...] = ()  # Folders that a box sees empty.
  boxes: int = 2
  batch: int = 6  # Candidates that one box tries before they are noted.
  candidates: candidates_lib.Config = candidates_lib.Config()
  sandbox: sandbox.SandboxConfig = sandbox.SandboxConfig(
    memory_bytes=1 << 30,
    read_bytes=24 << 20,
    output_bytes=1 << 20,
  )


# --- One package -------------------------------------------------------------


def prepare(
  requirement: str, config: Config, boxes: sandbox.BoxPool
) -> tuple[trials.Subject, bytes]:
  """Downloads, snapshots and tests a package; what can be kept is kept.

  Raises:
    UnfitError: the package makes no tasks, with the reason.
  """
  out = pathlib.Path(config.out)
  package = packages_lib.find(requirement)
  files = packages_lib.unpack(make_inputs.fetch(package, out))
  licence = packages_lib.licence(files)
  tree = snapshots.pack(packages_lib.scrub(files))
  name = snapshots.name(tree)
  source.write_bytes(source.tree_path(out, name), tree)
  kept = out / 'work' / package.name / f'suite-{name[:12]}.json'
  if not kept.exists():
    bench = make_bench.Bench(boxes, tree)
    answers = [
      bench.answers(
        [
          trials.job(
            {},
            package.tests,
            package,
            cpu=make_bench.BASELINE_CPU,
            trace=traced,
          )
        ]
      )[0]
      for traced in [True] + [False] * (_BASELINES - 1)
    ]
    suite = suite_lib.of_answers(answers)
    text = json.dumps(suite_lib.to_json(suite))
    source.write_bytes(kept, text.encode())
  subject = trials.Subject(
    package=package,
    licence=licence,
    snapshot=name,
    texts=snapshots.texts(tree),
    suite=suite_lib.from_json(json.loads(kept.read_text())),
    runner=('python', isolation.PYTEST_RUNNER),
    split='heldout' if package.name in config.heldout else 'train',
  )
  return subject, tree


def single_candidates(
  subject: trials.Subject,
  bench: make_bench.Bench,
  config: candidates_lib.Config,
) -> list[candidates_lib.Candidate]:
  """All candidates with one bug, of functions that tests reach.

  Functions that can be read elsewhere in a box make none.
  """
  wanted = {}
  for path, text in subject.texts.items():
    if subject.package.is_source(path):
      try:
        wanted[path] = definitions.functions(text)
      except SyntaxError:
        continue
  tells = {
    candidates_lib.tell(subject.texts[path], function)
    for path, functions in wanted.items()
    for function in functions
  }
  known = bench.found(sorted(tells - {''}), make_bench.readable_roots())
  if known:
    places = ', '.join(sorted(set(known.values()))[:5])
    print(
      f'{subject.package.name}: {len(known)} functions left out, whose code a'
      f' box can read in {places} (see --hidden)'
    )
  whole = candidates_lib.squeezed(subject.texts.values())
  lists = []
  for path, functions in wanted.items():
    text = subject.texts[path]
    fresh = {
      function.name: function
      for function in functions
      if candidates_lib.tell(text, function) not in known
      and subject.suite.reaching(path, [function.lines])
      and not candidates_lib.stands_twice(whole, text, function)
    }
    if fresh:
      lists += candidates_lib.of_module(path, text, fresh, config)
  return candidates_lib.spread(lists)


def try_batch(
  subject: trials.Subject,
  bench: make_bench.Bench,
  batch: Sequence[candidates_lib.Candidate],
) -> list[dict[str, Any]]:
  """Journal entries of these candidates.

  Three verdicts on each must agree: of the tests that it can reach, of the
  files that grade it, and of the grading command in a box filled for it.
  """
  jobs = [trials.quick_job(subject, candidate) for candidate in batch]
  answers = dict(zip(batch, bench.answers(jobs), strict=True))
  objections = {c: trials.objection(subject, answers[c]) for c in batch}
  sound = [candidate for candidate in batch if not objections[candidate]]
  with _one_parser:
    shown = {
      c: trials.parts(subject, c, trials.failing(answers[c]['tests']))
      for c in sound
    }
  jobs = [trials.graded_job(subject, candidate) for candidate in sound]
  jobs += [trials.visible_job(subject, c, shown[c]) for c in sound]
  again = bench.answers(jobs) if jobs else []
  tasks = {}
  for i, candidate in enumerate(sound):
    graded, visible = again[i], again[i + len(sound)]
    objections[candidate] = trials.objection_to_repeats(
      answers[candidate], graded, visible
    )
    if not objections[candidate]:
      tasks[candidate], objections[candidate] = _grade(
        subject, bench, candidate, shown[candidate], graded, visible
      )
  return [
    {
      'key': candidate.key,
      'kind': candidate.kind,
      'objection': objections[candidate],
      'task': source.to_json(task) if (task := tasks.get(candidate)) else None,
    }
    for candidate in batch
  ]


def _grade(
  subject: trials.Subject,
  bench: make_bench.Bench,
  candidate: candidates_lib.Candidate,
  shown: trials.Parts,
  graded: Mapping[str, Any],
  visible: Mapping[str, Any],
) -> tuple[trajectory.Task | None, str]:
  """Grades correct and broken code as grading will: a task or the objection."""
  text = subject.texts[candidate.path]
  files = trials.graded_files(subject, candidate)
  gold, cpu = bench.correct({candidate.path: text}, subject.command(files))
  if gold is None or trials.failing(gold):
    return None, 'correct code fails'
  with _one_parser:
    task = trials.task(
      subject,
      candidate,
      shown=shown,
      visible=visible,
      gold=gold,
      cpu=cpu,
      failed=trials.failing(graded['tests']),
    )
  outcomes, _ = bench.outcomes(
    {**task.files, **task.hidden_files}, task.grade_command, task.test_seconds
  )
  if outcomes is None:
    return None, 'hangs'
  if trials.failing(outcomes) != set(task.fail_to_pass):
    return None, 'flaky'
  return task, ''


# --- All packages ------------------------------------------------------------


class Progress:
  """Tries candidates in parallel, notes each at once, and shows how it goes."""

  def __init__(
    self, config: Config, executor: futures.Executor, journal: Any, name: str
  ):
    self._config = config
    self._executor = executor
    self._journal = journal
    self._name = name

  @property
  def tasks(self) -> int:
    return sum(bool(e['task']) for e in self._journal.entries.values())

  def run(
    self,
    subject: trials.Subject,
    bench: make_bench.Bench,
    candidates: Sequence[candidates_lib.Candidate],
    most: int,
  ) -> None:
    """Tries those that are not in the journal, in their order.

    It ends when there are `most` tasks in all; 0: when all are tried.
    """
    done = self._journal.entries
    waiting = [c for c in candidates if c.key not in done]
    batches = _batches(waiting, self._config.batch)
    with tqdm.tqdm(
      total=len(candidates),
      initial=len(candidates) - len(waiting),
      desc=self._name,
      unit='candidate',
    ) as bar:
      running: set[futures.Future] = set()
      while not most or self.tasks < most:
        room = self._config.boxes - len(running)
        for batch in itertools.islice(batches, room):
          running.add(self._executor.submit(try_batch, subject, bench, batch))
        if not running:
          break
        ended, running = futures.wait(
          running, return_when=futures.FIRST_COMPLETED
        )
        self._note(ended, bar)
      self._note(futures.wait(running).done, bar)

  def _note(self, ended: set[futures.Future], bar: tqdm.tqdm) -> None:
    for future in ended:
      for entry in future.result():
        self._journal.append(entry)
        bar.update()
      bar.set_postfix(tasks=self.tasks)


def _batches(
  candidates: Sequence[candidates_lib.Candidate], size: int
) -> Iterator[list[candidates_lib.Candidate]]:
  for start in range(0, len(candidates), size):
    yield list(candidates[start : start + size])


def make_package(
  requirement: str,
  config: Config,
  boxes: sandbox.BoxPool,
  executor: futures.Executor,
) -> dict[str, Any]:
  """Tasks and rejections of one package.

  Raises:
    UnfitError: the package makes no tasks, with the reason.
  """
  subject, tree = prepare(requirement, config, boxes)
  bench = make_bench.Bench(boxes, tree)
  singles = single_candidates(subject, bench, config.candidates)
  place = pathlib.Path(config.out, 'work', subject.package.name)
  journal = journal_lib.Journal(place / f'journal-{_key(subject)}.jsonl')
  progress = Progress(config, executor, journal, subject.package.name)
  several_percent = config.candidates.several_percent
  most = config.limit * 100 // (100 + several_percent)
  progress.run(subject, bench, singles, most)
  entries = journal.entries
  sound = [c for c in singles if c.key in entries and entries[c.key]['task']]
  several = candidates_lib.several(sound, subject.texts, config.candidates)
  progress.run(subject, bench, several, config.limit)
  tried = {c.key for c in (*singles, *several)}
  entries = [e for key, e in entries.items() if key in tried]
  return {
    'tasks': [source.from_json(e['task']) for e in entries if e['task']],
    'rejected': collections.Counter(
      e['objection'] for e in entries if e['objection']
    ),
    'refused': '',
  }


def _key(subject: trials.Subject) -> str:
  """Names what verdicts depend on: the package, and the code of this room."""
  code = sorted(pathlib.Path(__file__).parent.glob('*.py'))
  settings = repr((subject.package, subject.snapshot, subject.split)).encode()
  return source.digest(settings, *(path.read_bytes() for path in code))[:16]


def make(config: Config) -> dict[str, Any]:
  """Makes the task set; what was made and rejected, by package.

  Raises:
    ValueError: no package makes any task.
  """
  out = pathlib.Path(config.out)
  out.mkdir(parents=True, exist_ok=True)
  known = [packages_lib.find(name) for name in config.packages]
  stray = set(config.heldout) - {package.name for package in known}
  if stray:
    print(f'Held out but not made here: {", ".join(sorted(stray))}')
  settings = dataclasses.replace(
    config.sandbox,
    libraries=str(make_inputs.gather_libraries(known, out)),
    hidden=config.hidden,
  )
  level = sandbox.probe(settings)
  made: dict[str, Any] = {}
  executor = futures.ThreadPoolExecutor(config.boxes)
  with sandbox.BoxPool(config.boxes, settings, level) as boxes:
    try:
      for name in config.packages:
        try:
          made[name] = make_package(name, config, boxes, executor)
        except packages_lib.UnfitError as error:
          print(f'{name}: refused: {error}', flush=True)
          made[name] = {'tasks': [], 'rejected': {}, 'refused': str(error)}
    finally:
      boxes.close()  # Ends what still runs there, and so the threads.
      executor.shutdown(cancel_futures=True)
  return _write(out, made)


def _write(out: pathlib.Path, made: Mapping[str, Any]) -> dict[str, Any]:
  """The task set and its index."""
  tasks = [task for one in made.values() for task in one['tasks']]
  if not tasks:
    reasons = '; '.join(
      f'{name}: {one["refused"]}' for name, one in made.items()
    )
    raise ValueError(f'no package made any task: {reasons}')
  index = {
    'packages': {
      name: {
        'tasks': len(one['tasks']),
        'kinds': collections.Counter(t.provenance.kind for t in one['tasks']),
        'rejected': one['rejected'],
        'refused': one['refused'],
      }
      for name, one in made.items()
    },
    'tasks': [
      {
        'id': task.id,
        'package': task.provenance.package,
        'split': task.split,
        'kind': task.provenance.kind,
        'visible_fails': task.provenance.visible_fails,
        'test_seconds': task.test_seconds,
        **task.difficulty._asdict(),
      }
      for task in tasks
    ],
  }
  text = json.dumps(index, indent=1)
  source.write(out / source.TASKS, tasks, source.digest(text.encode()))
  source.write_bytes(out / 'tasks.json', text.encode())
  return index


def define_flags() -> None:
  """Those of the command line; none exist where this is only imported."""
  flags.DEFINE_list(
    'packages', _DEFAULT.split(','), 'Names on PyPI, or NAME==VERSION.'
  )
  flags.DEFINE_string('out', None, 'Folder of the task set.', required=True)
  flags.DEFINE_list(
    'heldout', ['semver', 'humanize'], 'Packages that are never trained on.'
  )
  flags.DEFINE_integer(
    'limit', 0, 'Most tasks of one package; 0: all.', lower_bound=0
  )
  flags.DEFINE_integer(
    'per_function', 4, 'Mutations of one function at most.', lower_bound=0
  )
  flags.DEFINE_list(
    'hidden', [], 'Folders of this machine that a box sees empty.'
  )
  flags.DEFINE_integer(
    'boxes', os.cpu_count(), 'Sandboxes at once.', lower_bound=1
  )


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'not a flag: {argv[1]}')
  given = flags.FLAGS
  config = Config(
    packages=tuple(given.packages),
    hidden=tuple(given.hidden),
    out=given.out,
    heldout=tuple(packages_lib.find(name).name for name in given.heldout),
    limit=given.limit,
    boxes=given.boxes,
    candidates=candidates_lib.Config(per_function=given.per_function),
  )
  try:
    index = make(config)
  except KeyboardInterrupt:
    print('\nStopped; the same command goes on from here.')
    sys.exit(130)
  except (ValueError, trajectory.InfrastructureError) as error:
    print(f'error: {error}', file=sys.stderr)
    sys.exit(2)
  for name, one in index['packages'].items():
    print(f'{name}: {one["tasks"]} tasks; rejected: {dict(one["rejected"])}')
  print(f'{len(index["tasks"])} tasks in {config.out}')


if __name__ == '__main__':
  define_flags()
  app.run(main)
