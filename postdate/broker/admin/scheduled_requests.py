"""The requests about scheduled messages, as msgspec structs, and the rules between their fields. Pure.

A struct says which fields a request has, of which type and within which bounds; `postdate.broker.admin.endpoint`
refuses what is otherwise, by the field. A misspelled field must not make an operation select more messages than its
caller meant.
"""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType, field

from managed_ledger.positions.position import Position
from managed_ledger.positions.value_types import Int64Array
from postdate.broker.admin.refusal import RefusalError
from postdate.broker.scheduled.operations import Selector
from postdate.broker.scheduled.page_token import PageToken
from postdate.broker.scheduled.selection import TIME_MS_LAST
from postdate.command_line.milliseconds import may_be_seconds, seconds_refusal
from postdate.command_line.times import may_be_date, parse_time_ms

LIMIT_MAX: Final = 1_000
LIMIT_DEFAULT: Final = 100
MESSAGE_IDS_MAX: Final = 10_000
TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, the latest new time of a message: a later one is microseconds by mistake."""
TIME_ADVICE: Final = (
    "Write ISO 8601 with a time zone, such as 2027-01-15T08:00:00Z or 2027-01-15T09:00:00+01:00, or milliseconds since "
    "1970; in a URL, + is written %2B"
)
IDS_ADVICE: Final = f"Give up to {MESSAGE_IDS_MAX} ids at a time, or say which are meant by key, property or time"
_PROPERTY_ADVICE: Final = 'Write {"name": "value"} or "name=value"'

_MESSAGE_ID: Final = re.compile(r"(\d{1,19}):(\d{1,10})")
_DIGITS: Final = re.compile(r"-?\d{1,4000}")
"""Python makes a number of no more than 4,300 digits."""

Time = (
    Annotated[
        int,
        Meta(
            description="Milliseconds since 1970; a number before 1990 is refused, as it may be seconds",
            extra_json_schema={"minimum": 631_152_000_000},
        ),
    ]
    | Annotated[
        str,
        Meta(
            description="ISO 8601 with a time zone (Z or an offset), without which it is refused; or milliseconds; "
            "digits that may be a date, such as 20270615, are refused in a text of a body",
            examples=["2027-01-15T08:00:00Z", "2027-01-15T09:00:00+01:00"],
        ),
    ]
)
Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="Most messages")]
Subscription = Annotated[str | None, Meta(description="For which subscription; none: for all that delay")]
OrderingKey = (
    Annotated[str, Meta(description="The ordering key; the partition key of a message without one")] | UnsetType
)
KeyBase64 = Annotated[str, Meta(description="A key that is no text")] | UnsetType
OWN_ID_CHARACTERS_MAX: Final = 1_000
OwnId = (
    Annotated[
        str,
        Meta(
            min_length=1,
            max_length=OWN_ID_CHARACTERS_MAX,
            description="The id that its producer gave a message, which is its property postdate.id",
        ),
    ]
    | UnsetType
)


class Asked(Struct, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of the requests."""


class Conditions(Asked, kw_only=True):
    """What is scheduled for a subscription, of an own id, of a key, with properties, within a span of time."""

    subscription: Subscription = None
    from_: (
        Annotated[Time, Meta(description="The earliest delivery time, included", extra={"advice": TIME_ADVICE})]
        | UnsetType
    ) = field(default=UNSET, name="from")
    until: (
        Annotated[Time, Meta(description="The latest delivery time, not included", extra={"advice": TIME_ADVICE})]
        | UnsetType
    ) = UNSET
    key: OrderingKey = UNSET
    key_base64: KeyBase64 = UNSET
    property: (
        Annotated[
            dict[str, str] | str | list[str],
            Meta(
                description='Properties that all must hold: {"name": "value"}, "name=value", or a list of such texts',
                extra={"advice": _PROPERTY_ADVICE},
            ),
        ]
        | UnsetType
    ) = UNSET
    id: OwnId = UNSET


