"""The configuration of TLS: files, versions, and whether clients must have certificates.

Names and defaults are Pulsar's. Contradictions are refused here; `postdate.broker.network.tls` reads the files.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS, the same on both ports that have it."""

    certificate_path: Path | None = field(default=None, metadata={"key": "tlsCertificateFilePath"})
    """PEM: the service's certificate, then those between it and a root that clients trust. Default empty."""

    key_path: Path | None = field(default=None, metadata={"key": "tlsKeyFilePath"})
    """PEM: the private key of the certificate, not encrypted. Default empty."""

    trust_certs_path: Path | None = field(default=None, metadata={"key": "tlsTrustCertsFilePath"})
    """PEM: the authorities of clients' certificates. Default empty: clients are not asked for any."""

    requires_client_cert: bool = field(default=False, metadata={"key": "tlsRequireTrustedClientCertOnConnect"})
    """Whether a client without a certificate that is believed is refused in the handshake. Default false."""

    protocols: str = field(default="", metadata={"key": "tlsProtocols"})
    """`TLSv1.3`, `TLSv1.2` or both with a comma between. Default empty: both."""

    refresh_interval_s: int = field(default=300, metadata={"key": "tlsCertRefreshCheckDurationSec"})
    """How often it is looked whether the files have changed, 0 at every connection. Default 300."""

    def __post_init__(self) -> None:
        if (self.certificate_path is None) != (self.key_path is None):
            here, missing = ("key_path", "certificate_path")[:: -1 if self.key_path is None else 1]
            raise ValueError(f"{here} must be set together with {missing}")
        if self.requires_client_cert and self.trust_certs_path is None:
            raise ValueError("requires_client_cert must be false while trust_certs_path names no authority to trust")
        if not set(self._protocol_names) <= _VERSIONS.keys():
            raise ValueError("protocols must be TLSv1.3 or TLSv1.2 or both with a comma between")
        if not 0 <= self.refresh_interval_s <= 2**31 - 1:
            raise ValueError(f"refresh_interval_s must be from 0 to {2**31 - 1}, but is {self.refresh_interval_s}")

    @property
    def versions(self) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
        """The oldest and the newest version that is spoken."""
        chosen = [_VERSIONS[name] for name in self._protocol_names or _VERSIONS]
        return min(chosen), max(chosen)

    @property
    def _protocol_names(self) -> list[str]:
        return [name.strip() for name in self.protocols.split(",") if name.strip()]
