from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.replay import staleness


class IsFreshTest(parameterized.TestCase):
  @parameterized.parameters(
    # version, now, max_lag, fresh
    (5, 5, 0, True),
    (4, 5, 0, False),
    (6, 5, 0, False),  # The future.
    (5, 5, 2, True),
    (4, 5, 2, True),
    (3, 5, 2, True),
    (2, 5, 2, False),
    (6, 5, 2, False),
    (0, 0, 0, True),
  )
  def test_truth_table(self, version, now, max_lag, fresh):
    self.assertEqual(staleness.is_fresh(version, now, max_lag), fresh)


class MayAdmitTest(parameterized.TestCase):
  @parameterized.parameters(
    # version, max_lag, number of groups that may have begun, 4 per step
    (0, 0, 4),
    (1, 0, 8),
    (0, 1, 8),
    (0, 2, 12),
    (3, 2, 24),
  )
  def test_begins_exactly_what_can_be_trained(self, version, max_lag, begun):
    admitted = [
      group
      for group in range(40)
      if staleness.may_admit(group, version, groups_per_step=4, max_lag=max_lag)
    ]
    self.assertEqual(admitted, list(range(begun)))

  @parameterized.product(version=[0, 1, 2, 3], max_lag=[0, 1, 2, 3])
  def test_what_is_admitted_is_fresh_when_trained(self, version, max_lag):
    for group in range(version * 3, 40):
      step = group // 3
      self.assertEqual(
        staleness.may_admit(group, version, groups_per_step=3, max_lag=max_lag),
        staleness.is_fresh(version, step, max_lag),
      )


if __name__ == '__main__':
  absltest.main()
