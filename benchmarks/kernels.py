"""Block-scaled products on this machine beside plain ones and `ragged_dot`.

python -m benchmarks.kernels

One expert layer (SwiGLU), forward and forward with all gradients, in turns, so
that a busy machine slows all of them alike; then what it keeps for its backward
pass. What compilers make of the kernels is in tpu_aot.py and cuda_aot.py, what
an accelerator makes of them in verify.py.
"""

from collections.abc import Callable, Mapping, Sequence
import statistics
import time

from absl import app
import jax
import jax.numpy as jnp
import numpy as np
import tqdm

from composer_jax.model import moe
from composer_jax.pallas_kernels import experts as experts_lib
from composer_jax.pallas_kernels import implementations

_TOKENS, _WIDTH, _HIDDEN, _EXPERTS, _CHOSEN = 2048, 256, 512, 8, 2
_BLOCK_ROWS = 128
_REPEATS = 15
RAGGED = 'ragged_dot'


def draw(seed: int):
  """(x_ND, weights, routing, grad_ND)."""
  rng = np.random.default_rng(seed)

  def normal(*shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)

  x_ND, grad_ND = normal(_TOKENS, _WIDTH), normal(_TOKENS, _WIDTH)
  shapes = [(_EXPERTS, _WIDTH, _HIDDEN)] * 2 + [(_EXPERTS, _HIDDEN, _WIDTH)]
  weights = experts_lib.Weights(
    *(normal(*shape) * shape[1] ** -0.5 for shape in shapes)
  )
  routing = moe.route(
    x_ND, normal(_WIDTH, _EXPERTS), _CHOSEN, mask_N=jnp.ones(_TOKENS)
  )
  return x_ND, weights, routing, grad_ND


def layers() -> dict[str, Callable]:
  """Functions of (x_ND, weights, routing), by name."""

  def in_precision(precision):
    def run(x_ND, weights, routing):
      return moe.experts_blocks(
        x_ND,
        routing,
        weights,
        experts_count=_EXPERTS,
        ops=implementations.choose(precision),
        block_rows=_BLOCK_ROWS,
      )

    return run

  found = {name: in_precision(name) for name in implementations.PRECISIONS}
  return {**found, RAGGED: ragged}


def ragged(x_ND, weights: experts_lib.Weights, routing: moe.Routing):
  """The same layer in float32 on `jax.lax.ragged_dot`."""
  expert_M = routing.expert_NX.reshape(-1)
  order_M = jnp.argsort(expert_M, stable=True)
  token_M = order_M // _CHOSEN
  size_E = jnp.bincount(expert_M, length=_EXPERTS)
  x_MD = x_ND[token_M]
  hidden_MF = jax.nn.silu(jax.lax.ragged_dot(x_MD, weights.gate_EDF, size_E))
  hidden_MF *= jax.lax.ragged_dot(x_MD, weights.up_EDF, size_E)
  y_MD = jax.lax.ragged_dot(hidden_MF, weights.down_EFD, size_E)
  y_MD *= routing.gate_NX.reshape(-1)[order_M][:, None]
  return jnp.zeros_like(x_ND).at[token_M].add(y_MD)


def both_ways(layer: Callable) -> Callable:
  """The layer and all of its gradients."""

  def run(x_ND, weights, routing, grad_ND):
    y_ND, back = jax.vjp(lambda x, w: layer(x, w, routing), x_ND, weights)
    return y_ND, back(grad_ND)

  return run


def milliseconds(calls: Mapping[str, Callable]) -> dict[str, float]:
  """Medians of calls that take turns."""
  for call in calls.values():
    call()  # Compiles.
  found = {name: [] for name in calls}
  for _ in tqdm.trange(_REPEATS, desc='rounds', leave=False):
    for name, call in calls.items():
      start = time.perf_counter()
      call()
      found[name].append(1e3 * (time.perf_counter() - start))
  return {name: statistics.median(times) for name, times in found.items()}


def kept_bytes(layer: Callable, x_ND, weights, routing) -> int:
  """What the backward pass of the layer keeps, weights included."""
  _, back = jax.vjp(lambda x, w: layer(x, w, routing), x_ND, weights)
  leaves = {id(leaf): leaf for leaf in jax.tree.leaves(back)}
  return sum(leaf.nbytes for leaf in leaves.values())


def _timed(function: Callable, arguments: tuple) -> Callable:
  compiled = jax.jit(function)
  return lambda: jax.block_until_ready(compiled(*arguments))


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {argv[1:]}')
  x_ND, weights, routing, grad_ND = draw(0)
  functions = layers()
  forward = milliseconds(
    {
      name: _timed(layer, (x_ND, weights, routing))
      for name, layer in functions.items()
    }
  )
  both = milliseconds(
    {
      name: _timed(both_ways(layer), (x_ND, weights, routing, grad_ND))
      for name, layer in functions.items()
    }
  )
  print(
    f'{_TOKENS} tokens on {_CHOSEN} of {_EXPERTS} experts, width {_WIDTH},'
    f' hidden {_HIDDEN}; milliseconds, and {RAGGED} / it:'
  )
  print(f'{"":<12}{"forward":>16}{"with gradients":>20}')
  for name in functions:
    print(
      f'{name:<12}{forward[name]:8.1f} {forward[RAGGED] / forward[name]:6.2f}x'
      f'{both[name]:12.1f} {both[RAGGED] / both[name]:6.2f}x'
    )
  kept = {
    name: kept_bytes(functions[name], x_ND, weights, routing)
    for name in ('bfloat16', 'mxfp8')
  }
  print(
    'kept for the backward pass: '
    + ', '.join(f'{name} {size / 1e6:.2f} MB' for name, size in kept.items())
    + f', ratio {kept["mxfp8"] / kept["bfloat16"]:.3f}'
  )


if __name__ == '__main__':
  app.run(main)
