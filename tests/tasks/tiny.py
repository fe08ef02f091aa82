"""A package of a few functions with its tests, as a source archive."""

import io
import pathlib
import tarfile

NAME, VERSION = 'tiny', '1.0'
REQUIREMENT = f'{NAME}=={VERSION}'
SECRET = 'whole = [item for item in items if item is not missing_value]'
CODE = f'''\
"""A few functions."""

LIMIT = 7


def register(function):
  known = list()
  known.append(function)
  return function


def clamp(x, low, high):
  """x, or the nearest bound."""
  if x < low:
    return low
  if x > high:
    return high
  return x


@register
def mean(items, missing_value=None):
  """The mean of what is not missing.

  Zero where there is nothing.
  """
  # Of those that are there.
  {SECRET}
  if not whole:
    return 0
  return total(whole) / len(whole)


def total(items):
  result = 0
  for item in items:
    result = result + item
  return result


class Stack:
  """Last in, first out."""

  def __init__(self):
    self.items = []

  def push(self, item):
    """Adds one."""
    if len(self.items) >= LIMIT:
      raise OverflowError(LIMIT)
    self.items.append(item)

  def pop(self):
    """Takes the last one away."""
    if not self.items:
      raise IndexError('empty')
    return self.items.pop()
'''
TESTS = """\
import unittest

import pytest
import tiny


@pytest.mark.parametrize('x', range(-20, 20))
def test_numbers(x):
  assert x == x


@pytest.mark.parametrize('x,y', [(1, 2), (5, 5), (9, 8)])
def test_clamp(x, y):
  assert tiny.clamp(x, 2, 8) == y


# About nothing.
def test_mean_of_nothing():
  assert tiny.mean([]) == 0


def test_mean():
  assert tiny.mean([1, None, 3]) == 2


def test_total():
  assert tiny.total([1, 2, 3]) == 6


class StackTest(unittest.TestCase):
  def test_order(self):
    stack = tiny.Stack()
    stack.push(1)
    stack.push(2)
    assert (stack.pop(), stack.pop()) == (2, 1)

  def test_empty(self):
    with self.assertRaises(IndexError):
      tiny.Stack().pop()


def test_that_never_passed():
  assert tiny.clamp(0, 1, 2) == 0
"""
INFO = f'Metadata-Version: 2.1\nName: {NAME}\nLicense-Expression: MIT\n'
FILES = {
  'PKG-INFO': INFO,
  'README.md': 'Tiny.\n',
  'setup.py': 'import setuptools\nsetuptools.setup()\n',
  'tiny/__init__.py': CODE,
  'tests/test_tiny.py': TESTS,
  'tests/test_other.py': 'def test_other():\n  assert True\n',
}
RESIDUE = {
  '.git/objects/aa': CODE,
  'tiny/__pycache__/__init__.cpython-311.pyc': CODE,
  'tiny.egg-info/SOURCES.txt': CODE,
  'build/lib/tiny/__init__.py': CODE,
  'tiny/__init__.py.orig': CODE,
}


def archive(path: pathlib.Path, files: dict[str, str]) -> None:
  """A source archive with these files, and things that must not come out."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with tarfile.open(path, 'w:gz') as opened:
    for name, text in files.items():
      member = tarfile.TarInfo(f'tiny-1.0/{name}')
      member.size, member.uid = len(text.encode()), 4242
      opened.addfile(member, io.BytesIO(text.encode()))
    link = tarfile.TarInfo('tiny-1.0/tiny/link.py')
    link.type, link.linkname = tarfile.SYMTYPE, '/etc/passwd'
    opened.addfile(link)
    outside = tarfile.TarInfo('tiny-1.0/../outside.py')
    opened.addfile(outside, io.BytesIO(b''))
