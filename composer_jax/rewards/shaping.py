"""How the components of a reward add up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import dataclasses

from composer_jax import trajectory
from composer_jax.rewards import effort
from composer_jax.rewards import facts as facts_lib
from composer_jax.rewards import guards as guards_lib
from composer_jax.rewards import terms


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardConfig:
  """Weights of the components; each is logged under its name.

  A component that weighs 0 by default appears where it is given a weight and
  its facts were measured.
  """

  solved_value: float = 1.0  # Hidden tests pass.
  effort_price: float = 0.01  # Of one unit of (bent) effort.
  invalid_call_price: float = 0.05  # Price of a call that is none.
  unfinished_price: float = 0.05  # Price of an episode that never submits.
  effort_shape: effort.EffortConfig = effort.EffortConfig()
  fraction_value: float = 0.0  # Of all the tests to mend.
  regression_price: float = 0.0  # Of all the tests to keep.
  lint_price: float = 0.0  # This and the following: of the worst case.
  complexity_price: float = 0.0
  readability_price: float = 0.0
  diff_price: float = 0.0
  style_price: float = 0.0
  communication_price: float = 0.0
  hygiene_price: float = 0.0
  # Guards that are on: one that fires takes all that the episode earned, and
  # `guard_price` on top.
  guards: tuple[str, ...] = tuple(guards_lib.GUARDS)
  guard_price: float = 0.0

  def __post_init__(self):
    for name in self.guards:
      if name not in guards_lib.GUARDS:
        raise ValueError(
          f'no guard {name!r}; there are {", ".join(guards_lib.GUARDS)}'
        )
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if field.name.endswith(('_price', '_value')) and value < 0:
        raise ValueError(f'{field.name}={value} must be >= 0')


def components(
  episode: trajectory.Trajectory, config: RewardConfig
) -> dict[str, float]:
  """Named terms whose sum is the reward of an episode with facts.

  Invalid calls are priced and stay in the data: were they dropped, the policy
  could emit one to escape every other price.

  Raises:
    ValueError: the episode was never graded.
  """
  if 'solved' not in episode.facts:
    raise ValueError(
      f'{episode.task_id}: no fact says whether it is solved; there are'
      f' {sorted(episode.facts)}. Measure them first (facts.measure)'
    )
  invalid = sum(
    result.status is trajectory.Status.INVALID
    for turn in episode.turns
    for result in turn.results
  )
  submitted = episode.ending is trajectory.Ending.SUBMITTED
  shape = config.effort_shape
  price = effort.cost(effort.amount(episode, shape), k=shape.k, q=shape.q)
  found = {
    'solved': config.solved_value * terms.correctness(episode.facts),
    'effort': -config.effort_price * price,
    'invalid_call': -config.invalid_call_price * invalid,
    'unfinished': -config.unfinished_price * (not submitted),
    **dict(_weighed(episode.facts, config)),
  }
  watched = [facts_lib.GUARD + name for name in config.guards]
  if any(name in episode.facts for name in watched):
    fired = sum(episode.facts.get(name, 0.0) for name in watched)
    earned = sum(value for value in found.values() if value > 0)
    found['guard'] = -(earned + config.guard_price * fired) if fired else 0.0
  return found


def rescore(
  trajectories: Iterable[trajectory.Trajectory], config: RewardConfig
) -> list[trajectory.Trajectory]:
  """The trajectories with the rewards that this config gives them.

  Needs no rollout and no box: all that is priced was measured before.
  """
  return [
    dataclasses.replace(episode, rewards=components(episode, config))
    for episode in trajectories
  ]


def _weighed(
  facts: terms.Facts, config: RewardConfig
) -> Iterator[tuple[str, float]]:
  for name, weight, term in (
    ('fraction', config.fraction_value, terms.fraction),
    ('regression', config.regression_price, terms.regression),
    ('lint', config.lint_price, terms.lint),
    ('complexity', config.complexity_price, terms.complexity),
    ('readability', config.readability_price, terms.readability),
    ('diff_size', config.diff_price, terms.diff_size),
    ('style', config.style_price, terms.conformity),
    ('communication', config.communication_price, terms.communication),
    ('hygiene', config.hygiene_price, terms.hygiene),
  ):
    value = term(facts) if weight else None
    if value is not None:
      yield name, weight * value
