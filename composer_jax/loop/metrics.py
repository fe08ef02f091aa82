"""What a run writes down: metrics.jsonl, TensorBoard events, json files."""

from __future__ import annotations

from collections.abc import Mapping
import json
import os
from typing import Any

import tensorboardX

_NAME = 'metrics.jsonl'


class MetricsWriter:
  """One line per learner step or evaluation, and the same as TensorBoard.

  A resumed run drops the lines of steps that will be trained again.
  """

  def __init__(self, workdir: str, *, keep: Mapping[str, int] | None = None):
    """Opens the log.

    Args:
      workdir: where to write.
      keep: for each phase, the last step whose lines are kept; phases that are
        not named keep all.
    """
    self._path = os.path.join(workdir, _NAME)
    if keep is not None and os.path.exists(self._path):
      lines = [
        line
        for line in read(workdir)
        if line['step'] <= keep.get(line['phase'], line['step'])
      ]
      text = ''.join(json.dumps(line) + '\n' for line in lines)
      write_whole(self._path, text)
    self._file = open(self._path, 'a', encoding='utf-8')
    self._board = tensorboardX.SummaryWriter(
      os.path.join(workdir, 'tensorboard'), flush_secs=30
    )

  def write(self, phase: str, step: int, values: Mapping[str, float]) -> None:
    line = {'phase': phase, 'step': step, **values}
    self._file.write(json.dumps(line) + '\n')
    self._file.flush()
    for name, value in values.items():
      self._board.add_scalar(f'{phase}/{name}', value, step)

  def close(self) -> None:
    self._file.close()
    self._board.close()


def read(workdir: str) -> list[dict[str, Any]]:
  """The lines written so far; a last line cut by a crash is left out."""
  with open(os.path.join(workdir, _NAME), encoding='utf-8') as f:
    text = f.read()
  return [json.loads(line) for line in text.split('\n')[:-1] if line]


def write_whole(path: str, text: str) -> None:
  """The file appears with all of `text`, or stays as it was."""
  with open(path + '.tmp', 'w', encoding='utf-8') as f:
    f.write(text)
    f.flush()
    os.fsync(f.fileno())
  os.replace(path + '.tmp', path)


def write_json(path: str, value: Any) -> None:
  write_whole(path, json.dumps(value, indent=2) + '\n')


def read_json(path: str) -> Any | None:
  """The value, or None if the file does not exist."""
  if not os.path.exists(path):
    return None
  with open(path, encoding='utf-8') as f:
    return json.load(f)
