"""Trajectories as bytes and as ArrayRecord files, nothing lost.

One record is a numpy .npz archive: the per-token arrays by name, and `fields`,
the UTF-8 JSON of everything else. Numpy alone reads it, and so does grain:

  grain.MapDataset.source(record.TrajectorySource('run/trajectories'))
"""

from __future__ import annotations

from collections.abc import Iterable
import dataclasses
import io
import json
import os
import pathlib
import threading
from typing import Any

from array_record.python import array_record_data_source
from array_record.python import array_record_module
import numpy as np

from composer_jax import trajectory as nouns

_ARRAYS = ('token_T', 'sampled_T', 'logprob_T', 'version_T', 'route_TLX')
_SUFFIX = '.array_record'
# Numpy parses each array's header as Python. In several threads at once, as
# grain reads, CPython 3.11 sometimes fails at that ("AST constructor recursion
# depth mismatch").
_PARSING = threading.Lock()


def encode(trajectory: nouns.Trajectory) -> bytes:
  """Every field, as bytes; call arguments must be JSON values.

  Raises:
    TypeError: a field holds what JSON cannot.
  """
  fields = {
    'task_id': trajectory.task_id,
    'group': trajectory.group,
    'member': trajectory.member,
    'turns': [_turn_to_json(turn) for turn in trajectory.turns],
    'ending': trajectory.ending.value,
    'final_files': dict(trajectory.final_files),
    'rewards': {k: float(v) for k, v in trajectory.rewards.items()},
    'facts': {k: float(v) for k, v in trajectory.facts.items()},
    'starts': list(trajectory.starts),
    'sandbox_level': trajectory.sandbox_level,
    'seconds': trajectory.seconds,
  }
  buffer = io.BytesIO()
  np.savez(
    buffer,
    fields=np.frombuffer(json.dumps(fields).encode(), np.uint8),
    token_T=trajectory.token_T,
    sampled_T=trajectory.sampled_T,
    logprob_T=trajectory.logprob_T,
    version_T=trajectory.version_T,
    route_TLX=trajectory.route_TLX,
  )
  return buffer.getvalue()


def decode(record: bytes) -> nouns.Trajectory:
  """The trajectory that `encode` was given."""
  with _PARSING, np.load(io.BytesIO(record), allow_pickle=False) as archive:
    fields = json.loads(archive['fields'].tobytes())
    token_T, sampled_T, logprob_T, version_T, route_TLX = (
      archive[name] for name in _ARRAYS
    )
  return nouns.Trajectory(
    task_id=fields['task_id'],
    group=fields['group'],
    member=fields['member'],
    token_T=token_T,
    sampled_T=sampled_T,
    logprob_T=logprob_T,
    version_T=version_T,
    route_TLX=route_TLX,
    turns=tuple(_turn_from_json(turn) for turn in fields['turns']),
    ending=nouns.Ending(fields['ending']),
    final_files=fields['final_files'],
    rewards=fields['rewards'],
    facts=fields['facts'],
    starts=tuple(fields['starts']),
    sandbox_level=fields['sandbox_level'],
    seconds=fields['seconds'],
  )


def write_step(
  directory: str | pathlib.Path,
  step: int,
  trajectories: Iterable[nouns.Trajectory],
) -> pathlib.Path:
  """Writes one learner step as one file, e.g. `000012.array_record`.

  The file appears under its name when it is complete. A step that is run again
  after a restart replaces its file, so no group is on record twice.
  """
  directory = pathlib.Path(directory)
  directory.mkdir(parents=True, exist_ok=True)
  path = directory / f'{step:06d}{_SUFFIX}'
  temporary = directory / f'.{path.name}.tmp'
  writer = array_record_module.ArrayRecordWriter(str(temporary), 'group_size:1')
  try:
    for trajectory in trajectories:
      writer.write(encode(trajectory))
  finally:
    writer.close()
  os.replace(temporary, path)
  return path


class TrajectorySource:
  """All recorded trajectories, by position: a grain random-access source."""

  def __init__(self, directory: str | pathlib.Path):
    paths = sorted(str(p) for p in pathlib.Path(directory).glob(f'*{_SUFFIX}'))
    if not paths:
      raise ValueError(f'no trajectories are recorded in {directory}')
    self._records = array_record_data_source.ArrayRecordDataSource(paths)

  def __len__(self) -> int:
    return len(self._records)

  def __getitem__(self, index: int) -> nouns.Trajectory:
    return decode(self._records[index])


def _turn_to_json(turn: nouns.Turn) -> dict[str, Any]:
  return {
    'start': turn.start,
    'stop': turn.stop,
    'calls': [
      {
        'id': call.id,
        'name': call.name,
        'arguments': dict(call.arguments),
        'error': call.error,
      }
      for call in turn.calls
    ],
    'results': [
      {**dataclasses.asdict(result), 'status': result.status.value}
      for result in turn.results
    ],
  }


def _turn_from_json(turn: dict[str, Any]) -> nouns.Turn:
  return nouns.Turn(
    start=turn['start'],
    stop=turn['stop'],
    calls=tuple(nouns.ToolCall(**call) for call in turn['calls']),
    results=tuple(
      nouns.ToolResult(**{**result, 'status': nouns.Status(result['status'])})
      for result in turn['results']
    ),
  )