class BackupRequest(Asked, kw_only=True):
    """Asks for a backup."""

    target: Annotated[
        str,
        Meta(
            description="The absolute path of a folder of the service's machine, or s3://BUCKET/PREFIX with the "
            "options endpoint, region and path_style; credentials are the service's"
        ),
    ] = ""
    replace: Annotated[
        bool, Meta(description="Whether it takes the place of the backup of another log, which is lost then")
    ] = False


class ListTopics(Asked, kw_only=True):
    """Asks for topics by name."""

    contains: Annotated[str, Meta(description="Those whose name contains this, in upper or lower case")] = ""
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="Most topics")] | UnsetType = UNSET
    after: Annotated[str, Meta(description="The next of the page before")] = ""


class ListTrail(Asked, kw_only=True):
    """Asks who changed what."""

    topic: Annotated[str, Meta(description="Only changes of this topic, in any form of its name; none: of all")] = ""
    limit: Annotated[int, Meta(ge=1, description="Most entries")] = LIMIT_DEFAULT


class List(Conditions, kw_only=True):
    """Asks for a page of messages."""

    limit: Limit = LIMIT_DEFAULT
    after: Annotated[str, Meta(description="The next of the page before")] | UnsetType = UNSET
    payload: Annotated[bool, Meta(description="Whether to give payloads, in base64")] = False


class Count(Conditions, kw_only=True):
    """Asks for counts."""

    buckets: Annotated[int, Meta(ge=1, le=1_000, description="How many parts")] = 60


class Explain(Asked, kw_only=True):
    """Asks about a message, or about the messages of a key or an own id."""

    subscription: Subscription = None
    message_id: Annotated[str, Meta(description="ledger:entry; either this, or a key, or id")] | UnsetType = UNSET
    id: OwnId = UNSET
    key: (
        Annotated[
            str,
            Meta(
                description="The ordering key; the partition key of a message without one. Messages without a delay "
                "are looked for in the first million unacknowledged entries, those of a batch by the batch's key"
            ),
        ]
        | UnsetType
    ) = UNSET
    key_base64: KeyBase64 = UNSET


class Key(Asked, kw_only=True):
    """Asks for the consumer of a key."""

    subscription: Annotated[str, Meta(description="A Key_Shared subscription")] | UnsetType = UNSET
    key: Annotated[str, Meta(description="The key")] | UnsetType = UNSET
    key_base64: Annotated[str, Meta(description="A key that is no text; either this or key")] | UnsetType = UNSET


class SelectionRequest(Conditions, kw_only=True):
    """Either messageIds alone, or all alone, or any of id, key, property, from and until together."""

    message_ids: (
        Annotated[list[str], Meta(min_length=1, max_length=MESSAGE_IDS_MAX, extra={"advice": IDS_ADVICE})] | UnsetType
    ) = UNSET
    all: Annotated[bool, Meta(extra_json_schema={"const": True})] | UnsetType = UNSET
    dry_run: Annotated[bool, Meta(description="Only count")] = False


class NewTime(SelectionRequest, kw_only=True):
    """A selection; and one of deliverAtMs, delayMs and shiftMs."""

    deliver_at_ms: (
        Annotated[Time, Meta(description="The new time; not past", extra={"advice": TIME_ADVICE})] | UnsetType
    ) = UNSET
    delay_ms: Annotated[int, Meta(ge=0, le=TIME_MS_MAX, description="From now")] | UnsetType = UNSET
    shift_ms: (
        Annotated[int, Meta(ge=-TIME_MS_MAX, le=TIME_MS_MAX, description="From each one's own time")] | UnsetType
    ) = UNSET


class Holding(Asked, kw_only=True):
    """Asks about the pauses of a topic."""

    subscription: Annotated[str | None, Meta(description="None: all")] = None


class Pause(Holding, kw_only=True):
    """Asks for a pause."""

    note: Annotated[str, Meta(min_length=1, max_length=1_000, description="Why, for others to read")] | None = None


class Resume(Holding, kw_only=True):
    """Asks for the end of a pause."""

    rate_per_second: Annotated[float, Meta(ge=0.001, le=1_000_000)] | None = None


SELECTORS: Final = ("message_ids", "id", "key", "key_base64", "property", "from_", "until", "all")
_JSON_NAMES: Final = {"message_ids": "messageIds", "key_base64": "keyBase64", "from_": "from"}


