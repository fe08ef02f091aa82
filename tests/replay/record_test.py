import dataclasses
import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import grain
import numpy as np

from composer_jax import trajectory
from composer_jax.replay import record


def full(group=3, member=1):
  """A trajectory with something unusual in every field."""
  return trajectory.Trajectory(
    task_id='tâche/1',
    group=group,
    member=member,
    token_T=np.array([5, 6, 70000], np.int32),
    sampled_T=np.array([False, True, True]),
    logprob_T=np.array([0, -0.1, -1e-30], np.float32),
    version_T=np.array([-1, 7, 8], np.int32),
    route_TLX=np.arange(12, dtype=np.int8).reshape(3, 2, 2) - 1,
    turns=(
      trajectory.Turn(
        start=1,
        stop=3,
        calls=(
          trajectory.ToolCall(
            id='a', name='edit', arguments={'line': 3, 'new': 'x\n', 'n': None}
          ),
          trajectory.ToolCall(id='b', name='', error='bad JSON: \ud800'),
        ),
        results=(
          trajectory.ToolResult(
            call_id='a',
            status=trajectory.Status.OK,
            text='\ufffd ok',
            exit_code=0,
            seconds=0.1,
            dropped_bytes=9,
          ),
          trajectory.ToolResult(
            call_id='b', status=trajectory.Status.INVALID, text=''
          ),
        ),
      ),
    ),
    ending=trajectory.Ending.TURN_LIMIT,
    final_files={'a.py': 'x = 1\r\n', 'empty': ''},
    rewards={'correct': 1.0, 'effort': -0.1},
    facts={'lint': 2.0, 'edited_tests': 0.0},
    starts=(0, 2),
    sandbox_level='weak',
    seconds=1 / 3,
  )


def empty():
  return trajectory.Trajectory(
    task_id='',
    group=0,
    member=0,
    token_T=np.zeros(0, np.int32),
    sampled_T=np.zeros(0, bool),
    logprob_T=np.zeros(0, np.float32),
    version_T=np.zeros(0, np.int32),
    route_TLX=np.zeros((0, 2, 2), np.int8),
    turns=(),
    ending=trajectory.Ending.TOKEN_LIMIT,
    final_files={},
  )


class RecordTest(parameterized.TestCase):
  def assert_same(self, got, want):
    for field in dataclasses.fields(trajectory.Trajectory):
      ours, theirs = getattr(got, field.name), getattr(want, field.name)
      if isinstance(theirs, np.ndarray):
        np.testing.assert_array_equal(ours, theirs, strict=True)
      else:
        self.assertEqual(ours, theirs, field.name)

  @parameterized.named_parameters(('full', full()), ('empty', empty()))
  def test_every_field_survives(self, want):
    self.assert_same(record.decode(record.encode(want)), want)

  def test_every_field_of_the_example_differs_from_the_empty_one(self):
    one, other = full(), empty()
    for field in dataclasses.fields(trajectory.Trajectory):
      self.assertNotEqual(
        str(getattr(one, field.name)), str(getattr(other, field.name))
      )

  def test_grain_reads_all_steps_in_order(self):
    directory = self.create_tempdir().full_path
    record.write_step(directory, 10, [full(10, 0)])
    path = record.write_step(directory, 9, [full(9, m) for m in range(3)])
    self.assertEqual(path.name, '000009.array_record')
    self.assertLen(grain.sources.ArrayRecordDataSource(str(path)), 3)
    data = grain.MapDataset.source(record.TrajectorySource(directory))
    self.assertEqual(
      [(t.group, t.member) for t in data], [(9, 0), (9, 1), (9, 2), (10, 0)]
    )
    self.assert_same(data[1], full(9, 1))

  def test_a_step_that_is_run_again_replaces_its_file(self):
    directory = self.create_tempdir().full_path
    record.write_step(directory, 4, [full(4, 0), full(4, 1)])
    record.write_step(directory, 4, [full(4, 5)])
    source = record.TrajectorySource(directory)
    self.assertEqual([t.member for t in map(source.__getitem__, [0])], [5])
    self.assertLen(source, 1)

  def test_a_half_written_file_is_not_seen(self):
    directory = pathlib.Path(self.create_tempdir().full_path)
    record.write_step(directory, 1, [full(1, 0)])

    def dies_half_way():
      yield full(2, 0)
      self.assertLen(record.TrajectorySource(directory), 1)
      raise KeyboardInterrupt

    with self.assertRaises(KeyboardInterrupt):
      record.write_step(directory, 2, dies_half_way())
    self.assertLen(record.TrajectorySource(directory), 1)

  def test_an_empty_directory_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'no trajectories'):
      record.TrajectorySource(self.create_tempdir().full_path)


if __name__ == '__main__':
  absltest.main()
