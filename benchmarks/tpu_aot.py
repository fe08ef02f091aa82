"""Bundles of instructions that the TPU kernels issue, counted without a TPU.

JAX_PLATFORMS=cpu python -m benchmarks.tpu_aot

Every kernel is compiled in full for a chip that need not be there (by libtpu,
extra `tpu-aot`), and the scheduled bundles are read from what the compiler
dumps. A core issues one bundle in a cycle when it neither waits for memory nor
for a unit, so that the count bounds the time from below: on v5e a product of
4096^3 keeps the matrix units busy for 1,048,576 cycles, with fewer bundles. How
it is counted:

- Each bundle counts as often as the loops around it run. The outermost loop is
  the grid's; that it runs twice more to fill the pipeline is left out.
- Of two branches on one condition one counts: of a product's, that of a tile
  which belongs to one expert, or (`mixed`) that of one with several, a product
  for each of its blocks.
- Everything else that may be skipped (a first step's zeros) counts as executed.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Sequence
import contextlib
import dataclasses
import functools
import os
import pathlib
import re
import shutil
import tempfile
from typing import NamedTuple

from absl import app
import jax
from jax.experimental import pallas as pl
from jax.experimental import topologies
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import numpy as np

from composer_jax.pallas_kernels import mx
from composer_jax.pallas_kernels import tpu
from composer_jax.pallas_kernels import tpu_coarse_fp8

TOPOLOGIES = {'v5e': 'v5e:2x2', 'v6e': 'v6e:2x2', 'v7x': 'tpu7x:2x2x1'}
PLAIN = 'plain_bf16'
_SIZE = 4096  # Of each axis of the products.
_BLOCK_M = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
  """A kernel by the name that it has in the compiler's dump."""

  name: str
  run: Callable
  arguments: tuple
  chips: tuple[str, ...] = tuple(TOPOLOGIES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
  """What one kernel costs on one chip."""

  chip: str
  name: str
  bundles: int  # Executed.
  ratio: float  # To those of a plain bfloat16 product of 4096^3.


def kernels() -> Iterator[Kernel]:
  """All kernels, on operands of a product of 4096^3; the plain one first."""
  blocks = _SIZE // _BLOCK_M
  shape_BMK = blocks, _BLOCK_M, _SIZE
  bfloat16 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
  elements = jax.ShapeDtypeStruct(shape_BMK, jnp.float8_e4m3fn)
  along_F = jax.ShapeDtypeStruct(
    (blocks, _BLOCK_M, _SIZE // mx.BLOCK), jnp.uint8
  )
  kept = mx.Quantized(elements, along_F)
  x, matrix = bfloat16(shape_BMK), bfloat16((1, _SIZE, _SIZE))
  square = bfloat16((_SIZE, _SIZE))
  expert_of_block = jax.ShapeDtypeStruct((blocks,), jnp.int32)
  yield Kernel(name=PLAIN, run=plain, arguments=(square, square))
  for axis in (1, 2):
    scales = list(matrix.shape)
    scales[axis] //= mx.BLOCK
    whole = mx.Quantized(
      jax.ShapeDtypeStruct(matrix.shape, jnp.float8_e4m3fn),
      jax.ShapeDtypeStruct(tuple(scales), jnp.uint8),
    )
    for name, given in (
      ('operand', matrix),
      ('quantize', matrix),
      ('reopen', whole),
    ):
      yield Kernel(
        name=f'mx_{name}_{axis}',
        run=functools.partial(_on_axis, getattr(tpu, name), axis),
        arguments=(given,),
      )
  for name, run, given in (
    ('mx_forward', tpu.forward, (x, matrix)),
    ('mx_input_grad', tpu.input_grad, (x, matrix)),
    ('mx_weight_grad', _weight_grad, (x, x)),
  ):
    yield Kernel(name=name, run=run, arguments=(*given, expert_of_block))
  yield Kernel(name='mx_swiglu', run=tpu.swiglu, arguments=(x, x))
  yield Kernel(
    name='mx_swiglu_grad', run=tpu.swiglu_grad, arguments=(x, kept, kept)
  )
  for axis in (0, 1):
    yield Kernel(
      name=f'coarse_quantize_{axis}',
      run=functools.partial(_on_axis, tpu_coarse_fp8.quantize, axis),
      arguments=(square,),
      chips=('v7x',),
    )
  coarse = tuple(
    tpu_coarse_fp8.Coarse(
      jax.ShapeDtypeStruct((_SIZE, _SIZE), jnp.float8_e4m3fn),
      jax.ShapeDtypeStruct(shape, jnp.float32),
    )
    for shape in ((_SIZE, 1), (1, _SIZE))
  )
  yield Kernel(
    name='coarse_forward',
    run=tpu_coarse_fp8.forward,
    arguments=coarse,
    chips=('v7x',),
  )


def _on_axis(run, axis, x):
  return run(x, axis)


def _weight_grad(x_BMK, grad_BMN, expert_of_block):
  return tpu.weight_grad(x_BMK, grad_BMN, expert_of_block, 1)


def plain(x_MK: jax.Array, w_KN: jax.Array) -> jax.Array:
  """A bfloat16 product in tiles of 512 by 512 over all of K."""
  size_M, size_K = x_MK.shape
  size_N = w_KN.shape[1]
  tile = min(512, size_M), min(512, size_N)
  return pl.pallas_call(
    _plain_body,
    grid=(size_M // tile[0], size_N // tile[1]),
    in_specs=[
      pl.BlockSpec((tile[0], size_K), lambda i, j: (i, 0)),
      pl.BlockSpec((size_K, tile[1]), lambda i, j: (0, j)),
    ],
    out_specs=pl.BlockSpec(tile, lambda i, j: (i, j)),
    out_shape=jax.ShapeDtypeStruct((size_M, size_N), jnp.float32),
    compiler_params=pltpu.CompilerParams(vmem_limit_bytes=32 * 2**20),
    name=PLAIN,
  )(x_MK, w_KN)


def _plain_body(x_ref, w_ref, y_ref):
  y_ref[...] = jnp.dot(
    x_ref[...], w_ref[...], preferred_element_type=jnp.float32
  )


def reports(chips: tuple[str, ...] = tuple(TOPOLOGIES)) -> list[Report]:
  """Compiles every kernel for the chips; about a minute each."""
  found = []
  for chip in chips:
    whole = 0
    for kernel in kernels():
      if chip not in kernel.chips:
        continue
      text = final_bundles(kernel.run, kernel.arguments, chip, kernel.name)
      counts = {kernel.name: executed(text)}
      if kernel.run in (tpu.forward, tpu.input_grad, _weight_grad):
        counts[f'{kernel.name}, mixed'] = executed(text, mixed=True)
      whole = counts.get(PLAIN, whole)
      found += [
        Report(chip=chip, name=name, bundles=bundles, ratio=bundles / whole)
        for name, bundles in counts.items()
      ]
  return found


def table(found: list[Report]) -> str:
  """A line for each report, under a heading."""
  lines = [f'{"chip":5}{"kernel":24}{"bundles":>10}  ratio to bf16 4096^3']
  for report in found:
    lines.append(
      f'{report.chip:5}{report.name:24}{report.bundles:10}  {report.ratio:.3f}'
    )
  return '\n'.join(lines)


def final_bundles(run: Callable, arguments: tuple, chip: str, name: str) -> str:
  """The text of a kernel's scheduled bundles.

  Raises:
    ValueError: not exactly one kernel is called so.
  """
  folder, devices = _dump_folder(), _devices(chip)
  mesh = jax.sharding.Mesh(np.array(devices[:1]), ('x',))
  everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  with jax.set_mesh(mesh), _emptied(folder):
    jax.jit(
      run,
      in_shardings=jax.tree.map(lambda _: everywhere, arguments),
      out_shardings=everywhere,
    ).trace(*arguments).lower(lowering_platforms=('tpu',)).compile()
    pattern = re.compile(rf'-{name}(\.\d+)?-\d+-final_bundles\.txt$')
    files = [path for path in folder.iterdir() if pattern.search(path.name)]
    if len(files) != 1:
      raise ValueError(f'{len(files)} kernels called {name} on {chip}, not one')
    return files[0].read_text()


@functools.cache
def _dump_folder() -> pathlib.Path:
  """Where the compiler writes; it reads its flags once, when it is loaded."""
  folder = pathlib.Path(tempfile.mkdtemp(prefix='bundles'))
  atexit.register(shutil.rmtree, folder)
  os.environ['LIBTPU_INIT_ARGS'] = (
    f'--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true'
  )
  # Else it asks the network what machine this is.
  os.environ['TPU_SKIP_MDS_QUERY'] = '1'
  os.environ['TPU_WORKER_HOSTNAMES'] = 'localhost'
  os.environ['TPU_ACCELERATOR_TYPE'] = 'v6e-4'
  return folder


@functools.cache
def _devices(chip: str):
  return topologies.get_topology_desc(TOPOLOGIES[chip], platform='tpu').devices


@contextlib.contextmanager
def _emptied(folder: pathlib.Path):
  """Removes, in the end, what lies in a folder."""
  try:
    yield
  finally:
    for path in folder.iterdir():
      if path.is_dir():
        shutil.rmtree(path)
      else:
        path.unlink()


_BUNDLE = re.compile(
  r'\s*(?:0x[0-9a-f]+|0)\s+(?:LB|PF|PB|LE|LH|CT)?\s*:[\s>]*{'
)
_BRANCH = re.compile(r'sbr\.rel \((!?)%(\w+)\) target = \$region(\d+)')
_DELAY = 4  # Bundles after a branch that are executed before it is taken.


class _Branch(NamedTuple):
  """A branch and where it goes, as numbers of bundles."""

  start: int
  end: int
  predicate: str
  negated: bool


def executed(text: str, mixed: bool = False) -> int:
  """The bundles that a kernel executes, from the text of all of them.

  Args:
    text: as `final_bundles` has it.
    mixed: whether all tiles of a product are of several experts.
  """
  lines = []
  for line in text.splitlines():
    if _BUNDLE.match(line):
      lines.append(line)
    elif lines:
      lines[-1] += line  # A comment over several lines.
  branches = list(_branches(lines))
  times = np.ones(len(lines), np.int64)
  loops = [branch for branch in branches if branch.end <= branch.start]
  for loop in loops:
    is_grid = not any(
      other.end < loop.end and loop.start < other.start for other in loops
    )
    trips = _trips(text, loop.predicate) - 2 * is_grid
    times[loop.end : loop.start + _DELAY + 1] *= trips
  skips = {}
  for branch in branches:
    if branch.end > branch.start:
      skipped = times[branch.start + 1 : branch.end].sum()
      skips.setdefault(branch.predicate, {})[branch.negated] = skipped
  either = [sorted(skip.values()) for skip in skips.values() if len(skip) == 2]
  return int(times.sum() - sum(pair[not mixed] for pair in either))


def _branches(lines: list[str]) -> Iterator[_Branch]:
  starts = {}
  for i, line in enumerate(lines):
    for found in re.findall(r'Start(?:/End empty)? region (\d+)', line):
      starts[found] = i
  for i, line in enumerate(lines):
    for negated, predicate, region in _BRANCH.findall(line):
      yield _Branch(i, starts[region], predicate, bool(negated))


def _trips(text: str, predicate: str) -> int:
  """How often a loop runs that ends when a predicate holds."""
  test = re.search(
    rf'%{predicate} = scmp\.ge\.s32\.totalorder (%\w+), (\d+)', text
  )
  step = test and re.search(rf'{test[1]} = sadd\.s32 (\d+), ', text)
  if not step:
    raise ValueError(f'the loop until {predicate} has no counter to be read')
  return int(test[2]) // int(step[1])


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f'unexpected arguments: {argv[1:]}')
  print(table(reports()))


if __name__ == '__main__':
  app.run(main)
