"""Sizes of the model."""

import dataclasses

from composer_jax.pallas_kernels import implementations

DISPATCHES = ('dense', 'blocks')


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
  """A decoder-only mixture of experts; see trajectory.py for the letters."""

  vocab_size: int = 1024  # V
  width: int = 128  # D
  layers: int = 2  # L
  query_heads: int = 4  # H
  kv_heads: int = 2  # K
  head_width: int = 32  # C
  copy_width: int = 64  # Of the head that finds what to copy.
  experts: int = 8  # E
  experts_per_token: int = 2  # X
  expert_width: int = 128  # F
  rope_base: float = 10_000.0
  block_rows: int = 128  # Rows that share one expert's weights in 'blocks'.
  precision: str = 'float32'  # Of the products of experts and projections.
  implementation: str = 'auto'  # Of these products.

  def __post_init__(self):
    if self.query_heads % self.kv_heads:
      raise ValueError(
        f'{self.query_heads} query heads do not divide over'
        f' {self.kv_heads} key-value heads'
      )
    if not 1 <= self.experts_per_token <= self.experts:
      raise ValueError(
        f'experts_per_token={self.experts_per_token} must lie in'
        f' [1, experts={self.experts}]'
      )
    if self.experts > 128:
      raise ValueError(f'experts={self.experts}: routes are int8, at most 128')
    if self.head_width % 2:
      raise ValueError(f'head_width={self.head_width} must be even (RoPE)')
    implementations.check(self.precision, self.implementation)

  @property
  def route_shape(self) -> tuple[int, int]:
    """(L, X): the experts chosen for one token."""
    return self.layers, self.experts_per_token
