"""MXFP8 by the rules, in numpy: the golden reference."""

import ml_dtypes
import numpy as np

BLOCK = 32
DTYPES = {'e4m3': ml_dtypes.float8_e4m3fn, 'e5m2': ml_dtypes.float8_e5m2}
LARGEST = {'e4m3': 448.0, 'e5m2': 57344.0}
_TINY = np.float32(2.0**-126)  # The smallest normal number.


def flush(x):
  """Denormals replaced by zeros of the same sign."""
  x = np.asarray(x, np.float32)
  return np.where(np.abs(x) < _TINY, np.copysign(np.float32(0), x), x)


def scale_of(block, element, rounding):
  """The biased exponent for 32 numbers."""
  amax = np.abs(block).astype(np.float64).max()
  if np.isnan(amax):
    return 255
  if amax == 0:
    return 0
  if np.isinf(amax):
    return 254 if rounding == 'rceil' else 255 - int(np.log2(LARGEST[element]))
  largest = LARGEST[element]
  if rounding == 'floor':
    largest = 2.0 ** np.floor(np.log2(largest))
    exponent = np.floor(np.log2(amax / largest))
  else:
    exponent = np.floor(np.log2(amax / largest))
    exponent += amax / largest > 2.0**exponent
  return int(np.clip(exponent + 127, 0, 254))


def quantize(x, element='e4m3', rounding='rceil'):
  """(elements, scales) along the last axis."""
  blocks = np.asarray(x, np.float32).reshape(-1, BLOCK)
  elements = np.zeros(blocks.shape, DTYPES[element])
  scales = np.zeros(len(blocks), np.uint8)
  for i, block in enumerate(blocks):
    scales[i] = scale = scale_of(block, element, rounding)
    if scale == 255:
      elements[i] = np.nan
      continue
    exact = block.astype(np.float64) * 2.0 ** (127 - int(scale))
    exact = np.clip(exact, -LARGEST[element], LARGEST[element])
    elements[i] = exact.astype(np.float32).astype(DTYPES[element])
  return elements.reshape(np.shape(x)), scales.reshape(*np.shape(x)[:-1], -1)


def dequantize(elements, scales):
  """float32 numbers along the last axis."""
  power = np.where(scales == 255, np.nan, 2.0 ** (scales.astype(float) - 127))
  wide = elements.astype(np.float64) * np.repeat(power, BLOCK, axis=-1)
  with np.errstate(over='ignore'):  # What was infinite is so again.
    return wide.astype(np.float32)
