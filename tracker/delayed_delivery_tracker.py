"""The interface between a dispatcher and a delayed delivery tracker, with Pulsar's names in snake case.

A dispatcher offers every message it reads; the tracker keeps those that are not due (`add_message` is True), and
hands each out once, when it is due. A tracker belongs to one event loop and to one cursor. Nothing in it waits for
I/O except `clear` and `close`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pyroaring import BitMap

from managed_ledger.positions.position import Position
from snapshot_storage.encoding.columns import DelayedIndexes

ScheduledMessages = DelayedIndexes
"""Due positions with their times, in order of time and then position."""


class TrackedCursor(Protocol):
    """The part of a cursor that its tracker needs; `managed_ledger.Cursor` fits."""

    @property
    def mark_delete_position(self) -> Position:
        """Everything up to here is acknowledged."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The cursor's properties; those of buckets are the list of snapshots."""

    def acknowledged_in(self, ledger_id: int) -> BitMap:
        """Return all acknowledged entry ids of a ledger, also those up to the mark-delete position."""

    async def update_properties(self, *, put: Mapping[str, str] = {}, remove: Collection[str] = ()) -> None:
        """Change properties in one durable step."""

    def add_listener(self, on_mark_delete_moved: Callable[[Position], None]) -> None:
        """Call this with the new mark-delete position, on the event loop, whenever it has moved."""

    def remove_listener(self, on_mark_delete_moved: Callable[[Position], None]) -> None:
        """Call it no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerContext:
    """The surroundings of a tracker: its cursor and its dispatcher."""

    topic_name: str
    cursor_name: str
    cursor: TrackedCursor
    on_available: Callable[[], None]
    """Called on the event loop, at most once per turn, when something may have become available or is to be read again,
    and when an answer that makes one wait is no longer true: that nothing is due, that due messages must wait, or that
    reading is to pause. It is enough to look then, and when more can be taken than before."""
    on_defect: Callable[[Exception], None] = lambda _: None
    """Called once, with an exception that must not be, which is in the log: the tracker has stopped, and hands out
    nothing any more. Close it, read the log again, and go on with a new one."""
    tick_time_ms: int | None = None
    """The topic's own tick; None means the configuration's."""


class DelayedDeliveryTracker(ABC):
    """Knows which positions are delayed, and hands each out once, when it is due."""

    may_repeat: bool = False
    """Whether it may give a message again that was delivered and is not acknowledged: on a shared index another
    subscription may add it again, after a loss, a step of the clock, or while it has delays and this one had none."""

    @property
    def lead_ms(self) -> int:
        """How long before its time a message counts as due: the tick where times are not strict, else 0."""
        return 0

    @abstractmethod
    def add_message(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        """Track a message until `deliver_at` (ms); False means: not tracked, deliver it now.

        A message that is added twice is handed out once, at the earlier of its times.

        Raises:
            ValueError: If the entry id is not within 0 to 2**32 - 1, or the ledger id not within 0 to 2**63 - 1;
                nothing has changed then.
        """

    @abstractmethod
    def add_messages(self, ledger_ids: ArrayLike, entry_ids: ArrayLike, deliver_ats: ArrayLike) -> NDArray[np.bool_]:
        """Do what `add_message` does, for many; the result says which are tracked."""

    def end_fixed_delays(self) -> None:
        """Note that there are messages without a delay to read: reading must not pause before the next."""
        return

    @abstractmethod
    def contains_message(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a position is tracked, so that a normal read must skip it; as far as that is known."""

    @abstractmethod
    def tracked_in(self, ledger_id: int) -> BitMap | None:
        """Return the tracked entry ids of a ledger as far as they are known, for reading only; a read may skip them."""

    def is_recovering(self, ledger_id: int) -> bool:
        """Whether it is not known yet, after a restart, which entries of a ledger are tracked: do not read it yet.

        `on_available` is called when it is known.
        """
        del ledger_id
        return False

    def pop_to_read_again(self) -> Mapping[int, BitMap]:
        """Return positions that were tracked and no longer are, because a snapshot could not be read; once.

        They were neither handed out nor offered again since: read them from the log, and add them. Others of the same
        ledgers may be among them. After a start nothing is reported: the log is read from mark-delete on.
        """
        return {}

    @abstractmethod
    def has_message_available(self) -> bool:
        """Whether `get_scheduled_messages` has something to give now; if not, `on_available` will tell when it has."""

    @abstractmethod
    def next_delivery_time(self) -> int | None:
        """Return when the next message is due, in ms, or None if nothing is tracked."""

    def first_withheld_time(self) -> int | None:
        """Return the time in ms from which on due messages must wait, None if none has to.

        An earlier one cannot be given yet, as its segment is being loaded; `on_available` is called when it can.
        """
        return None

    @abstractmethod
    def get_scheduled_messages(self, max_messages: int) -> ScheduledMessages:
        """Hand out due messages, at most so many, in order of time and then position.

        Where it gives none although `has_message_available` is true, as it passes over acknowledged ones a portion at a
        time, it must call `on_available` as soon as it has one: a dispatcher does not ask again before that.
        """

    @abstractmethod
    def number_of_delayed_messages(self) -> int:
        """Return how many messages are tracked."""

    @abstractmethod
    def number_of_future_messages(self) -> int:
        """Return how many of them still wait for their time: neither due nor acknowledged."""

    @abstractmethod
    def remove_acknowledged(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Forget messages that were acknowledged before they were handed out; those that are not tracked are ignored.

        Without it they count until their ledger is passed or their time comes, and are handed out then.

        Raises:
            ValueError: The entry ids are no bitmap of pyroaring; nothing has changed then.
        """

    @abstractmethod
    def should_pause_all_deliveries(self) -> bool:
        """Whether the dispatcher should stop reading for now: nothing it could read would be deliverable."""

    @abstractmethod
    def reset_tick_time(self, tick_time_ms: int) -> None:
        """Set the tick, as the topic's policy has it now."""

    @abstractmethod
    async def clear(self) -> None:
        """Forget every message; rows that are added from now on are kept.

        The index is empty on return. Its snapshots are deleted in the background: `close` gives that some time, and
        `ResidualSnapshots` does what is left.
        """

    def abandon(self) -> None:
        """Let `close` store nothing any more and wait for no storage: the log alone will be needed."""
        return

    @abstractmethod
    async def close(self) -> None:
        """Release everything; the index stays in the storage."""


class DelayedDeliveryTrackerFactory(ABC):
    """Makes trackers that share a configuration and a storage.

    Snapshots of cursors without a tracker belong to the owner of the storage, not to a factory: `ResidualSnapshots`.
    """

    @abstractmethod
    def new_tracker(self, context: TrackerContext) -> DelayedDeliveryTracker:
        """Return a tracker for a cursor; recovery goes on in the background."""

    def can_defer(self, cursor: TrackedCursor) -> bool:
        """Whether a tracker of this cursor has nothing to do before something is added, and may be made then."""
        del cursor
        return False

    async def start(self) -> None:
        """Open what the trackers share, if anything."""
        return

    async def close(self) -> None:
        """Close what the trackers share. Does nothing unless overridden."""
        return
