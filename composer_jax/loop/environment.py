"""One attempt at a task from the first token to the reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import dataclasses
import time

from composer_jax import trajectory
from composer_jax.actor import episode
from composer_jax.loop import config as config_lib
from composer_jax.loop import focus
from composer_jax.rewards import calls
from composer_jax.rewards import facts
from composer_jax.rewards import grade
from composer_jax.rewards import shaping
from composer_jax.rewards import work as work_lib
from composer_jax.text import chat as chat_lib
from composer_jax.tools import linting
from composer_jax.tools import registry
from composer_jax.tools import sandbox

# Given the tools of an episode, (sample, call_tools) to run it with.
Player = Callable[[episode.Tools], tuple[episode.Sampler, episode.Tools]]
# Given the name of a tool, whether what it says is shown as an empty text.
Blank = Callable[[str], bool]


class Environment:
  """Real boxes, real tools, hidden tests. Usable from many threads."""

  def __init__(
    self,
    config: config_lib.Config,
    boxes: sandbox.BoxPool,
    chat: chat_lib.Chat,
    cache: registry.ResultCache,
    trees: Mapping[str, bytes] | None = None,
  ):
    """`trees` are the tar archives of the tasks' snapshots, by name."""
    self._config = config
    self._boxes = boxes
    self._chat = chat
    self._cache = cache if config.tools.cache_tests else None
    self._trees = {'': b'', **(trees or {})}

  def attempt(
    self,
    task: trajectory.Task,
    play: Player,
    *,
    group: int = 0,
    member: int = 0,
    blank: Blank | None = None,
  ) -> trajectory.Trajectory:
    """Runs one episode in one box, grades it in another.

    Args:
      task: the work.
      play: whoever acts.
      group: noted in the trajectory.
      member: noted in the trajectory.
      blank: which tools say nothing (an ablation).

    Raises:
      trajectory.InfrastructureError: a fault of ours; there is no reward then.
    """
    started = time.monotonic()
    tree = self._trees[task.snapshot]
    with (
      self._boxes.box() as box,
      registry.Toolbox(
        task, box, self._config.tools, self._cache, tree
      ) as toolbox,
    ):
      call_tools = toolbox.call_all
      if blank is not None:
        call_tools = _blanked(call_tools, blank)
      sample, call_tools = play(call_tools)
      done = episode.run_episode(
        task,
        sample,
        call_tools,
        chat=self._chat,
        config=self._config.actor,
        group=group,
        member=member,
      )
      work = toolbox.final_work()
      level = box.level.value
    with self._boxes.box() as box:
      verdict = grade.grade(
        task, work.files, box, self._cache, tree=tree, removed=work.removed
      )
      compared = _compare(task, work, tree, self._last_word(done))
      if task.snapshot and compared.changed_code:
        compared = _with_lint(compared, box)
    with focus.PARSER:
      measured = facts.measure(done, task, compared, verdict)
    done = dataclasses.replace(
      done,
      final_files=work.files,
      facts=measured,
      sandbox_level=level,
      seconds=time.monotonic() - started,
    )
    (done,) = shaping.rescore([done], self._config.rewards)
    return done

  def _last_word(self, done: trajectory.Trajectory) -> str:
    """What the policy said in its last turn, beside or in its calls."""
    last = done.turns[-1]
    said = self._chat.said(done.token_T[last.start : last.stop])
    return f'{said} {calls.final_message(done)}'.strip()


def _compare(
  task: trajectory.Task, work: registry.Work, tree: bytes, message: str
) -> work_lib.Work:
  """The work beside what it began with and what it might have been."""
  fix = task.provenance.fix
  paths = {*work.files, *work.removed, *(edit.path for edit in fix)}
  before = work_lib.found(tree, task.files, paths)
  return work_lib.Work(
    before=before,
    after=work_lib.handed_in(before, work.files, work.removed),
    gold=work_lib.fixed(before, fix) if fix else None,
    message=message,
  )


def _with_lint(compared: work_lib.Work, box: sandbox.Box) -> work_lib.Work:
  """The same, with what ruff finds in the changed code before and after."""
  before, after = (
    linting.counts(box, {p: files.get(p, '') for p in compared.changed_code})
    for files in (compared.before, compared.after)
  )
  return dataclasses.replace(compared, lint_before=before, lint_after=after)


def _blanked(call_tools: episode.Tools, blank: Blank) -> episode.Tools:
  def call(turn):
    return [
      dataclasses.replace(result, text='') if blank(call.name) else result
      for call, result in zip(turn, call_tools(turn), strict=True)
    ]

  return call
