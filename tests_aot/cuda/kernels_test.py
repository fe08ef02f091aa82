"""Every GPU kernel compiled in full for its GPU, on a machine without one."""

import re

from absl.testing import absltest

from benchmarks import cuda_aot

_PRODUCTS = ('forward', 'input_grad', 'weight_grad')
_SHARED_MEMORY = 232_448  # Bytes that a thread block may have on either GPU.


class CompiledTest(absltest.TestCase):
  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.reports = cuda_aot.reports()

  def products(self, gpu):
    found = [
      report
      for report in self.reports
      if report.gpu == gpu and report.name.startswith(_PRODUCTS)
    ]
    self.assertLen(found, 6)  # Each of the three, wide and narrow.
    return found

  def test_everything_is_compiled_for_its_gpu(self):
    self.assertLen(self.reports, 24)
    for report in self.reports:
      architecture = cuda_aot.ARCHITECTURES[report.gpu]
      self.assertIn(f'.target {architecture}\n', report.ptx, report.name)

  def test_nothing_is_spilled(self):
    spilled = {(r.gpu, r.name): r.spilled for r in self.reports if r.spilled}
    self.assertEmpty(spilled)

  def test_ptxas_sees_no_loss(self):
    """Such as products that wait for each other, or registers refused."""
    for report in self.reports:
      self.assertNotIn('Performance Loss', report.said, report.name)

  def test_shared_memory_suffices(self):
    for report in self.reports:
      self.assertLessEqual(report.shared_memory, _SHARED_MEMORY, report.name)

  def test_products_run_on_hoppers_tensor_cores(self):
    for report in self.products('H200'):
      self.assertIn('wgmma.mma_async.sync.aligned', report.ptx, report.name)
      self.assertIn('f32.bf16.bf16', report.ptx, report.name)
      # A slot is free when all that read it has ended; interpreters do not see
      # that this is waited for.
      waits = re.findall(r'wgmma\.wait_group\S*\s+(\d+)', report.ptx)
      self.assertEqual(set(waits), {'0'}, report.name)

  def test_products_are_block_scaled_by_blackwells_tensor_cores(self):
    for report in self.products('B200'):
      self.assertIn('kind::mxf8f6f4.block_scale', report.ptx, report.name)
      self.assertNotIn('kind::f16', report.ptx, report.name)

  def test_operands_are_rounded_by_the_hardware_and_not_flushed(self):
    for report in self.reports:
      if not report.name.startswith(_PRODUCTS):
        self.assertIn('cvt.rn.satfinite.e4m3x2.f32', report.ptx, report.name)
        self.assertNotRegex(report.ptx, r'\bmul\S*\.ftz', report.name)

  def test_the_table_has_a_line_for_each(self):
    table = cuda_aot.table(self.reports)
    self.assertLen(table.splitlines(), 1 + len(self.reports))


if __name__ == '__main__':
  absltest.main()
