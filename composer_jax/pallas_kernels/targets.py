"""Which machines the kernels are written for."""

from __future__ import annotations

from typing import NamedTuple

import jax


class Target(NamedTuple):
  """A kind of device that kernels are compiled for."""

  name: str
  kinds: tuple[str, ...]  # Parts of the device kinds that run its kernels.
  sms: int = 0  # Streaming multiprocessors of a GPU: blocks of a kernel.


TPU = Target('TPU', ('TPU',))
H200 = Target('H200 (sm_90a)', ('H200', 'H100'), 132)
B200 = Target('B200 (sm_100a)', ('B200',), 148)


def is_here(target: Target) -> bool:
  """Whether the target's kernels can run.

  That is decided by the mesh in force, which may be one to compile for, and
  without one by the first device.
  """
  return any(kind in device_kind() for kind in target.kinds)


def device_kind() -> str:
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.devices()[0].device_kind if device is None else device.device_kind


def require(target: Target, interpret=False) -> None:
  """Raises RuntimeError where the target's kernels cannot run."""
  if not interpret and not is_here(target):
    raise RuntimeError(
      f'these kernels are for {target.name} and the device is'
      f' {device_kind()!r}: choose the implementation for it (xla runs'
      ' anywhere), or interpret=True'
    )
