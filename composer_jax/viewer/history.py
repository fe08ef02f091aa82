"""Reads what a run left in its directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import json
import os
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class History:
  """The metric lines of one run by phase, each in order of its steps."""

  warm_start: Sequence[Mapping[str, Any]] = ()
  rl: Sequence[Mapping[str, Any]] = ()
  evaluations: Sequence[Mapping[str, Any]] = ()
  torn_lines: int = 0  # Lines that are no JSON object: a writer was killed.


def read_metrics(path: str) -> History:
  """The metric lines of `path`; an absent file is an empty history.

  A run that was resumed logs the steps after its last checkpoint twice: the
  later line of a step counts.
  """
  phases: dict[str, dict[int, Mapping[str, Any]]] = {}
  torn = 0
  if os.path.exists(path):
    with open(path, encoding='utf-8', errors='replace') as lines:
      for line in lines:
        try:
          row = json.loads(line)
          phases.setdefault(row['phase'], {})[int(row['step'])] = row
        except (ValueError, TypeError, KeyError):
          torn += bool(line.strip())
  ordered = {
    phase: tuple(rows[step] for step in sorted(rows))
    for phase, rows in phases.items()
  }
  return History(
    warm_start=ordered.get('warm_start', ()),
    rl=ordered.get('rl', ()),
    evaluations=ordered.get('eval', ()),
    torn_lines=torn,
  )


def series(
  rows: Sequence[Mapping[str, Any]], name: str
) -> tuple[np.ndarray, np.ndarray]:
  """Steps and values of one metric, at the rows that have it."""
  have = [row for row in rows if row.get(name) is not None]
  steps = np.array([row['step'] for row in have], dtype=float)
  return steps, np.array([row[name] for row in have], dtype=float)


def read_json(path: str) -> Mapping[str, Any]:
  """The JSON object in `path`, or an empty one where there is no file."""
  if not os.path.exists(path):
    return {}
  with open(path, encoding='utf-8') as file:
    return json.load(file)
