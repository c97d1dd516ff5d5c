"""Parse requests about scheduled messages: queries and JSON bodies become checked values. Pure.

A request with an unknown field or a wrong value is refused, the error names the field, and nothing has changed. A
misspelled field must not make an operation select more messages than its caller meant.
"""

import base64
import binascii
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

import numpy as np

from managed_ledger.position import Position
from managed_ledger.value_types import Int64Array, Json
from postdate.broker.scheduled.operations import Selector
from postdate.broker.scheduled.selection import TIME_MS_LAST
from postdate.command_line.milliseconds import may_be_seconds, seconds_refusal
from postdate.command_line.times import may_be_date, parse_time_ms

LIMIT_MAX: Final = 1_000
LIMIT_DEFAULT: Final = 100
BUCKETS_MAX: Final = 1_000
BUCKETS_DEFAULT: Final = 60
MESSAGE_IDS_MAX: Final = 10_000
RATE_MAX: Final = 1_000_000
TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, the latest new time of a message: a later one is microseconds by mistake."""

SELECTORS: Final = ("messageIds", "key", "keyBase64", "property", "from", "until", "all")
SELECTION_FIELDS: Final = frozenset({*SELECTORS, "subscription", "dryRun"})
RESCHEDULE_FIELDS: Final = frozenset({*SELECTION_FIELDS, "deliverAtMs", "delayMs", "shiftMs"})

_MESSAGE_ID: Final = re.compile(r"(\d{1,19}):(\d{1,10})")
_DIGITS: Final = re.compile(r"-?\d+")
_DIGITS_MAX: Final = 4_000
"""Python makes a number of no more than 4,300."""
_SHOWN_MAX: Final = 10**19
_TIME_ADVICE: Final = (
    "Write ISO 8601 with a time zone, such as 2027-01-15T08:00:00Z or 2027-01-15T09:00:00+01:00, or milliseconds since "
    "1970; in a URL, + is written %2B"
)


class RequestError(Exception):
    """A request that is refused; nothing has changed.

    Args:
        status: The HTTP status.
        error: The fault, as a text.
        field: The field of the request that is wrong, None where the error is about no field.
        advice: How the caller mends the request.
    """

    def __init__(self, status: int, error: str, *, field: str | None, advice: str) -> None:
        super().__init__(error)
        self.status = status
        self.field = field
        self.advice = advice

    def to_json(self) -> Json:
        """Return the body of the answer."""
        return {"error": str(self), "field": self.field, "advice": self.advice}


def _bad(field: str, error: str, advice: str) -> RequestError:
    return RequestError(400, error, field=field, advice=advice)


def parse_body(data: bytes) -> Json:
    """Return the JSON object of a body.

    Raises:
        RequestError: It is none, or has a field twice: which one is meant cannot be known.
    """
    try:
        body = _DECODER.decode(data.decode(json.detect_encoding(data), "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"The body is no JSON: {error}", field=None, advice="Send a JSON object") from error
    if not isinstance(body, dict):
        raise RequestError(400, "The body is no JSON object", field=None, advice='Send {"name": value, ...}')
    return body


def _once_each(pairs: list[tuple[str, Any]]) -> Json:
    found: Json = {}
    for name, value in pairs:
        if name in found:
            raise _bad(name, f"{name!r} is given twice", "Give it once")
        found[name] = value
    return found


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_once_each)
"""Kept: to make one takes longer than to read the body of a small request."""


def check_fields(given: Collection[str], known: Collection[str], what: str) -> None:
    """Refuse unknown fields.

    Raises:
        RequestError: A field is unknown.
    """
    for name in given:
        if name not in known:
            advice = f"Known are: {', '.join(sorted(known))}" if known else f"This request has no {what}s"
            raise _bad(name, f"{name!r} is no {what} of this request", advice)


def parse_time(field: str, value: object, *, last_ms: int = TIME_MS_LAST, takes_any_number: bool = False) -> int:
    """Return a time in milliseconds; a text is read as commands read it (`command_line.times`), so it needs a zone.

    A number is milliseconds, and so is a text of digits, unless these are rather a date without its signs.

    >>> parse_time("from", "2027-01-15T09:00:00+01:00"), parse_time("from", 1_800_000_000_000)
    (1800000000000, 1800000000000)

    Args:
        field: The field of the request.
        value: Its value.
        last_ms: The latest time that is taken.
        takes_any_number: Whether a number before 1990 is taken, which may be seconds.

    Raises:
        RequestError: The text is no time, or the number may be seconds.
    """
    if not (isinstance(value, str) and may_be_date(value)):
        value = _number_or_text(value)
    is_number = not isinstance(value, str)
    if isinstance(value, str):
        try:
            # A plus that was not quoted in a URL is a space.
            value = parse_time_ms(value.replace(" ", "+") if "T" in value else value)
        except ValueError as error:
            raise _bad(field, f"{field}: {error}", _TIME_ADVICE) from error
    if type(value) is not int:
        raise _bad(field, f"{field} must be a time, not {_kind(value)}", _TIME_ADVICE)
    if is_number and not takes_any_number and value >= 0 and may_be_seconds(value):
        raise _bad(field, f"{field}: {seconds_refusal(value)}", _TIME_ADVICE)
    if not 0 <= value <= last_ms:
        raise _bad(field, f"{_shown(value)} is outside of what can be scheduled", f"Write 0 to {last_ms} milliseconds")
    return value


def parse_whole(field: str, value: object, low: int, high: int) -> int:
    """Return a whole number within bounds; a text of digits is none.

    Raises:
        RequestError: The value is no whole number within the bounds.
    """
    if type(value) is not int:
        raise _bad(field, f"{field} must be a whole number, not {_kind(value)}", f"Write {low} to {high}")
    if not low <= value <= high:
        raise _bad(field, f"{field} is {_shown(value)}, which is not within {low} and {high}", f"Write {low} to {high}")
    return value


def number_of_query(text: str) -> str | int:
    """Return the number that a text of digits is, which a query has in no other way; it changes nothing.

    >>> number_of_query("1000"), number_of_query("2027-01-15T08:00:00Z")
    (1000, '2027-01-15T08:00:00Z')
    """
    number = _number_or_text(text)
    return number if isinstance(number, int) else text


def _number_or_text(value: object) -> object:
    """Return the number of a text of digits; of very many digits only that there are too many matters."""
    return int(value[:_DIGITS_MAX]) if isinstance(value, str) and _DIGITS.fullmatch(value) else value


def _shown(value: int) -> str:
    """Return a number for an error, a very long one by its length alone: it may have been cut."""
    return str(value) if abs(value) < _SHOWN_MAX else "a number of 20 or more digits"


def parse_message_id(field: str, value: object) -> Position:
    """Return a message id.

    >>> str(parse_message_id("messageId", "3:9"))
    '3:9'

    Raises:
        RequestError: The text is no message id.
    """
    found = _MESSAGE_ID.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise _bad(field, f"{value!r} is no message id", 'Write "ledger:entry"')
    ledger_id, entry_id = found.groups()
    if int(ledger_id) >= 2**63 or int(entry_id) >= 2**32:
        raise _bad(field, f"{value!r} is no message id: its numbers are too large", "Take ids from a listing")
    return Position(int(ledger_id), int(entry_id))


def parse_key(given: Mapping[str, Any]) -> bytes | None:
    """Return the key that is asked for.

    Raises:
        RequestError: The value is no key, or there are two keys.
    """
    if "key" in given and "keyBase64" in given:
        raise _bad("keyBase64", "key and keyBase64 are both given", "Give one of them")
    if "key" in given:
        return _text("key", given["key"]).encode()
    if "keyBase64" not in given:
        return None
    try:
        return base64.b64decode(_text("keyBase64", given["keyBase64"]), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _bad("keyBase64", f"keyBase64 is not base64: {error}", "Give text keys as key") from error


def parse_properties(value: object) -> dict[str, str] | None:
    """Return properties from an object, or from one or many texts `name=value`.

    >>> parse_properties(["a=1", "b=2=3"]), parse_properties({"a": "1"})
    ({'a': '1', 'b': '2=3'}, {'a': '1'})

    Raises:
        RequestError: The value is no properties.
    """
    advice = 'Write {"name": "value"} or "name=value"'
    if isinstance(value, dict):
        if not value or not all(_is_text(name) and _is_text(one) for name, one in value.items()):
            raise _bad("property", "property must have names with texts as values", advice)
        return dict(value)
    texts = value if isinstance(value, list) else [value]
    found: dict[str, str] = {}
    for text in texts:
        name, separator, wanted = text.partition("=") if _is_text(text) else ("", "", "")
        if not separator or not name:
            raise _bad("property", f"{text!r} is no property with its value", advice)
        if found.get(name, wanted) != wanted:
            raise _bad("property", f"property {name!r} is asked for with two values", "No message has both")
        found[name] = wanted
    if not found:
        raise _bad("property", "property is empty", advice)
    return found


def parse_bool(field: str, value: object) -> bool:
    """Return a truth value, of a query as text.

    Raises:
        RequestError: The value is neither true nor false.
    """
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if type(value) is not bool:
        raise _bad(field, f"{field} must be true or false, not {_kind(value)}", "Write true or false")
    return value


def parse_selector(body: Mapping[str, Any]) -> Selector:
    """Return the selector of an operation: the messages that it changes.

    Raises:
        RequestError: The request selects messages in no way, or in two.
    """
    given = [name for name in SELECTORS if name in body]
    if not given:
        raise _bad(
            "messageIds",
            "nothing says which messages are meant",
            "Give messageIds, or any of key, property, from and until, or all: true",
        )
    if len(given) > 1:
        for alone in ("messageIds", "all"):
            other = next(name for name in given if name != alone)
            if alone in given:
                raise _bad(other, f"{other} cannot stand beside {alone}", f"Leave out {alone} or {other}")
    if "all" in body:
        if body["all"] is not True:
            raise _bad("all", "all can only be true", "Leave it out, and say which messages are meant")
        return Selector()
    if "messageIds" in body:
        return Selector(message_ids=_message_ids(body["messageIds"]))
    return parse_conditions(body)


def parse_conditions(given: Mapping[str, Any]) -> Selector:
    """Return the selector of a list, or of an operation by conditions: the key, a property, and a span of time."""
    from_ms, until_ms = parse_range(given)
    return Selector(
        key=parse_key(given),
        properties=parse_properties(given["property"]) if "property" in given else None,
        from_ms=from_ms,
        until_ms=until_ms,
    )


def parse_range(given: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return a stretch of time; its end is not in it, but for the latest time there is, which means no end.

    Raises:
        RequestError: The values are no range of times.
    """
    from_ms = parse_time("from", given["from"]) if "from" in given else None
    until_ms = parse_time("until", given["until"]) if "until" in given else None
    if from_ms is not None and until_ms is not None and from_ms >= until_ms:
        raise _bad("until", "until is not behind from", "from is included and until is not, so until must be later")
    return from_ms, None if until_ms == TIME_MS_LAST else until_ms


