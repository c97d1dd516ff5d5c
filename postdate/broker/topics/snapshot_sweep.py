"""Delete the snapshots of a topic that have no owner, in the background.

A tracker deletes its own snapshots. There are four kinds that it does not know:

1. A cursor names them, and may have a tracker again: its subscription is Exclusive or Failover now, has had no consumer
   since the start, or `broker.conf` names the in-memory tracker. They are kept while they index unacknowledged entries,
   so that the log need not be read again when the subscription goes back to delaying.
2. Their cursor is gone: a reader has left, or a subscription was deleted.
3. Their cursor does not name them: a crash came between storing a snapshot and writing its property, or the kind of
   index has changed.
4. Their cursor has a tracker and does not name them: a create whose answer was lost took effect all the same. One that
   is about to be named looks the same, so they are deleted when a second list, a minute later, finds them unnamed too.

There are also properties without a snapshot: a crash came between deleting the snapshot and removing its property, or
the snapshot is lost. They are removed, and told: a tracker that comes later reads their messages from the log again.

Kind 1 is found in the properties, at each retention check. For the rest all snapshots of the topic have to be
listed. That is done once after its opening, and twice after a create has failed, a cursor was deleted or its tracker
has ended or was replaced: at once and at a later retention check. A failed list is repeated at the next check. No
caller waits for a sweep, so no lock is held. A crash costs nothing: the log has deleted the cursor before, and the next
opening lists.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Protocol

from managed_ledger.cursors.cursor import Cursor
from managed_ledger.errors import LedgerError
from managed_ledger.managed_ledger import ManagedLedger
from postdate.broker.errors import SnapshotsLeftError
from postdate.broker.topics.topic_index import INDEX_CURSOR_NAME, subscription_cursors
from snapshot_storage.errors import SnapshotStorageError
from snapshot_storage.storage import BucketSnapshotInfo
from tracker.residual_snapshots import ResidualSnapshots, is_named

logger = logging.getLogger(__name__)

UNNAMED_S_MIN: Final = 60.0
"""So long a snapshot of a cursor with a tracker has no name before it is deleted; it takes a tracker some milliseconds.
If the log refuses the name for longer, the bucket is read from the log again."""

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class SweptTopic(Protocol):
    """What a sweep asks of its topic."""

    @property
    def ledger(self) -> ManagedLedger:
        """Its log."""

    def has_tracker(self, cursor_name: str) -> bool:
        """Whether the cursor of this name has a tracker for its snapshots now."""

    def failed_creates(self) -> int:
        """Count the creates of the present trackers that have failed so far."""

    def note_lost(self, cursor_name: str, count: int) -> None:
        """Tell of snapshots of a cursor that are missing."""


class SnapshotSweep:
    """Deletes a topic's snapshots without an owner, one sweep at a time.

    Args:
        topic: The topic.
        residual: Deletes from the storage.
        spawn: Runs work in the background.
    """

    def __init__(self, topic: SweptTopic, residual: ResidualSnapshots, spawn: Spawn) -> None:
        self._topic: SweptTopic | None = topic
        self._ledger = topic.ledger
        self._residual = residual
        self._spawn = spawn
        self._failed_before = 0
        self._unnamed_since_s: dict[int, float] = {}
        self._task: asyncio.Task[None] | None = None
        # These say whether the next sweep, and the one after it, list all snapshots of the topic.
        self._has_to_list = True
        self._has_to_list_again = False
        self._is_failing = False

    def note_left(self) -> None:
        """Let the next sweep, or the running one, look for snapshots without an owner.

        A sweep at a later retention check looks again: a create whose answer was lost may take effect after the first.
        """
        self._has_to_list = self._has_to_list_again = True

    def start(self) -> None:
        """Sweep, unless a sweep is under way."""
        if self._topic is not None and (self._task is None or self._task.done()):
            failed = self._topic.failed_creates()
            if failed != self._failed_before:
                self._failed_before = failed
                self.note_left()
            self._task = self._spawn(self._sweep())

    def close(self) -> None:
        """Stop deleting: the topic is closed. Nothing here refers to it any more."""
        self._topic = None

    async def finished(self) -> None:
        """Wait for the end of a sweep that is under way.

        Raises:
            SnapshotsLeftError: The last one could not delete everything.
        """
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._is_failing:
            raise SnapshotsLeftError(f"snapshots of {self._ledger.name} could not be deleted")

    async def _sweep(self) -> None:
        try:
            await self._sweep_once()
        finally:
            self._task = None

    async def _sweep_once(self) -> None:
        failures: list[Exception] = []
        works: list[Callable[[], Awaitable[None]]] = [partial(self._trim, one) for one in self._unattended_cursors()]
        for work in [*works, self._match]:
            try:
                await work()
            except (SnapshotStorageError, LedgerError) as error:
                # One snapshot that cannot be deleted holds up no others.
                failures.append(error)
            except TimeoutError as error:
                failures.append(error)
                break
        else:
            self._has_to_list, self._has_to_list_again = self._has_to_list or self._has_to_list_again, False
        self._tell(failures)

    def _tell(self, failures: Sequence[Exception]) -> None:
        """Log a failure; an outage is logged once and not at each retention check."""
        if failures and not self._is_failing:
            why = str(failures[0]) or "the storage does not answer"
            logger.warning("%s: unneeded snapshots are left for now: %s", self._ledger.name, why)
        self._is_failing = bool(failures)

    async def _match(self) -> None:
        """Delete snapshots without a property and properties without a snapshot; repeat while new ones are noted."""
        while self._has_to_list:
            self._has_to_list = False
            try:
                await self._match_once()
            except BaseException:
                self._has_to_list = True
                raise

    async def _match_once(self) -> None:
        now_s = asyncio.get_running_loop().time()
        unnamed_since_s: dict[int, float] = {}
        present_ids = await self._residual.clean_ownerless(
            self._ledger.name, partial(self._is_owned, now_s, unnamed_since_s)
        )
        self._unnamed_since_s = {one: unnamed_since_s[one] for one in unnamed_since_s.keys() & present_ids}
        if self._unnamed_since_s:
            self._has_to_list_again = True
        for cursor in self._unattended_cursors():
            lost = await self._residual.remove_missing(
                cursor, present_ids, is_unattended=partial(self._is_unattended, cursor)
            )
            if lost and self._topic is not None:
                self._topic.note_lost(cursor.name, lost)

    def _is_owned(self, now_s: float, unnamed_since_s: dict[int, float], info: BucketSnapshotInfo) -> bool:
        """Whether a snapshot has an owner, or may have one soon; that is noted then."""
        cursor = self._ledger.cursors.get(info.cursor_name)
        if cursor is None:
            return False
        if is_named(cursor.properties, info):
            return True
        if not self._has_tracker(cursor.name):
            return False
        since_s = unnamed_since_s[info.bucket_id] = self._unnamed_since_s.get(info.bucket_id, now_s)
        return now_s - since_s < UNNAMED_S_MIN

    async def _trim(self, cursor: Cursor) -> None:
        await self._residual.trim(
            self._ledger.name,
            cursor.name,
            cursor,
            first_ledger_id=self._first_ledger_needed(cursor),
            is_unattended=partial(self._is_unattended, cursor),
        )

    def _first_ledger_needed(self, cursor: Cursor) -> int:
        """Return the first ledger whose index the cursor, or a subscription that shares it, may need."""
        is_shared = cursor.name == INDEX_CURSOR_NAME
        cursors = subscription_cursors(self._ledger).values() if is_shared else [cursor]
        # A shared index's own cursor does not go back when a subscription does.
        return min(map(_first_ledger_unacknowledged, cursors), default=self._ledger.last_position.ledger_id + 1)

    def _unattended_cursors(self) -> list[Cursor]:
        return [cursor for cursor in self._ledger.cursors.values() if self._is_unattended(cursor)]

    def _has_tracker(self, cursor_name: str) -> bool:
        # Of a closed topic every snapshot counts as attended, since its next tracker may need it.
        return self._topic is None or self._topic.has_tracker(cursor_name)

    def _is_unattended(self, cursor: Cursor) -> bool:
        return not (cursor.is_closed or self._has_tracker(cursor.name))


def _first_ledger_unacknowledged(cursor: Cursor) -> int:
    """Return the first ledger with a stored entry that is not acknowledged."""
    first = cursor.next_unacknowledged_position.ledger_id
    # Without a backlog that position is not written yet, and its ledger may have snapshots all the same.
    return first if cursor.backlog else first + 1
