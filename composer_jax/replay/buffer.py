"""Attempts out to the actors, fresh groups in to the learner.

Strictly first in, first out: learner step s takes exactly the groups
[s * G, (s + 1) * G). So nothing depends on which episode ends first (short ones
gain nothing), the lag is bounded by admission, and the place in the data is one
integer. What was begun but not taken is begun again after a restart.

Safe for any number of threads; it starts none.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
import dataclasses
import threading

from composer_jax import trajectory as nouns
from composer_jax.replay import staleness


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayConfig:
  """How much is trained at once, and how old it may be."""

  groups_per_step: int = 8  # Groups that one learner step takes.
  group_size: int = 8  # Attempts at one task.
  max_lag: int = 2  # Policy versions; 0 is the synchronous algorithm.
  group_deadline_s: float = 120.0  # Seconds from a group's first admission.

  def __post_init__(self):
    if self.groups_per_step < 1 or self.group_size < 1:
      raise ValueError(
        'a step needs at least one group of at least one attempt, got'
        f' groups_per_step={self.groups_per_step} group_size={self.group_size}'
      )
    if self.max_lag < 0 or self.group_deadline_s <= 0:
      raise ValueError(
        'max_lag must be >= 0 and group_deadline_s > 0, got'
        f' {self.max_lag} and {self.group_deadline_s}'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stats:
  """Counts of attempts since the start, unless said otherwise."""

  admitted: int
  in_flight: int  # Now, stragglers of closed groups included.
  completed: int
  failed: int  # Our faults; never a reward.
  late: int  # Ended after their group was closed; dropped.
  stale: int  # Too old for the step that should have trained them; dropped.
  closed_groups: int  # Groups that the learner got with members missing.
  lag: int  # Of the last step taken: its version less the oldest one used.


@dataclasses.dataclass
class _Open:
  """A group with attempts under way."""

  started: float
  done: dict[int, nouns.Trajectory] = dataclasses.field(default_factory=dict)
  failed: dict[int, str] = dataclasses.field(default_factory=dict)


class ReplayBuffer:
  """The bounded meeting point of many actors and one learner."""

  def __init__(
    self,
    config: ReplayConfig,
    clock: Callable[[], float],
    cursor: int = 0,
  ):
    """Starts at group `cursor`, under the policy that trained all before it.

    Args:
      config: Sizes and bounds.
      clock: Seconds, never going back.
      cursor: First group not yet trained, a multiple of groups_per_step.
    """
    if cursor < 0 or cursor % config.groups_per_step:
      raise ValueError(
        f'cursor {cursor} is no multiple of groups_per_step'
        f' {config.groups_per_step}: a step takes whole groups'
      )
    self._config = config
    self._clock = clock
    self._changed = threading.Condition()
    self._cursor = cursor
    self._version = cursor // config.groups_per_step
    self._next = (cursor, 0)
    self._open: dict[int, _Open] = {}
    self._running: set[tuple[int, int]] = set()
    self._closed = False
    self._counts = collections.Counter()
    self._lag = 0

  @property
  def cursor(self) -> int:
    """The first group that the learner has not taken."""
    with self._changed:
      return self._cursor

  @property
  def closed(self) -> bool:
    with self._changed:
      return self._closed

  def set_version(self, version: int) -> None:
    """Tells which policy the sampler now uses; wakes waiting actors."""
    with self._changed:
      if version < self._version:
        raise ValueError(f'version {version} is older than {self._version}')
      self._version = version
      self._changed.notify_all()

  def admit(self, timeout: float) -> tuple[int, int] | None:
    """The next attempt to make, as (group, member).

    The members of a group are handed out one after the other. The group's
    deadline runs from its first member.

    Args:
      timeout: Seconds to wait for capacity; None is returned after them, and
        when the buffer is closed.
    """
    with self._changed:
      until = self._clock() + timeout
      while not self._closed and not self._may_admit():
        remaining = until - self._clock()
        if remaining <= 0:
          return None
        self._changed.wait(remaining)
      if self._closed:
        return None
      group, member = self._next
      last = member + 1 == self._config.group_size
      self._next = (group + 1, 0) if last else (group, member + 1)
      self._open.setdefault(group, _Open(started=self._clock()))
      self._running.add((group, member))
      self._counts['admitted'] += 1
      self._changed.notify_all()  # A deadline now runs.
      return group, member

  def put(self, trajectory: nouns.Trajectory) -> None:
    """Hands in a finished attempt; dropped if its group is gone.

    Raises:
      ValueError: the attempt is not in flight, or is at another task than the
        rest of its group.
    """
    with self._changed:
      place = trajectory.group, trajectory.member
      group = self._open.get(trajectory.group)
      if group:
        for other in group.done.values():
          if other.task_id != trajectory.task_id:
            raise ValueError(
              f'group {trajectory.group} is at task {other.task_id!r}, its'
              f' member {trajectory.member} at {trajectory.task_id!r}'
            )
      self._land(*place)
      if group is None:
        self._counts['late'] += 1
        return
      group.done[trajectory.member] = trajectory
      self._counts['completed'] += 1
      self._changed.notify_all()

  def fail(self, group: int, member: int, reason: str) -> None:
    """Reports a fault of ours: the attempt is left out, not punished.

    Raises:
      ValueError: the attempt is not in flight.
    """
    with self._changed:
      self._land(group, member)
      self._counts['failed'] += 1
      if group in self._open:
        self._open[group].failed[member] = reason
        self._changed.notify_all()

  def take(self, timeout: float) -> tuple[nouns.Group, ...] | None:
    """The groups of the next learner step, in order; None when closed.

    Waits until each is complete or past its deadline. A group past its deadline
    is closed: it lacks members, perhaps all, and says which and why.

    Raises:
      TimeoutError: after `timeout` seconds; it names the pending attempts.
        Nothing is lost, and the call may be repeated.
    """
    with self._changed:
      until = self._clock() + timeout
      while not self._closed:
        now = self._clock()
        waiting = [g for g in self._step_groups() if not self._is_ready(g, now)]
        if not waiting:
          return self._take_ready()
        if now >= until:
          raise TimeoutError(self._describe_wait(waiting, timeout))
        # Not past the next deadline: nobody would wake us there.
        wake = min([until, *(self._deadline(g) for g in waiting)])
        self._changed.wait(wake - now)
      return None

  def close(self) -> None:
    """Ends all waiting, now and later; attempts in flight may still land."""
    with self._changed:
      self._closed = True
      self._changed.notify_all()

  def stats(self) -> Stats:
    with self._changed:
      return Stats(
        admitted=self._counts['admitted'],
        in_flight=len(self._running),
        completed=self._counts['completed'],
        failed=self._counts['failed'],
        late=self._counts['late'],
        stale=self._counts['stale'],
        closed_groups=self._counts['closed_groups'],
        lag=self._lag,
      )

  # Everything below is called with the lock held.

  def _may_admit(self) -> bool:
    return staleness.may_admit(
      self._next[0],
      self._version,
      groups_per_step=self._config.groups_per_step,
      max_lag=self._config.max_lag,
    )

  def _land(self, group: int, member: int) -> None:
    if (group, member) not in self._running:
      raise ValueError(
        f'member {member} of group {group} is not in flight: never admitted, or'
        ' handed in twice'
      )
    self._running.remove((group, member))

  def _step_groups(self) -> range:
    return range(self._cursor, self._cursor + self._config.groups_per_step)

  def _pending(self, index: int) -> list[int]:
    group = self._open.get(index)
    landed = {*group.done, *group.failed} if group else set()
    return [m for m in range(self._config.group_size) if m not in landed]

  def _deadline(self, index: int) -> float:
    group = self._open.get(index)
    if group is None:
      return float('inf')  # Not begun: no capacity, or no actor.
    return group.started + self._config.group_deadline_s

  def _is_ready(self, index: int, now: float) -> bool:
    return not self._pending(index) or now >= self._deadline(index)

  def _take_ready(self) -> tuple[nouns.Group, ...]:
    step = self._cursor // self._config.groups_per_step
    groups = tuple(self._seal(index, step) for index in self._step_groups())
    self._cursor += self._config.groups_per_step
    self._next = max(self._next, (self._cursor, 0))
    used = [
      member.oldest_version
      for group in groups
      for member in group.trajectories
      if member.oldest_version >= 0
    ]
    self._counts['closed_groups'] += sum(bool(g.closed) for g in groups)
    self._lag = step - min(used, default=step)
    return groups

  def _seal(self, index: int, step: int) -> nouns.Group:
    """Removes a ready group, without what is too old to train on."""
    reasons = []
    if pending := self._pending(index):
      waited = self._config.group_deadline_s
      reasons.append(f'members {pending} pending after {waited:g} s')
    group = self._open.pop(index)
    for member, reason in sorted(group.failed.items()):
      reasons.append(f'member {member} failed: {reason}')
    kept = []
    for member, attempt in sorted(group.done.items()):
      if self._is_fresh(attempt, step):
        kept.append(attempt)
      else:
        self._counts['stale'] += 1
        reasons.append(
          f'member {member} stale: version {attempt.oldest_version} at step'
          f' {step} with max_lag {self._config.max_lag}'
        )
    return nouns.Group(
      index=index,
      task_id=kept[0].task_id if kept else '',
      trajectories=tuple(kept),
      size=self._config.group_size,
      closed='; '.join(reasons),
    )

  def _is_fresh(self, attempt: nouns.Trajectory, step: int) -> bool:
    # Without a sampled token there is nothing that could be stale.
    return not attempt.sampled_T.any() or staleness.is_fresh(
      attempt.oldest_version, step, self._config.max_lag
    )

  def _describe_wait(self, waiting: list[int], timeout: float) -> str:
    parts = []
    for index in waiting:
      if index in self._open:
        parts.append(f'group {index}: members {self._pending(index)}')
      else:
        parts.append(f'group {index}: not begun')
    return (
      f'step {self._cursor // self._config.groups_per_step} is not complete'
      f' after {timeout:g} s (sampler at version {self._version}): '
      + '; '.join(parts)
    )
