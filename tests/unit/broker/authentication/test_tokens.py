"""Which tokens are accepted and what they say; that none chooses how it is checked; that no error holds a secret."""

import base64
import hashlib
import hmac
import json
import math
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from postdate.broker.authentication.authenticator import Authenticator
from postdate.broker.authentication.provider import AuthenticatedRole, AuthenticationError
from postdate.broker.configuration.access import AccessConfig
from postdate.broker.configuration.config import BrokerConfig, ConfigError, load_config
from tests.helpers.tokens import SECRET, SECRET_KEY, TOKEN_PROVIDER, token

NOW_S = 1_800_000_000
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
P256 = ec.generate_private_key(ec.SECP256R1())
P384 = ec.generate_private_key(ec.SECP384R1())


def der(key: Any, encoding: Encoding = Encoding.DER) -> bytes:
    found: bytes = key.public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)
    return found


def data(key: bytes) -> str:
    return f"data:;base64,{base64.b64encode(key).decode()}"


def authenticator(**access: Any) -> Authenticator:
    keys: dict[str, Any] = {"is_authentication_enabled": True, "provider_class_names": (TOKEN_PROVIDER,)} | access
    if "token_public_key" not in keys:
        keys.setdefault("token_secret_key", SECRET_KEY)
    found = Authenticator.from_config(BrokerConfig(access=AccessConfig(**keys)))
    assert found is not None
    return found


def role_of(shown: bytes, *, now_s: float = NOW_S, **access: Any) -> AuthenticatedRole:
    return authenticator(**access).authenticate("token", shown, None, now_ms=int(now_s * 1000))


def refused(shown: bytes, reason: str, *, now_s: float = NOW_S, **access: Any) -> None:
    with pytest.raises(AuthenticationError, match=reason) as caught:
        role_of(shown, now_s=now_s, **access)
    # A token is as good as a password.
    assert len(shown) < 10 or shown.decode(errors="replace") not in f"{caught.value!r}"


