"""The configuration of TLS: files, versions, and whether clients must have certificates.

Names and defaults are Pulsar's. Contradictions are refused here; `postdate.broker.network.tls` reads the files.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from managed_ledger.positions.value_types import InvalidValueError

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS, the same on both ports that have it."""

    certificate_path: Path | None = field(default=None, metadata={"key": "tlsCertificateFilePath"})
    key_path: Path | None = field(default=None, metadata={"key": "tlsKeyFilePath"})
    trust_certs_path: Path | None = field(default=None, metadata={"key": "tlsTrustCertsFilePath"})
    requires_client_cert: bool = field(default=False, metadata={"key": "tlsRequireTrustedClientCertOnConnect"})
    protocols: str = field(default="", metadata={"key": "tlsProtocols"})
    refresh_interval_s: int = field(default=300, metadata={"key": "tlsCertRefreshCheckDurationSec"})

    def __post_init__(self) -> None:
        if (self.certificate_path is None) != (self.key_path is None):
            here, missing = ("key_path", "certificate_path")[:: -1 if self.key_path is None else 1]
            raise InvalidValueError(here, f"set together with {{{missing}}}")
        if self.requires_client_cert and self.trust_certs_path is None:
            rule = "false while {trust_certs_path} names no authority to trust"
            raise InvalidValueError("requires_client_cert", rule)
        if not set(self._protocol_names) <= _VERSIONS.keys():
            raise InvalidValueError("protocols", "TLSv1.3 or TLSv1.2 or both with a comma between")
        if not 0 <= self.refresh_interval_s <= 2**31 - 1:
            value = self.refresh_interval_s
            raise InvalidValueError("refresh_interval_s", "from 0 to {most}", value=value, most=2**31 - 1)

    @property
    def versions(self) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
        """The oldest and the newest version that is spoken."""
        chosen = [_VERSIONS[name] for name in self._protocol_names or _VERSIONS]
        return min(chosen), max(chosen)

    @property
    def _protocol_names(self) -> list[str]:
        return [name.strip() for name in self.protocols.split(",") if name.strip()]
