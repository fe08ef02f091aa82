"""One attempt at a task from the first token to the reward."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import time

from composer_jax import trajectory
from composer_jax.actor import episode
from composer_jax.loop import config as config_lib
from composer_jax.rewards import calls
from composer_jax.rewards import facts
from composer_jax.rewards import grade
from composer_jax.rewards import shaping
from composer_jax.rewards import work as work_lib
from composer_jax.text import chat as chat_lib
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
  ):
    self._config = config
    self._boxes = boxes
    self._chat = chat
    self._cache = cache if config.tools.cache_tests else None

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
    with (
      self._boxes.box() as box,
      registry.Toolbox(task, box, self._config.tools, self._cache) as toolbox,
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
      files = toolbox.final_work().files
      level = box.level.value
    removed = [
      path
      for path in task.files
      if path not in files and not trajectory.is_test(path)
    ]
    with self._boxes.box() as box:
      verdict = grade.grade(task, files, box, self._cache, removed=removed)
    work = work_lib.Work(
      before=task.files,
      after=work_lib.handed_in(task.files, files, removed),
      gold=work_lib.fixed(task.files, task.provenance.fix),
      message=self._last_word(done),
    )
    done = dataclasses.replace(
      done,
      final_files=files,
      facts=facts.measure(done, task, work, verdict),
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


def _blanked(call_tools: episode.Tools, blank: Blank) -> episode.Tools:
  def call(turn):
    return [
      dataclasses.replace(result, text='') if blank(call.name) else result
      for call, result in zip(turn, call_tools(turn), strict=True)
    ]

  return call
