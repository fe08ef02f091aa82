"""One box for the tests of a class, and calls as the policy makes them."""

from collections.abc import Mapping
import dataclasses
import pathlib
import tempfile

from absl.testing import parameterized

from composer_jax import trajectory
from composer_jax.tools import isolation
from composer_jax.tools import libraries
from composer_jax.tools import registry
from composer_jax.tools import sandbox

ALL = registry.ToolsConfig(
  allowed=tuple(registry.TOOLS), text_chars=20000, embedding='none'
)
Status = trajectory.Status

_FILES = {
  'pkg/__init__.py': 'from pkg.sums import total\n',
  'pkg/sums.py': '''def total(numbers):
  """Adds up.

  All of them.
  """
  result = 1
  for n in numbers:
    result += n
  return result
''',
  'tests/test_sums.py': """from pkg import total


def test_total():
  assert total([1, 2]) == 3


def test_type():
  assert isinstance(total([]), int)
""",
  'README.md': 'Adds numbers up.\n',
}
_BUG = trajectory.Edit('pkg/sums.py', 'result = 0', 'result = 1')
# A task on a repository; its tree is made by `ToolTest`.
TASK = trajectory.Task(
  id='sums',
  prompt='Repair total.',
  files={},
  test_command=('python', isolation.PYTEST_RUNNER, 'tests'),
  hidden_files={},
  grade_command=('true',),
  provenance=trajectory.Provenance(
    package='none',
    licence='Apache-2.0',
    problem='sums',
    kind='constant',
    bugs=(_BUG,),
    visible_fails=True,
  ),
  split='train',
  test_seconds=60.0,
  snapshot='sums',
)


def call(name: str, call_id: str = '', /, **arguments) -> trajectory.ToolCall:
  return trajectory.ToolCall(id=call_id or name, name=name, arguments=arguments)


class ToolTest(parameterized.TestCase):
  """Has a box with pytest in it."""

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls.folder = tempfile.TemporaryDirectory()
    cls.addClassCleanup(cls.folder.cleanup)
    packages = pathlib.Path(cls.folder.name, 'packages')
    libraries.collect(['pytest'], packages)
    config = sandbox.SandboxConfig(allow_weak=True, libraries=str(packages))
    cls.box = sandbox.Box(sandbox.probe(config), config)
    cls.addClassCleanup(cls.box.close)
    cls.box.reset(_FILES)
    cls.tree = cls.box.snapshot()

  def toolbox(
    self,
    files: Mapping[str, str] | None = None,
    *,
    config: registry.ToolsConfig = ALL,
    cache: registry.ResultCache | None = None,
    command: tuple[str, ...] = TASK.test_command,
    tree: bytes | None = None,
  ) -> registry.Toolbox:
    """At work on the usual repository, with `files` laid over it."""
    task = dataclasses.replace(TASK, files=files or {}, test_command=command)
    tree = self.tree if tree is None else tree
    return self.enter_context(
      registry.Toolbox(task, self.box, config, cache, tree)
    )

  def answer(self, *calls, toolbox=None):
    """Statuses and texts."""
    results = (toolbox or self.toolbox()).call_all(calls)
    self.assertEqual([r.call_id for r in results], [c.id for c in calls])
    return [(r.status, r.text) for r in results]