def selectors_of(asked: SelectionRequest) -> list[str]:
    """Return the names of the fields by which a request selects messages, as JSON has them."""
    return [_JSON_NAMES.get(name, name) for name in SELECTORS if getattr(asked, name) is not UNSET]


def selector_of(asked: SelectionRequest) -> Selector:
    """Return the selector of an operation: the messages that it changes.

    Raises:
        RefusalError: The request selects messages in no way, or in two.
    """
    given = selectors_of(asked)
    if not given:
        advice = "Give messageIds, or any of id, key, property, from and until, or all: true"
        raise RefusalError(400, "nothing says which messages are meant", field="messageIds", advice=advice)
    for alone in ("messageIds", "all"):
        if alone in given and len(given) > 1:
            other = next(name for name in given if name != alone)
            advice = f"Leave out {alone} or {other}"
            raise RefusalError(400, f"{other} cannot stand beside {alone}", field=other, advice=advice)
    if asked.all is False:
        raise RefusalError(
            400, "all can only be true", field="all", advice="Leave it out, and say which messages are meant"
        )
    if asked.message_ids is not UNSET:
        return Selector(message_ids=[message_id_of("messageIds", one) for one in asked.message_ids])
    return conditions_of(asked)


def conditions_of(asked: Conditions) -> Selector:
    """Return the selector of a list, or of an operation by conditions; an end at the latest time there is means none.

    Raises:
        RefusalError: The values are no key, no properties or no range of times.
    """
    from_ms = None if asked.from_ is UNSET else time_ms_of("from", asked.from_)
    until_ms = None if asked.until is UNSET else time_ms_of("until", asked.until)
    if from_ms is not None and until_ms is not None and from_ms >= until_ms:
        advice = "from is included and until is not, so until must be later"
        raise RefusalError(400, "until is not behind from", field="until", advice=advice)
    return Selector(
        key=key_of(asked.key, asked.key_base64),
        properties=None if asked.property is UNSET else properties_of(asked.property),
        from_ms=from_ms,
        until_ms=None if until_ms == TIME_MS_LAST else until_ms,
        own_ids=None if asked.id is UNSET else frozenset({asked.id}),
    )


def time_ms_of(name: str, value: int | str, *, last_ms: int = TIME_MS_LAST, takes_any_number: bool = False) -> int:
    """Return a time in milliseconds; a text is read as commands read it (`command_line.times`), so it needs a zone.

    A number is milliseconds, and so is a text of digits, unless these are rather a date without its signs.

    >>> time_ms_of("from", "2027-01-15T09:00:00+01:00"), time_ms_of("from", 1_800_000_000_000)
    (1800000000000, 1800000000000)

    Args:
        name: The field of the request.
        value: Its value.
        last_ms: The latest time that is taken.
        takes_any_number: Whether a number before 1990 is taken, which may be seconds.

    Raises:
        RefusalError: The text is no time, or the number may be seconds.
    """
    if isinstance(value, str) and _DIGITS.fullmatch(value) and not may_be_date(value):
        value = int(value)
    is_number = isinstance(value, int)
    if isinstance(value, str):
        try:
            # A plus that was not quoted in a URL is a space.
            value = parse_time_ms(value.replace(" ", "+") if "T" in value else value)
        except ValueError as error:
            raise RefusalError(400, f"{name}: {error}", field=name, advice=TIME_ADVICE) from error
    if is_number and not takes_any_number and value >= 0 and may_be_seconds(value):
        raise RefusalError(400, f"{name}: {seconds_refusal(value)}", field=name, advice=TIME_ADVICE)
    if not 0 <= value <= last_ms:
        advice = f"Write 0 to {last_ms} milliseconds"
        raise RefusalError(400, f"{name} is outside of what can be scheduled", field=name, advice=advice)
    return value


def message_id_of(name: str, text: str) -> Position:
    """Return a message id.

    >>> str(message_id_of("messageId", "3:9"))
    '3:9'

    Raises:
        RefusalError: The text is no message id.
    """
    found = _MESSAGE_ID.fullmatch(text)
    if found is None or int(found[1]) >= 2**63 or int(found[2]) >= 2**32:
        advice = 'Write "ledger:entry"'
        raise RefusalError(400, f"{text!r} is no message id", field=name, advice=advice)
    return Position(int(found[1]), int(found[2]))


