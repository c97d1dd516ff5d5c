"""Make keys and tokens and read tokens, for `postdate token`; the results are those of `pulsar tokens`.

A secret is random bytes. A pair of keys is DER (PKCS 8 and X.509), so that Pulsar reads it too. The command line and
the files are in `postdate.broker.cli.token_commands`.
"""

import secrets
from collections.abc import Mapping
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from postdate.broker.authentication.keys import SECRET_BYTES, SigningKey

_RSA_BITS: Final = {"256": 2048, "384": 3072, "512": 4096}
_CURVES: Final[Mapping[str, ec.EllipticCurve]] = {
    "ES256": ec.SECP256R1(),
    "ES384": ec.SECP384R1(),
    "ES512": ec.SECP521R1(),
}

RESERVED_HEADERS: Final = frozenset({"alg", "b64", "crit"})
"""Headers that say how a token is to be checked, so that only the key decides them."""


def new_secret(algorithm: str) -> bytes:
    """Make a secret that is as long as an algorithm can use, as Pulsar does."""
    return secrets.token_bytes(SECRET_BYTES[algorithm])


def new_key_pair(algorithm: str) -> tuple[bytes, bytes]:
    """Make a private and a public key for an algorithm, of Pulsar's lengths.

    Returns:
        The private key (PKCS 8) and the public key (X.509), DER both.
    """
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    if algorithm in _CURVES:
        key = ec.generate_private_key(_CURVES[algorithm])
    else:
        key = rsa.generate_private_key(public_exponent=65537, key_size=_RSA_BITS[algorithm[2:]])
    return (
        key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
        key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
    )


def new_token(key: SigningKey, subject: str, *, expires_at_s: int | None, headers: Mapping[str, str]) -> str:
    """Sign a token for a role.

    Args:
        key: The key that signs it.
        subject: The role, in the claim `sub`.
        expires_at_s: When it ends, in seconds since the epoch; None is never.
        headers: Further fields of its header.
    """
    assert not RESERVED_HEADERS & headers.keys()
    claims: dict[str, Any] = {"sub": subject} | ({} if expires_at_s is None else {"exp": expires_at_s})
    return jwt.encode(claims, key.key, algorithm=key.algorithm, headers=dict(headers))


def token_parts(token: str) -> tuple[Any, Any]:
    """Return the header and the claims of a token, without checking its signature.

    Raises:
        ValueError: It is no token; the text does not hold it.
    """
    try:
        parts = jwt.decode_complete(token, options={"verify_signature": False})
    except (jwt.InvalidTokenError, ValueError, RecursionError):
        raise ValueError("it is no token: a token has three parts with dots between, JSON in base64") from None
    return parts["header"], parts["payload"]
