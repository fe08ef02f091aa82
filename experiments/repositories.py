"""Does the small policy get better at repairing real packages by practising?

The tasks are bugs planted in packages, made beforehand:

  python -m composer_jax.tasks.make --out=tasks/packages
  python -m experiments.train --experiment=repositories --workdir=DIR --seed=0

A model of this size cannot search a repository: its prompts say which lines to
read. Everything else is as for a large one: the whole repository in the box,
its own tests seen, others hidden, and packages held out that it never saw.
"""

import dataclasses

from composer_jax.loop import config as config_lib

_TOKENS = 512  # Of an episode.


def config() -> config_lib.Config:
  base = config_lib.Config(name='repositories')
  return dataclasses.replace(
    base,
    repositories=config_lib.RepositoriesConfig(
      folder='tasks/packages',
      kinds=('arithmetic', 'augmented', 'boolean', 'bound', 'called',
             'comparison', 'constant', 'index', 'jump', 'negation', 'slice',
             'truth'),
      pointed=True,
    ),
    warm=dataclasses.replace(base.warm, demonstrations=600),
    sampler=dataclasses.replace(base.sampler, max_tokens=_TOKENS, slots=16),
    actor=dataclasses.replace(base.actor, max_tokens=_TOKENS),
    learner=dataclasses.replace(base.learner, row_tokens=_TOKENS),
    tools=dataclasses.replace(base.tools, tool_chars=('run_tests=160',)),
    sandbox=dataclasses.replace(
      base.sandbox, memory_bytes=512 << 20
    ),
    rewards=dataclasses.replace(base.rewards, regression_price=0.1),
    curriculum=dataclasses.replace(base.curriculum, enabled=True),
    evaluate=dataclasses.replace(base.evaluate, tasks=120, greedy=False),
    run=dataclasses.replace(base.run, steps=40, save_every=5),
  )  # fmt: skip
