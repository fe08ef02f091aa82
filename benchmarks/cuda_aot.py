"""What the compiler makes of the GPU kernels; needs no GPU.

pip install -e '.[cuda-aot]'
python -m benchmarks.cuda_aot

Each kernel is compiled in full, by Mosaic GPU or Triton and by ptxas, for the
GPU that it is written for; its registers, spills and shared memory are printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import contextlib
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import NamedTuple

from absl import app
from absl import flags
import jax
from jax.experimental import topologies
import jax.numpy as jnp
import numpy as np

from composer_jax.pallas_kernels import b200
from composer_jax.pallas_kernels import h200

_GPU = flags.DEFINE_enum('gpu', None, ['H200', 'B200'], 'Only for this one.')
_JSON = flags.DEFINE_string('json', None, 'Where to write the reports to.')

IMPLEMENTATIONS = {'H200': h200, 'B200': b200}
ARCHITECTURES = {'H200': 'sm_90a', 'B200': 'sm_100a'}
# Blocks, and axes of the experts' matrices, wide and narrow: where an axis is a
# multiple of 256 the kernels make tiles of 256 columns, else of 128.
_BLOCKS, _EXPERTS = 64, 8
_SIZES = {'': (2048, 1024), ' narrow': (384, 640)}

# What XLA's compiler must know of a GPU (its GpuTargetConfigProto).
_CONFIG = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  threads_per_core_limit: 2048 core_count: {sms} fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth} l2_cache_size: {l2} clock_rate_ghz: {ghz}
  device_memory_size: {memory}
  cuda_compute_capability {{
    major: {major} feature_extension: ACCELERATED_FEATURES
  }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  device_vendor: "NVIDIA Corporation"
  platform_version: "Compute Capability {major}.0a"
  device_address_bits: 64 name: "NVIDIA {name}"
  driver_version: "13.0.0" runtime_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0" dnn_version: "9.10.0"
}}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "NVIDIA {name}"
"""
_CONFIGS = {
  'H200': _CONFIG.format(
    name='H200',
    major=9,
    sms=132,
    bandwidth=4_800_000_000_000,
    l2=52_428_800,
    ghz=1.98,
    memory=151_397_597_184,
  ),
  'B200': _CONFIG.format(
    name='B200',
    major=10,
    sms=148,
    bandwidth=7_672_320_000_000,
    l2=132_644_864,
    ghz=1.965,
    memory=191_514_411_008,
  ),
}


class Report(NamedTuple):
  """One kernel as compiled."""

  gpu: str
  name: str
  registers: int  # Per thread.
  spilled: int  # Bytes per thread, stored and loaded.
  shared_memory: int  # Bytes per thread block.
  ptx: str
  said: str  # By ptxas.


def kernels(gpu: str) -> Iterator[tuple[str, Callable, tuple]]:
  """(name, function, shapes of its arguments) of each kernel for the GPU."""
  made_by = IMPLEMENTATIONS[gpu]
  operand = lambda x, axis: jax.eval_shape(
    lambda x: made_by.operand(x, axis, interpret=True), x
  )
  kept = lambda x: jax.eval_shape(
    lambda x: made_by.swiglu(x, x, interpret=True).gate_BMF, x
  )
  expert_of_block = jax.ShapeDtypeStruct((_BLOCKS,), jnp.int32)
  for size, (k, n) in _SIZES.items():
    x_BMK, grad_BMN, w_EKN = (
      jax.ShapeDtypeStruct(shape, jnp.float32)
      for shape in ((_BLOCKS, 128, k), (_BLOCKS, 128, n), (_EXPERTS, k, n))
    )
    yield (
      f'forward{size}',
      made_by.forward,
      (operand(x_BMK, 2), operand(w_EKN, 1), expert_of_block),
    )
    yield (
      f'input_grad{size}',
      made_by.input_grad,
      (operand(grad_BMN, 2), operand(w_EKN, 2), expert_of_block),
    )
    yield (
      f'weight_grad{size}',
      lambda x, grad, block: made_by.weight_grad(x, grad, block, _EXPERTS),
      (operand(x_BMK, 1), operand(grad_BMN, 1), expert_of_block),
    )
  for axis in (1, 2):
    yield (
      f'quantize along {axis}',
      lambda x, axis=axis: made_by.quantize(x, axis),
      (x_BMK,),
    )
    yield (
      f'operand along {axis}',
      lambda x, axis=axis: made_by.operand(x, axis),
      (x_BMK,),
    )
  yield 'swiglu', made_by.swiglu, (x_BMK, x_BMK)
  yield 'swiglu_grad', made_by.swiglu_grad, (x_BMK, kept(x_BMK), kept(x_BMK))


