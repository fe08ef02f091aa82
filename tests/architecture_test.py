"""The tree is what BUILD says, and reads as the project's style asks."""

import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from tests import architecture

_ROOT = pathlib.Path(__file__).resolve().parent.parent

# Files that may catch every exception: code of the policy runs behind them, or
# they are the top of a thread.
_DOORS = frozenset(
  {
    'composer_jax/loop/supervise.py',
    'composer_jax/tools/assert_runner.py',
    'composer_jax/tools/worker_commands.py',
  }
)
_LONG_FUNCTIONS = frozenset()


class ProjectTest(absltest.TestCase):
  """What holds for the tree that this file stands in."""

  def test_every_file_belongs_to_one_room_and_no_room_is_empty(self):
    self.assertEmpty(list(architecture.room_faults(_ROOT)))

  def test_dependencies_point_downward(self):
    self.assertEmpty(list(architecture.layer_faults(_ROOT)))

  def test_imports_follow_build(self):
    self.assertEmpty(list(architecture.import_faults(_ROOT)))

  def test_no_modules_import_each_other(self):
    self.assertEmpty(list(architecture.cycle_faults(_ROOT)))

  def test_names_say_something(self):
    self.assertEmpty(list(architecture.name_faults(_ROOT)))

  def test_nothing_is_guessed_or_swallowed(self):
    self.assertEmpty(list(architecture.idiom_faults(_ROOT, _DOORS)))
    self.assertContainsSubset(_DOORS, architecture.python_files(_ROOT))

  def test_files_and_functions_can_be_read_at_once(self):
    self.assertEmpty(list(architecture.size_faults(_ROOT, _LONG_FUNCTIONS)))


