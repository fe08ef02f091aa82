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
_NAN = 'NaN'
_NAN_BITS = 0x7FC00000
_MANTISSA = 23  # Bits.
# Functions and kernels that return operands, and kernels that multiply them.
_ROUNDING = ('mx_round_trip', 'mx_operand', 'mx_reopen', 'mx_swiglu')
_MULTIPLYING = ('mx_forward', 'mx_input_grad', 'mx_weight_grad')
# What moves numbers about, or writes them in a wider type.
_MOVES = frozenset({
  'all_gather', 'all_to_all', 'broadcast_in_dim', 'concatenate',
  'convert_element_type', 'copy', 'dynamic_slice', 'dynamic_update_slice',
  'expand_dims', 'gather', 'optimization_barrier', 'pad', 'ppermute',
  'reshape', 'rev', 'sharding_constraint', 'slice', 'squeeze', 'transpose',
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
    return [_of_operand(var.aval) for var in eqn.outvars]
  if known_as.startswith(_MULTIPLYING):
    found[_precision(*_operands(eqn, inputs))] += 1
    return [None] * len(eqn.outvars)
  if list(core.jaxprs_in_params(eqn.params)):
    return _call(eqn, inputs, found)
  result = eqn.outvars[0].aval
  if name in ('shift_left', 'and', 'or', 'bitcast_convert_type'):
    return [_of_bits(eqn, inputs)]
  if name == 'mul':
    return [_scaled(eqn, inputs)]
  if _of_type(result):
    return [_ELEMENTS]
  if name in _MOVES and result.dtype in (jnp.float32, jnp.bfloat16):
    return [_common(eqn, inputs)] * len(eqn.outvars)
  return [None] * len(eqn.outvars)


def _of_bits(eqn, inputs):
  """The label of what becomes a power of two, or NaN for a block."""
  literal = eqn.invars[-1]
  value = literal.val if isinstance(literal, core.Literal) else None
  match eqn.primitive.name:
    case 'shift_left' if value == _MANTISSA:
      return _EXPONENT
    case 'and' if value == _NAN_BITS:
      return _NAN
    case 'or' if set(inputs) == {_EXPONENT, _NAN}:
      return _EXPONENT
    case 'bitcast_convert_type' if inputs == [_EXPONENT]:
      return _POWER
  return None


def _common(eqn, inputs):
  """The label that all moved numbers have; constants may fill in."""
  moved = {
    label
    for var, label in zip(eqn.invars, inputs, strict=True)
    if jnp.issubdtype(var.aval.dtype, jnp.floating)
    and not isinstance(var, core.Literal)
  }
  return moved.pop() if len(moved) == 1 else None


def _call(eqn, inputs, found):
  """Of what runs other programs, by the labels that every run has."""
  name, outputs = eqn.primitive.name, None
  if name == 'scan':
    # What one step hands to the next may be something else at the second.
    first, last = _carried(eqn)
    inputs = [
      None if first <= i < last else label for i, label in enumerate(inputs)
    ]
  for program in core.jaxprs_in_params(eqn.params):
    count = len(program.invars)
    matches = name != 'while' and count <= len(inputs)
    given = inputs[len(inputs) - count :] if matches else [None] * count
    results = _walk(program, given, found)
    if not matches or len(results) != len(eqn.outvars):
      results = [None] * len(eqn.outvars)
    outputs = [
      label if outputs is None or label == outputs[i] else None
      for i, label in enumerate(results)
    ]
  if name == 'scan':
    outputs = [
      None if i < last - first else label for i, label in enumerate(outputs)
    ]
  if name == 'pallas_call':
    outputs = [_of_type(var.aval) for var in eqn.outvars]
  return outputs


def _carried(eqn) -> tuple[int, int]:
  """Where the carries of a scan begin and end among its arguments.

  Constants come before them, after them what has an axis more than a step sees.
  """
  (body,) = core.jaxprs_in_params(eqn.params)

  def whole(outside, inside):
    pairs = zip(outside, inside, strict=True)
    return sum(a.aval.ndim == b.aval.ndim for a, b in pairs)

  last = whole(eqn.invars, body.invars)
  return last - whole(eqn.outvars, body.outvars), last


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


def _operands(eqn, inputs):
  """The operands of a kernel, and their labels.

  The other arguments say which expert a block has, or are the scales of
  elements that the kernel multiplies with them.
  """
  pairs = [
    (var, label)
    for var, label in zip(eqn.invars, inputs, strict=True)
    if jnp.issubdtype(var.aval.dtype, jnp.floating)
  ]
  scales = [var for var, _ in pairs if var.aval.dtype == jnp.float8_e8m0fnu]
  operands = [(var, label) for var, label in pairs if var not in scales]
  if len(scales) == len(operands):
    operands = [
      (var, _MXFP8 if label == _ELEMENTS else None) for var, label in operands
    ]
  return zip(*operands, strict=True)


def _precision(operands, labels) -> str:
  if set(labels) == {_MXFP8}:
    return _MXFP8
  types = {str(var.aval.dtype) for var in operands}
  return types.pop() if len(types) == 1 else 'mixed'


def _of_operand(aval: jax.core.ShapedArray) -> str | None:
  """Of what a rounding kernel returns."""
  return _MXFP8 if aval.dtype in (jnp.float32, jnp.bfloat16) else _of_type(aval)


def _of_type(aval: jax.core.ShapedArray) -> str | None:
  return _ELEMENTS if aval.dtype == jnp.float8_e4m3fn else None
