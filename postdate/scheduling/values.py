"""The arguments and results of the client: a selection, one message, and the outcome of a change. Pure.

Times are milliseconds since 1970, or `datetime`s with a time zone. A `datetime` without one is refused: it means
another instant on every machine.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from managed_ledger.positions.value_types import Json
from postdate.command_line.milliseconds import may_be_seconds

Time: TypeAlias = datetime | int
"""An instant: a `datetime` with a time zone, or milliseconds since 1970."""

TIME_MS_MAX: Final = 253_402_300_799_999
"""The latest time that a message can be given: the end of the year 9999, as the service has it."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def time_ms(at: Time) -> int:
    """Return an instant in milliseconds since 1970.

    >>> time_ms(datetime(2027, 1, 15, 8, tzinfo=UTC)), time_ms(1_800_000_000_000)
    (1800000000000, 1800000000000)

    Raises:
        ValueError: The instant has no time zone.
        TypeError: It is neither a `datetime` nor a whole number.
    """
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise ValueError(f"{at!r} has no time zone: write datetime(..., tzinfo=UTC)")
        return (at - _EPOCH) // timedelta(milliseconds=1)
    if type(at) is not int:
        raise TypeError(f"{at!r} is no time: give a datetime with a time zone, or milliseconds since 1970")
    return at


def _field(at: Time) -> int | str:
    """Return an instant as a request has it: one before 1990 written out, as its number would be taken for seconds."""
    deliver_at_ms = time_ms(at)
    return at.isoformat() if isinstance(at, datetime) and may_be_seconds(deliver_at_ms) else deliver_at_ms


def span_ms(span: timedelta) -> int:
    """Return a length of time in milliseconds.

    Raises:
        TypeError: It is no `timedelta`. A number would leave open whether it means seconds or milliseconds.
    """
    if not isinstance(span, timedelta):
        raise TypeError(f"{span!r} is no timedelta")
    return span // timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """Selects the scheduled messages that fulfil all given conditions.

    >>> Matching(key="anna", due_until=1_800_000_000_000).to_json()
    {'key': 'anna', 'until': 1800000000000}
    """

    id: str | None = None
    """The id that `Scheduler.schedule` gave it."""
    key: str | None = None
    """The partition key."""
    properties: Mapping[str, str] | None = None
    """Properties that a message has, with these values; it may have others."""
    due_from: Time | None = None
    """The earliest delivery time, included."""
    due_until: Time | None = None
    """The latest delivery time, not included."""

    def to_json(self) -> Json:
        """Return the fields of a request."""
        found: Json = {}
        if self.id is not None:
            found["id"] = self.id
        if self.key is not None:
            found["key"] = self.key
        if self.properties:
            found["property"] = dict(self.properties)
        if self.due_from is not None:
            found["from"] = _field(self.due_from)
        if self.due_until is not None:
            found["until"] = _field(self.due_until)
        return found


@dataclass(frozen=True, slots=True)
class Everything:
    """All scheduled messages of the topic. A `Matching` without a condition is refused, so that none is forgotten."""


EVERYTHING: Final = Everything()

Which: TypeAlias = str | Iterable[str] | Matching | Everything
"""A selection of messages: a handle, several handles, a `Matching`, or `EVERYTHING`."""


@dataclass(frozen=True, slots=True)
class ScheduledMessage:
    """A scheduled message."""

    handle: str
    """Names it: "ledger:entry"."""
    deliver_at_ms: int
    publish_time_ms: int
    key: str | None
    properties: Mapping[str, str]
    size_bytes: int
    producer_name: str
    payload: bytes | None = None
    """The payload as it is stored, but for zlib, which is undone; None where it was not requested."""
    payload_compression: str | None = None
    """The compression in which the payload still is: "LZ4", "ZSTD" or "SNAPPY"; "ZLIB" or "UNREADABLE" where it is
    damaged. None where the payload is the producer's own or was not requested. An encrypted payload stays so, and this
    is the compression below the encryption, "ZLIB" included."""

    @property
    def deliver_at(self) -> datetime:
        """When it is due, in UTC.

        Raises:
            ValueError: The time has no `datetime`, as it is after the year 9999; `deliver_at_ms` has it.
        """
        try:
            return _EPOCH + timedelta(milliseconds=self.deliver_at_ms)
        except OverflowError as error:
            raise ValueError(f"{self.deliver_at_ms} ms is no datetime: read deliver_at_ms") from error


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a change."""

    matched: int
    """Selected messages that were found."""
    changed: int
    """Messages that were cancelled, which reach no consumer; or rescheduled, or delivered now."""
    already_due: int
    """Messages whose time had come, and that no consumer had: cancelled, never rescheduled."""
    unknown: int
    """Handles without a scheduled message: it was delivered or cancelled, or never existed."""
    in_hand: int = 0
    """Messages that a consumer has, or is about to be sent: changed for the other subscriptions alone."""
    gone: int = 0
    """Messages that were acknowledged or expired while the change was under way."""
    already_shifted: int = 0
    """Messages that the same shift had moved before, which was repeated by its `operation_id`."""
    handles: Mapping[str, str] = field(default_factory=dict)
    """The new handles by the old ones, where handles were given and the messages have new times."""
    damaged: tuple[str, ...] = ()
    """Handles of messages that were left out, as the service's log is damaged where they are; 10,000 at most."""

    def __add__(self, other: "Outcome") -> "Outcome":
        """Return the outcome of both."""
        return Outcome(
            self.matched + other.matched,
            self.changed + other.changed,
            self.already_due + other.already_due,
            self.unknown + other.unknown,
            self.in_hand + other.in_hand,
            self.gone + other.gone,
            self.already_shifted + other.already_shifted,
            {**self.handles, **other.handles},
            (*self.damaged, *other.damaged),
        )


NOTHING: Final = Outcome(0, 0, 0, 0)
