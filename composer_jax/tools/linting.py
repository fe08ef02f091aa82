"""The tool that finds faults without running the code: ruff."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
import json
import os
from typing import Any

from composer_jax import trajectory
from composer_jax.tools import isolation
from composer_jax.tools import sandbox
from composer_jax.tools import workspace as workspace_lib

_SECONDS = 10.0
_RULES = 'E4,E7,E9,F'  # What is most likely a fault, and nothing of style.
_UNREADABLE = 'E902'
_SHOWN = 50  # Findings.
# The folder and then the findings go where no limit of the output cuts them.
_SCRIPT = 'pwd >&$BOX_REPORT; exec env RAYON_NUM_THREADS=1 "$@" >&$BOX_REPORT'
_COMMAND = (
  *('sh', '-c', _SCRIPT, 'sh', isolation.RUFF, 'check', '--no-cache'),
  *('--isolated', '--output-format=json', f'--select={_RULES}', '--'),
)

Answer = workspace_lib.Answer
Status = trajectory.Status


def lint(workspace: workspace_lib.Workspace, paths: Sequence[str]) -> Answer:
  """How many faults ruff finds, and each as `path:line code message`."""
  paths = [f'./{workspace_lib.relative(path)}' for path in paths or ['.']]
  result = _run(workspace.box, paths)
  if result.timed_out:
    return Answer(text='timed out', status=Status.TIMEOUT)
  findings = _findings(result)
  if findings is None:
    return Answer(
      text=result.output.strip('\n') or 'more findings than can be read',
      status=Status.ERROR,
      exit_code=result.exit_code,
    )
  if not findings:
    return Answer(text=result.output.strip('\n') or 'no findings', exit_code=0)
  codes = collections.Counter(f['code'] or 'syntax' for f in findings)
  counts = ', '.join(f'{code} {n}' for code, n in codes.most_common())
  lines = [f'{len(findings)} findings: {counts}']
  for finding in findings[:_SHOWN]:
    row, code = finding['location']['row'], finding['code'] or 'syntax'
    lines.append(f'{finding["path"]}:{row} {code} {finding["message"]}')
  if len(findings) > _SHOWN:
    lines.append(f'[{len(findings) - _SHOWN} more]')
  return Answer(
    text='\n'.join(lines),
    status=Status.ERROR if _UNREADABLE in codes else Status.OK,
    exit_code=result.exit_code,
  )


def counts(
  box: sandbox.Box, files: Mapping[str, str]
) -> Mapping[str, int] | None:
  """Findings by path in these files, in a box that is emptied for them.

  None where ruff could not tell.
  """
  box.reset(files)
  found = _findings(_run(box, ['.']))
  if found is None:
    return None
  return collections.Counter(finding['path'] for finding in found)


def _run(box: sandbox.Box, paths: Sequence[str]) -> sandbox.RunResult:
  return box.exec([*_COMMAND, *paths], seconds=_SECONDS, report=True)


def _findings(result: sandbox.RunResult) -> list[dict[str, Any]] | None:
  """What ruff reported, each with its `path`; None if it did not."""
  folder, _, report = result.report.partition('\n')
  if result.exit_code not in (0, 1):
    return None
  try:
    findings = json.loads(report)
  except ValueError:
    return None
  for finding in findings:
    finding['path'] = os.path.relpath(finding['filename'], folder)
  return findings
