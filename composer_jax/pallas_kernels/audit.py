"""Which precision a traced program really multiplies in.

A product counts as MXFP8 only if both of its operands are 8-bit numbers times a
power of two for each 32 of them, or come from a function that is known by its
name to round like that, and nothing else has been done to them since. That such
a function keeps to its name, and that the 32 lie along the axis which is
contracted, is for the numerical tests.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

import jax
from jax.extend import core
import jax.numpy as jnp

from composer_jax.pallas_kernels import mx

_ELEMENTS = 'elements'
_EXPONENT = 'exponent'  # In the place where float32 has it.
_POWER = 'power'
_MXFP8 = 'mxfp8'
_MANTISSA = 23  # Bits.
# Functions and kernels that return operands, and kernels that multiply them.
_ROUNDING = ('mx_round_trip', 'mx_operand', 'mx_reopen', 'mx_swiglu')
_MULTIPLYING = ('mx_forward', 'mx_input_grad', 'mx_weight_grad')
# What moves numbers about, or writes them in a wider type.
_MOVES = frozenset({
  'broadcast_in_dim', 'convert_element_type', 'copy', 'dynamic_slice',
  'expand_dims', 'gather', 'optimization_barrier', 'pad',
  'reshape', 'rev', 'select_n', 'sharding_constraint', 'slice', 'squeeze',
  'transpose',
})  # fmt: skip


def products(traced: core.ClosedJaxpr) -> collections.Counter[str]:
  """How many matrix products there are in each precision.

  The body of a loop counts once.
  """
  found = collections.Counter()
  jaxpr = traced.jaxpr
  _walk(jaxpr, [_of_type(v.aval) for v in jaxpr.invars], found)
  return found


def _walk(jaxpr: core.Jaxpr, given: Sequence[str | None], found):
  """Adds the products of a program; returns the labels of its results."""
  labels = dict(zip(jaxpr.invars, given, strict=True))

  def label(var):
    return None if isinstance(var, core.Literal) else labels.get(var)

  for eqn in jaxpr.eqns:
    inputs = [label(var) for var in eqn.invars]
    outputs = _step(eqn, inputs, found)
    labels |= zip(eqn.outvars, outputs, strict=True)
  return [label(var) for var in jaxpr.outvars]


def _step(eqn: core.JaxprEqn, inputs: Sequence[str | None], found):
  """The labels of what one equation returns."""
  name = eqn.primitive.name
  if name == 'dot_general':
    found[_precision(eqn.invars, inputs)] += 1
    return [None]
  known_as = str(eqn.params.get('name'))
  if known_as.startswith(_ROUNDING):
    return [_MXFP8] * len(eqn.outvars)
  if known_as.startswith(_MULTIPLYING):
    found[_precision(*_floating(eqn, inputs))] += 1
    return [None] * len(eqn.outvars)
  programs = list(core.jaxprs_in_params(eqn.params))
  if programs:
    return _call(eqn, programs, inputs, found)
  result = eqn.outvars[0].aval
  if name == 'shift_left':
    by = eqn.invars[1]
    exponent = isinstance(by, core.Literal) and by.val == _MANTISSA
    return [_EXPONENT if exponent else None]
  if name == 'or':
    return [_EXPONENT if _EXPONENT in inputs else None]
  if name == 'bitcast_convert_type':
    return [_POWER if inputs == [_EXPONENT] else None]
  if name == 'mul':
    return [_scaled(eqn, inputs)]
  if _of_type(result):
    return [_ELEMENTS]
  if name in _MOVES and result.dtype in (jnp.float32, jnp.bfloat16):
    return [next(filter(None, inputs), None)] * len(eqn.outvars)
  return [None] * len(eqn.outvars)


def _call(eqn, programs, inputs, found):
  """Of what runs other programs on its own arguments, or on the last ones."""
  outputs = [None] * len(eqn.outvars)
  for program in programs:
    count = len(program.invars)
    given = inputs[len(inputs) - count :] if count <= len(inputs) else None
    results = _walk(program, given or [None] * count, found)
    if given is not None and len(results) == len(outputs):
      outputs = results
  return outputs


def _scaled(eqn, inputs):
  """The label of a product of elements and powers, if it is that."""
  if set(inputs) == {_MXFP8, _POWER}:
    return _MXFP8
  if set(inputs) != {_ELEMENTS, _POWER}:
    return None
  (elements, _), (powers, _) = sorted(
    zip((v.aval.shape for v in eqn.invars), inputs, strict=True),
    key=lambda pair: pair[1],
  )
  shared = [
    size for size, count in zip(elements, powers, strict=True) if size != count
  ]
  return _MXFP8 if shared == [mx.BLOCK] else None


def _floating(eqn, inputs):
  """The operands of a kernel; the others say which expert a block has."""
  pairs = [
    (var, label)
    for var, label in zip(eqn.invars, inputs, strict=True)
    if jnp.issubdtype(var.aval.dtype, jnp.floating)
  ]
  return zip(*pairs, strict=True)


def _precision(operands, labels) -> str:
  if set(labels) == {_MXFP8}:
    return _MXFP8
  types = {str(var.aval.dtype) for var in operands}
  return types.pop() if len(types) == 1 else 'mixed'


def _of_type(aval: jax.core.ShapedArray) -> str | None:
  return _ELEMENTS if aval.dtype == jnp.float8_e4m3fn else None
