"""The keys of authentication and authorization, with Pulsar's names and defaults."""

from dataclasses import dataclass, field
from typing import Final

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
    """Whether a client must authenticate. Default off: the service then listens on the loopback address only."""

    provider_class_names: tuple[str, ...] = field(default=(), metadata={"key": "authenticationProviders"})
    """The ways to authenticate, by Pulsar's class names. Default none."""

    token_secret_key: str | None = field(
        default=None, repr=False, metadata={"key": "tokenSecretKey", "is_secret": True}
    )
    """The key that tokens are signed and checked with. Default none."""

    token_public_key: str | None = field(default=None, metadata={"key": "tokenPublicKey"})
    """The key that tokens are checked with, where they are signed with its private one. Default none."""

    token_public_algorithm: str = field(default="RS256", metadata={"key": "tokenPublicAlg"})
    """The kind of `token_public_key`: RS and PS are RSA, ES is of elliptic curves. Default RS256."""

    token_role_claim: str = field(default="sub", metadata={"key": "tokenAuthClaim"})
    """The claim of a token that is the role. Default sub."""

    token_audience_claim: str | None = field(default=None, metadata={"key": "tokenAudienceClaim"})
    """The claim of a token that names its audience; `token_audience` must be in it. Default none: not checked."""

    token_audience: str | None = field(default=None, metadata={"key": "tokenAudience"})
    """This service in `token_audience_claim`. Default none."""

    token_clock_skew_s: int = field(default=0, metadata={"key": "tokenAllowedClockSkewSeconds"})
    """How far the clocks of this machine and of a token's issuer may differ. Default 0."""

    refresh_check_s: int = field(default=60, metadata={"key": "authenticationRefreshCheckSeconds"})
    """How long before its credentials end a client is asked for new ones. Default 60."""

    anonymous_role: str | None = field(default=None, metadata={"key": "anonymousUserRole"})
    """The role of clients without credentials. Default none: they are refused."""

    is_metrics_authenticated: bool = field(default=False, metadata={"key": "authenticateMetricsEndpoint"})
    """Whether callers of `/metrics` must authenticate. Default off, as in Pulsar."""

    is_authorization_enabled: bool = field(default=False, metadata={"key": "authorizationEnabled"})
    """Whether a role may do only what is granted to it. Default off: every authenticated role may do everything."""

    super_user_roles: tuple[str, ...] = field(default=(), metadata={"key": "superUserRoles"})
    """The roles that may do everything. Default none."""

    @property
    def restricts_anonymous_clients(self) -> bool:
        """Whether a client without credentials is refused, or may do only what is granted to the anonymous role."""
        return self.is_authentication_enabled and (self.anonymous_role is None or self.is_authorization_enabled)

    def __post_init__(self) -> None:
        for name in self.provider_class_names:
            if name not in PROVIDERS:
                raise ValueError(f"provider_class_names must be of {', '.join(PROVIDERS)}, but has {name}")
        if self.token_public_algorithm not in PUBLIC_ALGORITHMS:
            raise ValueError(f"token_public_algorithm must be one of {', '.join(PUBLIC_ALGORITHMS)}")
        if not 0 <= self.token_clock_skew_s <= _SECONDS_MAX:
            raise ValueError(f"token_clock_skew_s must be from 0 to {_SECONDS_MAX}")
        if not 1 <= self.refresh_check_s <= _SECONDS_MAX:
            raise ValueError(f"refresh_check_s must be from 1 to {_SECONDS_MAX}")
        if self.token_audience_claim is not None and self.token_audience is None:
            raise ValueError("token_audience_claim must be set together with tokenAudience")
        if self.token_audience is not None and self.token_audience_claim is None:
            raise ValueError("token_audience must be set together with tokenAudienceClaim")
        if self.is_authentication_enabled and not self.provider_class_names:
            raise ValueError(
                "is_authentication_enabled must be set together with a way to authenticate: "
                f"authenticationProviders={TOKEN_PROVIDER}"
            )
        if self.is_authorization_enabled and not self.is_authentication_enabled:
            raise ValueError("is_authorization_enabled must be set together with authenticationEnabled=true")
