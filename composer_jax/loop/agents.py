"""Whoever may be evaluated, each as one function from a task to an attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import random
from typing import Any

import jax

from composer_jax import trajectory
from composer_jax.actor import baselines
from composer_jax.actor import repairer
from composer_jax.loop import config as config_lib
from composer_jax.loop import environment
from composer_jax.loop import focus
from composer_jax.loop import heldout
from composer_jax.loop import remote as remote_lib
from composer_jax.loop import supervise
from composer_jax.loop import warmstart
from composer_jax.model import transformer
from composer_jax.text import chat as chat_lib
from composer_jax.tools import documentation
from composer_jax.tools import registry
from composer_jax.tools import schema

# (task, seed) → graded attempt.
Agent = Callable[[trajectory.Task, int], trajectory.Trajectory]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arena:
  """Where agents act."""

  config: config_lib.Config
  env: environment.Environment
  chat: chat_lib.Chat
  crew: supervise.Crew


def oracle(arena: Arena) -> Agent:
  """Applies the known fix."""

  def attempt(task, seed):
    del seed
    turns = baselines.oracle(
      task.provenance.fix,
      tools=arena.config.tools.allowed,
      message=_message(arena, task),
    )
    return arena.env.attempt(task, warmstart.scripted_player(turns, arena.chat))

  return attempt


def random_caller(arena: Arena) -> Agent:
  """Calls tools at random."""
  schemas = _schemas(arena)

  def attempt(task, seed):
    turns = baselines.random_caller(task.prompt, schemas, random.Random(seed))
    return arena.env.attempt(task, warmstart.scripted_player(turns, arena.chat))

  return attempt


def enumerator(arena: Arena, most_edits: int) -> Agent:
  """Tries small edits in turn: on a repository, of what the tests point at."""

  def attempt(task, seed):
    if not task.snapshot:
      return warmstart.enumerate_edits(task, arena.env, arena.chat, seed=seed)
    turns = repairer.repairer(
      candidates=_edits, rng=random.Random(seed), most_edits=most_edits
    )
    return arena.env.attempt(task, warmstart.scripted_player(turns, arena.chat))

  return attempt


def _edits(text: str, path: str) -> Sequence[trajectory.Edit]:
  """The small edits of a file; none where it is no Python."""
  try:
    return focus.candidates(text, focus.Focus(path))
  except SyntaxError:
    return ()


def remote(arena: Arena, client: remote_lib.Client) -> Agent:
  """Asks a model behind an OpenAI-compatible door."""
  tools = documentation.chat_tools(arena.config.tools.allowed)

  def attempt(task, seed):
    del seed
    agents = []

    def play(call_tools):
      agent = remote_lib.Agent(
        client,
        prompt=task.prompt,
        tools=tools,
        chat=arena.chat,
        call_tools=call_tools,
      )
      agents.append(agent)
      return agent.sample, agent.call_tools

    done = arena.env.attempt(task, play)
    usage = agents[0].usage.facts(client.config)
    return dataclasses.replace(done, facts={**done.facts, **usage})

  return attempt


def policy(arena: Arena, weights: str, temperature: float) -> Agent:
  """Samples from the newest weights that a run published in `weights`."""
  model = arena.config.model
  like = jax.eval_shape(lambda: transformer.init(jax.random.key(0), model))
  served = heldout.serve_weights(
    arena.config,
    weights,
    like,
    stop_id=arena.chat.end_id,
    crew=arena.crew,
  )

  def attempt(task, seed):
    with served.session(seed=seed, temperature=temperature) as play:
      return arena.env.attempt(task, play)

  return attempt


def _schemas(arena: Arena) -> list[dict[str, Any]]:
  """The tools that are allowed, as chat interfaces have them."""
  allowed = arena.config.tools.allowed
  return [schema.json_schema(registry.TOOLS[name]) for name in allowed]


def _message(arena: Arena, task: trajectory.Task) -> str:
  """What the oracle says as it submits."""
  files = sorted({edit.path for edit in task.provenance.fix})
  said = f'Repaired {", ".join(files)}.'
  if 'run_tests' in arena.config.tools.allowed:
    said += ' The visible tests were run after the last edit.'
  return said
