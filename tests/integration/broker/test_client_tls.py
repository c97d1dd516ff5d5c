"""TLS through the real clients: Python, Go and Java, on Postdate and on a real Pulsar.

One service of each kind lets all clients in; another wants a certificate on its ports for TLS and takes roles from it.
"""

import asyncio
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pulsar
import pytest

from postdate.demo.process import PostdateProcess, free_ports, wait_until
from tests.helpers.certificates import Authority, CertificateFiles
from tests.helpers.services.foreign_clients import run
from tests.helpers.services.kinds import KINDS, require_tools
from tests.helpers.services.programs import frames
from tests.helpers.services.programs.clients import Clients, now_ms, receive, subscribe, texts
from tests.helpers.services.programs.frames import raw_connection
from tests.helpers.services.services import POSTDATE, TEST_SETTINGS, RunningService, make_service

pytestmark = pytest.mark.exhaustive

_AUTHENTICATION = "org.apache.pulsar.broker.authentication"
GUEST = "guest"
"""The role of clients without credentials. It administers on the ports without TLS, which tests use to set up."""


class TlsService(NamedTuple):
    """A service with TLS, and the authority that signed its certificate."""

    kind: str
    service: RunningService
    authority: Authority
    port: int
    web_port: int
    certificate: CertificateFiles

    @property
    def url(self) -> str:
        return f"pulsar+ssl://localhost:{self.port}"

    def clients(self) -> Clients:
        return Clients(self.url)

    def log(self) -> str:
        return (self.service.folder / "log").read_text(errors="replace")  # type: ignore[attr-defined]


def settings_of(authority: Authority, server: CertificateFiles, ports: list[int]) -> dict[str, str]:
    return {
        "advertisedAddress": "localhost",
        "brokerServicePortTls": str(ports[0]),
        "webServicePortTls": str(ports[1]),
        "tlsCertificateFilePath": str(server.certificate),
        "tlsKeyFilePath": str(server.key),
        "tlsTrustCertsFilePath": str(authority.path),
        "tlsCertRefreshCheckDurationSec": "1",
    }


def started(kind: str, folder: Path, settings: dict[str, str] | None = None) -> Iterator[TlsService]:
    require_tools(kind)
    authority = Authority(folder)
    server = authority.server()
    port, web_port = free_ports(2)
    running = make_service(kind, folder / kind, settings_of(authority, server, [port, web_port]) | (settings or {}))
    running.start(timeout_s=150)
    yield TlsService(kind, running, authority, port, web_port, server)
    running.stop()


@pytest.fixture(scope="module", params=KINDS)
def open_service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsService]:
    """All clients may come in."""
    yield from started(request.param, tmp_path_factory.mktemp("open"))


@pytest.fixture(scope="module", params=KINDS)
def strict_service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsService]:
    """On the ports for TLS, a certificate names the client's role, and roles may do what is granted to them."""
    settings = {
        "tlsRequireTrustedClientCertOnConnect": "true",
        "authenticationEnabled": "true",
        "authenticationProviders": f"{_AUTHENTICATION}.AuthenticationProviderTls",
        "anonymousUserRole": GUEST,
        "authorizationEnabled": "true",
        "superUserRoles": GUEST,
    }
    for one in started(request.param, tmp_path_factory.mktemp("strict"), settings):
        grant(one.service, "billing")
        yield one


def grant(service: RunningService, role: str) -> None:
    """Let a role produce and consume."""
    url = f"{service.web_url}/admin/v2/namespaces/public/default/permissions/{role}"
    headers = {"Content-Type": "application/json"}
    body = json.dumps(["produce", "consume"]).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, headers, method="POST"), timeout=10) as reply:
        assert reply.status in (200, 204)


def delayed_round_trip(client: pulsar.Client, topic: str) -> None:
    """Send a delayed message and receive it."""
    consumer = subscribe(client, topic, pulsar.ConsumerType.KeyShared)
    deliver_at_ms = now_ms() + 300
    client.create_producer(topic).send(b"hello", partition_key="k", deliver_at=deliver_at_ms)
    assert texts(receive(consumer, 1)) == ["hello"]
    assert now_ms() >= deliver_at_ms


