"""Tokens for tests, made with PyJWT directly, so that the service does not read its own encoding."""

import base64
from typing import Any

import jwt

SECRET = bytes(range(32))
SECRET_KEY = f"data:;base64,{base64.b64encode(SECRET).decode()}"
TOKEN_PROVIDER = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken"


def token(role: str = "anna", *, algorithm: str = "HS256", key: Any = SECRET, **claims: Any) -> bytes:
    """Return a token of a role."""
    return jwt.encode({"sub": role, **claims}, key, algorithm=algorithm).encode()
