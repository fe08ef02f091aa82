"""Groups → packed arrays."""

from __future__ import annotations

from collections.abc import Sequence

import flax.struct
import jax
import numpy as np

from composer_jax import trajectory
from composer_jax.learner import advantage

_NO_ROUTE = (0, 0)  # What a scripted agent's trajectory has.


@flax.struct.dataclass
class Batch:
  """Rows of packed sequences; padding has segment 0."""

  token_BT: jax.Array  # int32
  segment_BT: jax.Array  # int32, from 1
  position_BT: jax.Array  # int32, from 0 in each segment
  sampled_BT: jax.Array  # bool: the policy chose this token
  behaviour_BT: jax.Array  # float32 nats
  advantage_BT: jax.Array  # float32
  route_BTLX: jax.Array  # int8


def group_advantages(groups: Sequence[trajectory.Group]):
  """[(trajectory, advantage)] of all present members, in order.

  Raises:
    ValueError: a reward is not finite.
  """
  pairs = []
  for group in groups:
    if not group.trajectories:
      continue
    rewards = [member.reward for member in group.trajectories]
    if not np.isfinite(rewards).all():
      found = [dict(member.rewards) for member in group.trajectories]
      raise ValueError(f'{group.task_id}: a reward is not finite: {found}')
    values = advantage.group_advantage([rewards])[0]
    pairs.extend(zip(group.trajectories, values.tolist(), strict=True))
  return pairs


def pack(
  pairs: Sequence[tuple[trajectory.Trajectory, float]],
  *,
  rows: int,
  length: int,
  route_shape: tuple[int, int],
) -> list[Batch]:
  """Micro-batches of one shape, longest sequences first.

  The contexts of an episode are sequences of their own, each with the advantage
  of the whole; they may come to lie in different rows.

  Args:
    pairs: episodes with the advantage of each.
    rows: B of every micro-batch; the last ones are padded.
    length: T of every row.
    route_shape: (L, X). Sequences without routes get UNKNOWN_ROUTE.

  Raises:
    ValueError: a sequence is longer than a row, or has another model's routes.
  """
  pairs = [
    (context, value)
    for episode, value in pairs
    for context in episode.contexts()
  ]
  bins: list[list[int]] = []
  room: list[int] = []
  order = sorted(range(len(pairs)), key=lambda i: (-len(pairs[i][0]), i))
  for index in order:
    size = len(pairs[index][0])
    found = pairs[index][0].route_TLX.shape[1:]
    if found not in (route_shape, _NO_ROUTE):
      raise ValueError(
        f'{pairs[index][0].task_id} has routes of (layers, experts) {found},'
        f' the model has {route_shape}'
      )
    if size > length:
      raise ValueError(
        f'{pairs[index][0].task_id} has {size} tokens, a row holds {length};'
        ' raise learner.row_tokens or lower actor.max_tokens'
      )
    for row, free in enumerate(room):
      if size <= free:
        bins[row].append(index)
        room[row] -= size
        break
    else:
      bins.append([index])
      room.append(length - size)
  return [
    _fill(
      [[pairs[i] for i in row] for row in bins[first : first + rows]],
      rows,
      length,
      route_shape,
    )
    for first in range(0, len(bins), rows)
  ]


def _fill(packed_rows, rows, length, route_shape) -> Batch:
  token_BT, segment_BT, position_BT = np.zeros((3, rows, length), np.int32)
  sampled_BT = np.zeros((rows, length), bool)
  behaviour_BT, advantage_BT = np.zeros((2, rows, length), np.float32)
  route_BTLX = np.full(
    (rows, length, *route_shape), trajectory.UNKNOWN_ROUTE, np.int8
  )
  for row, packed in enumerate(packed_rows):
    start = 0
    for segment, (member, value) in enumerate(packed, 1):
      at = (row, slice(start, start + len(member)))
      token_BT[at] = member.token_T
      segment_BT[at] = segment
      position_BT[at] = np.arange(len(member))
      sampled_BT[at] = member.sampled_T
      behaviour_BT[at] = member.logprob_T
      advantage_BT[at] = np.where(member.sampled_T, value, 0)
      if member.route_TLX.shape[1:] != _NO_ROUTE:
        route_BTLX[at] = member.route_TLX
      start += len(member)
  return Batch(
    token_BT=token_BT,
    segment_BT=segment_BT,
    position_BT=position_BT,
    sampled_BT=sampled_BT,
    behaviour_BT=behaviour_BT,
    advantage_BT=advantage_BT,
    route_BTLX=route_BTLX,
  )