def certificate_of(port: int, authority: Authority) -> bytes:
    """Return the certificate that a port shows."""
    return ssl.get_server_certificate(("localhost", port), ca_certs=str(authority.path)).encode()


# ---- the service's certificate ----


def test_a_delayed_message_goes_through_tls(open_service: TlsService, topic: str) -> None:
    with closing(open_service.clients()) as clients:
        options = {"tls_trust_certs_file_path": str(open_service.authority.path), "tls_validate_hostname": True}
        delayed_round_trip(clients.new(**options), topic)


def test_the_go_and_the_java_client_go_through_tls(open_service: TlsService, topic: str, language: str) -> None:
    trust = open_service.authority.path

    outcome = run(
        language, "roundtrip", url=open_service.url, topic=topic, trustCertsFile=trust, count=20, delayMs=1_000
    )

    assert outcome == {"error": "", "sent": 20, "received": 20, "early": 0}


def test_a_client_refuses_a_certificate_that_it_does_not_trust(
    open_service: TlsService, topic: str, tmp_path: Path
) -> None:
    with closing(open_service.clients()) as clients:
        stranger = Authority(tmp_path, "stranger")
        client = clients.new(tls_trust_certs_file_path=str(stranger.path), operation_timeout_seconds=3)
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(topic)


def test_the_go_and_the_java_client_refuse_a_certificate_that_they_do_not_trust(
    open_service: TlsService, topic: str, language: str, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger").path

    assert run(language, "produce", url=open_service.url, topic=topic, trustCertsFile=stranger)["error"]


def test_look_ups_answer_the_url_without_tls_and_the_one_with_it(open_service: TlsService, topic: str) -> None:
    async def ask() -> dict[int, bytes]:
        async with raw_connection(open_service.service.port) as connection:
            kind, fields = await connection.ask(frames.command(frames.LOOKUP, {1: topic, 2: 1}))
            assert kind == frames.LOOKUP_RESPONSE
            return fields

    fields = asyncio.run(ask())

    assert fields[1].decode() == f"pulsar://localhost:{open_service.service.port}"
    assert fields[2].decode() == open_service.url


@pytest.mark.parametrize(
    ("path", "answer"), [("/admin/v2/brokers/health", b"ok"), ("/metrics/", b"pulsar_topics_count")]
)
def test_https_answers_what_http_answers(open_service: TlsService, path: str, answer: bytes) -> None:
    context = ssl.create_default_context(cafile=open_service.authority.path)
    secure = f"https://localhost:{open_service.web_port}{path}"

    with urllib.request.urlopen(secure, context=context, timeout=20) as reply:
        assert reply.status == 200
        assert answer in reply.read()


def test_a_client_on_the_wrong_port_gets_nowhere(open_service: TlsService, topic: str) -> None:
    options = {"tls_trust_certs_file_path": str(open_service.authority.path), "operation_timeout_seconds": 3}
    urls = (f"pulsar+ssl://localhost:{open_service.service.port}", f"pulsar://localhost:{open_service.port}")
    for url in urls:
        with closing(Clients(url)) as clients, pytest.raises(pulsar.PulsarException):
            clients.new(**options).create_producer(topic)

    if open_service.kind == POSTDATE:
        assert "it speaks TLS, and this port does not" in open_service.log()
        assert "it speaks no TLS, and this port does" in open_service.log()


@pytest.mark.parametrize("port", ["port", "web_port"])
def test_a_new_certificate_is_taken_without_a_restart(open_service: TlsService, port: str) -> None:
    number: int = getattr(open_service, port)
    old = certificate_of(number, open_service.authority)

    new = open_service.authority.server().certificate.read_text()

    wait_until(lambda: certificate_of(number, open_service.authority) != old, timeout_s=60, interval_s=0.2)
    shown = certificate_of(number, open_service.authority).decode()
    assert ssl.PEM_cert_to_DER_cert(shown) == ssl.PEM_cert_to_DER_cert(new)


# ---- clients' certificates ----


def mutual(service: TlsService, files: CertificateFiles) -> dict[str, object]:
    """Return how the Python client shows a certificate."""
    return {
        "tls_trust_certs_file_path": str(service.authority.path),
        "tls_validate_hostname": True,
        "authentication": pulsar.AuthenticationTLS(str(files.certificate), str(files.key)),
        "operation_timeout_seconds": 30,
    }


def test_the_common_name_of_a_certificate_is_the_role(strict_service: TlsService, topic: str) -> None:
    """`billing` may, as that was granted; `stranger`, whose certificate is as good, may not."""
    names = uuid4().hex
    billing, stranger = (strict_service.authority.client(name, f"{name}-{names}") for name in ("billing", "stranger"))
    with closing(strict_service.clients()) as clients:
        delayed_round_trip(clients.new(**mutual(strict_service, billing)), topic)
        with pytest.raises(pulsar.AuthorizationError):
            clients.new(**mutual(strict_service, stranger)).create_producer(topic)


def test_the_go_and_the_java_client_show_certificates(
    strict_service: TlsService, topic: str, language: str, tmp_path: Path
) -> None:
    asked = {"url": strict_service.url, "topic": topic, "trustCertsFile": strict_service.authority.path}
    billing, stranger = (
        strict_service.authority.client(name, f"{name}-{tmp_path.name}") for name in ("billing", "stranger")
    )

    let_in, refused = (
        run(language, "roundtrip", certFile=files.certificate, keyFile=files.key, count=1, **asked)
        for files in (billing, stranger)
    )

    assert let_in == {"error": "", "sent": 1, "received": 1, "early": 0}
    assert "uthoriz" in refused["error"]


@pytest.mark.parametrize("signer", ["nobody", "a stranger"])
def test_who_shows_no_certificate_that_is_trusted_is_refused(
    signer: str, strict_service: TlsService, topic: str, tmp_path: Path
) -> None:
    options: dict[str, object] = {"tls_trust_certs_file_path": str(strict_service.authority.path)}
    if signer == "a stranger":
        options = mutual(strict_service, Authority(tmp_path, "stranger").client("billing", str(tmp_path / "billing")))
    with closing(strict_service.clients()) as clients, pytest.raises(pulsar.PulsarException):
        clients.new(**(options | {"operation_timeout_seconds": 3})).create_producer(topic)


def test_the_web_port_wants_a_certificate_too(strict_service: TlsService, topic: str) -> None:
    context = ssl.create_default_context(cafile=strict_service.authority.path)
    files = strict_service.authority.client("billing", f"web-{uuid4().hex}")
    path = topic.replace("persistent://", "/admin/v2/persistent/")
    url = f"https://localhost:{strict_service.web_port}{path}/stats"
    with closing(strict_service.clients()) as clients:
        delayed_round_trip(clients.new(**mutual(strict_service, files)), topic)

        with pytest.raises(OSError) as refused:  # noqa: PT011 (of the handshake, or of the first read)
            urllib.request.urlopen(url, context=context, timeout=10)
        context.load_cert_chain(files.certificate, files.key)
        with urllib.request.urlopen(url, context=context, timeout=10) as reply:
            assert json.load(reply)["msgInCounter"] == 1

    assert not isinstance(refused.value, urllib.error.HTTPError)


# ---- Postdate's own ----


def test_the_ports_without_tls_can_be_switched_off(tmp_path: Path, topic: str) -> None:
    authority = Authority(tmp_path)
    port, web_port = free_ports(2)
    settings = settings_of(authority, authority.server(), [port, web_port])
    switched_off = {"brokerServicePort": "", "webServicePort": ""}
    process = PostdateProcess(tmp_path / "data", TEST_SETTINGS | settings | switched_off)
    process.start(wait=False)
    try:
        wait_until(lambda: "Postdate is ready." in process.log_tail(), timeout_s=60)
        context = ssl.create_default_context(cafile=authority.path)
        with urllib.request.urlopen(f"https://localhost:{web_port}/health", context=context, timeout=10) as reply:
            assert reply.status == 200
        with closing(Clients(f"pulsar+ssl://localhost:{port}")) as clients:
            delayed_round_trip(clients.new(tls_trust_certs_file_path=str(authority.path)), topic)
        assert f"  Pulsar clients  pulsar+ssl://localhost:{port}\n" in process.log_tail()
        assert f"https://localhost:{web_port}/health" in process.log_tail()
    finally:
        assert process.stop() == 0
