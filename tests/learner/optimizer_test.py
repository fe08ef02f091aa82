from absl.testing import absltest
import jax
import numpy as np
import optax

from composer_jax.learner import optimizer
from tests import fakes


def walk(config, gradients):
  """Where a parameter that starts at 0 stands after each step."""
  rule = optimizer.make(config)

  @jax.jit
  def step(params, state, gradient):
    updates, state = rule.update({'x': gradient}, state, params)
    return optax.apply_updates(params, updates), state

  params = {'x': np.float32(0)}
  state, places = rule.init(params), []
  for gradient in gradients:
    params, state = step(params, state, np.float32(gradient))
    places.append(float(params['x']))
  return places


class ScheduleTest(absltest.TestCase):
  """A constant gradient moves Adam by just the rate of each step."""

  def test_warms_up_to_the_rate_and_stays(self):
    config = optimizer.OptimizerConfig(
      muon_rate=0, adam_rate=0.1, warmup_steps=2
    )
    np.testing.assert_allclose(
      walk(config, [-1] * 4), [0, 0.05, 0.15, 0.25], rtol=1e-4, atol=1e-8
    )

  def test_decays_to_a_tenth_along_a_cosine(self):
    config = optimizer.OptimizerConfig(
      muon_rate=0, adam_rate=0.1, warmup_steps=2, decay_steps=4
    )
    steps = np.diff(walk(config, [1] * 7))
    np.testing.assert_allclose(
      steps, [-0.05, -0.1, -0.055, -0.01, -0.01, -0.01], rtol=1e-4
    )

  def test_a_large_gradient_counts_as_one_of_the_clipped_norm(self):
    config = optimizer.OptimizerConfig(
      muon_rate=0, adam_rate=0.1, warmup_steps=1, clip_norm=1.0
    )
    np.testing.assert_allclose(
      walk(config, [1, 1, 1000, 1]), walk(config, [1] * 4), rtol=1e-5
    )


class MuonTest(absltest.TestCase):
  def test_moves_matrices_while_adam_has_the_rest(self):
    config = optimizer.OptimizerConfig(
      muon_rate=0.1, adam_rate=0, warmup_steps=1
    )
    rule = optimizer.make(config)
    layer = fakes.params()['layers'][0]
    names = ('query_DHC', 'gate_EDF', 'router_DE', 'expert_norm_D')
    params = {name: layer[name] for name in names}
    rng = np.random.default_rng(0)
    grads = jax.tree.map(
      lambda x: rng.normal(size=x.shape).astype(np.float32), params
    )
    state = jax.jit(rule.init)(params)
    update = jax.jit(rule.update)
    for _ in range(2):  # The rate of the very first step is zero.
      updates, state = update(grads, state, params)
    self.assertEqual(
      {name: bool(np.any(updates[name])) for name in names},
      dict(zip(names, (True, True, False, False), strict=True)),
    )
    # One matrix per expert: the singular values of each are near one another.
    for update_DF in updates['gate_EDF']:
      singular = np.linalg.svd(update_DF, compute_uv=False)
      self.assertLess(singular.max() / singular.min(), 2)


if __name__ == '__main__':
  absltest.main()
