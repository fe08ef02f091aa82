"""Verifies the kernels on a TPU or GPU, and measures them.

python -m benchmarks.verify

Every run draws new numbers. The results are compared with the same products in
plain XLA, and are written over NaN, so that what a kernel leaves out is seen.
Speeds stand beside a bfloat16 product and a copy of the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import statistics
import time
from typing import NamedTuple

from absl import app
from absl import flags
import jax
import jax.numpy as jnp
import numpy as np

from composer_jax.pallas_kernels import implementations
from composer_jax.pallas_kernels import xla

_SEED = flags.DEFINE_integer(
  'inputs_seed', None, 'Repeats the inputs of a run; drawn by default.'
)
_TOLERANCE = 1e-2  # Of the norm of what is right.
_CALLS, _REPEATS = 10, 7


class Size(NamedTuple):
  """Blocks of 128 rows, and the experts' matrices."""

  blocks: int = 256
  experts: int = 16
  k: int = 4096
  f: int = 2048


class Inputs(NamedTuple):
  """Random numbers; the last expert but one is idle."""

  x_BMK: jax.Array
  gate_EKF: jax.Array
  up_EKF: jax.Array
  down_EFK: jax.Array
  grad_BMK: jax.Array  # Of what the experts return.
  expert_of_block: jax.Array


def draw(size: Size, seed: int) -> Inputs:
  """Normal numbers, some rows of which are much larger than others."""
  rng = np.random.default_rng(seed)
  working = np.delete(np.arange(size.experts), -2)

  def numbers(*shape, scale=1.0):
    scales, normal = jax.random.split(jax.random.key(rng.integers(2**31)))
    spread = jax.random.randint(scales, (*shape[:-1], 1), -3, 4)
    return scale * jnp.exp2(spread) * jax.random.normal(normal, shape)

  return Inputs(
    numbers(size.blocks, 128, size.k),
    numbers(size.experts, size.k, size.f, scale=size.k**-0.5),
    numbers(size.experts, size.k, size.f, scale=size.k**-0.5),
    numbers(size.experts, size.f, size.k, scale=size.f**-0.5),
    numbers(size.blocks, 128, size.k),
    jnp.asarray(np.sort(rng.choice(working, size.blocks)), jnp.int32),
  )


def products(implementation, inputs: Inputs) -> dict[str, tuple]:
  """For each product its function and what it takes."""
  operand = jax.jit(implementation.operand, static_argnums=1)
  x, w, grad = inputs.x_BMK, inputs.down_EFK, inputs.grad_BMK
  hidden = x[:, :, : w.shape[1]]
  of_block, experts = inputs.expert_of_block, w.shape[0]
  return {
    'forward': (
      implementation.forward,
      (operand(hidden, 2), operand(w, 1), of_block),
    ),
    'input_grad': (
      implementation.input_grad,
      (operand(grad, 2), operand(w, 2), of_block),
    ),
    'weight_grad': (
      lambda x, grad, of_block: implementation.weight_grad(
        x, grad, of_block, experts
      ),
      (operand(hidden, 1), operand(grad, 1), of_block),
    ),
  }


def layer(implementation, inputs: Inputs) -> dict[str, jax.Array]:
  """A layer of experts forward and backward: uses every function."""
  i, block = implementation, inputs.expert_of_block
  experts = inputs.gate_EKF.shape[0]
  x = i.operand(inputs.x_BMK, 2)
  hidden = i.swiglu(
    *(
      i.forward(x, i.operand(w_EKF, 1), block)
      for w_EKF in (inputs.gate_EKF, inputs.up_EKF)
    )
  )
  y_BMK = i.forward(hidden.operand_BMF, i.operand(inputs.down_EFK, 1), block)
  grads = i.swiglu_grad(
    i.input_grad(
      i.operand(inputs.grad_BMK, 2), i.operand(inputs.down_EFK, 2), block
    ),
    hidden.gate_BMF,
    hidden.up_BMF,
  )
  x_rows = i.reopen(i.quantize(inputs.x_BMK, 1), 1)
  kept, grad_rows = i.reopen(hidden.kept_BMF, 1), i.operand(inputs.grad_BMK, 1)
  return {
    'y': y_BMK,
    'grad of x': i.input_grad(
      grads.gate_BMF, i.operand(inputs.gate_EKF, 2), block
    )
    + i.input_grad(grads.up_BMF, i.operand(inputs.up_EKF, 2), block),
    'grad of gate': i.weight_grad(x_rows, grads.gate_rows_BMF, block, experts),
    'grad of up': i.weight_grad(x_rows, grads.up_rows_BMF, block, experts),
    'grad of down': i.weight_grad(kept, grad_rows, block, experts),
  }


