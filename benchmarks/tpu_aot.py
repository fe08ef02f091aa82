"""Bundles of instructions that the TPU kernels issue, counted without a TPU.

Every kernel is compiled in full for a chip that need not be there (by libtpu,
extra `tpu-aot`), and the scheduled bundles are read from what the compiler
dumps. A core issues one bundle in a cycle when it neither waits for memory nor
for a unit, so that the count is a lower bound of the time. How it is counted:

- Each bundle counts as often as the loops around it run. The outermost loop is
  the grid's; that it runs twice more to fill the pipeline is left out.
- Of two branches on one condition the longer one counts: of a product, a tile
  that belongs to one expert or as many products as the tile has blocks.
- Everything else that may be skipped (a first step's zeros) counts as executed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import functools
import os
import pathlib
import re
import shutil
import tempfile

import jax
from jax.experimental import pallas as pl
from jax.experimental import topologies
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import numpy as np

from composer_jax.pallas_kernels import mx
from composer_jax.pallas_kernels import tpu

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
  """All kernels, on the operands of a product of 4096^3, the plain one first."""
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
    for kernel in kernels():
      if chip in kernel.chips:
        bundles = executed(
          final_bundles(kernel.run, kernel.arguments, chip, kernel.name)
        )
        if kernel.name == PLAIN:
          whole = bundles
        found.append(
          Report(
            chip=chip, name=kernel.name, bundles=bundles, ratio=bundles / whole
          )
        )
  return found


def table(found: list[Report]) -> str:
  """A line for each report, under a heading."""
  lines = [f'{"chip":5}{"kernel":20}{"bundles":>10}  ratio to bf16 4096^3']
  for report in found:
    lines.append(
      f'{report.chip:5}{report.name:20}{report.bundles:10}  {report.ratio:.3f}'
    )
  return '\n'.join(lines)


def final_bundles(
  run: Callable, arguments: tuple, chip: str, name: str
) -> str:
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
  return topologies.get_topology_desc(
    TOPOLOGIES[chip], platform='tpu'
  ).devices


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


@dataclasses.dataclass
class _Loop:
  """A loop while its bundles are read."""

  depth: int
  outer: _Loop | None
  text: str = ''

  def times(self) -> int:
    """How often a bundle in it is executed."""
    tests = re.findall(
      r'scmp\.ge\.s32\.totalorder (%\w+), (\d+) /\* loop exit test', self.text
    )
    if len(tests) != 1:
      raise ValueError(f'a loop with {len(tests)} exit tests cannot be counted')
    counter, limit = tests[0]
    step = re.search(rf'{counter} = sadd\.s32 (\d+), ', self.text)
    if not step:
      raise ValueError(f'the counter {counter} of a loop has no step')
    trips = int(limit) // int(step[1])
    return (trips - 2) if self.outer is None else trips * self.outer.times()


_BUNDLE = re.compile(r'\s*(?:0x[0-9a-f]+|0)\s+(LB|PF|PB|LE|LH|CT)?\s*:([\s>]*){')
_BRANCH = re.compile(r'sbr\.rel \((!?)%(\w+)\) target = \$region(\d+)')


def executed(text: str) -> int:
  """The bundles that a kernel executes, from the text of all of them."""
  loop, loops, lines = None, [], []
  for line in text.splitlines():
    found = _BUNDLE.match(line)
    if found:
      depth = found[2].count('>')
      if not depth and line[found.end() :].startswith('}'):
        depth = loop.depth if loop else 0  # Of an empty bundle none is told.
      is_head = found[1] == 'LB'
      while loop and loop.depth >= depth + (not is_head):
        loop = loop.outer
      if is_head:
        loop = _Loop(depth, loop)
      loops.append(loop)
      lines.append(line)
    elif lines:
      lines[-1] += line  # A comment over several lines.
    if loop:
      loop.text += line + '\n'
  times = {id(loop): loop.times() for loop in loops if loop}
  weights = np.array([times[id(loop)] if loop else 1 for loop in loops])
  return int(weights.sum() - sum(_shorter_branches(lines, weights)))


def _shorter_branches(lines: list[str], weights) -> Iterator[int]:
  """Of each two branches of which one is taken, the bundles of the shorter."""
  skipped = {}
  for i, line in enumerate(lines):
    for negated, predicate, region in _BRANCH.findall(line):
      target = re.compile(rf'Start(?:/End empty)? region {region}\b')
      end = next(
        (j for j in range(i + 1, len(lines)) if target.search(lines[j])), None
      )
      if end is not None:
        skipped.setdefault(predicate, {})[negated] = weights[i + 1 : end].sum()
  for branches in skipped.values():
    if len(branches) == 2:
      yield min(branches.values())
