"""The reach of a service, by the real client and over real HTTP: this machine alone, or all clients let in."""

import json
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

POLICIES = "/admin/v2/namespaces/public/default/delayedDelivery"
OFF = b'{"active":false,"tickTime":1000,"maxDeliveryDelayInMillis":0}'


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


def test_a_page_that_leads_here_by_its_own_name_reads_and_changes_nothing(local: PostdateProcess) -> None:
    """DNS rebinding: the browser believes that this port is the page's."""
    for method, path, body in (("GET", "/metrics", None), ("GET", POLICIES, None), ("POST", POLICIES, OFF)):
        status, text = answer(local, method, path, body=body, Host=f"evil.example:{local.web_port}")

        assert status == 403
        assert "is no name of this service" in json.loads(text)["reason"]
    assert answer(local, "GET", POLICIES) == (200, "")


@pytest.mark.parametrize("header", ["Origin", "Sec_Fetch_Site"])
def test_a_page_of_another_site_changes_nothing(local: PostdateProcess, header: str) -> None:
    values = {"Origin": "http://evil.example", "Sec_Fetch_Site": "cross-site"}

    for method, body in (("POST", OFF), ("DELETE", None)):
        assert answer(local, method, POLICIES, body=body, **{header: values[header]})[0] == 403
    assert answer(local, "GET", POLICIES) == (200, "")


def test_a_page_of_the_service_itself_may_change(local: PostdateProcess) -> None:
    own = {"Origin": f"http://127.0.0.1:{local.web_port}", "Sec_Fetch_Site": "same-origin"}

    assert answer(local, "POST", POLICIES, body=OFF, **own)[0] == 204
    assert answer(local, "DELETE", POLICIES, **own)[0] == 204
