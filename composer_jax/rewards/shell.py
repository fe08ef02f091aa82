"""Reads command lines as far as a judge needs to: which programs, which words.

Not a shell: variables stay as they are written, and what a program builds at
run time (an encoded command, a script fetched from a variable) is not seen.
"""

from __future__ import annotations

from collections.abc import Iterator
import dataclasses
import re
import shlex

_OPERATORS = frozenset('();<>|&\n')
_SHELLS = frozenset(('bash', 'sh', 'dash', 'zsh'))
# Programs that run another one, and their options that take a value.
_WRAPPERS = {
  'sudo': ('-u', '-g'),
  'env': ('-u', '-C'),
  'time': (),
  'timeout': ('-s', '-k'),
  'nice': ('-n',),
  'nohup': (),
  'exec': (),
  'xargs': ('-n', '-I', '-P', '-L', '-d'),
  'stdbuf': (),
}
_ASSIGNMENT = re.compile(r'[A-Za-z_]\w*=')
_HEREDOC = re.compile(
  r'<<-?[ \t]*([\'"]?)(\w+)\1([^\n]*)\n(.*?)(?:\n[ \t]*\2[ \t]*(?=\n|$)|\Z)',
  re.DOTALL,
)
_KEYWORDS = frozenset(
  ('if', 'then', 'else', 'elif', 'fi', 'do', 'done', 'while', 'until', '{', '}')
)
_GIT_VALUES = frozenset(('-C', '-c', '--git-dir', '--work-tree'))
_DOCUMENT = '\N{NULL}'  # Stands for a here-document; no command can hold it.
_DEPTH = 4  # Shells within shells.


@dataclasses.dataclass(frozen=True)
class Command:
  """One simple command: program and arguments, redirections apart."""

  words: tuple[str, ...]
  reads: tuple[str, ...] = ()  # Files that it takes as standard input.
  writes: tuple[str, ...] = ()  # Files that its output goes to.
  text: str = ''  # A here-document.

  @property
  def program(self) -> str:
    """Its name without the folder; '' if there are redirections only."""
    return self.words[0].rpartition('/')[2] if self.words else ''

  @property
  def arguments(self) -> tuple[str, ...]:
    return self.words[1:]


def commands(line: str, depth: int = 0) -> Iterator[Command]:
  """The simple commands of a line, those inside `sh -c '...'` included.

  A line whose quotes do not match is split at blanks.
  """
  if depth > _DEPTH:
    return
  documents = []

  def keep(match):
    documents.append(match[4])
    return f' {_DOCUMENT}{len(documents) - 1} {match[3]}\n'

  line = line.replace(_DOCUMENT, '').replace('\\\n', ' ')
  line = _HEREDOC.sub(keep, line)
  for inner in re.findall(r'\$\(([^()]*)\)|`([^`]*)`', line):
    yield from commands(''.join(inner), depth + 1)
  for words in _simple(_tokens(line)):
    command = _command(words, documents)
    script = _script(command)
    if script:
      yield from commands(script, depth + 1)
    elif command.words or command.reads or command.writes:
      yield command


def git_verb(command: Command) -> str:
  """What git is asked for: 'log' of `git -C x --no-pager log`."""
  words = iter(command.arguments)
  for word in words:
    if word in _GIT_VALUES:
      next(words, None)
    elif not word.startswith('-'):
      return word
  return ''


def _tokens(line: str) -> list[str]:
  lexer = shlex.shlex(line, posix=True, punctuation_chars='();<>|&\n')
  lexer.whitespace = ' \t\r'
  lexer.whitespace_split = True
  lexer.commenters = ''
  try:
    return list(lexer)
  except ValueError:
    return line.split()


def _simple(tokens: list[str]) -> Iterator[list[str]]:
  """Splits where one command ends; redirections stay inside."""
  words: list[str] = []
  for token in tokens:
    ends = _OPERATORS.issuperset(token) and not {'<', '>'} & set(token)
    if not ends or not token:
      words.append(token)
    elif words:
      yield words
      words = []
  if words:
    yield words


def _command(tokens: list[str], documents: list[str]) -> Command:
  text = ''
  words: list[str] = []
  reads: list[str] = []
  writes: list[str] = []
  rest = iter(tokens)
  for token in rest:
    if token and _OPERATORS.issuperset(token):
      if words and words[-1].isdigit():
        words.pop()  # A descriptor, as in `2>`.
      target = next(rest, '')
      if not target.startswith('/dev/') and not token.endswith('&'):
        (writes if '>' in token else reads).append(target)
    elif token.startswith(_DOCUMENT):
      text = documents[int(token.removeprefix(_DOCUMENT))]
    else:
      words.append(token)
  return Command(tuple(_unwrapped(words)), tuple(reads), tuple(writes), text)


def _unwrapped(words: list[str]) -> list[str]:
  """Without assignments, keywords and programs that only run another."""
  while words:
    name = words[0].rpartition('/')[2]
    if _ASSIGNMENT.match(words[0]) or name in _KEYWORDS:
      words = words[1:]
    elif name in _WRAPPERS and len(words) > 1:
      valued, words = _WRAPPERS[name], words[1:]
      while words and words[0].startswith('-'):
        words = words[2 if words[0] in valued else 1 :]
      if name == 'timeout':
        words = words[1:]
    else:
      break
  return words


def _script(command: Command) -> str:
  """What a shell is told to run, by -c or on its standard input."""
  if command.program == 'eval':
    return ' '.join(command.arguments)
  if command.program not in _SHELLS:
    return ''
  for flag, script in zip(command.words[1:], command.words[2:], strict=False):
    if re.fullmatch(r'-[a-z]*c', flag):
      return script
  return command.text