def compile_kernel(
  gpu: str, name: str, function: Callable, shapes: Sequence
) -> Report:
  """Compiles a function of one kernel, and asks ptxas about it.

  Raises:
    ValueError: there is not exactly one kernel in it.
  """
  topology = topologies.get_topology_desc(
    platform='cuda',
    topology_name='gpu',
    target_config=_CONFIGS[gpu],
    topology='1x1x1',  # Slices, hosts, GPUs per host.
  )
  mesh = jax.sharding.Mesh(np.array(topology.devices), ('gpu',))
  whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  with tempfile.TemporaryDirectory() as directory:
    with jax.set_mesh(mesh), _mosaic_dumps_to(directory):
      traced = jax.jit(function, in_shardings=whole).trace(*shapes)
      traced.lower(lowering_platforms=('cuda',)).compile(
        compiler_options={'xla_dump_to': directory}
      )
    return _report(gpu, name, pathlib.Path(directory))


@contextlib.contextmanager
def _mosaic_dumps_to(directory: str):
  os.environ['MOSAIC_GPU_DUMP_TO'] = directory
  try:
    yield
  finally:
    del os.environ['MOSAIC_GPU_DUMP_TO']


def _report(gpu: str, name: str, directory: pathlib.Path) -> Report:
  # What XLA adds, such as the bounds of experts' blocks, is no kernel of ours.
  mosaic = list(directory.glob('mx_*.ptx'))
  if mosaic:
    passes = next(directory.glob('mx_*.mlir-passes.log')).read_text()
    shared = re.findall(r'dynamic_shared_memory_size %c(\d+)_i32', passes)
    files = mosaic
  else:
    files = [
      path for path in directory.glob('*.ptx') if '.entry' in path.read_text()
    ]
    (thunks,) = directory.glob('*thunk_sequence.txt')
    shared = re.findall(r'shared_memory: (\d+) bytes', thunks.read_text())
  if len(files) != 1 or not shared:
    raise ValueError(f'{name}: {len(files)} kernels, shared memory {shared}')
  said = _ptxas(files[0], ARCHITECTURES[gpu])
  spilled = re.findall(r'(\d+) bytes spill', said)
  return Report(
    gpu,
    name,
    registers=max(map(int, re.findall(r'Used (\d+) registers', said))),
    spilled=sum(map(int, spilled)),
    shared_memory=max(map(int, shared)),
    ptx=files[0].read_text(),
    said=said,
  )


def _ptxas(path: pathlib.Path, architecture: str) -> str:
  (nvidia,) = importlib.util.find_spec('nvidia').submodule_search_locations
  (ptxas,) = pathlib.Path(nvidia).glob('*/bin/ptxas')
  command = [ptxas, '--verbose', f'--gpu-name={architecture}', path]
  done = subprocess.run(
    [*command, '--output-file', os.devnull],
    capture_output=True,
    text=True,
    check=True,
  )
  return done.stderr


def table(reports: Sequence[Report]) -> str:
  """One line per kernel."""
  lines = ['GPU   kernel              registers  spilled  shared memory']
  for r in reports:
    lines.append(
      f'{r.gpu:5} {r.name:19} {r.registers:9}  {r.spilled:7}'
      f'  {r.shared_memory:13,}'
    )
  return '\n'.join(lines)


def reports() -> list[Report]:
  """Compiles every kernel for its GPU.

  Each GPU has a process of its own: Mosaic GPU asks once per process what to
  compile for.
  """
  found = []
  for gpu in _CONFIGS:
    with tempfile.NamedTemporaryFile(suffix='.json') as file:
      subprocess.run(
        [
          *(sys.executable, '-m', 'benchmarks.cuda_aot'),
          *(f'--gpu={gpu}', f'--json={file.name}'),
        ],
        check=True,
        env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
      )
      found += [Report(*fields) for fields in json.load(file)]
  return found


def main(argv: Sequence[str]) -> None:
  del argv
  if _GPU.value is None:
    print(table(reports()))
    return
  found = [compile_kernel(_GPU.value, *case) for case in kernels(_GPU.value)]
  if _JSON.value is None:
    print(table(found))
  else:
    pathlib.Path(_JSON.value).write_text(json.dumps(found))


if __name__ == '__main__':
  app.run(main)
