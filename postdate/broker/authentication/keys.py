"""Read the keys that tokens are signed and checked with, in every notation that Pulsar has.

    file:///etc/postdate/secret.key       the bytes of a file; also file:PATH and a path alone
    data:;base64,FLFyW0oLJ2Fi...          the bytes themselves
    FLFyW0oLJ2Fi...                       the same, where no file has this name

A secret key is these bytes. A public or private key is these bytes too: DER (X.509, PKCS 8) as `pulsar tokens` writes
it, or PEM, which Pulsar does not read. The algorithms of a key follow from the key and never from a token, so that no
token can choose how it is checked. No error text holds any part of a key.
"""

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote_to_bytes

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey

from postdate.broker.configuration.access import RSA_ALGORITHMS

_CURVE_ALGORITHMS: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
SECRET_BYTES: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
"""The shortest secret for each algorithm (RFC 7518, 3.2)."""

_RSA_BITS_MIN: Final = 2048
_FILE_BYTES_MAX: Final = 1 << 20
_PEM_START: Final = b"-----BEGIN "

PublicKey = RSAPublicKey | EllipticCurvePublicKey
PrivateKey = RSAPrivateKey | EllipticCurvePrivateKey


class TokenKeyError(ValueError):
    """A key cannot be used; the text says why and how to mend it, and holds no part of the key."""


@dataclass(frozen=True, slots=True, repr=False)
class VerificationKey:
    """A key that checks tokens, and the algorithms that it accepts.

    Attributes:
        key: The secret or the public key.
        algorithms: The `alg` of tokens that it checks; never of both kinds.
    """

    key: bytes | PublicKey
    algorithms: tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class SigningKey:
    """A key that signs tokens, and its algorithm.

    Attributes:
        key: The secret or the private key.
        algorithm: The `alg` of the tokens that it signs.
    """

    key: bytes | PrivateKey
    algorithm: str


def secret_verification_key(notation: str) -> VerificationKey:
    """Read a secret key; every algorithm that its length suffices for is accepted, as in Pulsar.

    Raises:
        TokenKeyError: It cannot be read or is too short.
    """
    secret = _secret(notation)
    return VerificationKey(secret, tuple(name for name, length in SECRET_BYTES.items() if len(secret) >= length))


def public_verification_key(notation: str, algorithm: str) -> VerificationKey:
    """Read a public key of the kind that an algorithm needs.

    Args:
        notation: Where it is.
        algorithm: `tokenPublicAlg`; of an RSA key all RSA algorithms are accepted, as in Pulsar.

    Raises:
        TokenKeyError: It cannot be read, is another kind of key, or is too short.
    """
    data = read_key(notation)
    try:
        is_pem = data.startswith(_PEM_START)
        key = serialization.load_pem_public_key(data) if is_pem else serialization.load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise TokenKeyError(
            "it is not a public key: write the file that `postdate token create-key-pair --output-public-key` makes"
        ) from None
    return VerificationKey(key, _algorithms_of(key, algorithm))  # type: ignore[arg-type]


def secret_signing_key(notation: str) -> SigningKey:
    """Read a secret key to sign with the strongest that it is long enough for, as in Pulsar.

    Raises:
        TokenKeyError: It cannot be read or is too short.
    """
    key = secret_verification_key(notation)
    return SigningKey(key.key, key.algorithms[-1])  # type: ignore[arg-type]


def private_signing_key(notation: str, algorithm: str) -> SigningKey:
    """Read a private key to sign with an algorithm.

    Raises:
        TokenKeyError: It cannot be read, is another kind of key, or is too short.
    """
    data = read_key(notation)
    try:
        is_pem = data.startswith(_PEM_START)
        load = serialization.load_pem_private_key if is_pem else serialization.load_der_private_key
        key = load(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise TokenKeyError(
            "it is not a private key without a password: write the file that "
            "`postdate token create-key-pair --output-private-key` makes"
        ) from None
    allowed = _algorithms_of(key, algorithm)
    assert algorithm in allowed
    return SigningKey(key, algorithm)  # type: ignore[arg-type]


def read_key(notation: str) -> bytes:
    """Return the bytes that a notation names.

    >>> read_key("data:;base64,a2V5")
    b'key'

    Raises:
        TokenKeyError: They cannot be read.
    """
    if notation.startswith("data:"):
        return _of_data(notation.removeprefix("data:"))
    if notation.startswith("file:"):
        return _of_file(_path_of(notation.removeprefix("file:")))
    if _names_file(notation):
        return _of_file(Path(notation))
    return _of_base64(notation, "it is neither file:PATH nor data:;base64,TEXT, no file has this name, and as a key")


def _secret(notation: str) -> bytes:
    secret = read_key(notation)
    if len(secret) < SECRET_BYTES["HS256"]:
        raise TokenKeyError(
            f"the secret has {len(secret)} bytes, which is guessed too easily: it must have at least "
            f"{SECRET_BYTES['HS256']}; `postdate token create-secret-key` makes one"
        )
    return secret


def _algorithms_of(key: object, algorithm: str) -> tuple[str, ...]:
    """Return the algorithms that a key can check; the configured algorithm must be among them."""
    if isinstance(key, RSAPublicKey | RSAPrivateKey):
        if key.key_size < _RSA_BITS_MIN:
            raise TokenKeyError(f"the RSA key has {key.key_size} bits, but must have at least {_RSA_BITS_MIN}")
        allowed: tuple[str, ...] = RSA_ALGORITHMS
    elif isinstance(key, EllipticCurvePublicKey | EllipticCurvePrivateKey) and key.curve.name in _CURVE_ALGORITHMS:
        allowed = (_CURVE_ALGORITHMS[key.curve.name],)
    else:
        raise TokenKeyError("it must be an RSA key or one of the curves P-256, P-384 and P-521")
    if algorithm not in allowed:
        raise TokenKeyError(f"the key is for {', '.join(allowed)}, and not for {algorithm}")
    return allowed


def _of_data(rest: str) -> bytes:
    head, separator, body = rest.partition(",")
    if not separator:
        raise TokenKeyError("it must be data:;base64,TEXT")
    if head.endswith(";base64"):
        return _of_base64(body, "what stands behind data:;base64,")
    return unquote_to_bytes(body)


def _of_base64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise TokenKeyError(f"{what} is not base64: write file:///PATH or data:;base64,TEXT") from None


def _names_file(notation: str) -> bool:
    try:
        return Path(notation).is_file()
    except (OSError, ValueError):
        # A long text of base64 is too long for a name.
        return False


def _path_of(rest: str) -> Path:
    """Return the path of a URL, which may name the host that every file here is on."""
    if rest.startswith("//"):
        host, slash, path = rest.removeprefix("//").partition("/")
        if host not in ("", "localhost"):
            raise TokenKeyError(f"the file is on another machine, {host}: write file:///PATH")
        rest = slash + path
    return Path(unquote_to_bytes(rest).decode(errors="surrogateescape"))


def _of_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise TokenKeyError(f"the file {path} cannot be read: {reason}") from None
    if len(data) > _FILE_BYTES_MAX:
        raise TokenKeyError(f"the file {path} is too large for a key")
    return data