class WrongTreeTest(parameterized.TestCase):
  """Each check sees the fault that it is there for."""

  def tree(
    self, files: dict[str, str], deps: dict[str, list[str]] | None = None
  ) -> pathlib.Path:
    """A tree of three rooms with these files over its own."""
    root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    rooms = {'trajectory': [], 'model': [], 'sampler': ['model'], 'actor': []}
    build = ''
    for room, allowed in {**rooms, **(deps or {})}.items():
      srcs = f"glob(['composer_jax/{room}/*.py'])"
      if room == 'trajectory':
        srcs = "['composer_jax/__init__.py', 'composer_jax/trajectory.py']"
      colons = [f':{dep}' for dep in allowed]
      build += f'py_library(name={room!r}, srcs={srcs}, deps={colons})\n'
    files = {
      'BUILD': build,
      'composer_jax/__init__.py': '',
      'composer_jax/trajectory.py': '',
      'composer_jax/model/moe.py': 'import jax',
      'composer_jax/sampler/decode.py': 'from composer_jax.model import moe',
      'composer_jax/actor/episode.py': '',
      **files,
    }
    for name, text in files.items():
      path = root / name
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_text(text)
    return root

  def assert_one_fault(self, faults, *words: str):
    faults = list(faults)
    self.assertLen(faults, 1)
    for word in words:
      self.assertIn(word, faults[0])

  def test_a_right_tree_has_no_faults(self):
    root = self.tree({})
    for check in (
      architecture.room_faults,
      architecture.layer_faults,
      architecture.import_faults,
      architecture.cycle_faults,
      architecture.name_faults,
      architecture.idiom_faults,
      architecture.size_faults,
    ):
      self.assertEmpty(list(check(root)), check.__name__)

  @parameterized.named_parameters(
    ('upward', 'model', 'from composer_jax.sampler import decode'),
    ('sideways', 'actor', 'import composer_jax.sampler.decode'),
    ('late', 'actor', 'def f():\n  from composer_jax.sampler import decode'),
    ('of_a_name', 'actor', 'from composer_jax.sampler.decode import step'),
  )
  def test_sees_an_import_that_build_does_not_allow(self, room, text):
    root = self.tree({f'composer_jax/{room}/new.py': text})
    faults = list(architecture.import_faults(root))
    self.assertIn(f'{room} may not import composer_jax.sampler', faults[0])

  def test_sees_a_relative_import(self):
    root = self.tree({'composer_jax/model/new.py': 'from . import moe'})
    self.assert_one_fault(architecture.import_faults(root), 'imports ., ')

  def test_sees_a_name_imported_instead_of_its_module(self):
    text = 'from composer_jax.model.moe import route'
    root = self.tree({'composer_jax/model/new.py': text})
    self.assert_one_fault(architecture.import_faults(root), 'not its route')

  @parameterized.named_parameters(
    ('upward', 'model', 'sampler'),
    ('sideways', 'actor', 'sampler'),
    ('nowhere', 'actor', 'phantom'),
  )
  def test_sees_a_dependency_that_does_not_point_down(self, room, dep):
    root = self.tree({}, {room: [dep]})
    self.assert_one_fault(architecture.layer_faults(root), room, dep)

  def test_sees_modules_that_import_each_other(self):
    root = self.tree(
      {
        'composer_jax/model/moe.py': 'from composer_jax.model import norm',
        'composer_jax/model/norm.py': 'import composer_jax.model.moe',
      }
    )
    self.assert_one_fault(architecture.cycle_faults(root), 'moe', 'norm')

  def test_sees_a_folder_without_a_library(self):
    root = self.tree({'composer_jax/text/chat.py': ''})
    self.assert_one_fault(architecture.room_faults(root), 'chat.py', 'no lib')

  def test_sees_a_library_with_nothing_but_an_init(self):
    root = self.tree({'composer_jax/text/__init__.py': ''}, {'text': []})
    self.assert_one_fault(architecture.room_faults(root), 'text', 'nothing')

  def test_files_that_a_glob_excludes_belong_to_another_library(self):
    root = self.tree(
      {'composer_jax/actor/door.py': 'import composer_jax.model.moe'}
    )
    build = (root / 'BUILD').read_text()
    whole = "glob(['composer_jax/actor/*.py'])"
    parted = f"{whole[:-1]}, exclude=['composer_jax/actor/d*.py'])"
    self.assertIn(whole, build)
    (root / 'BUILD').write_text(
      build.replace(whole, parted)
      + "py_library(name='loop', srcs=['composer_jax/actor/door.py'],"
      " deps=[':model'])\n"
    )
    self.assertEmpty(list(architecture.room_faults(root)))
    self.assertEmpty(list(architecture.import_faults(root)))

  def test_sees_a_library_without_a_layer(self):
    root = self.tree({'composer_jax/extra/new.py': ''}, {'extra': []})
    self.assert_one_fault(architecture.room_faults(root), 'extra', 'layer')

  @parameterized.parameters('utils.py', 'base_model.py', 'common/x.py')
  def test_sees_a_vague_name(self, name):
    root = self.tree({f'composer_jax/model/{name}': ''})
    self.assert_one_fault(architecture.name_faults(root), name)

  @parameterized.parameters(
    'hasattr(x, "a")',
    'getattr(x, "a", None)',
    'def f(**kwargs): pass',
    'f = lambda **kwargs: 0',
    'try: x\nexcept Exception: pass',
    'try: x\nexcept (OSError, BaseException) as e: log(e)',
    'try: x\nexcept: pass',
  )
  def test_sees_an_idiom_that_guesses_or_swallows(self, text):
    root = self.tree({'composer_jax/model/new.py': text})
    self.assert_one_fault(architecture.idiom_faults(root), 'new.py:')

  @parameterized.parameters(
    'getattr(x, "a")',
    '@functools.wraps(f)\ndef g(*args, **kwargs): pass',
    'try: x\nexcept BaseException:\n  clean()\n  raise',
    'f(**changes)',
  )
  def test_accepts_the_honest_relatives(self, text):
    root = self.tree({'composer_jax/model/new.py': text})
    self.assertEmpty(list(architecture.idiom_faults(root)))

  def test_accepts_a_builder_of_a_test(self):
    root = self.tree({'tests/model/new_test.py': 'def build(**fields): pass'})
    self.assertEmpty(list(architecture.idiom_faults(root)))

  def test_only_doors_may_catch_everything(self):
    door = 'composer_jax/actor/door.py'
    root = self.tree({door: 'try: x\nexcept Exception: pass'})
    self.assertEmpty(list(architecture.idiom_faults(root, frozenset({door}))))

  def test_sees_a_long_function_and_a_long_file(self):
    body = '  x = 1\n'
    fits = 'def f():\n  """' + 9 * 'Words.\n' + '"""\n' + 79 * body
    root = self.tree({'composer_jax/model/new.py': fits})
    self.assertEmpty(list(architecture.size_faults(root)))
    root = self.tree({'composer_jax/model/new.py': 'def f():\n' + 80 * body})
    self.assert_one_fault(architecture.size_faults(root), 'f has 81 lines')
    root = self.tree({'composer_jax/model/new.py': 601 * 'x = 1\n'})
    self.assert_one_fault(architecture.size_faults(root), '601 lines')


if __name__ == '__main__':
  absltest.main()
