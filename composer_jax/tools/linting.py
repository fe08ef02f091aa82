"""The tool that finds faults without running the code: ruff."""

from __future__ import annotations

import collections
from collections.abc import Sequence
import json
import os

from composer_jax import trajectory
from composer_jax.tools import isolation
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
  result = workspace.box.exec(
    [*_COMMAND, *paths], seconds=_SECONDS, report=True
  )
  if result.timed_out:
    return Answer(text='timed out', status=Status.TIMEOUT)
  folder, _, report = result.report.partition('\n')
  try:
    findings = json.loads(report)
  except ValueError:
    findings = None
  if findings is None or result.exit_code not in (0, 1):
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
    path = os.path.relpath(finding['filename'], folder)
    row, code = finding['location']['row'], finding['code'] or 'syntax'
    lines.append(f'{path}:{row} {code} {finding["message"]}')
  if len(findings) > _SHOWN:
    lines.append(f'[{len(findings) - _SHOWN} more]')
  return Answer(
    text='\n'.join(lines),
    status=Status.ERROR if _UNREADABLE in codes else Status.OK,
    exit_code=result.exit_code,
  )
