"""The products as Pallas kernels for TPU: the functions of `xla`.

They have its types and shapes, and its numbers: bit by bit where something is
quantised (an operand's -0 becomes 0), to rounding of float32 elsewhere. Shapes
must be padded: rows of a block to a multiple of 32, the last axis to one of
128, and in a product both axes of a matrix to multiples of 128. What is not is
refused with a ValueError. All take `interpret`, which runs them on a CPU.

Rounding is done in float32 and int32 rather than by casting to float8: operands
then never are float8 at all, and nothing rests on how a chip or its compiler
casts. A v7x casts in hardware and would make elements faster by it.
"""

from __future__ import annotations

from composer_jax.pallas_kernels import tpu_matmul
from composer_jax.pallas_kernels import tpu_quantize
from composer_jax.pallas_kernels import tpu_swiglu

block_rows = 128
columns = 128
quantize = tpu_quantize.quantize
reopen = unpack = tpu_quantize.reopen
operand = tpu_quantize.operand
forward = tpu_matmul.forward
input_grad = tpu_matmul.input_grad
weight_grad = tpu_matmul.weight_grad
swiglu = tpu_swiglu.swiglu
swiglu_grad = tpu_swiglu.swiglu_grad
