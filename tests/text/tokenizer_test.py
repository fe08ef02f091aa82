import json
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from composer_jax.text import tokenizer as tokenizer_lib

FRAGMENTS = ('<|im_end|>', '<tool_call>')
TEXTS = ('abab = abab\n  return abab == cd\n',) * 4


def make(vocab_size=300):
  return tokenizer_lib.train(TEXTS, FRAGMENTS, vocab_size)


class EncodeTest(parameterized.TestCase):
  @parameterized.parameters(
    '',
    'abab',
    'def f(x):\n\treturn x  # naïve\r\n',
    'tabs\t\t and    spaces \n\n\n',
    'ünïcödé 漢字 🙂 \x00\x7f',
    '<|im_end|>',
    'a file with <tool_call> and <|im_end|> in it',
  )
  def test_text_comes_back_as_it_was(self, text):
    tokenizer = make()
    self.assertEqual(tokenizer.decode(tokenizer.encode(text)), text)

  @parameterized.parameters(*FRAGMENTS)
  def test_plain_text_never_becomes_a_fragment(self, fragment):
    tokenizer = make()
    ids = tokenizer.encode(f'{fragment}{fragment} x{fragment}')
    self.assertTrue(set(ids).isdisjoint(map(tokenizer.fragment_id, FRAGMENTS)))

  def test_merges_what_it_has_seen_twice(self):
    tokenizer = make()
    self.assertLen(tokenizer.encode('abab'), 1)
    self.assertLen(tokenizer.encode(' =='), 1)
    self.assertLen(tokenizer.encode('xyz'), 3)

  def test_an_operator_is_the_same_token_wherever_it_stands(self):
    tokenizer = make()
    (equals,) = tokenizer.encode(' ==')
    self.assertIn(equals, tokenizer.encode('q == 7'))

  def test_fragments_follow_the_text_vocabulary(self):
    tokenizer = make()
    self.assertEqual(
      [tokenizer.fragment_id(f) for f in FRAGMENTS],
      [tokenizer.vocab_size - 2, tokenizer.vocab_size - 1],
    )

  def test_the_vocabulary_keeps_to_its_size(self):
    self.assertLessEqual(make(262).vocab_size, 262)
    self.assertEqual(make(258).vocab_size, 258)


class DecodeTest(absltest.TestCase):
  def test_fragments_read_as_their_text(self):
    tokenizer = make()
    ids = [*tokenizer.encode('ab'), *map(tokenizer.fragment_id, FRAGMENTS)]
    self.assertEqual(tokenizer.decode(ids), 'ab<|im_end|><tool_call>')

  def test_ids_beyond_the_vocabulary_read_as_replacement_characters(self):
    tokenizer = make()
    ids = [*tokenizer.encode('a'), tokenizer.vocab_size, 10**6]
    self.assertEqual(tokenizer.decode(ids), 'a\ufffd\ufffd')

  def test_half_a_character_reads_as_a_replacement_character(self):
    tokenizer = make()
    half = tokenizer.encode('é')[:1]
    self.assertEqual(
      tokenizer.decode([*half, *tokenizer.encode('x')]), '\ufffdx'
    )


class TrainTest(absltest.TestCase):
  def test_refuses_a_vocabulary_without_room_for_every_byte(self):
    with self.assertRaisesRegex(ValueError, '257.*need 258'):
      make(257)

  def test_refuses_a_fragment_twice(self):
    with self.assertRaisesRegex(ValueError, 'repeat'):
      tokenizer_lib.train(TEXTS, ['<a>', '<a>'], 300)


class ByteLevelTest(absltest.TestCase):
  def test_has_one_token_per_byte_and_one_per_fragment(self):
    tokenizer = tokenizer_lib.byte_level(FRAGMENTS)
    text = 'def é(): return "🙂"\x00\r\n'
    ids = tokenizer.encode(text)
    self.assertLen(ids, len(text.encode()))
    self.assertEqual(tokenizer.decode(ids), text)
    self.assertEqual(tokenizer.vocab_size, 256 + len(FRAGMENTS))


class SaveTest(absltest.TestCase):
  def test_comes_back_with_the_same_ids(self):
    directory = self.enter_context(tempfile.TemporaryDirectory())
    tokenizer = make()
    tokenizer.save(directory)
    loaded = tokenizer_lib.load(directory)
    text = 'abab == <|im_end|> é'
    self.assertEqual(loaded.encode(text), tokenizer.encode(text))
    self.assertEqual(loaded.vocab_size, tokenizer.vocab_size)
    for fragment in FRAGMENTS:
      self.assertEqual(
        loaded.fragment_id(fragment), tokenizer.fragment_id(fragment)
      )

  def test_a_half_written_file_is_never_read(self):
    directory = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
    make().save(str(directory))
    (path,) = directory.iterdir()
    json.loads(path.read_text())
    path.rename(directory / 'tokenizer.json.tmp')
    with self.assertRaises(FileNotFoundError):
      tokenizer_lib.load(str(directory))


if __name__ == '__main__':
  absltest.main()