def key_of(text: str | UnsetType, encoded: str | UnsetType) -> bytes | None:
    """Return the key that is asked for, None where none is.

    Raises:
        RefusalError: The value is no key, or there are two keys.
    """
    if text is not UNSET and encoded is not UNSET:
        raise RefusalError(400, "key and keyBase64 are both given", field="keyBase64", advice="Give one of them")
    if text is not UNSET:
        return text.encode()
    if encoded is UNSET:
        return None
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusalError(
            400, f"keyBase64 is not base64: {error}", field="keyBase64", advice="Give text keys as key"
        ) from error


def properties_of(value: Mapping[str, str] | str | Sequence[str]) -> dict[str, str]:
    """Return properties from an object, or from one or many texts `name=value`.

    >>> properties_of(["a=1", "b=2=3"]), properties_of({"a": "1"})
    ({'a': '1', 'b': '2=3'}, {'a': '1'})

    Raises:
        RefusalError: The value is no properties.
    """
    if isinstance(value, Mapping):
        found = dict(value)
    else:
        found = {}
        for text in [value] if isinstance(value, str) else value:
            name, separator, wanted = text.partition("=")
            if not separator or not name:
                raise RefusalError(
                    400, f"{text!r} is no property with its value", field="property", advice=_PROPERTY_ADVICE
                )
            if found.setdefault(name, wanted) != wanted:
                error = f"property {name!r} is asked for with two values"
                raise RefusalError(400, error, field="property", advice="No message has both")
    if not found:
        raise RefusalError(400, "property is empty", field="property", advice=_PROPERTY_ADVICE)
    return found


def page_token_of(text: str | UnsetType) -> PageToken | None:
    """Return the place behind which a page begins, None for the first page.

    Raises:
        RefusalError: The text is no token.
    """
    if text is UNSET:
        return None
    try:
        return PageToken.parse(text)
    except ValueError as error:
        advice = "Give what next gave, or leave it out to begin anew"
        raise RefusalError(400, f"after cannot be used: {error}", field="after", advice=advice) from error


@dataclass(frozen=True, slots=True)
class Rescheduling:
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


def new_time_of(asked: NewTime, now_ms: int) -> Rescheduling:
    """Return the new time of messages that are rescheduled.

    Raises:
        RefusalError: There is none, or more than one, or it is past.
    """
    times = {"deliverAtMs": asked.deliver_at_ms, "delayMs": asked.delay_ms, "shiftMs": asked.shift_ms}
    given = [name for name, value in times.items() if value is not UNSET]
    if len(given) != 1:
        wrong = f"{given[1]} cannot stand beside {given[0]}" if given else "nothing says when to deliver instead"
        name = given[1] if given else "deliverAtMs"
        raise RefusalError(400, wrong, field=name, advice="Give one of deliverAtMs, delayMs and shiftMs")
    if asked.shift_ms is not UNSET:
        return Rescheduling("shiftMs", shift_ms=asked.shift_ms)
    if asked.delay_ms is not UNSET:
        if now_ms + asked.delay_ms > TIME_MS_MAX:
            raise RefusalError(400, "delayMs ends after the year 9999", field="delayMs", advice="Delay by less")
        return Rescheduling("delayMs", now_ms + asked.delay_ms)
    assert asked.deliver_at_ms is not UNSET
    # A time that may be seconds is past, which says more.
    deliver_at_ms = time_ms_of("deliverAtMs", asked.deliver_at_ms, last_ms=TIME_MS_MAX, takes_any_number=True)
    if deliver_at_ms < now_ms:
        advice = "Deliver what is to come at once with deliver-now"
        if may_be_seconds(deliver_at_ms):
            advice = f"{seconds_refusal(deliver_at_ms)}. {TIME_ADVICE}"
        raise RefusalError(400, "deliverAtMs is past", field="deliverAtMs", advice=advice)
    return Rescheduling("deliverAtMs", deliver_at_ms)
