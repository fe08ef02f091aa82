"""Scripted stand-ins and one tiny model, shared so that it compiles once."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from composer_jax import trajectory
from composer_jax.learner import batch as batch_lib
from composer_jax.learner import optimizer
from composer_jax.learner import step
from composer_jax.model import config as model_config
from composer_jax.model import transformer
from composer_jax.text import chat as chat_lib
from composer_jax.text import tokenizer as tokenizer_lib

MODEL = model_config.ModelConfig(
  vocab_size=24,
  width=16,
  layers=2,
  query_heads=2,
  kv_heads=1,
  head_width=8,
  experts=4,
  experts_per_token=2,
  expert_width=8,
  block_rows=8,
)
SHALLOW = dataclasses.replace(MODEL, layers=1)  # Compiles faster.
LEARNER = step.LearnerConfig(
  optimizer=optimizer.OptimizerConfig(
    muon_rate=0, adam_rate=0.01, warmup_steps=1
  ),
  balance_weight=0.0,
)
SIGNATURES = {
  'read_file': [('path', str)],
  'edit_file': [('path', str), ('old', str), ('new', str)],
  'show': [('path', str), ('line', int), ('full', bool)],
  'undo': [],
  'run_tests': [],
  'submit': [],
}

TASK = trajectory.Task(
  id='task',
  prompt='Repair it.',
  files={'solution.py': 'x = 1\n'},
  test_command=('true',),
  hidden_files={},
  grade_command=('true',),
  provenance=trajectory.Provenance(
    package='none',
    licence='Apache-2.0',
    problem='task',
    kind='constant',
    bugs=(trajectory.Edit('solution.py', '2', '1'),),
    visible_fails=True,
  ),
  split='train',
)

# Scales at which tokens mix and some are preferred, unlike at the very start.
_SCALE = {'embed_VD': 0.02, 'final_norm_D': 15.0}


@functools.cache
def params(seed=0, model=MODEL):
  """Random ones, drawn by numpy: compiling `init` takes seconds."""
  rng = np.random.default_rng(seed)

  def draw(path, leaf):
    if leaf.ndim == 1 and path[-1].key != 'gate_D':
      return np.full(leaf.shape, _SCALE.get(path[-1].key, 1.0), np.float32)
    scale = _SCALE.get(path[-1].key, 0.4)
    return np.float32(rng.normal(scale=scale, size=leaf.shape))

  shapes = jax.eval_shape(
    functools.partial(transformer.init, config=model), jax.random.key(0)
  )
  return jax.tree.map(
    jnp.asarray, jax.tree_util.tree_map_with_path(draw, shapes)
  )


@functools.partial(jax.jit, static_argnames=('model', 'replay'))
def token_logprobs(params, batch, temperature=1.0, model=MODEL, replay=False):
  """step.token_logprobs, compiled."""
  return step.token_logprobs(
    params, batch, model=model, temperature=temperature, replay=replay
  )


@jax.jit
def forward(params, batch):
  """The packed forward pass, compiled."""
  return transformer.forward(
    params,
    batch.token_BT,
    batch.segment_BT,
    batch.position_BT,
    config=MODEL,
  )


def weights(version):
  """Parameters that have nothing in common with those of other versions."""
  return trajectory.Weights(
    version=version, params=params(version), digest=f'digest of {version}'
  )


def sequence(
  tokens,
  sampled,
  *,
  logprob=None,
  version=0,
  route=None,
  group=0,
  member=0,
  task_id='task',
  turns=(),
  ending=trajectory.Ending.SUBMITTED,
  rewards=None,
  starts=(0,),
):
  """A trajectory of these ids; `sampled` is truthy where the policy chose."""
  sampled = np.asarray(sampled, bool)
  logprob = -1.0 if logprob is None else np.asarray(logprob, np.float32)
  if route is None:
    route = np.zeros((len(tokens), 0, 0), np.int8)
  return trajectory.Trajectory(
    task_id=task_id,
    group=group,
    member=member,
    token_T=np.asarray(tokens, np.int32),
    sampled_T=sampled,
    logprob_T=np.where(sampled, logprob, 0).astype(np.float32),
    version_T=np.where(sampled, version, -1).astype(np.int32),
    route_TLX=route,
    turns=tuple(turns),
    ending=ending,
    final_files={},
    rewards=rewards or {},
    starts=starts,
  )


def steps(*turns):
  """Turns of (tool name, arguments, status) triples."""
  return tuple(
    trajectory.Turn(
      start=0,
      stop=0,
      calls=tuple(
        trajectory.ToolCall(id=str(i), name=name, arguments=arguments)
        for i, (name, arguments, _) in enumerate(turn)
      ),
      results=tuple(
        trajectory.ToolResult(call_id=str(i), status=status, text='')
        for i, (_, _, status) in enumerate(turn)
      ),
    )
    for turn in turns
  )


def pack(pairs, *, rows=2, length=24, model=MODEL):
  return batch_lib.pack(
    pairs, rows=rows, length=length, route_shape=model.route_shape
  )


@functools.cache
def tokenizer(summaries=False):
  """Merges 'ab', 'return' and 'def', among others."""
  texts = ['abab abab', 'return return', 'def def', '"\\'] * 4
  return tokenizer_lib.train(
    texts,
    chat_lib.fragments(SIGNATURES, summaries=summaries),
    vocab_size=320 + summaries,
  )


@functools.cache
def chat(summaries=False):
  """The format; with summaries it has one id more, at the end."""
  return chat_lib.Chat(tokenizer(summaries), SIGNATURES)


def encode(*texts):
  """Ids of texts, each one token where the format has it as a fragment."""
  fragments = chat_lib.fragments(SIGNATURES)
  ids = []
  for text in texts:
    if text in fragments:
      ids.append(tokenizer().fragment_id(text))
    else:
      ids.extend(tokenizer().encode(text))
  return ids


class ScriptedSampler:
  """Answers with the turns it was given, and keeps what it was asked."""

  def __init__(self, turns, version=0):
    self._turns = list(turns)
    self._version = version
    self.histories = []

  def __call__(self, history_T, max_new):
    self.histories.append(history_T.tolist())
    token_T = self._turns.pop(0)
    kept_T = np.asarray(token_T[:max_new], np.int32)
    turn = len(self.histories)
    return trajectory.Sample(
      token_T=kept_T,
      # Values that name turn and place, to be found again in the trajectory.
      logprob_T=-np.arange(1, len(kept_T) + 1, dtype=np.float32) * turn,
      version_T=np.full(len(kept_T), self._version + turn, np.int32),
      route_TLX=np.full((len(history_T) + len(kept_T), 1, 2), turn, np.int8),
      finished=len(token_T) <= max_new,
    )


class RecordingTools:
  """Answers every call by `answer(call) -> (status, text)`; keeps the calls."""

  def __init__(self, answer=None):
    self._answer = answer or (lambda call: (trajectory.Status.OK, 'ok'))
    self.calls = []

  def __call__(self, calls):
    self.calls.append(list(calls))
    results = []
    for call in calls:
      if call.error:
        status, text = trajectory.Status.INVALID, call.error
      else:
        status, text = self._answer(call)
      results.append(
        trajectory.ToolResult(call_id=call.id, status=status, text=text)
      )
    return results