@dataclass(frozen=True, slots=True)
class NewTime:
    """The new delivery time of messages: one time, or a shift of each message's own."""

    field: str
    deliver_at_ms: int | None = None
    shift_ms: int = 0

    def of(self, deliver_at_ms: int) -> int:
        """Return the new time of a message."""
        return deliver_at_ms + self.shift_ms if self.deliver_at_ms is None else self.deliver_at_ms

    def all_of(self, deliver_at_ms: Int64Array) -> Int64Array:
        """Return the new times of many messages."""
        return (
            deliver_at_ms + self.shift_ms
            if self.deliver_at_ms is None
            else np.full_like(deliver_at_ms, self.deliver_at_ms)
        )


def parse_new_time(body: Mapping[str, Any], now_ms: int) -> NewTime:
    """Return the new time of messages that are rescheduled.

    Raises:
        RequestError: There is none, or more than one, or it is past.
    """
    given = [name for name in ("deliverAtMs", "delayMs", "shiftMs") if name in body]
    if len(given) != 1:
        advice = "Give one of deliverAtMs, delayMs and shiftMs"
        wrong = f"{given[1]} cannot stand beside {given[0]}" if given else "nothing says when to deliver instead"
        raise _bad(given[1] if given else "deliverAtMs", wrong, advice)
    field = given[0]
    if field == "shiftMs":
        return NewTime(field, shift_ms=parse_whole(field, body[field], -TIME_MS_MAX, TIME_MS_MAX))
    if field == "delayMs":
        return NewTime(field, now_ms + parse_whole(field, body[field], 0, TIME_MS_MAX - now_ms))
    # A time that may be seconds is past, which says more.
    deliver_at_ms = parse_time(field, body[field], last_ms=TIME_MS_MAX, takes_any_number=True)
    if deliver_at_ms < now_ms:
        advice = "Deliver what is to come at once with deliver-now"
        if may_be_seconds(deliver_at_ms):
            advice = f"{seconds_refusal(deliver_at_ms)}. {_TIME_ADVICE}"
        raise _bad(field, "deliverAtMs is past", advice)
    return NewTime(field, deliver_at_ms)


