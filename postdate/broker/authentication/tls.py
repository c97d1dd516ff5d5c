"""The TLS provider: the common name of the client's certificate is its role.

The TLS handshake has verified the certificate against `tlsTrustCertsFilePath`; nothing is checked again here. A
connection outlives the end of its certificate, as in Pulsar.

Source: Pulsar's `AuthenticationProviderTls`.
"""

from typing import Final

from postdate.broker.authentication.provider import AuthenticatedRole, AuthenticationError, PeerCertificate
from postdate.broker.configuration.access import TLS_PROVIDER
from postdate.broker.configuration.config import BrokerConfig

TLS_METHOD: Final = "tls"


class TlsProvider:
    """Turns a certificate into a role."""

    method_name = TLS_METHOD

    @classmethod
    def from_config(cls, config: BrokerConfig) -> "TlsProvider":
        """Make the provider from the configuration.

        Raises:
            ConfigError: No client could show a certificate; the text says what to do.
        """
        if not config.has_tls or config.tls.trust_certs_path is None:
            raise config.refusal(
                "authenticationProviders",
                f"{TLS_PROVIDER} needs a port with TLS (brokerServicePortTls) "
                "and tlsTrustCertsFilePath, which names the authorities of clients' certificates",
            )
        return cls()

    def authenticate(
        self, auth_data: bytes, peer_certificate: PeerCertificate | None, *, now_ms: int
    ) -> AuthenticatedRole:
        del auth_data, now_ms
        if peer_certificate is None:
            raise AuthenticationError("Client unable to authenticate with TLS certificate: the connection has none")
        role = role_of(peer_certificate)
        if role is None:
            raise AuthenticationError("Client unable to authenticate with TLS certificate: it has no common name")
        return AuthenticatedRole(role)


def role_of(peer_certificate: PeerCertificate) -> str | None:
    """Return the common name of a client's certificate; None if it has none.

    Of several, the most specific counts, which is the last, as in Pulsar.

    >>> role_of({"subject": ((("organizationName", "shop"),), (("commonName", "billing"),))})
    'billing'
    """
    names = [
        value for name_parts in peer_certificate.get("subject", ()) for key, value in name_parts if key == "commonName"
    ]
    return names[-1] or None if names else None
