import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

from absl.testing import absltest

from composer_jax.loop import supervise

ROOT = pathlib.Path(__file__).parents[2]
_HANGING = """
import signal, sys, time
from composer_jax.loop import supervise
with supervise.signals(supervise.Crew(), last_s=0.1):
  signal.raise_signal(signal.SIGTERM)
  while True:  # As deaf as a compiler.
    time.sleep(60)
"""


class CrewTest(absltest.TestCase):
  def setUp(self):
    super().setUp()
    self.crew = supervise.Crew()
    self.addCleanup(self.crew.end)

  def test_the_first_error_of_a_thread_is_the_one_raised(self):
    error = KeyError('the cause')

    def fail():
      raise error

    def suffer():
      self.crew.stop.wait()
      raise OSError('a consequence')

    self.crew.start('sufferer', suffer)
    self.crew.start('failing', fail)
    self.assertTrue(self.crew.stop.wait(5))
    self.crew.end()
    with self.assertRaises(KeyError) as caught:
      self.crew.check()
    self.assertIs(caught.exception, error)

  def test_a_stop_is_no_error(self):
    self.crew.check()
    self.crew.stop.set()
    with self.assertRaises(supervise.Stopped):
      self.crew.check()

  def test_stopping_lets_go_who_waits(self):
    reasons, freed = [], threading.Event()

    def let_go(reason):
      reasons.append(reason)
      freed.set()

    self.crew.on_stop(let_go)
    self.crew.start('waiting', freed.wait)
    started = time.monotonic()
    self.crew.end(timeout=60)
    self.assertLess(time.monotonic() - started, 30)
    self.assertIsInstance(reasons[0], supervise.Stopped)

  def test_names_threads_that_do_not_end(self):
    freed = threading.Event()
    self.addCleanup(freed.set)
    self.crew.start('stubborn', freed.wait)
    with self.assertLogs(level='ERROR') as logs:
      self.crew.end(timeout=0.01)
    self.assertIn('stubborn', logs.output[0])


class SignalsTest(absltest.TestCase):
  def test_both_signals_ask_to_stop(self):
    before = signal.getsignal(signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGTERM):
      crew = supervise.Crew()
      with supervise.signals(crew):
        signal.raise_signal(number)
        self.assertTrue(crew.stop.is_set())
    self.assertIs(signal.getsignal(signal.SIGTERM), before)

  def test_a_second_one_is_not_waited_for(self):
    with supervise.signals(supervise.Crew()):
      signal.raise_signal(signal.SIGINT)
      with self.assertRaises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)

  def test_the_process_ends_even_if_its_main_thread_is_deaf(self):
    done = subprocess.run(
      [sys.executable, '-c', _HANGING], cwd=ROOT, env=os.environ, timeout=60
    )
    self.assertEqual(done.returncode, supervise.ASKED_EXIT_CODE)


if __name__ == '__main__':
  absltest.main()
