import json
import os

from absl.testing import absltest

from composer_jax.loop import metrics


class MetricsWriterTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.workdir = self.create_tempdir().full_path
    self.path = os.path.join(self.workdir, 'metrics.jsonl')

  def write(self, *lines, keep=None):
    writer = metrics.MetricsWriter(self.workdir, keep=keep)
    for phase, step in lines:
      writer.write(phase, step, {'loss': 0.5})
    writer.close()

  def test_writes_one_line_per_step(self):
    self.write(('rl', 1), ('rl', 2))
    with open(self.path, encoding='utf-8') as f:
      lines = [json.loads(line) for line in f]
    self.assertEqual(
      lines, [{'phase': 'rl', 'step': s, 'loss': 0.5} for s in (1, 2)]
    )
    self.assertNotEmpty(os.listdir(os.path.join(self.workdir, 'tensorboard')))

  def test_a_resumed_run_drops_what_it_will_do_again(self):
    self.write(('warm_start', 9), ('eval', 7), ('rl', 1), ('rl', 2), ('rl', 3))
    self.write(('rl', 3), keep={'rl': 2})
    found = [
      (line['phase'], line['step']) for line in metrics.read(self.workdir)
    ]
    self.assertEqual(
      found, [('warm_start', 9), ('eval', 7), ('rl', 1), ('rl', 2), ('rl', 3)]
    )

  def test_a_line_cut_by_a_crash_is_dropped(self):
    self.write(('rl', 1))
    with open(self.path, 'a', encoding='utf-8') as f:
      f.write('{"phase": "rl", "st')
    self.assertLen(metrics.read(self.workdir), 1)
    self.write(('rl', 2), keep={})
    self.assertLen(metrics.read(self.workdir), 2)


class JsonTest(absltest.TestCase):
  def test_reads_what_was_written(self):
    path = os.path.join(self.create_tempdir().full_path, 'x.json')
    self.assertIsNone(metrics.read_json(path))
    metrics.write_json(path, {'a': [1]})
    self.assertEqual(metrics.read_json(path), {'a': [1]})

  def test_a_failed_write_leaves_the_old_value(self):
    path = os.path.join(self.create_tempdir().full_path, 'x.json')
    metrics.write_json(path, {'a': [1]})
    with self.assertRaises(UnicodeEncodeError):
      metrics.write_whole(path, 'half' * 10_000 + '\ud800')
    self.assertEqual(metrics.read_json(path), {'a': [1]})


if __name__ == '__main__':
  absltest.main()
