"""The proxy that makes an S3 server of this machine as far away as one over a network."""

import http.client
import http.server
import threading
import time
from collections.abc import Iterator

import pytest

from tests.helpers.storages.late_answers import late_answers

ADDED_MS = 200


class _Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base's
        pass


@pytest.fixture
def port() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("size", [10, 50 * 2**20])
def test_an_answer_comes_whole_and_later_once(port: int, size: int) -> None:
    """Two requests of a connection; a large answer is not late for each of its pieces."""
    body = bytes(size)
    with late_answers(port, ADDED_MS) as address:
        connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=30)
        for _ in range(2):
            begun_s = time.monotonic()
            connection.request("PUT", "/", body)
            assert connection.getresponse().read() == body
            taken_s = time.monotonic() - begun_s
            assert ADDED_MS / 1e3 <= taken_s < 100 * ADDED_MS / 1e3
        connection.close()
