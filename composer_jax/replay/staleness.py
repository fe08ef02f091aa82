"""What may still be used, and what may be begun: pure rules on integers.

Policy version s is the policy after s learner steps. Step s trains on groups
[s * G, (s + 1) * G), G = groups_per_step, and yields version s + 1.
"""


def is_fresh(version: int, now: int, max_lag: int) -> bool:
  """Whether tokens of `version` may train the policy of version `now`."""
  return 0 <= now - version <= max_lag  # The future is refused too.


def may_admit(
  group: int, version: int, *, groups_per_step: int, max_lag: int
) -> bool:
  """Whether a group begun under `version` will be fresh when it is trained.

  With max_lag=0 exactly the groups of step `version` may begin: generate, train
  and generate again, which is the synchronous algorithm.
  """
  return group < (version + 1 + max_lag) * groups_per_step
