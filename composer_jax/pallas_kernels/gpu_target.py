"""Which GPUs the kernels are written for."""

from __future__ import annotations

from typing import NamedTuple

import jax


class Target(NamedTuple):
  """A GPU that kernels are compiled for."""

  name: str
  kinds: tuple[str, ...]  # Parts of the device kinds that run its kernels.
  sms: int  # Streaming multiprocessors: thread blocks of a persistent kernel.


H200 = Target('H200 (sm_90a)', ('H200', 'H100'), 132)
B200 = Target('B200 (sm_100a)', ('B200',), 148)


def require(target: Target, interpret=False) -> None:
  """Raises RuntimeError where the target's kernels cannot run.

  That is decided by the mesh in force, which may be one to compile for, and
  without one by the default device.
  """
  if interpret:
    return
  device = jax.sharding.get_abstract_mesh().abstract_device
  kind = jax.devices()[0].device_kind if device is None else device.device_kind
  if not any(known in kind for known in target.kinds):
    raise RuntimeError(
      f'these kernels are for {target.name} and the device is {kind!r}: choose'
      ' the implementation for it (xla runs anywhere), or interpret=True'
    )
