"""The trail: who changed what, when and how much of it, as log lines and as a bounded list that outlives a restart.

The place that answers every endpoint (`endpoint`) tells it here: no handler records anything, and none can forget it.
Looks, dry runs and requests that were refused change nothing, and are not recorded; one that failed may have done a
part, and is.

A program that cancels its own messages one by one would soon push an operator's pause out of the list. Small changes of
one caller on one topic are therefore one entry an hour, with their number; the log has a line for each.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, get_args

import msgspec
from msgspec import Meta, Struct

from managed_ledger.errors import LedgerError
from managed_ledger.positions.value_types import Clock
from postdate.broker.admin.endpoint import Call, Endpoint
from postdate.broker.scheduled.answers import Affected, Answer, Cancelled, Count, Delivered, Kind, Rescheduled, both
from postdate.broker.topics.policies import RecordStore
from postdate.broker.topics.snapshot_sweep import Spawn
from postdate.command_line.output import iso

logger = logging.getLogger(__name__)

DONE: Final = "done"

_RECORD_PREFIX: Final = "trail "
_JOINED_MS: Final = 3_600_000
"""How long small changes join the entry of the first."""
_SMALL_COUNT_MAX: Final = 10
_JOINED_ACTIONS: Final = get_args(Kind)
_VALUES_TOLD_MAX: Final = 3
_SELECTION_LENGTH_MAX: Final = 500
_TIMES: Final = ("from", "until", "deliverAtMs", "time")
_NOT_TOLD: Final = ("tenant", "namespace", "topic", "subscription", "dryRun")
_OF_SUPER_USERS: Final = ("grant", "revoke", "set-policies", "remove-policies")
"""What only super users may look at, whatever its topic."""


class TrailEntry(Answer, kw_only=True):
    """A change that somebody made."""

    time_ms: Annotated[int, Meta(description="Milliseconds since 1970")]
    time: Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
    times: Annotated[
        int,
        Meta(ge=1, description="How many changes these are: small ones of one caller within an hour; time: the last"),
    ] = 1
    first_ms: Annotated[int, Meta(description="When the first of them was made")]
    role: Annotated[str | None, Meta(description="The caller's; null without authentication")]
    address: Annotated[str, Meta(description="Where the request came from, perhaps a proxy's")]
    action: str
    topic: Annotated[str, Meta(description="Or tenant/namespace, where all of its topics are meant; empty for none")]
    subscription: str | None
    selection: Annotated[str, Meta(description="What the request said: of which messages, with which note, for whom")]
    count: Annotated[
        Count | None,
        Meta(description="Messages that were changed; entries of the log for skip, clear, expire, seek and deletions"),
    ]
    outcome: Annotated[str, Meta(description="`done`, or why it failed, perhaps in the middle")]

    @property
    def is_for_super_users(self) -> bool:
        """Whether no grant on a topic lets a role see it."""
        return self.topic.count("/") < 2 or self.action in _OF_SUPER_USERS

    @property
    def sort(self) -> tuple[object, ...]:
        """What small changes of one entry have in common."""
        return self.role, self.address, self.action, self.topic, self.subscription

    @property
    def is_small(self) -> bool:
        """Whether it may join others of its sort."""
        is_done = self.action in _JOINED_ACTIONS and self.outcome == DONE
        return is_done and self.count is not None and self.count <= _SMALL_COUNT_MAX

    def __str__(self) -> str:
        meant = ", ".join(
            one for one in (self.subscription and f"subscription {self.subscription}", self.selection) if one
        )
        by = self.address if self.role is None else f"{self.role} ({self.address})"
        what = f"{self.action} {self.topic}{meant and f' ({meant})'}"
        return f"{by}: {what}: {'' if self.count is None else f'{self.count:,}, '}{self.outcome}"


class TrailAnswer(Answer, kw_only=True):
    """The last changes."""

    entries: list[TrailEntry]


class Trail:
    """The changes that the log of the service tells and its store keeps the last ones of.

    Args:
        store: Keeps an entry as a record of its own.
        entries_max: How many entries are kept, 0 for none: log lines alone.
        now_ms: The wall clock.
        spawn: Runs the writer in the background: no change waits for its entry, and none fails with it.
    """

    def __init__(self, store: RecordStore, entries_max: int, now_ms: Clock, spawn: Spawn) -> None:
        self._store = store
        self._entries_max = entries_max
        self._now_ms = now_ms
        self._spawn = spawn
        self._entries = dict(sorted(_stored(store), key=lambda one: (one[1].time_ms, one[0])))
        """By number, the last change last."""
        self._numbers: dict[tuple[object, ...], int] = {}
        """The entries that small changes join, by their sort."""
        self._last_number = max(self._entries, default=0)
        self._unwritten: set[int] = set()
        self._is_writing = False
        self._trim()

    def newest_first(self) -> Iterator[TrailEntry]:
        """Give the entries that are kept, the last change first."""
        return reversed(self._entries.values())

    def record(self, endpoint: Endpoint, call: Call[Any], found: object) -> None:
        """Record a change.

        Args:
            endpoint: What was asked for.
            call: The request.
            found: The answer, or the error in which it ended; one without a text is the end of the service.
        """
        parts = call.request.match_info
        self.add(
            role=call.role,
            address=call.address,
            action=endpoint.action,
            topic="/".join(parts[one] for one in ("tenant", "namespace", "topic") if one in parts),
            subscription=parts.get("subscription") or getattr(call.asked, "subscription", None),
            selection=_told(call),
            count=_count_of(found),
            outcome=f"failed: {str(found) or 'interrupted'}" if isinstance(found, BaseException) else DONE,
        )

    def add(
        self,
        *,
        role: str | None,
        address: str,
        action: str,
        topic: str,
        subscription: str | None,
        selection: str,
        count: int | None,
        outcome: str = DONE,
    ) -> None:
        """Record a change; the arguments are the fields of an entry."""
        now_ms = self._now_ms()
        entry = TrailEntry(
            **both("time", now_ms),
            first_ms=now_ms,
            role=role,
            address=address,
            action=action,
            topic=topic,
            subscription=subscription,
            selection=selection,
            count=count,
            outcome=outcome,
        )
        logger.info("%s", entry)
        if not self._entries_max:
            return
        is_small = entry.is_small
        number = self._numbers.get(entry.sort)
        if number is not None and is_small and now_ms - self._entries[number].first_ms < _JOINED_MS:
            earlier = self._entries.pop(number)
            entry.times, entry.first_ms = earlier.times + 1, earlier.first_ms
            entry.count = (earlier.count or 0) + (entry.count or 0)
        else:
            self._last_number = number = self._last_number + 1
        self._entries[number] = entry
        self._unwritten.add(number)
        if is_small:
            self._numbers[entry.sort] = number
        self._trim()
        if not self._is_writing:
            self._is_writing = True
            self._spawn(self._write())

    def _trim(self) -> None:
        """Leave out the oldest entries beyond the limit."""
        while len(self._entries) > self._entries_max:
            old = next(iter(self._entries))
            gone = self._entries.pop(old)
            self._unwritten.add(old)
            if self._numbers.get(gone.sort) == old:
                del self._numbers[gone.sort]

    async def _write(self) -> None:
        """Write what has changed since the last write; an entry that changes meanwhile is written once more."""
        try:
            while self._unwritten:
                number = self._unwritten.pop()
                entry = self._entries.get(number)
                value = None if entry is None else msgspec.json.encode(entry)
                try:
                    await self._store.put_record(f"{_RECORD_PREFIX}{number}", value)
                except LedgerError as error:
                    self._unwritten.add(number)
                    logger.warning("the trail is not stored until the next change: %s", error)
                    return
        finally:
            self._is_writing = False


def _stored(store: RecordStore) -> Iterator[tuple[int, TrailEntry]]:
    for name, value in store.records.items():
        if name.startswith(_RECORD_PREFIX):
            try:
                yield int(name.removeprefix(_RECORD_PREFIX)), msgspec.json.decode(value, type=TrailEntry)
            except (ValueError, msgspec.MsgspecError) as error:
                logger.warning("an entry of the trail cannot be read and is left out: %s", error)


def _count_of(found: object) -> int | None:
    match found:
        case (
            Cancelled(cancelled=int(count))
            | Rescheduled(rescheduled=int(count))
            | Delivered(delivered=int(count))
            | Affected(entries=count)
        ):
            return count
    return None


def _told(call: Call[Any]) -> str:
    """Return what a request says, but for its topic and subscription: parts of the path, fields and options."""
    fields: dict[str, Any] = dict(call.request.match_info)
    for given in (call.asked, call.options):
        built = msgspec.to_builtins(given)
        if isinstance(given, Struct):
            fields |= built
        elif built is not None:
            fields["actions" if isinstance(built, list) else "at"] = built
    told = ", ".join(
        f"{name} {_value_told(name, value)}".rstrip()
        for name, value in fields.items()
        if name not in _NOT_TOLD and value is not None and value is not False
    )
    return told if len(told) <= _SELECTION_LENGTH_MAX else f"{told[:_SELECTION_LENGTH_MAX]}..."


def _value_told(name: str, value: Any) -> str:
    """Return a value of a field as a text.

    >>> _value_told("until", 0), _value_told("property", {"a": "b"}), _value_told("messageIds", ["1:1"] * 5)
    ('1970-01-01T00:00:00.000Z', 'a=b', '1:1, 1:1, 1:1 and 2 more')
    """
    if value is True:
        return ""
    if name in _TIMES and str(value).isdigit():
        return iso(int(value))
    if isinstance(value, Mapping):
        value = [f"{key}={one}" for key, one in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, str):
        more = f" and {len(value) - _VALUES_TOLD_MAX} more" if len(value) > _VALUES_TOLD_MAX else ""
        return ", ".join(map(str, value[:_VALUES_TOLD_MAX])) + more
    return str(value)
