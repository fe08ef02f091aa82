"""Which code computes a precision: an explicit choice, said aloud."""

from __future__ import annotations

import functools
from typing import Any

from absl import logging

from composer_jax.pallas_kernels import b200
from composer_jax.pallas_kernels import h200
from composer_jax.pallas_kernels import plain
from composer_jax.pallas_kernels import targets
from composer_jax.pallas_kernels import tpu
from composer_jax.pallas_kernels import xla

PRECISIONS = ('float32', 'bfloat16', 'mxfp8')
# Kernels, the machine that they need, and the precisions that they have.
_KERNELS = {
  'tpu': (tpu, targets.TPU, ('bfloat16', 'mxfp8')),
  'h200': (h200, targets.H200, ('bfloat16', 'mxfp8')),
  'b200': (b200, targets.B200, ('mxfp8',)),
}
IMPLEMENTATIONS = ('auto', 'xla', *_KERNELS)


def check(precision: str, implementation: str) -> None:
  """Refuses names that are none, with a ValueError."""
  for name, value, known in (
    ('precision', precision, PRECISIONS),
    ('implementation', implementation, IMPLEMENTATIONS),
  ):
    if value not in known:
      raise ValueError(f'{name}={value!r} must be one of {", ".join(known)}')


def resolve(precision: str, implementation: str = 'auto') -> str:
  """The name of what is taken here.

  Args:
    precision: of PRECISIONS.
    implementation: of IMPLEMENTATIONS; `auto` takes the kernels for this
      machine, or else `xla`, and says so once.

  Raises:
    ValueError: an unknown name, a precision that the implementation has not, or
      one that cannot run here. Nothing is replaced by something else.
  """
  check(precision, implementation)
  if implementation == 'auto':
    return _automatic(precision, targets.device_kind())
  if implementation == 'xla':
    return implementation
  _, target, precisions = _KERNELS[implementation]
  if precision not in precisions:
    raise ValueError(
      f'implementation={implementation} has no {precision}: take one of'
      f' {", ".join(precisions)}, or implementation=xla'
    )
  if not targets.is_here(target):
    raise ValueError(
      f'implementation={implementation} needs a {target.name}, and the device'
      f' here is {targets.device_kind()!r}: take implementation=auto'
    )
  return implementation


def choose(precision: str, implementation: str = 'auto') -> Any:
  """The module with the functions of xla.py, or an object that has them.

  Args and errors are those of `resolve`.
  """
  name = resolve(precision, implementation)
  if name == 'xla':
    return _XLA[precision]
  module = _KERNELS[name][0]
  return module if precision == 'mxfp8' else plain.Plain(precision, module)


_XLA = {
  'float32': plain.FLOAT32,
  'bfloat16': plain.BFLOAT16,
  'mxfp8': xla,
}


@functools.cache
def _automatic(precision: str, device: str) -> str:
  """Logged once for each precision and kind of device."""
  chosen = 'xla'
  for name, (_, target, precisions) in _KERNELS.items():
    if precision in precisions and any(kind in device for kind in target.kinds):
      chosen = name
  logging.info(
    'Products in %s on %s: implementation=%s', precision, device, chosen
  )
  return chosen
