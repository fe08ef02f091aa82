import dataclasses

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.loop import config as config_lib

CONFIG = config_lib.Config(name='test')


def override(*settings):
  return config_lib.override(CONFIG, settings)


class FromJsonTest(parameterized.TestCase):
  def test_gives_back_what_was_written(self):
    changed = override(
      'tools.allowed=submit', 'warm.script.insight=0.5', 'run.steps=7'
    )
    values = config_lib.to_json(changed)
    self.assertEqual(config_lib.from_json(values), changed)

  def test_refuses_fields_of_another_version(self):
    values = config_lib.to_json(CONFIG)
    values['run']['speed'] = values['run'].pop('steps')
    with self.assertRaisesRegex(
      ValueError, 'a RunConfig of another version: speed, steps'
    ):
      config_lib.from_json(values)


class OverrideTest(parameterized.TestCase):
  def test_changes_what_is_named_and_nothing_else(self):
    changed = override('run.steps=7', 'warm.script.insight = 0.5')
    self.assertEqual(changed.run.steps, 7)
    self.assertEqual(changed.warm.script.insight, 0.5)
    self.assertEqual(
      config_lib.differences(
        config_lib.to_json(changed), config_lib.to_json(CONFIG)
      ),
      [
        f'run.steps: 7, {CONFIG.run.steps}',
        f'warm.script.insight: 0.5, {CONFIG.warm.script.insight}',
      ],
    )

  @parameterized.parameters(
    ('learner.replay_routes=False', False),
    ('learner.replay_routes=1', True),
    ('learner.clip_low=1e-3', 1e-3),
    ('sampler.prefill_chunks=(8, 16)', (8, 16)),
    ('sampler.prefill_chunks=8', (8,)),
    ('tools.allowed=read_file,submit', ('read_file', 'submit')),
    ('name=other', 'other'),
  )
  def test_reads_values_by_the_type_of_the_field(self, setting, expected):
    value = override(setting)
    for part in setting.split('=')[0].split('.'):
      value = dict(vars(value))[part]
    self.assertEqual(value, expected)
    self.assertIs(type(value), type(expected))

  @parameterized.parameters(
    ('run.steps', 'expected room.field=value'),
    ('run.step=3', "there is no 'step' here; did you mean steps"),
    ('rum.steps=3', "there is no 'rum' here; did you mean run"),
    ('zzz=3', 'there are actor, curriculum, evaluate'),
    ('run=3', "'run' is a group of steps, temperature"),
    ('run.steps.more=3', "'steps' is a value, not a group"),
    ('run.steps=many', "'many' is no int"),
    ('run.steps=1.5', "'1.5' is no int"),
    ('run.patience_s=soon', "'soon' is no float"),
    ('learner.replay_routes=maybe', "'maybe' is no bool"),
    ('sampler.prefill_chunks=8,x', "'x' is no int"),
  )
  def test_refuses_a_setting_and_says_what_would_do(self, setting, reason):
    with self.assertRaises(ValueError) as caught:
      override(setting)
    self.assertStartsWith(str(caught.exception), f'--set {setting}: ')
    self.assertIn(reason, str(caught.exception))

  @parameterized.parameters(
    ('replay.max_lag=-1', 'max_lag must be >= 0'),
    ('run.save_every=0', 'save_every=0 must be >= 1'),
    ('run.temperature=0', 'temperature=0.0'),
    ('evaluate.tasks=0', 'nothing to evaluate on: tasks=0'),
    ('warm.exercises=0', 'exercises=0'),
    ('warm.exercise_share=1', 'must lie between 0 and 1'),
    ('warm.exercise_tokens=9999', 'exercise_tokens=9999 does not fit learner'),
    ('tools.allowed=read_file,sing', "no tool 'sing'"),
  )
  def test_refuses_a_value_that_cannot_work(self, setting, reason):
    with self.assertRaisesRegex(ValueError, reason):
      override(setting)

  def test_settings_take_effect_together(self):
    more = [
      f'{name}=100000'
      for name in (
        'actor.max_tokens',
        'sampler.max_tokens',
        'learner.row_tokens',
      )
    ]
    for settings in (more, more[::-1]):
      self.assertEqual(override(*settings).actor.max_tokens, 100000)
    with self.assertRaisesRegex(
      ValueError, 'actor.max_tokens=100000 does not fit sampler.max_tokens'
    ):
      override(more[0])


class DifferencesTest(absltest.TestCase):
  def test_names_what_is_on_one_side_only(self):
    self.assertEqual(
      config_lib.differences({'a': {'b': 1}, 'c': 2}, {'a': {}, 'd': 3}),
      [
        "a.b: 1, '(absent)'",
        "c: 2, '(absent)'",
        "d: '(absent)', 3",
      ],
    )

  def test_a_config_survives_json(self):
    plain = config_lib.to_json(CONFIG)
    self.assertEqual(config_lib.differences(plain, plain), [])
    self.assertSameElements(plain, [f.name for f in dataclasses.fields(CONFIG)])


if __name__ == '__main__':
  absltest.main()
