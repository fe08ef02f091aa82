"""Restart: the whole of a run's state, saved and restored.

A save that is killed half-way leaves the one before it. The last two are kept,
so that one damaged save costs the work since the other, not the run.
"""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any

from composer_jax.checkpoint import leaves
from composer_jax.checkpoint import snapshot

_KEEP = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restored:
  """The newest whole save, and the damaged newer ones passed over."""

  step: int
  tree: Any
  metadata: Mapping[str, Any]
  refused: tuple[str, ...]


def save(
  directory: str | pathlib.Path,
  step: int,
  tree: Any,
  metadata: Mapping[str, Any],
) -> None:
  """Saves a pytree of arrays, typed random keys and Python numbers.

  Args:
    directory: The store; made when missing. One writer at a time.
    step: Must be above every whole save; damaged ones give way.
    tree: Any pytree.
    metadata: Small JSON values, such as the data cursor.

  Raises:
    ValueError: a whole save at or after `step` exists.
  """
  snapshot.write(
    pathlib.Path(directory),
    step,
    leaves.flatten(tree),
    metadata=metadata,
    keep=_KEEP,
  )


def restore(directory: str | pathlib.Path, like: Any) -> Restored | None:
  """The newest whole save as a tree like `like`; None if nothing was saved.

  Raises:
    snapshot.DamagedError: there are saves, and every one is damaged.
    ValueError: it was saved from a tree of another structure.
  """
  found, refused = snapshot.read_latest(pathlib.Path(directory))
  if found is None:
    if refused:
      raise snapshot.DamagedError(
        'no whole save is left: ' + '; '.join(refused)
      )
    return None
  return Restored(
    step=found.number,
    tree=leaves.unflatten(like, found.arrays),
    metadata=found.metadata,
    refused=refused,
  )


def latest(directory: str | pathlib.Path) -> int | None:
  """The step of the newest save, unverified; None if nothing was saved."""
  return snapshot.latest(pathlib.Path(directory))
