"""Which code computes a precision: an explicit choice, said aloud."""

from __future__ import annotations

import functools
from typing import Any

from absl import logging
import jax

from composer_jax.pallas_kernels import plain
from composer_jax.pallas_kernels import xla

PRECISIONS = ('float32', 'bfloat16', 'mxfp8')
IMPLEMENTATIONS = ('auto', 'xla')


def check(precision: str, implementation: str) -> None:
  """Refuses names that are none, with a ValueError."""
  for name, value, known in (
    ('precision', precision, PRECISIONS),
    ('implementation', implementation, IMPLEMENTATIONS),
  ):
    if value not in known:
      raise ValueError(f'{name}={value!r} must be one of {", ".join(known)}')


def choose(precision: str, implementation: str = 'auto') -> Any:
  """The module with the functions of xla.py.

  Args:
    precision: of PRECISIONS.
    implementation: of IMPLEMENTATIONS; `auto` takes what is right for the
      machine, and says so once.

  Raises:
    ValueError: an unknown name, or what this machine cannot run.
  """
  check(precision, implementation)
  if implementation == 'auto':
    implementation = _automatic(precision)
  return {
    'float32': plain.FLOAT32,
    'bfloat16': plain.BFLOAT16,
    'mxfp8': xla,
  }[precision]


@functools.cache
def _automatic(precision: str) -> str:
  """Logged once for each precision."""
  chosen = 'xla'
  logging.info(
    'Products in %s: implementation %s (of %s), on %s.',
    precision,
    chosen,
    ', '.join(IMPLEMENTATIONS[1:]),
    jax.default_backend(),
  )
  return chosen
