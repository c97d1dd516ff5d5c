"""Read a sorted set of Redis whose scores are times. Nothing is removed from it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from postdate.command_line.milliseconds import YEAR_1990_MS
from postdate.moving_in.messages import END_OF_9999_MS, Found, Left, MovingInError, Waiting

if TYPE_CHECKING:
    import redis

MEMBERS_PER_PAGE: Final = 1_000
_NAME_CHARACTERS: Final = 60


@contextmanager
def connected(url: str) -> Iterator["redis.Redis"]:
    """Connect to a Redis; its errors become one of this room.

    Raises:
        MovingInError: The address is none, or Redis refuses or does not answer.
    """
    import redis

    try:
        client = redis.Redis.from_url(url)
    except ValueError:
        # Its text may show a part of a password that is not percent-encoded.
        raise MovingInError("the address of Redis is none: write redis://HOST:PORT/DATABASE") from None
    # An address can ask for texts; members are bytes.
    client.connection_pool.connection_kwargs["decode_responses"] = False
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    try:
        with client:
            yield client
    except redis.RedisError as error:
        raise MovingInError(f"Redis at {shown}: {error}") from error


def check_type(client: "redis.Redis", key: str, wanted: str) -> bool:
    """Return whether there is a key, which nothing empty has; raise `MovingInError` for one of another type."""
    found = client.type(key).decode()
    if found not in ("none", wanted):
        raise MovingInError(f"the key {key} of this Redis has the type {found}, not {wanted}")
    return bool(found == wanted)


def sorted_set(client: "redis.Redis", key: str, unit: str, key_field: str | None) -> Found:
    """Give the members of a sorted set, in no order; one that is moved meanwhile may come twice.

    Args:
        client: The connection.
        key: The key of the set.
        unit: The unit of scores, `s` or `ms`.
        key_field: The field of members of JSON that is the message's key; None for no key.

    Raises:
        MovingInError: The key is missing, or has another type.
    """
    if not check_type(client, key, "zset"):
        raise MovingInError(f"there is no key {key} in this Redis: the set is empty, or has another name")
    for member, score in client.zscan_iter(key, count=MEMBERS_PER_PAGE):
        try:
            deliver_at_ms = _time_ms(score, unit)
            message_key = None if key_field is None else _key_of(member, key_field)
        except ValueError as error:
            yield Left(name_of(member), str(error))
        else:
            yield Waiting(f"redis:{key}:{sha256(member).hexdigest()[:32]}", member, deliver_at_ms, message_key)


def _time_ms(score: float, unit: str) -> int:
    """Return the time that a score means, in ms since 1970; a wrong unit makes it one of the 1970s, or after 9999."""
    deliver_at_ms = score * 1_000 if unit == "s" else score
    if not YEAR_1990_MS <= deliver_at_ms <= END_OF_9999_MS:
        raise ValueError("its score is no time from 1990 to 9999 in this unit")
    return round(deliver_at_ms)


def _key_of(member: bytes, field: str) -> str | None:
    try:
        value = json.loads(member)[field]
    except (ValueError, TypeError, KeyError, RecursionError):
        value = None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"it is no JSON with a text or a whole number as {field}")
    return str(value) or None


def name_of(message: bytes) -> str:
    """Return the begin of a message as a text."""
    text = message.decode(errors="backslashreplace")
    return text if len(text) <= _NAME_CHARACTERS else f"{text[:_NAME_CHARACTERS]}..."
