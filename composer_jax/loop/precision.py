"""Whether the programs of a run multiply in the precision that was asked for.

A path that quietly computes in another one looks like any other run.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from composer_jax.learner import batch as batch_lib
from composer_jax.learner import step as step_lib
from composer_jax.loop import config as config_lib
from composer_jax.model import serving
from composer_jax.model import transformer
from composer_jax.pallas_kernels import audit
from composer_jax.pallas_kernels import implementations

# In one layer: three products of the experts, four projections of attention.
_PRODUCTS = 7


def check(config: config_lib.Config) -> str:
  """Traces the learner's and the sampler's programs; runs nothing.

  Returns:
    A line that says what was found.

  Raises:
    RuntimeError: a product is missing in `model.precision`.
  """
  model = config.model
  wanted, forward = model.precision, _PRODUCTS * model.layers
  implementation = implementations.resolve(wanted, model.implementation)
  programs = {
    'a training step': (_gradient(config), 3 * forward),
    'prefilling': (_sampler(config, 'blocks'), forward),
    'decoding': (_sampler(config, 'dense'), forward),
  }
  parts = []
  for name, (traced, expected) in programs.items():
    found = audit.products(traced)
    others = set(found) - {wanted, 'float32'}
    if found[wanted] < expected or others:
      raise RuntimeError(
        f'model.precision={wanted}: {name} has {found[wanted]} products in it'
        f' instead of {expected}; all there are: {dict(found)}'
      )
    parts.append(f'{found[wanted]} of {found.total()} of {name}')
  return f'Products in {wanted} ({implementation}): {", ".join(parts)}'


def _gradient(config: config_lib.Config):
  learner, model = config.learner, config.model
  shape = learner.micro_rows, learner.row_tokens

  def array(dtype, *more):
    return jax.ShapeDtypeStruct((*shape, *more), dtype)

  batch = batch_lib.Batch(
    token_BT=array(jnp.int32),
    segment_BT=array(jnp.int32),
    position_BT=array(jnp.int32),
    sampled_BT=array(jnp.bool),
    behaviour_BT=array(jnp.float32),
    advantage_BT=array(jnp.float32),
    route_BTLX=array(jnp.int8, model.layers, model.experts_per_token),
  )
  run = functools.partial(step_lib.gradient, config=learner, model=model)
  return jax.make_jaxpr(run)(_params(model), batch, 1.0)


def _sampler(config: config_lib.Config, dispatch: str):
  """From what is published to the logits of one token."""
  rows, model = config.sampler.decode_rows, config.model

  def run(shipped, token_B1):
    output, _ = transformer.forward_cached(
      serving.unpack(shipped, model),
      token_B1,
      jnp.zeros((rows, transformer.CONTEXT), jnp.int32),
      jnp.zeros(rows, jnp.int32),
      transformer.init_cache(rows, config.sampler.max_tokens, model),
      config=model,
      dispatch=dispatch,
    )
    return output.logits_BTV

  shipped = jax.eval_shape(lambda p: serving.ship(p, model), _params(model))
  token_B1 = jax.ShapeDtypeStruct((rows, 1), jnp.int32)
  return jax.make_jaxpr(run)(shipped, token_B1)


def _params(model):
  return jax.eval_shape(lambda: transformer.init(jax.random.key(0), model))
