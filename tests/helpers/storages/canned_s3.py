"""A server that gives every S3 request one and the same answer, for failures that no real server gives on demand."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from snapshot_storage.s3.config import S3Config


class CannedAnswer(NamedTuple):
    """An answer that the server sends back."""

    status: int
    body: bytes
    content_length: int | None = None
    """Another length than that of the body: the connection is then cut."""


def refusal(status: int, code: str) -> CannedAnswer:
    """Return an answer as S3 refuses things."""
    return CannedAnswer(status, f"<Error><Code>{code}</Code><Message>as told</Message></Error>".encode())


class CannedS3:
    """The running server: where it is, and what it was asked."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.requests: list[str] = []
        self.access_keys: list[str] = []
        """With whose key each was signed."""

    def config(self, **changes: int) -> S3Config:
        """Return how to use the server."""
        return S3Config(
            bucket="bucket",
            prefix="p",
            endpoint=f"http://127.0.0.1:{self.port}",
            region="us-east-1",
            is_path_style=True,
            access_key_id="id",
            secret_access_key="secret",
            **changes,
        )


@contextmanager
def canned_s3(answer: Callable[[str], CannedAnswer]) -> Iterator[CannedS3]:
    """Run a server; `answer` is called in a thread for each request, with its method and path."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base's
            pass

        def handle_one(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            request = f"{self.command} {self.path}"
            server.requests.append(request)
            signed = self.headers.get("Authorization", "")
            server.access_keys.append(signed.partition("Credential=")[2].partition("/")[0])
            found = answer(request)
            self.send_response(found.status)
            self.send_header("Content-Length", str(found.content_length or len(found.body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(found.body)
            self.close_connection = True

        do_GET = do_PUT = do_POST = do_DELETE = handle_one  # noqa: N815 - the names are the base's

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = CannedS3(http.server_address[1])
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
