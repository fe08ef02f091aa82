"""A real HTTP server that answers as an OpenAI-compatible one, by a script."""

import http.server
import json
import threading


def message(content='', *calls, finish='stop', usage=(7, 3)):
  """(status, headers, body) of a completion; calls are (name, arguments).

  Arguments that are a text are sent as they are.
  """
  body = {'role': 'assistant', 'content': content or None}
  if calls:
    body['tool_calls'] = [
      {
        'id': f'id{index}',
        'type': 'function',
        'function': {
          'name': name,
          'arguments': arguments
          if isinstance(arguments, str)
          else json.dumps(arguments),
        },
      }
      for index, (name, arguments) in enumerate(calls)
    ]
  answer = {
    'choices': [{'index': 0, 'message': body, 'finish_reason': finish}],
    'usage': {'prompt_tokens': usage[0], 'completion_tokens': usage[1]},
  }
  return 200, {}, json.dumps(answer).encode()


def error(status, text='no', **headers):
  return status, headers, text.encode()


class Server:
  """Answers request n with `script[n]`, the last one for ever.

  An entry is (status, headers, body), 'silence' for no answer at all, or a
  function from the request's JSON to one of these.
  """

  def __init__(self, script):
    self.script = list(script)
    self.requests = []  # The JSON of each.
    self.headers = []
    self.hold = threading.Event()  # Let go of at the end of the test.
    self._lock = threading.Lock()
    server = self

    class Handler(http.server.BaseHTTPRequestHandler):
      protocol_version = 'HTTP/1.1'

      def do_POST(self):
        length = int(self.headers['Content-Length'])
        request = json.loads(self.rfile.read(length))
        server.answer(self, request)

      def log_message(self, *unused):
        pass

    self._server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    self._thread = threading.Thread(target=self._server.serve_forever)
    self._thread.start()

  @property
  def url(self):
    return f'http://127.0.0.1:{self._server.server_port}/v1'

  def answer(self, handler, request):
    with self._lock:
      entry = self.script[min(len(self.requests), len(self.script) - 1)]
      self.requests.append(request)
      self.headers.append((handler.path, dict(handler.headers)))
    if callable(entry):
      entry = entry(request)
    if entry == 'silence':
      self.hold.wait()
      handler.close_connection = True
      return
    status, headers, body = entry
    handler.send_response(status)
    for name, value in headers.items():
      handler.send_header(name.replace('_', '-'), value)
    handler.send_header('Content-Length', str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)

  def close(self):
    self.hold.set()
    self._server.shutdown()
    self._server.server_close()
    self._thread.join()
