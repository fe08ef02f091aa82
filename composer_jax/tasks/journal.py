"""What was tried, one line each, so that a killed run goes on where it was."""

from collections.abc import Mapping
import json
import os
import pathlib
from typing import Any


class Journal:
  """Entries by key, kept in a file. One process writes it at a time.

  An entry is there or not: a line that a kill cut short is dropped when the
  journal is opened again. Entries survive a kill of the process at once, a
  crash of the machine once `append` has returned.
  """

  def __init__(self, path: pathlib.Path):
    self._path = path
    self.entries: dict[str, Mapping[str, Any]] = {}
    path.parent.mkdir(parents=True, exist_ok=True)
    data = path.read_bytes() if path.exists() else b''
    whole = data[: data.rfind(b'\n') + 1]
    if whole != data:
      os.truncate(path, len(whole))
    for line in whole.splitlines():
      entry = json.loads(line)
      self.entries[entry['key']] = entry

  def append(self, entry: Mapping[str, Any]) -> None:
    """Adds one entry, which has a 'key' that is new."""
    if entry['key'] in self.entries:
      raise ValueError(f'{self._path}: {entry["key"]} is there already')
    with open(self._path, 'ab') as file:
      file.write(json.dumps(entry).encode() + b'\n')
      file.flush()
      os.fsync(file.fileno())
    self.entries[entry['key']] = entry
