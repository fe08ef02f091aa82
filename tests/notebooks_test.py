"""The notebooks run from top to bottom, at a small size."""

import os
import pathlib
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import nbclient
import nbformat

_NOTEBOOKS = pathlib.Path(__file__).resolve().parent.parent / 'notebooks'
_PATHS = sorted(_NOTEBOOKS.glob('*.ipynb'))


def _text(notebook) -> str:
  return ''.join(
    output.get('text', '')
    for cell in notebook.cells
    for output in cell.get('outputs', ())
  )


class NotebooksTest(parameterized.TestCase):
  @parameterized.parameters(*[(path.name,) for path in _PATHS])
  def test_holds_no_definitions_and_no_results_of_a_run(self, name):
    notebook = nbformat.read(_NOTEBOOKS / name, 4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
      if cell.cell_type == 'code':
        self.assertNotRegex(cell.source, r'(?m)^\s*(def|class) ')
        self.assertEmpty(cell.outputs)

  def test_reward_shaping_runs_from_top_to_bottom(self):
    path = _NOTEBOOKS / 'reward_shaping.ipynb'
    notebook = nbformat.read(path, 4)
    with mock.patch.dict(os.environ, PROBLEMS='7', RUN=''):
      nbclient.NotebookClient(
        notebook, timeout=300, resources={'metadata': {'path': path.parent}}
      ).execute()
    text = _text(notebook)
    self.assertRegex(text, r'\d+ episodes, \d+% solved')
    self.assertIn('+0.00  in all', text)
    images = [
      output
      for cell in notebook.cells
      for output in cell.get('outputs', ())
      if 'image/png' in output.get('data', {})
    ]
    self.assertLen(images, 2)


if __name__ == '__main__':
  absltest.main()
