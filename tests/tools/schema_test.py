"""A call either fits the schema or is told where it does not."""

import json

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.tools import catalog
from composer_jax.tools import schema

_SPECS = list(catalog.TOOLS.values())
_VALUES = {
  'path': 'a.py',
  'text': '',
  'old': 'a',
  'new': 'b',
  'pattern': 'a',
  'command': 'true',
  'query': 'a',
}
# Of JSON schema, what ours may be made of, and of what type it is there.
_KEYWORDS = {
  'type': str,
  'description': str,
  'enum': list,
  'minimum': int,
  'maximum': int,
  'minLength': int,
  'maxLength': int,
  'minItems': int,
  'maxItems': int,
  'properties': dict,
  'required': list,
  'additionalProperties': bool,
  'items': dict,
  'default': object,
}
_KINDS = {
  'string': str,
  'integer': int,
  'number': float,
  'boolean': bool,
  'array': list,
  'object': dict,
}


def _spec(**parameters):
  return schema.ToolSpec(
    name='tool',
    description='Does.',
    run=lambda workspace: None,
    parameters=parameters,
    mutates=False,
  )


class BindTest(parameterized.TestCase):
  @parameterized.parameters(
    (int, '7', "'x' is no integer"),
    (int, True, "'x' is no integer"),
    (int, 7.0, "'x' is no integer"),
    (float, '7', "'x' is no number"),
    (float, True, "'x' is no number"),
    (bool, 1, "'x' is no boolean"),
    (str, 1, "'x' is no string"),
    (str, None, "'x' is no string"),
    (str, 'a\0', "'x' holds a zero character"),
    (list, 'a', "'x' is no array"),
    (dict, [], "'x' is no object"),
  )
  def test_a_value_of_another_type_is_refused(self, kind, value, reason):
    spec = _spec(x=schema.Parameter(kind, 'X.'))
    usage = f'tool\\(x: {spec.parameters["x"].type_name}\\)'
    with self.assertRaisesRegex(ValueError, f'{reason}; expected {usage}$'):
      schema.bind(spec, {'x': value})

  @parameterized.parameters((int, 7), (float, 7), (float, 0.5), (bool, True))
  def test_a_value_of_the_type_is_taken_as_it_is(self, kind, value):
    spec = _spec(x=schema.Parameter(kind, 'X.'))
    [bound] = schema.bind(spec, {'x': value})
    self.assertIs(bound, value)

  @parameterized.parameters(
    (int, 0, "'x' is 0, less than 1"),
    (int, 4, "'x' is 4, more than 3"),
    (float, float('nan'), "'x' is nan, less than 1"),
    (float, float('inf'), "'x' is inf, more than 3"),
    (str, '', "'x' is 0 characters, less than 1"),
    (str, 'abcd', "'x' is 4 characters, more than 3"),
    (list, [], "'x' is 0 items, less than 1"),
    (list, [1, 2, 3, 4], "'x' is 4 items, more than 3"),
  )
  def test_bounds_are_kept_and_named(self, kind, value, reason):
    spec = _spec(x=schema.Parameter(kind, 'X.', least=1, most=3))
    with self.assertRaisesRegex(ValueError, f'{reason}; expected tool'):
      schema.bind(spec, {'x': value})

  @parameterized.parameters(
    ({'items': [7]}, "'items[0]' is no object"),
    ({'items': [{'text': 'a'}]}, "no argument 'items[0].status'"),
    (
      {
        'items': [{'text': 'a', 'status': 'open'}, {'text': 'b', 'status': 'x'}]
      },
      "'items[1].status' is none of open, done, cancelled",
    ),
    (
      {'items': [{'text': 'a', 'status': 'open', 'due': 1}]},
      "unknown argument 'items[0].due'",
    ),
  )
  def test_a_fault_inside_a_value_is_named_by_its_place(self, given, reason):
    with self.assertRaises(ValueError) as caught:
      schema.bind(catalog.TOOLS['todo'], given)
    self.assertEqual(
      str(caught.exception), f'{reason}; expected todo(items: array?)'
    )

  def test_missing_and_unknown_arguments_are_named(self):
    spec = catalog.TOOLS['write_file']
    usage = 'expected write_file(path: string, text: string)'
    for given, reason in (
      ({'path': 'a'}, "no argument 'text'"),
      ({'path': 'a', 'text': '', 'mode': 1}, "unknown argument 'mode'"),
    ):
      with self.assertRaises(ValueError) as caught:
        schema.bind(spec, given)
      self.assertEqual(str(caught.exception), f'{reason}; {usage}')

  def test_what_was_not_given_has_its_default(self):
    self.assertEqual(
      schema.bind(catalog.TOOLS['read_file'], {'path': 'a', 'last': 9}),
      ('a', 1, 9, False, False),
    )


class JsonSchemaTest(parameterized.TestCase):
  def check(self, node):
    """Raises unless this is JSON schema of the kind that is told everything."""
    self.assertContainsSubset(node, _KEYWORDS)
    for keyword, value in node.items():
      self.assertIsInstance(value, _KEYWORDS[keyword], keyword)
    self.assertIn(node['type'], _KINDS)
    if 'default' in node:
      self.assertIsInstance(node['default'], _KINDS[node['type']])
    if node['type'] == 'object':
      self.assertIs(node['additionalProperties'], False)
      self.assertContainsSubset(node['required'], node['properties'])
      for child in node['properties'].values():
        self.assertNotEmpty(child['description'])
        self.check(child)
    if node['type'] == 'array':
      self.check(node['items'])

  @parameterized.named_parameters((spec.name, spec) for spec in _SPECS)
  def test_schema_is_whole_and_says_what_binds(self, spec):
    function = schema.json_schema(spec)
    self.assertEqual(function, json.loads(json.dumps(function)))
    self.check(function['parameters'])
    required = function['parameters']['required']
    schema.bind(spec, {name: _VALUES[name] for name in required})
    for name in required:
      with self.assertRaisesRegex(ValueError, f"no argument '{name}'"):
        schema.bind(spec, {n: _VALUES[n] for n in required if n != name})

  @parameterized.named_parameters((spec.name, spec) for spec in _SPECS)
  def test_defaults_would_bind_if_they_were_given(self, spec):
    properties = schema.json_schema(spec)['parameters']['properties']
    given = {n: v.get('default', _VALUES.get(n)) for n, v in properties.items()}
    schema.bind(spec, given)

  def test_bounds_and_choices_are_told(self):
    properties = schema.json_schema(catalog.TOOLS['todo'])['parameters']
    self.assertEqual(
      properties['properties']['items'],
      {
        'type': 'array',
        'description': catalog.TOOLS['todo'].parameters['items'].description,
        'maxItems': 50,
        'default': [],
        'items': {
          'type': 'object',
          'description': 'One thing to do.',
          'properties': {
            'text': {
              'type': 'string',
              'description': 'What it is.',
              'minLength': 1,
              'maxLength': 500,
            },
            'status': {
              'type': 'string',
              'description': 'How it stands.',
              'enum': ['open', 'done', 'cancelled'],
            },
          },
          'required': ['text', 'status'],
          'additionalProperties': False,
        },
      },
    )


if __name__ == '__main__':
  absltest.main()
