"""Roles from certificates of clients."""

from pathlib import Path

import pytest

from postdate.broker.authentication.authenticator import Authenticator
from postdate.broker.authentication.provider import AuthenticationError
from postdate.broker.authentication.tls import TlsProvider, role_of
from postdate.broker.configuration.access import TLS_PROVIDER, TOKEN_PROVIDER
from postdate.broker.configuration.config import ConfigError, load_config

BILLING = {"subject": ((("organizationName", "shop"),), (("commonName", "billing"),))}
NAMELESS = {"subject": ((("organizationName", "shop"),),)}


def authenticator(*, anonymous_role: str | None = None) -> Authenticator:
    return Authenticator([TlsProvider()], anonymous_role=anonymous_role)


def test_the_common_name_is_the_role_on_both_ports() -> None:
    asked = authenticator()

    assert asked.authenticate("tls", b"", BILLING, now_ms=0).role == "billing"
    assert asked.authenticate_request(None, BILLING, now_ms=0).role == "billing"


@pytest.mark.parametrize("certificate", [None, NAMELESS, {}])
def test_without_a_certificate_or_a_name_nobody_is_let_in(certificate: dict[str, object] | None) -> None:
    """Not as anonymous either: the client has said that it shows a certificate."""
    with pytest.raises(AuthenticationError, match="Client unable to authenticate with TLS certificate"):
        authenticator(anonymous_role="guest").authenticate("tls", b"", certificate, now_ms=0)


def test_the_most_specific_of_several_common_names_counts() -> None:
    several = ((("commonName", "region"),), (("organizationName", "shop"),), (("commonName", "billing"),))

    assert role_of({"subject": several}) == "billing"


@pytest.mark.parametrize(
    "tls",
    [
        "",
        "brokerServicePortTls=6651\ntlsCertificateFilePath=a\ntlsKeyFilePath=b\n",
        "tlsTrustCertsFilePath=ca.pem\n",
    ],
)
def test_the_provider_is_refused_where_no_client_could_show_a_certificate(tls: str, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"authenticationEnabled=true\nauthenticationProviders={TLS_PROVIDER}\n{tls}")

    with pytest.raises(ConfigError) as caught:
        Authenticator.from_config(load_config(conf, environment={}, overrides=[]))

    assert str(caught.value).startswith(f"{conf}:2: authenticationProviders={TLS_PROVIDER}: ")
    assert "tlsTrustCertsFilePath" in str(caught.value)


def test_certificates_and_tokens_can_be_accepted_side_by_side() -> None:
    overrides = [
        "authenticationEnabled=true",
        f"authenticationProviders={TOKEN_PROVIDER},{TLS_PROVIDER}",
        "tokenSecretKey=data:;base64,AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
        *("brokerServicePortTls=6651", "tlsCertificateFilePath=a", "tlsKeyFilePath=b", "tlsTrustCertsFilePath=c"),
    ]

    asked = Authenticator.from_config(load_config(None, environment={}, overrides=overrides))

    assert asked is not None
    assert asked.authenticate("tls", b"", BILLING, now_ms=0).role == "billing"
    with pytest.raises(AuthenticationError):
        asked.authenticate("token", b"no token", BILLING, now_ms=0)
