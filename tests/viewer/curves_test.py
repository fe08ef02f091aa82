"""What the charts show of the metrics."""

from absl.testing import absltest
import numpy as np

from composer_jax.viewer import curves
from composer_jax.viewer import history


class SmoothTest(absltest.TestCase):
  """The running mean."""

  def test_is_the_mean_of_the_neighbours_that_there_are(self):
    np.testing.assert_allclose(
      curves.smooth(np.array([0.0, 3.0, 6.0, 0.0]), 3), [1.5, 3.0, 3.0, 3.0]
    )

  def test_leaves_out_what_is_not_a_number(self):
    np.testing.assert_allclose(
      curves.smooth(np.array([1.0, np.nan, 5.0]), 3), [1.0, 3.0, 5.0]
    )


class LearningCurveTest(absltest.TestCase):
  """The picture of solve rates."""

  def test_held_out_points_stand_at_their_rates_with_their_intervals(self):
    drawing = curves.draw_learning_curve(
      history.History(
        evaluations=(
          {'step': 0, 'solve_rate': 0.25, 'low': 0.125, 'high': 0.5},
          {'step': 8, 'solve_rate': 0.5, 'low': 0.375, 'high': 0.75},
        )
      )
    )
    (bars,) = drawing.axes[0].containers
    points, _, (lines,) = bars
    np.testing.assert_array_equal(points.get_xydata(), [[0, 0.25], [8, 0.5]])
    np.testing.assert_array_equal(
      lines.get_segments(),
      [[[0, 0.125], [0, 0.5]], [[8, 0.375], [8, 0.75]]],
    )

  def test_an_interval_that_was_not_logged_follows_from_the_tasks(self):
    drawing = curves.draw_learning_curve(
      history.History(
        evaluations=({'step': 0, 'solve_rate': 0.5, 'tasks': 100},)
      )
    )
    _, _, (lines,) = drawing.axes[0].containers[0]
    np.testing.assert_allclose(
      lines.get_segments(), [[[0, 0.4038], [0, 0.5962]]], atol=1e-4
    )

  def test_without_any_solve_rate_there_is_no_picture(self):
    past = history.History(rl=({'step': 1, 'reward': 0.5},))
    self.assertIsNone(curves.draw_learning_curve(past))
    self.assertIsNone(curves.learning_curve_png(past))
    self.assertIsNone(curves.learning_curve_svg(past))

  def test_the_png_is_a_png(self):
    past = history.History(rl=({'step': 1, 'solve_rate': 0.5},))
    self.assertStartsWith(curves.learning_curve_png(past), b'\x89PNG')


class PanelsTest(absltest.TestCase):
  """Small charts for whatever metrics there are."""

  def test_only_panels_with_metrics_are_drawn(self):
    rows = [{'step': 1, 'entropy': 0.5, 'clip_fraction': None}]
    drawn = list(curves.draw_panels(rows, curves.LEARNING))
    self.assertEqual([panel.title for panel, _ in drawn], ['Entropy'])

  def test_a_panel_takes_the_ink_of_its_page_and_names_no_address(self):
    rows = [{'step': i, 'lag_mean': i, 'lag_max': i + 1} for i in range(40)]
    ((_, picture),) = curves.draw_panels(rows, curves.SPEED)
    self.assertStartsWith(picture, '<svg')
    self.assertIn('currentColor', picture)
    self.assertNotIn('http', picture)

  def test_a_value_that_is_not_a_number_leaves_a_gap(self):
    rows = [{'step': i, 'entropy': float('nan')} for i in range(3)]
    self.assertLen(list(curves.draw_panels(rows, curves.LEARNING)), 1)

  def test_tool_use_names_the_tools_found_and_is_absent_without_calls(self):
    rows = [{'step': 1, 'calls_undo': 1, 'calls_submit': 3}, {'step': 2}]
    self.assertRegex(
      curves.draw_tool_use(rows), '(?s)undo.*submit|submit.*undo'
    )
    self.assertIsNone(curves.draw_tool_use([{'step': 1}]))


if __name__ == '__main__':
  absltest.main()
