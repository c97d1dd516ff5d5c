"""A port that ends connections without an answer may be the broker's, and commands say so."""

import socket
import threading
from collections.abc import Iterator

import pytest

from postdate.scheduling.api import ScheduleApi
from postdate.scheduling.errors import ServiceUnavailableError
from tests.helpers.storages.canned_s3 import CannedAnswer, canned_s3

ADVICE = r"this may be the broker's port \(brokerServicePort\): give the web port \(webServicePort\)"


@pytest.fixture
def port_without_http() -> Iterator[str]:
    """The address of a port that reads a request and ends the connection, as the broker's does; asked twice."""

    def end_one() -> None:
        for _ in range(2):
            caller, _ = listener.accept()
            with caller:
                caller.recv(65_536)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=end_one)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_a_request_about_schedules_names_the_web_port(port_without_http: str) -> None:
    with pytest.raises(ServiceUnavailableError, match=ADVICE):
        ScheduleApi(port_without_http).get("/topics")


def test_an_answer_of_another_program_is_told() -> None:
    with canned_s3(lambda _: CannedAnswer(200, b"<h1>Welcome</h1>")) as other_program:
        url = f"http://127.0.0.1:{other_program.port}"
        with pytest.raises(ServiceUnavailableError, match=f"what answers at {url} is no service of Postdate"):
            ScheduleApi(url).get("/topics")


def test_a_port_without_tls_is_told_apart() -> None:
    with (
        canned_s3(lambda _: CannedAnswer(200, b"")) as plain,
        pytest.raises(ServiceUnavailableError, match="it speaks no TLS there: write http://"),
    ):
        ScheduleApi(f"https://127.0.0.1:{plain.port}").get("/topics")


def test_a_refused_connection_has_no_such_advice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ServiceUnavailableError) as raised:
        ScheduleApi(url).get("/topics")

    assert "brokerServicePort" not in str(raised.value)
