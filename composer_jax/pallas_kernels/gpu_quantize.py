"""Quantisation on GPUs, fused with what computes the numbers (Triton).

One kernel reads tiles, computes others from them and writes these quantised, in
any of several forms and along either axis, without the float32 numbers going
through memory. The arithmetic is that of `mx`, whose functions run in the
kernel. Triton does not flush denormals, so these count for what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import math
from typing import NamedTuple

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
import jax.numpy as jnp

from composer_jax.pallas_kernels import gpu_blackwell
from composer_jax.pallas_kernels import gpu_tiles
from composer_jax.pallas_kernels import mx

_TILE = (32, 128)  # Rows and columns at most.
_PACKED_TILE = (gpu_tiles.ROWS, gpu_tiles.ROWS)
_PER_WARP = 1024  # Numbers of a tile.
_MOST_WARPS = 16


class Form(NamedTuple):
  """A way to write a quantised tensor (matrices, rows, columns)."""

  shape: Callable  # (shape, axis) -> pytree of ShapeDtypeStruct
  blocks: Callable  # (tile, axis) -> BlockSpecs of the same structure
  write: Callable  # (refs, numbers of a tile in float32, axis)


class Result(NamedTuple):
  """What a kernel computes, and the forms in which it writes it."""

  compute: Callable  # float32 tiles of the inputs -> one of the result
  forms: tuple[tuple[Form, int], ...]  # With the axis of the blocks, 1 or 2.


def quantize(x_XRC, axis: int, *, interpret=False) -> mx.Quantized:
  """`mx.quantize` of three axes along one of the last two."""
  return _one(x_XRC, BLOCKS, axis, 'mx_quantize', interpret)


def operand(x_XRC, axis: int, *, interpret=False) -> jax.Array:
  """Quantised and back in one pass: what the Hopper products take."""
  return _one(x_XRC, WIDE, axis, 'mx_operand', interpret)


def packed(x_XRC, axis: int, *, interpret=False) -> gpu_blackwell.Operand:
  """Elements and packed scales: what the Blackwell products take."""
  return _one(x_XRC, PACKED, axis, 'mx_operand', interpret)


def _one(x_XRC, form: Form, axis: int, name: str, interpret):
  result = Result(lambda x: x, ((form, axis),))
  ((written,),) = run((x_XRC,), (result,), name=name, interpret=interpret)
  return written


def run(
  inputs: Sequence[jax.Array | mx.Quantized],
  results: Sequence[Result],
  *,
  name: str,
  interpret=False,
) -> tuple:
  """Quantises results that are computed from the inputs element by element.

  Args:
    inputs: tensors of one shape (matrices, rows, columns); where they are
      quantised it is along the columns, and they are dequantised on the way.
    results: in the order in which they are computed; each reads its inputs
      again, from the cache, so that few registers are occupied.
    name: of the kernel.
    interpret: runs the kernel without a GPU.

  Returns:
    For each result its forms.

  Raises:
    ValueError: an axis is no multiple of 32, or of 128 for the packed form.
  """
  shape = jax.tree.leaves(inputs[0])[0].shape
  forms = [form for result in results for form in result.forms]
  tile = _tile(shape, forms)
  return pl.pallas_call(
    functools.partial(_kernel, len(inputs), results),
    grid=(shape[0], shape[1] // tile[0], shape[2] // tile[1]),
    in_specs=[_read_blocks(x, tile) for x in inputs],
    out_specs=tuple(
      tuple(form.blocks(tile, axis) for form, axis in result.forms)
      for result in results
    ),
    out_shape=tuple(
      tuple(form.shape(shape, axis) for form, axis in result.forms)
      for result in results
    ),
    compiler_params=triton.CompilerParams(
      num_warps=max(1, min(_MOST_WARPS, math.prod(tile) // _PER_WARP))
    ),
    interpret=interpret,
    name=name,
  )(*inputs)


def _kernel(count: int, results, *refs):
  inputs, outputs = refs[:count], refs[count:]
  for result, written in zip(results, outputs, strict=True):
    x = result.compute(*map(_read, inputs))
    for (form, axis), ref in zip(result.forms, written, strict=True):
      form.write(ref, x, axis)


def _read(ref):
  """A tile in float32."""
  if isinstance(ref, mx.Quantized):
    return mx.dequantize(ref.elements[...], ref.scales[...], 1)
  return ref[...].astype(jnp.float32)


def _read_blocks(x, tile):
  if isinstance(x, mx.Quantized):
    return _blocks_of_blocks(tile, 2)
  return _block(tile)


def _block(tile) -> pl.BlockSpec:
  return pl.BlockSpec((None, *tile), lambda matrix, i, j: (matrix, i, j))


def _blocks_of_blocks(tile, axis: int) -> mx.Quantized:
  return mx.Quantized(_block(tile), _block(_shorter(tile, axis - 1)))


def _shorter(shape, axis: int) -> tuple[int, ...]:
  """The shape of scales."""
  return tuple(
    size // mx.BLOCK if i == axis else size for i, size in enumerate(shape)
  )


def _shape_of_blocks(shape, axis: int) -> mx.Quantized:
  return mx.Quantized(
    jax.ShapeDtypeStruct(shape, jnp.float8_e4m3fn),
    jax.ShapeDtypeStruct(_shorter(shape, axis), jnp.uint8),
  )


def _write_blocks(refs, x, axis: int) -> None:
  quantized = mx.quantize(x, axis - 1)
  refs.elements[...] = quantized.elements
  refs.scales[...] = quantized.scales


def _write_wide(ref, x, axis: int) -> None:
  wide = mx.dequantize(*mx.quantize(x, axis - 1), axis - 1)
  ref[...] = wide.astype(jnp.bfloat16)


def _shape_of_packed(shape, axis: int) -> gpu_blackwell.Operand:
  others, contracted = shape[1:] if axis == 2 else shape[:0:-1]
  return gpu_blackwell.Operand(
    jax.ShapeDtypeStruct(shape, jnp.float8_e4m3fn),
    jax.ShapeDtypeStruct(
      (shape[0], others // 128, contracted // 128, 32, 16), jnp.uint8
    ),
  )


def _blocks_of_packed(tile, axis: int) -> gpu_blackwell.Operand:
  def place(matrix, i, j):
    return (matrix, i, j, 0, 0) if axis == 2 else (matrix, j, i, 0, 0)

  return gpu_blackwell.Operand(
    _block(tile), pl.BlockSpec((None, None, None, 32, 16), place)
  )


def _write_packed(refs, x, axis: int) -> None:
  quantized = mx.quantize(x, axis - 1)
  refs.elements[...] = quantized.elements
  scales = quantized.scales if axis == 2 else quantized.scales.T
  refs.scales[...] = scales.reshape(4, 32, 4).transpose(1, 0, 2).reshape(32, 16)


WIDE = Form(
  shape=lambda shape, axis: jax.ShapeDtypeStruct(shape, jnp.bfloat16),
  blocks=lambda tile, axis: _block(tile),
  write=_write_wide,
)
BLOCKS = Form(_shape_of_blocks, _blocks_of_blocks, _write_blocks)
PACKED = Form(_shape_of_packed, _blocks_of_packed, _write_packed)


def _tile(shape, forms) -> tuple[int, int]:
  """Rows and columns that one program works on, powers of two."""
  is_packed = any(form is PACKED for form, _ in forms)
  for _, axis in forms:
    multiple = gpu_tiles.ROWS if is_packed else mx.BLOCK
    sizes = shape[1:] if is_packed else (shape[axis],)
    if any(size % multiple for size in sizes):
      raise ValueError(
        f'axis {axis} of shape {shape} cannot be quantised in tiles of'
        f' {multiple}: pad with zeros to multiples of it'
      )
  if is_packed:
    return _PACKED_TILE
  rows, columns = map(math.gcd, shape[1:], _TILE)
  return rows, columns
