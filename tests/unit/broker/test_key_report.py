"""`postdate keys` against an address where another program answers."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from click.testing import CliRunner

from broker.cli.service_commands import postdate as main


@pytest.fixture
def other_program() -> Iterator[str]:
    class Greeter(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<h1>Welcome</h1>")

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Greeter)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_answer_of_another_program_is_told_in_one_line(other_program: str) -> None:
    told = CliRunner().invoke(main, ["keys", "orders", "billing", "k", "--url", other_program])

    assert told.exit_code == 2
    assert told.output == f"postdate: what answers at {other_program} is no service of Postdate; see --url\n"