def errors(implementation, inputs: Inputs) -> dict[str, float]:
  """Distances from the results of xla, as shares of their norms."""
  found = {}
  right = products(xla, inputs)
  for name, (function, args) in products(implementation, inputs).items():
    expected = jax.jit(right[name][0])(*right[name][1])
    found[name] = _error(over_nan(function, args), expected)
  actual, expected = (
    jax.jit(lambda inputs, made_by=made_by: layer(made_by, inputs))(inputs)
    for made_by in (implementation, xla)
  )
  return found | {name: _error(actual[name], expected[name]) for name in actual}


def over_nan(function: Callable, args: tuple) -> jax.Array:
  """The function's result, in memory that held NaN before."""
  result = jax.eval_shape(function, *args)
  poison = jnp.full(result.shape, jnp.nan, result.dtype)
  run = jax.jit(
    lambda poison, *args: function(*args), donate_argnums=0, keep_unused=True
  )
  return run(poison, *args)


def _error(actual, expected) -> float:
  return float(jnp.linalg.norm(actual - expected) / jnp.linalg.norm(expected))


def seconds(function: Callable, args: tuple) -> float:
  """Of a call, the median of several series of calls."""
  run = jax.jit(function)
  jax.block_until_ready(run(*args))  # Compiles.
  found = []
  for _ in range(_REPEATS):
    started = time.perf_counter()
    results = [run(*args) for _ in range(_CALLS)]
    jax.block_until_ready(results)
    found.append((time.perf_counter() - started) / _CALLS)
  return statistics.median(found)


def speeds(implementation, inputs: Inputs) -> dict[str, str]:
  """TFLOP/s of the products, GB/s read and written of what quantises."""
  blocks, rows, k = inputs.x_BMK.shape
  f = inputs.gate_EKF.shape[2]
  operations = 2 * blocks * rows * k * f / 1e12
  a_MF = inputs.x_BMK[:, :, :f].reshape(-1, f).astype(jnp.bfloat16)
  b_FK = inputs.down_EFK[0].astype(jnp.bfloat16)
  timed = {'bfloat16 matmul': (jnp.matmul, (a_MF, b_FK))}
  timed |= products(implementation, inputs)
  found = {
    name: f'{operations / seconds(*case):.0f} TFLOP/s'
    for name, case in timed.items()
  }
  x = inputs.x_BMK
  for name, function in {
    'copy': lambda x: -x,
    'operand along 1': lambda x: implementation.operand(x, 1),
    'operand along 2': lambda x: implementation.operand(x, 2),
    'swiglu': lambda x: implementation.swiglu(x, x),
  }.items():
    made = jax.tree.leaves(jax.eval_shape(function, x))
    moved = x.nbytes + sum(leaf.size * leaf.dtype.itemsize for leaf in made)
    found[name] = f'{moved / seconds(function, (x,)) / 1e9:.0f} GB/s'
  return found


def main(argv: Sequence[str]) -> None:
  del argv
  kind = jax.devices()[0].device_kind
  kernels = implementations.choose('mxfp8')
  if kernels is xla:
    raise app.UsageError(f'there are no kernels for {kind}: use a TPU or GPU')
  seed = time.time_ns() % 2**31 if _SEED.value is None else _SEED.value
  print(f'{kind}, --inputs_seed={seed}, {Size()}')
  inputs = draw(Size(), seed)
  found = errors(kernels, inputs)
  for name, error in found.items():
    print(f'{name}: differs by {error:.1e}')
  wrong = [name for name, error in found.items() if not error < _TOLERANCE]
  if wrong:
    raise SystemExit(f'not verified: {", ".join(wrong)}')
  for name, speed in speeds(kernels, inputs).items():
    print(f'{name}: {speed}')


if __name__ == '__main__':
  app.run(main)
