"""The reach of a service, by the real client and over real HTTP: this machine alone, or all clients let in."""

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pulsar
import pytest

from postdate.demo.process import PostdateProcess
from tests.helpers.services.programs.clients import Clients, receive_and_ack, subscribe, texts


def outer_address() -> str:
    """Return an address of this machine that others may reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        address: str = one.getsockname()[0]
    if address.startswith("127."):
        pytest.skip("this machine has no network")
    return address


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostdateProcess]:
    """A service with nothing said about where it listens, but for its ports."""
    service = PostdateProcess(tmp_path_factory.mktemp("local"))
    service.start()
    yield service
    service.stop()


def answer(
    service: PostdateProcess,
    method: str,
    path: str,
    *,
    host: str = "127.0.0.1",
    body: bytes | None = None,
    **headers: str,
) -> tuple[int, str]:
    request = urllib.request.Request(
        f"http://{host}:{service.web_port}{path}",
        method=method,
        data=body,
        headers={"Content-Type": "application/json"} | {name.replace("_", "-"): text for name, text in headers.items()},
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_another_machine_does_not_reach_it_by_default(local: PostdateProcess) -> None:
    for port in (local.port, local.web_port):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((outer_address(), port), timeout=5)


def test_everybody_reaches_it_where_an_operator_says_so(tmp_path: Path, topic: str) -> None:
    outer = outer_address()
    service = PostdateProcess(
        tmp_path, {"bindAddress": "0.0.0.0", "insecureBindAllowed": "true", "advertisedAddress": outer}
    )
    service.start()
    clients = Clients(f"pulsar://{outer}:{service.port}")
    client = clients.new()
    consumer = subscribe(client, topic, pulsar.ConsumerType.KeyShared)
    client.create_producer(topic).send(b"x", partition_key="k", deliver_after=timedelta(milliseconds=300))
    received = texts(receive_and_ack(consumer, 1))
    health = [answer(service, "GET", "/health", host=host)[0] for host in (outer, "127.0.0.1", "localhost")]
    evil = answer(service, "GET", "/health", host=outer, Host="evil.example")[0]
    clients.close()
    service.stop()

    assert (received, health, evil) == (["x"], [200, 200, 200], 403)
    log = service.log_path.read_text()
    (warning,) = [line for line in log.splitlines() if " WARNING " in line]
    assert "bindAddress=0.0.0.0 is reached from other machines without authentication" in warning
    assert "  Listens on      0.0.0.0, every network of this machine; without authentication\n" in log
