"""The trail: who changed what, when and how much of it, as log lines and as a bounded list that outlives a restart.

The place that answers every endpoint (`endpoint`) tells it here: no handler records anything, and none can forget it.
Looks, dry runs and requests that were refused change nothing, and are not recorded; one that failed may have done a
part, and is.

The list is bounded for each action: a program that cancels its messages one by one pushes no operator's pause out.
"""

import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from managed_ledger.errors import LedgerError
from managed_ledger.positions.value_types import Clock
from postdate.broker.admin.endpoint import Call, Endpoint
from postdate.broker.scheduled.answers import Affected, Answer, Cancelled, Count, Delivered, Rescheduled, both
from postdate.broker.topics.policies import RecordStore
from postdate.broker.topics.snapshot_sweep import Spawn
from postdate.command_line.output import iso

logger = logging.getLogger(__name__)

DONE: Final = "done"

_RECORD_PREFIX: Final = "trail "
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

    def __str__(self) -> str:
        meant = ", ".join(
            one for one in (self.subscription and f"subscription {self.subscription}", self.selection) if one
        )
        by = self.address if self.role is None else f"{self.role} ({self.address})"
        what = " ".join(one for one in (self.action, self.topic, meant and f"({meant})") if one)
        return f"{by}: {what}: {'' if self.count is None else f'{self.count:,}, '}{self.outcome}"


class TrailAnswer(Answer, kw_only=True):
    """The last changes."""

    entries: list[TrailEntry]


class TrailBook(ABC):
    """Who changed what, as the endpoints and the connections know it."""

    @abstractmethod
    def newest_first(self) -> Iterator[TrailEntry]:
        """Give the entries that are kept, the last change first."""

    @abstractmethod
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


class Trail(TrailBook):
    """The changes that the log of the service tells and its store keeps the last ones of.

    Args:
        store: Keeps an entry as a record of its own.
        entries_max: How many entries of each action are kept, 0 for none: log lines alone.
        now_ms: The wall clock.
        spawn: Runs the writer in the background: no change waits for its entry, and none fails with it.
    """

    def __init__(self, store: RecordStore, entries_max: int, now_ms: Clock, spawn: Spawn) -> None:
        self._store = store
        self._entries_max = entries_max
        self._now_ms = now_ms
        self._spawn = spawn
        self._entries: defaultdict[str, dict[int, TrailEntry]] = defaultdict(dict)
        """By action and number, the last change last."""
        self._last_number = 0
        self._unwritten: dict[int, TrailEntry | None] = {}
        """By number; None for one that is to be removed."""
        self._is_writing = False
        for number, entry in sorted(_stored(store), key=lambda one: one[0]):
            self._add(number, entry)

    def newest_first(self) -> Iterator[TrailEntry]:
        """Give the entries that are kept, the last change first."""
        all_of = ((number, one) for of_action in self._entries.values() for number, one in of_action.items())
        return (one for _, one in sorted(all_of, key=lambda one: one[0], reverse=True))

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
        entry = TrailEntry(
            **both("time", self._now_ms()),
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
        self._unwritten[self._last_number + 1] = entry
        self._add(self._last_number + 1, entry)
        if not self._is_writing:
            self._is_writing = True
            self._spawn(self._write())

    def _add(self, number: int, entry: TrailEntry) -> None:
        """Add an entry, and leave out the oldest one of its action beyond the limit."""
        self._last_number = number
        of_action = self._entries[entry.action]
        of_action[number] = entry
        if len(of_action) > self._entries_max:
            oldest = next(iter(of_action))
            del of_action[oldest]
            if self._unwritten.pop(oldest, None) is None:
                self._unwritten[oldest] = None

    async def _write(self) -> None:
        """Write what has changed since the last write."""
        try:
            while self._unwritten:
                number, entry = self._unwritten.popitem()
                value = None if entry is None else msgspec.json.encode(entry)
                try:
                    await self._store.put_record(f"{_RECORD_PREFIX}{number}", value)
                except LedgerError as error:
                    # It may have been left out meanwhile.
                    self._unwritten.setdefault(number, entry)
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
