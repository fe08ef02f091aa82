"""The page about a run, and the table that ends it."""

from html import parser
import json
import os
import pathlib
import re
from unittest import mock

from absl.testing import absltest
import numpy as np

from composer_jax import trajectory
from composer_jax.viewer import report

_RESULT = {
  'heldout_solve_rate_before': 0.25,
  'heldout_solve_rate_after': 0.5,
  'heldout_greedy_before': 0.3,
  'heldout_greedy_after': 0.625,
  'heldout_tasks': 100,
  'train_tasks': 1500,
  'visible_share': 0.8125,
  'tests_cached': True,
  'episodes': 1024,
  'tool_calls': 4096,
  'sandbox_level': 'strong',
  'weights_published': 9,
  'max_lag_seen': 3,
  'learner_steps': 8,
  'wall_seconds': 65.4,
  'seed': 0,
}


def _episode(title: str, tool_text: str = 'passed') -> report.Episode:
  sampled_T = np.array([False, True, True, False])
  call = trajectory.ToolCall(id='0', name='run_tests')
  answer = trajectory.ToolResult(
    call_id='0', status=trajectory.Status.ERROR, text=tool_text
  )
  path = trajectory.Trajectory(
    task_id='HumanEval/7-compare-0',
    group=0,
    member=0,
    token_T=np.arange(4, dtype=np.int32),
    sampled_T=sampled_T,
    logprob_T=np.where(sampled_T, -0.5, 0).astype(np.float32),
    version_T=np.where(sampled_T, 2, -1).astype(np.int32),
    route_TLX=np.zeros((4, 1, 2), np.int8),
    turns=(trajectory.Turn(start=1, stop=3, calls=(call,), results=(answer,)),),
    ending=trajectory.Ending.SUBMITTED,
    final_files={'solution.py': 'def add(a, b): ...'},
    rewards={'correct': 1.0, 'effort': -0.25},
  )
  return report.Episode(
    title=title,
    trajectory=path,
    segments=(
      report.Segment(kind='prompt', text='Repair it.'),
      report.Segment(kind='policy', text='run_tests', logprob=-0.5),
      report.Segment(kind='tool', text=tool_text),
    ),
  )


class _Addresses(parser.HTMLParser):
  """Collects whatever a browser would load or lead to, and the open tags."""

  def __init__(self):
    super().__init__()
    self.found = []
    self.tags = []

  def handle_starttag(self, tag, attrs):
    self.tags.append(tag)
    for name, value in attrs:
      if name.rpartition(':')[2] in ('src', 'href', 'srcset', 'action'):
        self.found.append(value)
      self.found.extend(re.findall(r'url\((.*?)\)', value or ''))

  def handle_data(self, data):
    if self.tags and self.tags[-1] == 'style':
      self.found.extend(re.findall(r'url\((.*?)\)|@import (.*);', data))


class WriteReportTest(absltest.TestCase):
  """The page as a file."""

  def setUp(self):
    super().setUp()
    self.workdir = self.create_tempdir().full_path

  def leave(self, name: str, text: str) -> None:
    pathlib.Path(self.workdir, name).write_text(text)

  def leave_a_run(self) -> None:
    rows = [
      {'phase': 'warm_start', 'step': 1, 'loss': 2.0},
      {'phase': 'eval', 'step': 0, 'solve_rate': 0.25, 'low': 0.2, 'high': 0.3},
    ]
    for step in range(1, 21):
      rates = {'solve_rate': 0.5, 'reward': 0.25, 'lag_mean': 1, 'lag_max': 2}
      rows.append({'phase': 'rl', 'step': step, 'calls_submit': 1, **rates})
    self.leave('metrics.jsonl', '\n'.join(json.dumps(row) for row in rows))
    self.leave('result.json', json.dumps(_RESULT))
    self.leave('config.json', json.dumps({'seed': 0, 'max_lag': 4}))

  def page(self, *episodes: report.Episode) -> str:
    path = report.write_report(self.workdir, episodes)
    return pathlib.Path(path).read_text(encoding='utf-8')

  def test_shows_result_curves_episodes_and_configuration(self):
    self.leave_a_run()
    page = self.page(_episode('Solved'), _episode('Failed'), _episode('Odd'))
    expected = (
      '25.0 % (95 %: 17.5 to 34.3)',
      'Tasks solved',
      'Tool use',
      'Warm start',
      'HumanEval/7-compare-0',
      'Solved',
      'Failed',
      'Odd',
      'reward 0.750',
      'run_tests error',
      'mean log-probability -0.500',
      'def add(a, b): ...',
      '&#34;max_lag&#34;: 4',
    )
    self.assertEmpty([words for words in expected if words not in page])
    self.assertTrue(os.path.exists(os.path.join(self.workdir, 'curve.png')))

  def test_needs_no_network(self):
    self.leave_a_run()
    addresses = _Addresses()
    addresses.feed(self.page(_episode('One')))
    self.assertNotEmpty(addresses.found)  # Marks inside the pictures.
    for address in addresses.found:
      self.assertStartsWith(address, '#')
    self.assertNoCommonElements(addresses.tags, ['script', 'link', 'iframe'])

  def test_text_of_an_episode_stays_text(self):
    page = self.page(_episode('One', '</pre><script>alert(1)</script>'))
    self.assertNotRegex(page, '<script')
    self.assertIn('&lt;script&gt;alert(1)&lt;/script&gt;', page)

  def test_half_of_a_surrogate_pair_can_be_written(self):
    self.assertIn('\\ud800', self.page(_episode('One', '\ud800')))

  def test_a_run_that_left_nothing_has_a_page_without_curves(self):
    self.assertNotIn('<svg', self.page())
    self.assertEqual(os.listdir(self.workdir), ['report.html'])

  def test_an_old_page_survives_a_write_that_fails(self):
    self.leave('report.html', 'old')
    with mock.patch.object(os, 'replace', side_effect=OSError('full')):
      with self.assertRaisesRegex(OSError, 'full'):
        report.write_report(self.workdir)
    self.assertEqual(os.listdir(self.workdir), ['report.html'])
    self.assertEqual(
      pathlib.Path(self.workdir, 'report.html').read_text(), 'old'
    )

  def test_refuses_a_segment_of_an_unknown_kind(self):
    with self.assertRaisesRegex(ValueError, "not 'system'"):
      report.Segment(kind='system', text='')


class SummaryTableTest(absltest.TestCase):
  """The table on the terminal."""

  def test_shows_the_headline_numbers_aligned(self):
    self.assertEqual(
      report.summary_table(_RESULT).splitlines(),
      [
        'held-out solved before  25.0 % (95 %: 17.5 to 34.3)',
        'held-out solved after   50.0 % (95 %: 40.4 to 59.6)',
        'gain                    +25.0 points, 2.00 x',
        'greedy                  30.0 % to 62.5 %',
        'held-out tasks          100',
        'training tasks          1,500',
        'episodes                1,024',
        'tool calls              4,096',
        'sandbox level           strong',
        'weights published       9',
        'largest lag             3',
        'learner steps           8',
        'bugs the examples show  81.2 %',
        'tests of equal code     run once, then remembered',
        'wall time               1 min 05 s',
        'seed                    0',
      ],
    )

  def test_leaves_out_what_an_interrupted_run_does_not_know(self):
    self.assertEqual(
      report.summary_table({'heldout_solve_rate_before': 0.0, 'seed': 3}),
      'held-out solved before  0.0 %\nseed                    3',
    )
    self.assertEqual(report.summary_table({}), '')


if __name__ == '__main__':
  absltest.main()