def parse_rate(body: Mapping[str, Any]) -> float | None:
    """Return how many messages a second a resume lets go, None for no limit.

    Raises:
        RequestError: The value is no positive number.
    """
    if "ratePerSecond" not in body or body["ratePerSecond"] is None:
        return None
    value = body["ratePerSecond"]
    if type(value) not in (int, float):
        raise _bad("ratePerSecond", f"ratePerSecond must be a number, not {_kind(value)}", f"Write 0.001 to {RATE_MAX}")
    if not 0.001 <= value <= RATE_MAX:
        raise _bad("ratePerSecond", f"ratePerSecond is {value}", f"Write 0.001 to {RATE_MAX}, or leave it out")
    return float(value)


def parse_subscription(given: Mapping[str, Any]) -> str | None:
    """Return the name of a subscription, None for all.

    Raises:
        RequestError: The value is no text.
    """
    if "subscription" not in given or given["subscription"] is None:
        return None
    return _text("subscription", given["subscription"])


def _message_ids(value: object) -> list[Position]:
    if not isinstance(value, list) or not value:
        raise _bad("messageIds", "messageIds must be a list with at least one id", 'Write ["ledger:entry", ...]')
    if len(value) > MESSAGE_IDS_MAX:
        advice = f"Give up to {MESSAGE_IDS_MAX} at a time, or say which are meant by key, property or time"
        raise _bad("messageIds", f"messageIds has {len(value)} ids", advice)
    return [parse_message_id("messageIds", one) for one in value]


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise _bad(field, f"{field} must be a text, not {_kind(value)}", "Write it in quotes")
    if not _is_text(value):
        raise _bad(
            field,
            f"{field} has half of a character, {value!r}",
            "Write characters whole; a key that is no text is given as keyBase64",
        )
    return value


def _is_text(value: object) -> TypeGuard[str]:
    """Whether it is a whole text: JSON can hold one half of a surrogate pair."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a truth value"
        case int() | float():
            return "a number"
        case str():
            return f"{value!r}"
        case list():
            return "a list"
        case _:
            return "an object"
