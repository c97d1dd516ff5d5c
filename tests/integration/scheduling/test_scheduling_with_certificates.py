"""Postdate's own tools on a service that has ports with TLS alone and asks each client for a certificate.

The service is the one of the example in `docs/operations.md`, and takes tokens beside certificates.
"""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pulsar
import pytest
from click.testing import CliRunner, Result

from postdate.broker.configuration.access import TLS_PROVIDER
from postdate.command_line.program import postdate
from postdate.demo.process import PostdateProcess, free_ports, wait_until
from postdate.scheduling.scheduler import Scheduler
from tests.helpers.certificates import Authority
from tests.helpers.services.services import TEST_SETTINGS
from tests.helpers.tokens import SECRET_KEY, TOKEN_PROVIDER, token

TOPIC = "reminders"
HOUR = timedelta(hours=1)


class StrictService(NamedTuple):
    """The addresses of the service, and the files of the client `anna`."""

    url: str
    web_url: str
    trust: str
    certificate: str
    key: str

    def files(self) -> dict[str, str]:
        return {
            "tls_trust_certs_file": self.trust,
            "tls_certificate_file": self.certificate,
            "tls_private_key_file": self.key,
        }

    def ask(self, *words: str, shows_certificate: bool = True) -> Result:
        shown = ["--client-cert", self.certificate, "--client-key", self.key] if shows_certificate else []
        return CliRunner().invoke(postdate, [*words, "--url", self.web_url, "--trust-certs", self.trust, *shown])


@pytest.fixture(scope="module")
def strict_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StrictService]:
    folder = tmp_path_factory.mktemp("strict")
    authority = Authority(folder)
    server, anna = authority.server(), authority.client("anna", "anna")
    port, web_port = free_ports(2)
    settings = {
        "advertisedAddress": "localhost",
        "brokerServicePort": "",
        "brokerServicePortTls": str(port),
        "webServicePort": "",
        "webServicePortTls": str(web_port),
        "tlsCertificateFilePath": str(server.certificate),
        "tlsKeyFilePath": str(server.key),
        "tlsTrustCertsFilePath": str(authority.path),
        "tlsRequireTrustedClientCertOnConnect": "true",
        "authenticationEnabled": "true",
        "authenticationProviders": f"{TLS_PROVIDER},{TOKEN_PROVIDER}",
        "tokenSecretKey": SECRET_KEY,
        "authorizationEnabled": "true",
        "superUserRoles": "anna,berta",
    }
    process = PostdateProcess(folder / "service", TEST_SETTINGS | settings)
    process.start(wait=False)
    wait_until(lambda: "Postdate is ready." in process.log_tail(), timeout_s=60)
    strict = StrictService(
        f"pulsar+ssl://localhost:{port}",
        f"https://localhost:{web_port}",
        str(authority.path),
        str(anna.certificate),
        str(anna.key),
    )
    client = pulsar.Client(
        strict.url,
        authentication=pulsar.AuthenticationTLS(strict.certificate, strict.key),
        tls_trust_certs_file_path=strict.trust,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    client.subscribe(TOPIC, "me", consumer_type=pulsar.ConsumerType.KeyShared)
    yield strict
    client.close()
    process.stop()


def test_a_scheduler_shows_its_certificate_on_both_ports(strict_service: StrictService) -> None:
    with Scheduler(strict_service.url, strict_service.web_url, TOPIC, **strict_service.files()) as scheduler:
        handle = scheduler.schedule(b"water the plants", after=HOUR)

        assert scheduler.cancel(handle).changed == 1


@pytest.mark.parametrize(("role", "is_allowed"), [("berta", True), ("carla", False)])
def test_a_token_beside_the_certificate_is_the_role(strict_service: StrictService, role: str, is_allowed: bool) -> None:
    files = strict_service.files()
    with Scheduler(strict_service.url, strict_service.web_url, TOPIC, token=token(role).decode(), **files) as scheduler:
        if not is_allowed:
            with pytest.raises(pulsar.AuthorizationError):
                scheduler.schedule(b"call", after=HOUR)
            return
        handle = scheduler.schedule(b"call", after=HOUR)

        assert scheduler.cancel(handle).changed == 1


def test_commands_show_a_certificate(strict_service: StrictService) -> None:
    topics = strict_service.ask("topics", "--json")
    status = strict_service.ask("keys", TOPIC, "me", "k", "--json")

    assert TOPIC in topics.stdout
    assert json.loads(status.stdout)["key"] == "k"


def test_messages_are_published_and_consumed_with_the_certificate(strict_service: StrictService) -> None:
    published = strict_service.ask("publish", "by-shell", "hello", "--delay", "1s", "--subscription", "workers")
    consumed = strict_service.ask("consume", "by-shell", "--subscription", "workers", "--max", "1", "--timeout", "20s")

    assert published.exit_code == 0
    assert (consumed.stdout, consumed.exit_code) == ("hello\n", 0)


@pytest.mark.parametrize("words", [["topics"], ["keys", TOPIC, "me", "k"]], ids=lambda words: words[0])
def test_a_command_without_a_certificate_is_refused_in_one_line(
    strict_service: StrictService, words: list[str]
) -> None:
    result = strict_service.ask(*words, shows_certificate=False)

    assert result.exit_code == 2
    assert "no service answers" in result.stderr
    assert result.output.count("\n") == 1


def test_a_scheduler_publishes_to_no_service_of_another_name(tmp_path: Path) -> None:
    """A certificate of the same authority for another host is not enough, as for the calls over https."""
    authority = Authority(tmp_path)
    server = authority.server(host="other.example")
    port, web_port = free_ports(2)
    settings = {
        "advertisedAddress": "localhost",
        "brokerServicePort": "",
        "brokerServicePortTls": str(port),
        "webServicePort": str(web_port),
        "tlsCertificateFilePath": str(server.certificate),
        "tlsKeyFilePath": str(server.key),
    }
    process = PostdateProcess(tmp_path / "service", TEST_SETTINGS | settings)
    process.start(wait=False)
    try:
        wait_until(lambda: "Postdate is ready." in process.log_tail(), timeout_s=60)
        url, web_url, trust = f"pulsar+ssl://localhost:{port}", f"http://localhost:{web_port}", str(authority.path)
        with (
            Scheduler(url, web_url, TOPIC, tls_trust_certs_file=trust) as scheduler,
            pytest.raises(pulsar.ConnectError),
        ):
            scheduler.schedule(b"call", after=HOUR)
    finally:
        process.stop()
