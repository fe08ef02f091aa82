"""How the components of a reward add up."""

import dataclasses

from composer_jax import trajectory
from composer_jax.rewards import effort


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardConfig:
  """Weights of the components; each is logged under its name."""

  solved_value: float = 1.0  # Hidden tests pass.
  effort_price: float = 0.01  # Of one unit of (bent) effort.
  invalid_call_price: float = 0.05  # Price of a call that is none.
  unfinished_price: float = 0.05  # Price of an episode that never submits.
  effort_shape: effort.EffortConfig = effort.EffortConfig()


def components(
  episode: trajectory.Trajectory, solved: bool, config: RewardConfig
) -> dict[str, float]:
  """Named terms whose sum is the reward.

  Invalid calls are priced and stay in the data: were they dropped, the policy
  could emit one to escape every other price.
  """
  invalid = sum(
    result.status is trajectory.Status.INVALID
    for turn in episode.turns
    for result in turn.results
  )
  submitted = episode.ending is trajectory.Ending.SUBMITTED
  shape = config.effort_shape
  price = effort.cost(effort.amount(episode, shape), k=shape.k, q=shape.q)
  return {
    'solved': config.solved_value * solved,
    'effort': -config.effort_price * price,
    'invalid_call': -config.invalid_call_price * invalid,
    'unfinished': -config.unfinished_price * (not submitted),
  }