def handmade(header: object, claims: object, sign: Any = lambda signed: b"") -> bytes:
    """Write a token without a library."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims)]
    signed = b".".join(parts)
    return signed + b"." + base64.urlsafe_b64encode(sign(signed)).rstrip(b"=")


def hmac_of(key: bytes) -> Any:
    return lambda signed: hmac.new(key, signed, hashlib.sha256).digest()


def test_a_token_made_by_hand_is_accepted() -> None:
    """So the tokens that are refused below are refused for what they are, and not for how they were made."""
    shown = handmade({"alg": "HS256"}, {"sub": "anna"}, hmac_of(SECRET))

    assert role_of(shown) == AuthenticatedRole("anna", None)


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", ""])
def test_a_token_without_a_signature_is_refused(name: str) -> None:
    for access in ({}, {"token_public_key": data(der(RSA))}):
        refused(handmade({"alg": name}, {"sub": "admin"}), "not accepted", **access)
        refused(handmade({"alg": name}, {"sub": "admin"}, hmac_of(SECRET)), "not accepted", **access)


@pytest.mark.parametrize("encoding", [Encoding.DER, Encoding.PEM])
@pytest.mark.parametrize("key", [RSA, P256])
def test_a_public_key_is_never_taken_for_a_secret(key: Any, encoding: Encoding) -> None:
    """The attack by which each holder of the public key makes tokens."""
    algorithm = "RS256" if key is RSA else "ES256"
    public = der(key, encoding)
    shown = handmade({"alg": "HS256"}, {"sub": "admin"}, hmac_of(public))

    refused(shown, "not accepted", token_public_key=data(public), token_public_algorithm=algorithm)


def test_a_key_that_a_token_brings_along_is_not_used() -> None:
    header = {
        "alg": "RS256",
        "jwk": {"kty": "RSA", "n": "AQAB", "e": "AQAB"},
        "jku": "http://evil",
        "kid": "../../dev/null",
    }
    shown = jwt.encode({"sub": "admin"}, rsa.generate_private_key(65537, 2048), algorithm="RS256", headers=header)

    refused(shown.encode(), "not accepted", token_public_key=data(der(RSA)))


def test_a_part_that_nobody_here_understands_but_must_be_understood_is_refused() -> None:
    refused(handmade({"alg": "HS256", "crit": ["b65"], "b65": 1}, {"sub": "a"}, hmac_of(SECRET)), "not accepted")


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_secret_checks_what_it_is_long_enough_for(algorithm: str) -> None:
    lengths = {"HS256": 32, "HS384": 48, "HS512": 64}
    for length in lengths.values():
        secret = bytes(length)
        shown = handmade(
            {"alg": algorithm},
            {"sub": "anna"},
            lambda signed, secret=secret: hmac.new(secret, signed, f"sha{algorithm[2:]}").digest(),
        )
        if length >= lengths[algorithm]:
            assert role_of(shown, token_secret_key=data(secret)).role == "anna"
        else:
            refused(shown, "not accepted", token_secret_key=data(secret))


@pytest.mark.parametrize(
    ("key", "configured", "signed_with"),
    [
        (RSA, "RS256", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]),
        (RSA, "PS512", ["RS256", "PS512"]),
        (P256, "ES256", ["ES256"]),
        (P384, "ES384", ["ES384"]),
    ],
)
def test_a_public_key_checks_what_its_private_one_signs(key: Any, configured: str, signed_with: list[str]) -> None:
    for algorithm in signed_with:
        shown = token(key=key, algorithm=algorithm)
        for public in (data(der(key)), data(der(key, Encoding.PEM))):
            assert role_of(shown, token_public_key=public, token_public_algorithm=configured).role == "anna"
    refused(
        token(key=P256 if key is RSA else RSA, algorithm="ES256" if key is RSA else "RS256"),
        "not accepted",
        token_public_key=data(der(key)),
        token_public_algorithm=configured,
    )


def test_an_end_is_exact_and_a_skew_moves_it() -> None:
    shown = token(exp=NOW_S)

    assert role_of(shown, now_s=NOW_S - 0.001).expires_at_ms == NOW_S * 1000
    refused(shown, "expired")
    assert role_of(shown, now_s=NOW_S + 9.999, token_clock_skew_s=10).expires_at_ms == (NOW_S + 10) * 1000
    refused(shown, "expired", now_s=NOW_S + 10, token_clock_skew_s=10)


def test_a_beginning_is_exact_and_a_skew_moves_it() -> None:
    shown = token(nbf=NOW_S)

    assert role_of(shown).role == "anna"
    refused(shown, "not valid yet", now_s=NOW_S - 0.001)
    assert role_of(shown, now_s=NOW_S - 10, token_clock_skew_s=10).role == "anna"


@pytest.mark.parametrize("value", ["soon", True, [NOW_S], {}, math.inf, -math.inf, math.nan, 10**30])
def test_a_time_that_is_none_is_refused(value: Any) -> None:
    refused(token(exp=value), "is not a time|not accepted")
    refused(token(nbf=value), "is not a time|not accepted")


@pytest.mark.parametrize(
    ("claims", "expected"),
    [({"sub": "anna"}, "anna"), ({"sub": ["anna", "berta"]}, "anna"), ({"sub": "ä ö"}, "ä ö")],
)
def test_the_role_is_a_text_or_the_first_of_a_list(claims: dict[str, Any], expected: str) -> None:
    assert role_of(jwt.encode(claims, SECRET).encode()).role == expected


@pytest.mark.parametrize(
    "claims", [{}, {"sub": ""}, {"sub": " "}, {"sub": None}, {"sub": 7}, {"sub": []}, {"sub": [7]}]
)
def test_a_token_without_a_role_is_refused(claims: dict[str, Any]) -> None:
    refused(jwt.api_jws.encode(json.dumps(claims).encode(), SECRET, algorithm="HS256").encode(), "has no role")


def test_the_claim_of_the_role_can_be_another() -> None:
    shown = token("anna", group="crew")

    assert role_of(shown, token_role_claim="group").role == "crew"
    refused(token("anna"), "the claim group", token_role_claim="group")


def test_an_audience_must_be_this_service() -> None:
    ours: dict[str, Any] = {"token_audience_claim": "aud", "token_audience": "postdate"}

    assert role_of(token(aud="postdate"), **ours).role == "anna"
    assert role_of(token(aud=["other", "postdate"]), **ours).role == "anna"
    assert role_of(token(aud="other")).role == "anna"
    for audience in ({}, {"aud": "other"}, {"aud": ["other"]}, {"aud": {"postdate": 1}}, {"aud": "postdate "}):
        refused(token(**audience), "not for this service", **ours)


@pytest.mark.parametrize(
    "shown",
    [
        b"a",
        b".",
        b"..",
        b"...",
        b"a.b.c",
        "ä.ö.ü".encode(),
        bytes(range(256)),
        b"." * 60_000,
        b"Bearer " + token(),
        token() + b"x",
        token()[:-1],
        token().replace(b".", b"..", 1),
        base64.urlsafe_b64encode(b"[" * 40_000) + b".e30.",
        handmade([], {}),
        handmade("x", {}),
        handmade({"alg": ["HS256"]}, {"sub": "a"}),
        handmade({"alg": {"HS256": 1}}, {"sub": "a"}),
        handmade({"alg": None}, {"sub": "a"}),
        handmade({"alg": "HS256", "kid": 7}, {"sub": "a"}, hmac_of(SECRET)),
        handmade({"alg": "HS256"}, ["sub"], hmac_of(SECRET)),
        handmade({"alg": "HS256"}, "sub", hmac_of(SECRET)),
    ],
)
def test_what_is_no_token_is_refused(shown: bytes) -> None:
    refused(shown, "not accepted")


def test_a_token_that_is_too_long_is_not_looked_at() -> None:
    refused(token(padding="x" * 70_000), "too long")


# ---- keys ----


def opened(text: str, folder: Path) -> Authenticator | None:
    """Read the configuration and its keys as `postdate serve` does."""
    path = folder / "broker.conf"
    path.write_text(f"authenticationEnabled=true\nauthenticationProviders={TOKEN_PROVIDER}\n{text}")
    return Authenticator.from_config(load_config(path, environment={}, overrides=[]))


def test_a_secret_can_be_a_file_in_three_notations_and_data_in_three(tmp_path: Path) -> None:
    file = tmp_path / "a secret.key"
    file.write_bytes(SECRET)
    encoded = base64.b64encode(SECRET).decode()
    percent = "".join(f"%{byte:02x}" for byte in SECRET)
    for notation in (
        f"file://{str(file).replace(' ', '%20')}",
        f"file:{file}",
        str(file),
        f"data:;base64,{encoded}",
        f"data:text/plain;base64,{encoded}",
        encoded,
        f"data:,{percent}",
    ):
        found = opened(f"tokenSecretKey={notation}\n", tmp_path)
        assert found is not None
        assert found.authenticate("token", token(), None, now_ms=0).role == "anna"


@pytest.mark.parametrize(
    ("lines", "key", "reason"),
    [
        ("", "authenticationProviders", "set tokenSecretKey"),
        (f"tokenSecretKey={SECRET_KEY}\ntokenPublicKey=file:///k\n", "tokenPublicKey", "tokenSecretKey is set too"),
        ("tokenSecretKey=file:///no/such/file\n", "tokenSecretKey", "/no/such/file cannot be read: No such file"),
        ("tokenSecretKey=file:///\n", "tokenSecretKey", "cannot be read: Is a directory"),
        ("tokenSecretKey=file:///dev/zero\n", "tokenSecretKey", "too large"),
        ("tokenSecretKey=data:;base64,$hush$hush$hush$\n", "tokenSecretKey", "is not base64"),
        ("tokenSecretKey=data:;base64\n", "tokenSecretKey", "must be data:;base64,TEXT"),
        ("tokenSecretKey=not/a/file/hush-hush-hush\n", "tokenSecretKey", "is neither file:PATH nor data:"),
        ("tokenSecretKey=data:;base64,aHVzaC1odXNoLWh1c2g=\n", "tokenSecretKey", "has 14 bytes"),
        ("tokenSecretKey=data:;base64,\n", "tokenSecretKey", "has 0 bytes"),
        ("tokenPublicKey=data:;base64,aHVzaC1odXNoLWh1c2g=\n", "tokenPublicKey", "is not a public key"),
        (f"tokenPublicKey={data(der(RSA))}\ntokenPublicAlg=ES256\n", "tokenPublicKey", "not for ES256"),
        (f"tokenPublicKey={data(der(P256))}\n", "tokenPublicKey", "is for ES256, and not for RS256"),
        (f"tokenPublicKey={data(der(P256))}\ntokenPublicAlg=ES384\n", "tokenPublicKey", "is for ES256"),
        (
            f"tokenPublicKey={data(der(ec.generate_private_key(ec.SECP256K1())))}\n",
            "tokenPublicKey",
            "must be an RSA key or",
        ),
        (
            f"tokenPublicKey={data(der(rsa.generate_private_key(65537, 1024)))}\n",
            "tokenPublicKey",
            "has 1024 bits",
        ),
    ],
    # Each process makes keys of its own, and workers must agree on the names of tests.
    ids=lambda text: text.partition("base64,")[0],
)  # fmt: skip
def test_a_key_that_cannot_be_used_names_its_place_and_what_to_do(
    tmp_path: Path, lines: str, key: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        opened(lines, tmp_path)

    line = 2 if key == "authenticationProviders" else 2 + 1 + [one.split("=")[0] for one in lines.split()].index(key)
    assert str(caught.value).startswith(f"{tmp_path / 'broker.conf'}:{line}: {key}=")
    assert caught.value.key == key
    assert "hush" not in f"{caught.value!r}"
    assert "aHVz" not in f"{caught.value!r}" or key == "tokenPublicKey"


# ---- over HTTP ----


@pytest.mark.parametrize("header", ["Basic YTpi", "bearer x", "Bearer", "", token().decode()])
def test_a_header_that_is_no_bearer_token_is_refused_and_never_anonymous(header: str) -> None:
    with pytest.raises(AuthenticationError):
        authenticator(anonymous_role="guest").authenticate_request(header, None, now_ms=0)


def test_a_bearer_token_names_the_role() -> None:
    found = authenticator().authenticate_request(f"Bearer {token().decode()}", None, now_ms=0)

    assert found.role == "anna"


def test_a_request_without_credentials_is_anonymous_or_refused() -> None:
    assert authenticator(anonymous_role="guest").authenticate_request(None, None, now_ms=0).role == "guest"
    with pytest.raises(AuthenticationError, match="no credentials"):
        authenticator().authenticate_request(None, None, now_ms=0)
