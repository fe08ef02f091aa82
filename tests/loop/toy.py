"""The quickstart, shrunk to seconds."""

from composer_jax.loop import config as config_lib
from experiments import quickstart

STEPS = 5
SETTINGS = (
  'tasks.problems=7',  # Six to train on, and one held out.
  'tasks.per_problem=4',
  'tasks.tried_per_problem=6',
  'tasks.runs=1',
  'model.vocab_size=512',
  'model.width=32',
  'model.layers=1',
  'model.query_heads=2',
  'model.kv_heads=1',
  'model.head_width=16',
  'model.experts=4',
  'model.expert_width=32',
  'model.block_rows=16',
  'model.precision=mxfp8',  # Where what is published is not what is trained.
  'warm.demonstrations=24',
  'warm.exercises=24',
  'warm.steps=60',
  'warm.optimizer.decay_steps=60',
  'warm.optimizer.warmup_steps=5',
  'actor.max_tokens=320',
  'actor.max_turns=4',
  'actor.max_turn_tokens=32',
  'sampler.slots=8',
  'sampler.decode_rows=4',
  'sampler.max_tokens=320',
  'sampler.prefill_chunks=32',
  'learner.row_tokens=320',
  'learner.micro_rows=4',
  'replay.groups_per_step=2',
  'replay.group_size=4',
  'replay.max_lag=0',
  f'run.steps={STEPS}',
  'evaluate.tasks=4',
)


def config(*settings: str) -> config_lib.Config:
  return config_lib.override(quickstart.config(), [*SETTINGS, *settings])
