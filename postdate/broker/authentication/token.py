"""The token provider: a JSON Web Token, signed by a key of this service, names the role.

PyJWT checks signatures. The accepted algorithms follow from the configured key alone
(`postdate.broker.authentication.keys`), so neither `none` nor a public key used as a secret is accepted. Times are
compared here, with the clock that is passed in. A token without `exp` holds for ever, as in Pulsar. A single token
cannot be revoked, as in Pulsar: an operator removes the role's grants or changes the key.

Source: RFC 7519; Pulsar's `AuthenticationProviderToken`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import jwt

from postdate.broker.authentication.keys import (
    TokenKeyError,
    VerificationKey,
    public_verification_key,
    secret_verification_key,
)
from postdate.broker.authentication.provider import AuthenticatedRole, AuthenticationError, PeerCertificate
from postdate.broker.configuration.config import BrokerConfig

TOKEN_METHOD: Final = "token"
TOKEN_BYTES_MAX: Final = 64 * 1024
"""The longest token that is parsed, far more than any real token has."""

_SECONDS_MAX: Final = 2**53
_CHECKED_HERE: Final[Any] = {
    f"verify_{claim}": False for claim in ("exp", "nbf", "iat", "aud", "iss", "sub", "jti")
} | {"verify_signature": True, "require": []}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """The rules by which tokens are accepted, and the claims that are read.

    Attributes:
        key: The key that checks their signature.
        role_claim: The claim that is the role.
        audience_claim: The claim that names a token's audience; None is not checked.
        audience: The name that must be in `audience_claim`.
        clock_skew_ms: How far clocks may differ.
    """

    key: VerificationKey
    role_claim: str = "sub"
    audience_claim: str | None = None
    audience: str | None = None
    clock_skew_ms: int = 0


class TokenProvider:
    """Turns a token into a role."""

    method_name = TOKEN_METHOD

    def __init__(self, rules: TokenRules) -> None:
        self._rules = rules

    @classmethod
    def from_config(cls, config: BrokerConfig) -> "TokenProvider":
        """Read the key.

        Raises:
            ConfigError: There is no key, or it cannot be used; the text says what to do.
        """
        access = config.access
        return cls(
            TokenRules(
                key=_configured_key(config),
                role_claim=access.token_role_claim,
                audience_claim=access.token_audience_claim,
                audience=access.token_audience,
                clock_skew_ms=access.token_clock_skew_s * 1000,
            )
        )

    def authenticate(
        self, auth_data: bytes, peer_certificate: PeerCertificate | None, *, now_ms: int
    ) -> AuthenticatedRole:
        del peer_certificate
        if not auth_data:
            raise AuthenticationError("no token is sent")
        claims = verified_claims(auth_data, self._rules.key)
        expires_at_ms = _check_times(claims, self._rules.clock_skew_ms, now_ms)
        _check_audience(claims, self._rules)
        return AuthenticatedRole(_role(claims, self._rules.role_claim), expires_at_ms)


def verified_claims(token: bytes, key: VerificationKey) -> Mapping[str, Any]:
    """Return the claims of a token after checking its signature; times are not checked.

    Raises:
        AuthenticationError: It is no token, or was not signed by this key.
    """
    if len(token) > TOKEN_BYTES_MAX:
        raise AuthenticationError("the token is too long")
    try:
        return jwt.decode(token, key.key, algorithms=key.algorithms, options=_CHECKED_HERE)
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        # PyJWT's own texts can hold parts of the token.
        raise AuthenticationError(f"the token is not accepted ({type(error).__name__})") from None


def _check_times(claims: Mapping[str, Any], skew_ms: int, now_ms: int) -> int | None:
    """Return when a token expires, None for never."""
    expires_at_ms = _time_ms(claims, "exp")
    if expires_at_ms is not None and now_ms >= expires_at_ms + skew_ms:
        raise AuthenticationError("the token has expired")
    not_before_ms = _time_ms(claims, "nbf")
    if not_before_ms is not None and now_ms < not_before_ms - skew_ms:
        raise AuthenticationError("the token is not valid yet")
    return None if expires_at_ms is None else expires_at_ms + skew_ms


def _time_ms(claims: Mapping[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _SECONDS_MAX:
        raise AuthenticationError(f"the {name} of the token is not a time")
    return int(value * 1000)


def _check_audience(claims: Mapping[str, Any], rules: TokenRules) -> None:
    if rules.audience_claim is None:
        return
    audience = claims.get(rules.audience_claim)
    if rules.audience not in (audience if isinstance(audience, list) else [audience]):
        raise AuthenticationError(f"the token is not for this service, by its claim {rules.audience_claim}")


def _role(claims: Mapping[str, Any], name: str) -> str:
    """Return the role: the claim's text, or the first of a list of texts, as in Pulsar."""
    value = claims.get(name)
    if isinstance(value, list) and value:
        value = value[0]
    if not isinstance(value, str) or not value.strip():
        raise AuthenticationError(f"the token has no role: the claim {name} is missing or no text")
    return value


def _configured_key(config: BrokerConfig) -> VerificationKey:
    access = config.access
    if access.token_secret_key is not None and access.token_public_key is not None:
        raise config.refusal("tokenPublicKey", "tokenSecretKey is set too: which of them checks tokens? Set one")
    try:
        if access.token_secret_key is not None:
            name = "tokenSecretKey"
            return secret_verification_key(access.token_secret_key)
        if access.token_public_key is not None:
            name = "tokenPublicKey"
            return public_verification_key(access.token_public_key, access.token_public_algorithm)
    except TokenKeyError as error:
        raise config.refusal(name, str(error)) from error
    raise config.refusal(
        "authenticationProviders",
        "tokens need a key to be checked with: set tokenSecretKey (`postdate token create-secret-key` makes one) "
        "or tokenPublicKey",
    )
