"""Shipping: the learner publishes parameters, samplers pick them up.

The only way that weights travel. A reader sees finished versions only, verifies
every digest, and falls back to the last whole version when the newest is
damaged. Deltas between versions are left out.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from composer_jax import trajectory
from composer_jax.checkpoint import leaves
from composer_jax.checkpoint import snapshot


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loaded:
  """The newest whole version, if any, and the damaged ones passed over."""

  weights: trajectory.Weights | None
  refused: tuple[str, ...]


class Publisher:
  """The one writer of a directory of weights; keeps the last `keep`."""

  def __init__(self, directory: str | pathlib.Path, keep: int = 3):
    if keep < 1:
      raise ValueError(f'at least one version must be kept, got keep={keep}')
    self._directory = pathlib.Path(directory)
    self._keep = keep

  def publish(self, version: int, params: Any) -> trajectory.Weights:
    """Makes `params` the latest version; returns them with their digest.

    Raises:
      ValueError: the version is not above all published ones (see `rewind`).
    """
    digest = snapshot.write(
      self._directory,
      version,
      leaves.flatten(params),
      metadata={},
      keep=self._keep,
    )
    return trajectory.Weights(version=version, params=params, digest=digest)

  def rewind(self, version: int) -> None:
    """Forgets every version from `version` on, for a restart from there."""
    snapshot.forget(self._directory, version)


def latest(directory: str | pathlib.Path) -> int | None:
  """The latest version, unverified; None before the first. Cheap to poll."""
  return snapshot.latest(pathlib.Path(directory))


def load(
  directory: str | pathlib.Path, version: int, like: Any
) -> trajectory.Weights:
  """One version, verified, as a tree like `like` (see `leaves.unflatten`).

  Raises:
    FileNotFoundError: that version is not there, or was pruned.
    snapshot.DamagedError: it is not what was published.
    ValueError: it was published from a tree of another structure.
  """
  return _weights(snapshot.read(pathlib.Path(directory), version), like)


def load_latest(directory: str | pathlib.Path, like: Any) -> Loaded:
  """The newest whole version, and the reasons why newer ones were refused."""
  found, refused = snapshot.read_latest(pathlib.Path(directory))
  return Loaded(
    weights=_weights(found, like) if found else None, refused=refused
  )


def _weights(found: snapshot.Snapshot, like: Any) -> trajectory.Weights:
  return trajectory.Weights(
    version=found.number,
    params=leaves.unflatten(like, found.arrays),
    digest=found.digest,
  )
