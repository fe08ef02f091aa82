"""Reading a run's metric lines, whole and torn."""

import json
import os

from absl.testing import absltest
import numpy as np

from composer_jax.viewer import history


class ReadMetricsTest(absltest.TestCase):
  """What counts as a line of which phase."""

  def read(self, *lines: str) -> history.History:
    path = self.create_tempfile(content='\n'.join(lines)).full_path
    return history.read_metrics(path)

  def test_lines_go_to_their_phase_in_order_of_steps(self):
    past = self.read(
      json.dumps({'phase': 'rl', 'step': 2, 'reward': 0.5}),
      json.dumps({'phase': 'warm_start', 'step': 1, 'loss': 3.0}),
      json.dumps({'phase': 'rl', 'step': 1, 'reward': 0.25}),
      json.dumps({'phase': 'eval', 'step': 0, 'solve_rate': 0.1}),
    )
    self.assertEqual([row['step'] for row in past.rl], [1, 2])
    self.assertLen(past.warm_start, 1)
    self.assertLen(past.evaluations, 1)

  def test_the_later_line_of_a_step_counts_after_a_resume(self):
    past = self.read(
      json.dumps({'phase': 'rl', 'step': 1, 'reward': 0.25}),
      json.dumps({'phase': 'rl', 'step': 1, 'reward': 0.75}),
    )
    self.assertEqual([row['reward'] for row in past.rl], [0.75])

  def test_torn_lines_are_left_out_and_counted(self):
    past = self.read(
      '{"phase": "rl", "step": 1}', '', '{"phase": "rl", "st', '[1]', '{}'
    )
    self.assertLen(past.rl, 1)
    self.assertEqual(past.torn_lines, 3)

  def test_no_file_is_an_empty_history(self):
    directory = self.create_tempdir().full_path
    past = history.read_metrics(os.path.join(directory, 'metrics.jsonl'))
    self.assertEqual(past, history.History())


class SeriesTest(absltest.TestCase):
  """Columns of rows that do not all have them."""

  def test_rows_without_the_metric_are_left_out(self):
    rows = [{'step': 1, 'a': 5}, {'step': 2}, {'step': 3, 'a': None}]
    step_T, value_T = history.series([*rows, {'step': 4, 'a': 7}], 'a')
    np.testing.assert_array_equal(step_T, [1, 4])
    np.testing.assert_array_equal(value_T, [5, 7])


if __name__ == '__main__':
  absltest.main()
