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


class Form(NamedTuple):
  """A way to write a quantised tensor (matrices, rows, columns)."""

  shape: Callable  # (shape, axis) -> pytree of ShapeDtypeStruct
  blocks: Callable  # (tile, axis) -> BlockSpecs of the same structure
  write: Callable  # (refs, numbers of a tile in float32, axis)


class Output(NamedTuple):
  """What becomes of one result of a kernel."""

  form: Form
  axis: int  # Of blocks of 32, 1 or 2.


def quantize(x_XRC, axis: int, *, interpret=False) -> mx.Quantized:
  """`mx.quantize` of three axes along one of the last two."""
  (quantized,) = run(_itself, (x_XRC,), (Output(BLOCKS, axis),), interpret)
  return quantized


def operand(x_XRC, axis: int, *, interpret=False) -> jax.Array:
  """Quantised and back in one pass: what the Hopper products take."""
  (wide,) = run(_itself, (x_XRC,), (Output(WIDE, axis),), interpret)
  return wide


def packed(x_XRC, axis: int, *, interpret=False) -> gpu_blackwell.Operand:
  """Elements and packed scales: what the Blackwell products take."""
  (result,) = run(_itself, (x_XRC,), (Output(PACKED, axis),), interpret)
  return result


def run(
  compute: Callable,
  inputs: Sequence[jax.Array | mx.Quantized],
  outputs: Sequence[Output],
  interpret=False,
) -> tuple:
  """Quantises what `compute` makes of the inputs, tile by tile.

  Args:
    compute: takes a float32 tile of each input, returns one for each output.
    inputs: tensors of one shape (matrices, rows, columns); where they are
      quantised it is along the columns, and they are dequantised on the way.
    outputs: the form of each result and the axis of its blocks.
    interpret: runs the kernel without a GPU.

  Returns:
    The results in their forms.

  Raises:
    ValueError: an axis is no multiple of 32, or of 128 for the packed form.
  """
  shape = jax.tree.leaves(inputs[0])[0].shape
  tile = _tile(shape, outputs)
  warps = max(1, min(16, math.prod(tile) // _PER_WARP))
  return pl.pallas_call(
    functools.partial(_kernel, compute, inputs, outputs),
    grid=(shape[0], shape[1] // tile[0], shape[2] // tile[1]),
    in_specs=[_read_blocks(x, tile) for x in inputs],
    out_specs=tuple(o.form.blocks(tile, o.axis) for o in outputs),
    out_shape=tuple(o.form.shape(shape, o.axis) for o in outputs),
    compiler_params=triton.CompilerParams(num_warps=warps),
    interpret=interpret,
    name=compute.__name__.strip('_'),
  )(*inputs)


def _itself(x):
  return (x,)


def _kernel(compute, inputs, outputs, *refs):
  read = [_read(ref) for ref in refs[: len(inputs)]]
  results = compute(*read)
  for result, output, written in zip(
    results, outputs, refs[len(inputs) :], strict=True
  ):
    output.form.write(written, result, output.axis)


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


def _tile(shape, outputs: Sequence[Output]) -> tuple[int, int]:
  """Rows and columns that one program works on, powers of two."""
  for output in outputs:
    multiple = gpu_tiles.ROWS if output.form is PACKED else mx.BLOCK
    sizes = shape[1:] if output.form is PACKED else (shape[output.axis],)
    if any(size % multiple for size in sizes):
      raise ValueError(
        f'axis {output.axis} of shape {shape} cannot be quantised in tiles of'
        f' {multiple}: pad with zeros to multiples of it'
      )
  if any(output.form is PACKED for output in outputs):
    return _PACKED_TILE
  rows, columns = (
    math.gcd(size, most) for size, most in zip(shape[1:], _TILE, strict=True)
  )
  return rows, columns
