"""The keys of authentication and authorization, with Pulsar's names and defaults."""

from dataclasses import dataclass, field
from typing import Final

from managed_ledger.positions.value_types import InvalidValueError

_PULSAR_PACKAGE: Final = "org.apache.pulsar.broker.authentication"
TOKEN_PROVIDER: Final = f"{_PULSAR_PACKAGE}.AuthenticationProviderToken"
TLS_PROVIDER: Final = f"{_PULSAR_PACKAGE}.AuthenticationProviderTls"

RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
PUBLIC_ALGORITHMS: Final = (*RSA_ALGORITHMS, "ES256", "ES384", "ES512")
"""The algorithms of tokens that a public key checks, as in Pulsar."""

PROVIDERS: Final = (TOKEN_PROVIDER, TLS_PROVIDER)
"""The providers of this service, by Pulsar's class names."""

_SECONDS_MAX: Final = 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig:
    """The configuration of authentication and authorization. Secrets are not in its `repr`."""

    is_authentication_enabled: bool = field(default=False, metadata={"key": "authenticationEnabled"})
    provider_class_names: tuple[str, ...] = field(default=(), metadata={"key": "authenticationProviders"})
    token_secret_key: str | None = field(
        default=None, repr=False, metadata={"key": "tokenSecretKey", "is_secret": True}
    )
    token_public_key: str | None = field(default=None, metadata={"key": "tokenPublicKey"})
    token_public_algorithm: str = field(default="RS256", metadata={"key": "tokenPublicAlg"})
    token_role_claim: str = field(default="sub", metadata={"key": "tokenAuthClaim"})
    token_audience_claim: str | None = field(default=None, metadata={"key": "tokenAudienceClaim"})
    token_audience: str | None = field(default=None, metadata={"key": "tokenAudience"})
    token_clock_skew_s: int = field(default=0, metadata={"key": "tokenAllowedClockSkewSeconds"})
    refresh_check_s: int = field(default=60, metadata={"key": "authenticationRefreshCheckSeconds"})
    anonymous_role: str | None = field(default=None, metadata={"key": "anonymousUserRole"})
    is_metrics_authenticated: bool = field(default=False, metadata={"key": "authenticateMetricsEndpoint"})
    is_authorization_enabled: bool = field(default=False, metadata={"key": "authorizationEnabled"})
    super_user_roles: tuple[str, ...] = field(default=(), metadata={"key": "superUserRoles"})

    @property
    def restricts_anonymous_clients(self) -> bool:
        """Whether a client without credentials is refused, or may do only what is granted to the anonymous role."""
        return self.is_authentication_enabled and (self.anonymous_role is None or self.is_authorization_enabled)

    def __post_init__(self) -> None:
        for name in self.provider_class_names:
            if name not in PROVIDERS:
                raise InvalidValueError("provider_class_names", f"of {', '.join(PROVIDERS)}", value=name)
        if self.token_public_algorithm not in PUBLIC_ALGORITHMS:
            raise InvalidValueError("token_public_algorithm", f"one of {', '.join(PUBLIC_ALGORITHMS)}")
        if not 0 <= self.token_clock_skew_s <= _SECONDS_MAX:
            raise InvalidValueError("token_clock_skew_s", "from 0 to {most}", most=_SECONDS_MAX)
        if not 1 <= self.refresh_check_s <= _SECONDS_MAX:
            raise InvalidValueError("refresh_check_s", "from 1 to {most}", most=_SECONDS_MAX)
        if self.token_audience_claim is not None and self.token_audience is None:
            raise InvalidValueError("token_audience_claim", "set together with {token_audience}")
        if self.token_audience is not None and self.token_audience_claim is None:
            raise InvalidValueError("token_audience", "set together with {token_audience_claim}")
        if self.is_authentication_enabled and not self.provider_class_names:
            rule = f"set together with a way to authenticate: {{provider_class_names}}={TOKEN_PROVIDER}"
            raise InvalidValueError("is_authentication_enabled", rule)
        if self.is_authorization_enabled and not self.is_authentication_enabled:
            rule = "set together with {is_authentication_enabled}=true"
            raise InvalidValueError("is_authorization_enabled", rule)
