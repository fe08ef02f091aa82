from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.rewards import shell


def words(line):
  return [' '.join(command.words) for command in shell.commands(line)]


class CommandsTest(parameterized.TestCase):
  @parameterized.parameters(
    ('cd x && git log | head -5; ls & pwd', ['cd x', 'git log', 'head -5']),
    ('A=1 timeout -k 1 5 nice -n 3 /usr/bin/env B=2 curl x', ['curl x']),
    ('sudo -u bob xargs -n 1 cat', ['cat']),
    ('bash -lc \'cd a; sh -c "git log"\'', ['cd a', 'git log']),
    ('echo $(git show) `cat x`', ['git show', 'cat x']),
    ('if [ -f x ]; then cat x; fi', ['[ -f x ]', 'cat x']),
    ('ls \\\n  -l', ['ls -l']),
    ('ls\ncat x', ['ls', 'cat x']),
    ('echo "a;b|c"', ['echo a;b|c']),
    ('eval "git log"', ['git log']),
    ("echo it's; curl x", ["echo it's; curl x"]),  # Quotes that do not match.
    ('x#y; curl z', ['x#y', 'curl z']),
    ('', []),
  )
  def test_finds_the_programs_that_run(self, line, expected):
    self.assertContainsSubset(expected, words(line))
    if '$(' not in line and '&' not in line:
      self.assertEqual(words(line), expected)

  def test_redirections_stand_apart(self):
    (command,) = shell.commands('sort -u < in.txt > out.txt 2>&1 2> /dev/null')
    self.assertEqual(command.words, ('sort', '-u'))
    self.assertEqual(command.reads, ('in.txt',))
    self.assertEqual(command.writes, ('out.txt',))

  def test_a_here_document_belongs_to_its_command(self):
    line = "cd a && cat > x.py <<'EOF'\nimport socket; x\nEOF\nls"
    first, second, third = shell.commands(line)
    self.assertEqual((first.program, first.text), ('cd', ''))
    self.assertEqual(second.writes, ('x.py',))
    self.assertEqual(second.text, 'import socket; x')
    self.assertEqual((third.program, third.text), ('ls', ''))

  def test_a_here_document_for_a_shell_is_a_script(self):
    self.assertEqual(words('bash <<EOF\ngit log\nEOF'), ['git log'])

  def test_shells_in_shells_end(self):
    line = 'x'
    for _ in range(9):
      line = f'$({line})'
    self.assertLess(len(words('echo ' + line)), 99)

  @parameterized.parameters(
    ('git log', 'log'),
    ('git -C /repo --no-pager -c a=b show x', 'show'),
    ('git', ''),
    ('git --git-dir=x', ''),
  )
  def test_says_what_git_is_asked_for(self, line, verb):
    (command,) = shell.commands(line)
    self.assertEqual(shell.git_verb(command), verb)


if __name__ == '__main__':
  absltest.main()
