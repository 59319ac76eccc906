"""A web server of a test's own, on a free port of this machine."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PathAnswer = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""


@contextmanager
def answer_paths(answer: Callable[[str], PathAnswer]) -> Iterator[int]:
    """A server at 127.0.0.1 that answers to GETs by their path; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = answer(self.path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            with suppress(ConnectionError):  # who asked may have left, as it was tested to
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
