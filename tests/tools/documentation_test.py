"""People read what the model is told."""

import pathlib

from absl.testing import absltest

from composer_jax.tools import catalog
from composer_jax.tools import documentation

_PAGE = pathlib.Path(documentation.__file__).parent / 'README.md'


class DocumentationTest(absltest.TestCase):
  def test_the_page_is_what_the_catalog_says(self):
    self.assertEqual(
      _PAGE.read_text(),
      documentation.markdown(),
      'write documentation.markdown() to composer_jax/tools/README.md',
    )

  def test_every_word_that_the_model_is_told_is_on_the_page(self):
    page = documentation.markdown()

    def check(parameters):
      for name, parameter in parameters.items():
        self.assertIn(f'{name}` | {parameter.type_name}', page)
        self.assertIn(f'| {parameter.description} |', page)
        if parameter.items is not None:
          check(parameter.items.fields)

    for spec in catalog.TOOLS.values():
      self.assertIn(f'## {spec.name}\n\n{spec.description} ', page)
      check(spec.parameters)

  def test_chat_interfaces_are_told_of_the_tools_asked_for(self):
    [undo, submit] = documentation.chat_tools(['undo', 'submit'])
    self.assertEqual(
      undo,
      {
        'type': 'function',
        'function': {
          'name': 'undo',
          'description': catalog.TOOLS['undo'].description,
          'parameters': {
            'type': 'object',
            'properties': {},
            'required': [],
            'additionalProperties': False,
          },
        },
      },
    )
    self.assertEqual(submit['function']['name'], 'submit')


if __name__ == '__main__':
  absltest.main()
