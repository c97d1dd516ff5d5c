"""Group commit: one synced write for everything that all topics have pending, while the next batch collects.

Participants ask to be in the next round. A round lets each of them put its changes into one batch on the event
loop, hands the batch to a thread that does nothing but write it (while it is synced the loop runs on), and tells them
all in one loop callback how it went. A synced write costs the same for one entry as for many.
A participant that fails to say what it wants to write fails alone: nothing of it is in the batch.

With an interval (`synced_interval_s`) rounds are paced: every one is synced, two begin at least so far apart, and what
asks for no synced one rides along with the next, or begins it after a second. A round that has not taken all that waits
is followed at once, and before a close there are no pauses.

Rounds are written one after the other, so changes are durable in the order in which they were asked for. Every round
carries a stamp of the store: its id counters. So an id that anything durable speaks of is never given out again.

A second after a synced round, at the latest, the same thread marks how far the log has come, also when nothing follows:
without that mark the loss of the newest writes would look like a crash. Nothing waits for it but the next round.

After a round that failed the database is mended, in the same thread, before the next one (`reopening`). Whether new
entries are taken meanwhile is decided by `write_watch`.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from itertools import islice
from typing import Protocol, TypeVar

from managed_ledger.disk import meta_copies
from managed_ledger.disk.database import Batch
from managed_ledger.disk.keys import Family
from managed_ledger.disk.reopening import ReopeningDatabase
from managed_ledger.durations import DurationHistogram
from managed_ledger.errors import LedgerError, LedgerWriteError, StoreClosedError
from managed_ledger.rocksdb_store.disk_room import Room
from managed_ledger.rocksdb_store.store import StoreBatch
from managed_ledger.writing.write_watch import WriteWatch

logger = logging.getLogger(__name__)

T = TypeVar("T")

PROBE_SECONDS = 1.0
"""After a round that failed, and while entries are refused, one without news is written so often: that may be over."""
MARK_SECONDS = 1.0
"""How long after a synced round the log is marked: one more small synced file a second, none while idle."""
UNSYNCED_SECONDS = 1.0
"""How long a change that need not be synced waits for a round that is, where rounds are paced."""
PACED_ROUND_BYTES = 16 * 2**20
"""Where rounds are paced, no participant joins one of so many bytes. One with more is not cut: it is whole or not."""


class Participant(Protocol):
    """A part of the log with changes to write."""

    def fill(self, batch: Batch) -> None:
        """Put everything pending into the batch; it is in flight from now on."""

    def settle(self, error: LedgerWriteError | None) -> None:
        """End a round: its writes are durable, or will never be."""


class Committer:
    """Rounds of writes; belongs to one event loop.

    Args:
        database: The database.
        stamp: Adds to every round.
        participants_max: The most topics and cursors in one round.
        synced_interval_s: The least time between the beginnings of two rounds, if above 0; all are synced then.
        monotonic: A clock that never goes back, in seconds.
        executor: Where writes run, one after the other; it becomes the committer's own. None makes a thread.
    """

    def __init__(
        self,
        database: ReopeningDatabase,
        *,
        stamp: Callable[[Batch], None],
        participants_max: int,
        synced_interval_s: float = 0.0,
        monotonic: Callable[[], float] = time.monotonic,
        executor: Executor | None = None,
    ) -> None:
        self.watch = WriteWatch()
        """Whether new entries are taken; rounds are written also when they are not."""
        self._probe_timer: asyncio.TimerHandle | None = None
        self._mark_timer: asyncio.TimerHandle | None = None
        self._monotonic = monotonic
        self.write_seconds = DurationHistogram()
        """How long writes took, synced or not."""
        self.rounds = 0
        self.synced_rounds = 0
        self._database = database
        self._stamp = stamp
        self._participants_max = participants_max
        self._synced_interval_s = synced_interval_s
        self._is_paced = synced_interval_s > 0
        self._began_s = -math.inf
        """When the last round began."""
        self._pace_timer: asyncio.TimerHandle | None = None
        self._has_left_some = False
        """Whether the last round was full, and others wait."""
        self._is_in_haste = False
        self._loop = asyncio.get_running_loop()
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="ledger-commit")
        self._waiting: dict[Participant, bool] = {}
        """Whether its round is to be synced; in the order of asking."""
        self._in_flight: list[Participant] = []
        self._unfilled: dict[Participant, Exception] = {}
        self._is_in_flight_synced = False
        self._start_scheduled = False
        self._closed = False

    def request(self, participant: Participant, *, sync: bool) -> None:
        """Have `participant` in the next round; with `sync` that round is synced.

        A round starts at the end of this turn of the loop, or when the round under way has ended. Earlier
        requests are in the same round, or in an earlier one.
        """
        if self._closed:
            raise StoreClosedError("The log was closed")
        self._waiting[participant] = sync or self._waiting.get(participant, False)
        self._schedule()

    async def write(self, put: Callable[[Batch], None], *, sync: bool = True) -> None:
        """Have `put` add to the next round, and wait for it.

        Raises:
            LedgerWriteError: It did not become durable.
        """
        written = _SingleWrite(put, self._loop.create_future())
        self.request(written, sync=sync)
        await written.done

    async def run(self, work: Callable[[], T]) -> T:
        """Do something else in the thread of the writes, between two of them."""
        return await self._loop.run_in_executor(self._executor, work)

    def hurry(self) -> None:
        """Make no pauses between rounds from now on, as the log is about to be closed."""
        self._is_in_haste = True
        if self._pace_timer is not None:
            self._pace_timer.cancel()
            self._look_again()

    async def close(self) -> None:
        """Write all pending changes, then refuse more."""
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        self.hurry()
        while self._waiting or self._in_flight:
            # Where the last rounds fail, their callers know.
            with contextlib.suppress(LedgerError):
                await self.write(lambda _: None, sync=False)
        self._closed = True
        if self._pace_timer is not None:
            self._pace_timer.cancel()
        # Closing the database marks it.
        if self._mark_timer is not None:
            self._mark_timer.cancel()
        self._executor.shutdown()

    def _schedule(self) -> None:
        if not self._waiting or self._in_flight or self._start_scheduled:
            return
        if (wait_s := self._wait_s()) <= 0:
            self._start_scheduled = True
            self._loop.call_soon(self._start_scheduled_round)
            return
        # A synced change may come while others wait for longer.
        if self._pace_timer is not None and self._pace_timer.when() > self._loop.time() + wait_s:
            self._pace_timer.cancel()
            self._pace_timer = None
        if self._pace_timer is None:
            self._pace_timer = self._loop.call_later(wait_s, self._look_again)

    def _wait_s(self) -> float:
        """How long the next round is to wait."""
        if not self._is_paced or self._is_in_haste or self._has_left_some:
            return 0.0
        pause_s = self._synced_interval_s if any(self._waiting.values()) else UNSYNCED_SECONDS
        return self._began_s + pause_s - self._loop.time()

    def _look_again(self) -> None:
        self._pace_timer = None
        self._schedule()

    def _start_scheduled_round(self) -> None:
        self._start_scheduled = False
        if not self._in_flight:
            self._start_round()

    def _start_round(self) -> None:
        self._began_s = self._loop.time()
        self._in_flight = list(islice(self._waiting, self._participants_max))
        are_synced = [self._waiting.pop(participant) for participant in self._in_flight]
        self._has_left_some = bool(self._waiting)
        sync = self._is_paced or any(are_synced)
        try:
            batch = self._database.new_batch()
        # It could not be opened again. The thread of the writes tries it once more, and the round ends.
        except LedgerError as error:
            self._executor.submit(self._look_after, error)
            return
        try:
            for place, participant in enumerate(self._in_flight):
                if self._is_paced and batch.size_bytes >= PACED_ROUND_BYTES:
                    self._put_off(place, are_synced)
                    break
                self._fill(participant, batch)
            self._stamp(batch)
        # A supervisor: no caller may wait for ever for a batch that cannot be written.
        except Exception as error:
            self._loop.call_soon(self._end_round, error, None)
            return
        self.rounds += 1
        self.synced_rounds += sync
        self._is_in_flight_synced = sync
        self._executor.submit(self._write, batch, sync)

    def _put_off(self, place: int, are_synced: list[bool]) -> None:
        """Have the participants from a place on in the next round: this one is large enough."""
        rest = dict(zip(self._in_flight[place:], are_synced[place:], strict=True))
        # One that has asked again meanwhile waits for both.
        self._waiting = rest | {one: sync or rest.get(one, False) for one, sync in self._waiting.items()}
        del self._in_flight[place:]
        self._has_left_some = True

    def _fill(self, participant: Participant, batch: Batch) -> None:
        draft = _Draft()
        try:
            participant.fill(draft)
        # A supervisor: one that fails must not take the others with it.
        except Exception as error:
            self._unfilled[participant] = error
            return
        draft.put_into(batch)

    def _write(self, batch: StoreBatch, sync: bool) -> None:
        error: Exception | None = None
        began_s = self._loop.time()
        try:
            self._database.write(batch, sync=sync)
        # A supervisor: any error of a write goes to the calls that wait for it.
        except Exception as caught:
            error = caught
        # There is one write at a time, so one thread at a time notes its duration.
        self.write_seconds.note(self._loop.time() - began_s)
        self._look_after(error)

    def _look_after(self, error: Exception | None) -> None:
        """Mend the database after a failure, measure its room, and have the loop end the round."""
        room: Room | None = None
        try:
            if error is not None:
                self._database.mend()
            room = self._database.room(was_short=self.watch.is_short)
        # A supervisor, as above: a round ends also when its write failed.
        except Exception:
            logger.exception("The log could not be looked after")
        # The loop may be closed when the process is being torn down; then no call waits either.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end_round, error, room)

    def _end_round(self, error: Exception | None, room: Room | None) -> None:
        participants, self._in_flight = self._in_flight, []
        unfilled, self._unfilled = self._unfilled, {}
        notice = self.watch.note(error, room, self._monotonic())
        if notice is not None:
            logger.warning(notice)
        if error is None and self._is_in_flight_synced:
            self._mark_later()
        # The next round first: its write then overlaps with the notifications about this one.
        if error is None and self._waiting and self._wait_s() <= 0:
            self._start_round()
        for participant in participants:
            cause = unfilled.get(participant, error)
            try:
                participant.settle(None if cause is None else _failure(cause, len(participants)))
            # A supervisor: an error in the listener of one participant must not leave the others waiting for ever.
            except Exception:
                logger.exception("A listener failed when it was told of a commit")
        self._schedule()
        self._probe_later()

    def _mark_later(self) -> None:
        """Have the log marked, by a timer that runs from the first round that is not marked."""
        if self._mark_timer is None and not self._closed:
            self._mark_timer = self._loop.call_later(MARK_SECONDS, self._mark)

    def _mark(self) -> None:
        self._mark_timer = None
        # The marker is a synced file, so it is written in the thread of the writes, between two of them.
        self._executor.submit(self._database.mark_synced)

    @property
    def _has_trouble(self) -> bool:
        """Whether a round without news is worth it: while the database is closed, no reader gets anything either."""
        return self.watch.refusal is not None or self.watch.is_failing

    def _probe_later(self) -> None:
        if self._has_trouble and self._probe_timer is None and not self._closed:
            self._probe_timer = self._loop.call_later(PROBE_SECONDS, self._probe)

    def _probe(self) -> None:
        self._probe_timer = None
        self.probe_now()

    def probe_now(self) -> None:
        """Find out whether commits succeed again, if they failed or entries are refused: there may be room now."""
        if self._has_trouble and not self._closed:
            self.request(_SingleWrite(lambda _: None, self._loop.create_future()), sync=True)


def _failure(cause: Exception, participants: int) -> LedgerWriteError:
    failure = LedgerWriteError(f"A commit of {participants} participants failed: {cause}")
    failure.__cause__ = cause
    return failure


class _Draft:
    """The writes of one participant, kept until it has made all of them (see `Batch`); with copies of `meta`."""

    def __init__(self) -> None:
        self._changes: list[tuple[Family, bytes, bytes | None, bytes | None]] = []
        """Family and key with a value, or with the end of a range that is deleted; with neither, a key that is."""

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        self._add(family, key, value)

    def delete(self, family: Family, key: bytes) -> None:
        self._add(family, key, None)

    def delete_range(self, family: Family, start: bytes, end: bytes) -> None:
        self._changes.append((family, start, None, end))

    def _add(self, family: Family, key: bytes, value: bytes | None) -> None:
        self._changes.append((family, key, value, None))
        if family is Family.META and meta_copies.has_copy(key):
            self._changes.append((Family.CURSORS, meta_copies.copy_key(key), value, None))

    def put_into(self, batch: Batch) -> None:
        """Put them into a batch, in order."""
        for family, key, value, end in self._changes:
            if value is not None:
                batch.put(family, key, value)
            elif end is not None:
                batch.delete_range(family, key, end)
            else:
                batch.delete(family, key)


class _SingleWrite:
    """A change that one coroutine waits for."""

    def __init__(self, put: Callable[[Batch], None], done: asyncio.Future[None]) -> None:
        self.done = done
        self._put = put

    def fill(self, batch: Batch) -> None:
        self._put(batch)

    def settle(self, error: LedgerError | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)
            # If no caller waits, as of a probe, the error counts as handled.
            self.done.exception()
