"""Batched decoding beside the same engine with a single slot.

python -m benchmarks.sampler
"""

from collections.abc import Sequence
import statistics
import time

from absl import app
import jax
import numpy as np

from composer_jax import trajectory
from composer_jax.model import config as model_config
from composer_jax.model import transformer
from composer_jax.sampler import engine as engine_lib

_SLOTS = 32
_PROMPT, _NEW = 64, 64
_REPEATS = 9


def tokens_per_second(slots: int) -> list[float]:
  """Tokens sampled per second by that many sequences side by side.

  The first step, which also feeds the prompts, is not timed.
  """
  model = model_config.ModelConfig()
  weights = trajectory.Weights(
    version=0, params=transformer.init(jax.random.key(0), model), digest=''
  )
  config = engine_lib.SamplerConfig(
    slots=slots,
    decode_rows=slots,
    prefill_rows=slots,
    prefill_chunks=(_PROMPT,),
    max_tokens=_PROMPT + _NEW,
  )
  engine = engine_lib.Engine(config, model, weights, stop_id=-1)
  rates = []
  for repeat in range(_REPEATS + 1):  # The first one compiles.
    futures = [
      engine.submit(
        engine_lib.Request(
          session=session,
          history_T=np.arange(_PROMPT, dtype=np.int32) + session % slots,
          max_new=_NEW,
          seed=session,
        )
      )
      for session in range(repeat * slots, (repeat + 1) * slots)
    ]
    engine.step()
    started, sampled = time.perf_counter(), engine.tokens_sampled
    while engine.step():
      pass
    seconds = time.perf_counter() - started
    rates.append((engine.tokens_sampled - sampled) / seconds)
    for session, future in enumerate(futures, repeat * slots):
      assert len(future.result(timeout=0).token_T) == _NEW
      engine.release(session)
  return rates[1:]


def main(argv: Sequence[str]) -> None:
  del argv
  batched = statistics.median(tokens_per_second(_SLOTS))
  single = statistics.median(tokens_per_second(1))
  print(f'{_SLOTS} slots: {batched:.0f} tokens/s; one: {single:.0f} tokens/s')
  print(f'ratio {batched / single:.1f}')


if __name__ == '__main__':
  app.run(main)
