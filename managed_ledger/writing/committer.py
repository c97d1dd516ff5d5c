"""Group commit: one synced write for everything that all topics have pending, while the next batch collects.

Participants ask to be in the next round. A round lets each of them put its changes into one batch on the event
loop, hands the batch to a thread that does nothing but write it (while it is synced the loop runs on), and tells them
all in one loop callback how it went. A synced write costs the same for one entry as for many.
A participant that fails to say what it wants to write fails alone: nothing of it is in the batch.

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
from typing import Protocol

from managed_ledger.disk import meta_copies
from managed_ledger.disk.database import Batch, WritableDatabase
from managed_ledger.disk.keys import Family
from managed_ledger.durations import DurationHistogram
from managed_ledger.errors import LedgerError, LedgerWriteError, StoreClosedError
from managed_ledger.rocksdb_store.disk_room import Room
from managed_ledger.writing.write_watch import WriteWatch

logger = logging.getLogger(__name__)


PROBE_SECONDS = 1.0
"""After a round that failed, and while entries are refused, one without news is written so often: that may be over."""
LOOK_SECONDS = 0.25
"""The shortest time between two such rounds on request (`look_again`)."""
LOOK_SECONDS_MAX = 0.5
"""How long such a request waits: a health check has a second."""
MARK_SECONDS = 1.0
"""How long after a synced round the log is marked: one more small synced file a second, none while idle."""


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
        monotonic: A clock that never goes back, in seconds.
        executor: Where writes run, one after the other; it becomes the committer's own. None makes a thread.
    """

    def __init__(
        self,
        database: WritableDatabase,
        *,
        stamp: Callable[[Batch], None],
        participants_max: int,
        monotonic: Callable[[], float] = time.monotonic,
        executor: Executor | None = None,
    ) -> None:
        self.watch = WriteWatch()
        """Whether new entries are taken; rounds are written also when they are not."""
        self._probe_timer: asyncio.TimerHandle | None = None
        self._next_look_s = -math.inf
        self._mark_timer: asyncio.TimerHandle | None = None
        self._monotonic = monotonic
        self.write_seconds = DurationHistogram()
        """How long writes took, synced or not."""
        self.rounds = 0
        self.synced_rounds = 0
        self._database = database
        self._stamp = stamp
        self._participants_max = participants_max
        self._loop = asyncio.get_running_loop()
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="ledger-commit")
        self._waiting: dict[Participant, bool] = {}
        """Whether its round is to be synced; in the order of asking."""
        self._in_flight: list[Participant] = []
        self._unfilled: dict[Participant, Exception] = {}
        self._is_in_flight_synced = False
        self._start_scheduled = False
        self._idle: list[asyncio.Future[None]] = []
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

    async def drain(self) -> None:
        """Wait until nothing is pending."""
        while self._waiting or self._in_flight:
            idle: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(idle)
            await idle

    async def close(self) -> None:
        """Write all pending changes, then refuse more."""
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        await self.drain()
        self._closed = True
        # Closing the database marks it.
        if self._mark_timer is not None:
            self._mark_timer.cancel()
        self._executor.shutdown()

    def _schedule(self) -> None:
        if self._waiting and not self._in_flight and not self._start_scheduled:
            self._start_scheduled = True
            self._loop.call_soon(self._start_scheduled_round)

    def _start_scheduled_round(self) -> None:
        self._start_scheduled = False
        if not self._in_flight:
            self._start_round()

    def _start_round(self) -> None:
        self._in_flight = list(islice(self._waiting, self._participants_max))
        are_synced = [self._waiting.pop(participant) for participant in self._in_flight]
        sync = any(are_synced)
        try:
            batch = self._database.new_batch()
        # It could not be opened again. The thread of the writes tries it once more, and the round ends.
        except LedgerError as error:
            self._executor.submit(self._look_after, error)
            return
        try:
            for participant in self._in_flight:
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

    def _fill(self, participant: Participant, batch: Batch) -> None:
        draft = _Draft()
        try:
            participant.fill(draft)
        # A supervisor: one that fails must not take the others with it.
        except Exception as error:
            self._unfilled[participant] = error
            return
        for change in draft.changes:
            change(batch)

    def _write(self, batch: Batch, sync: bool) -> None:
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
        if error is None and self._waiting:
            self._start_round()
        for participant in participants:
            cause = unfilled.get(participant, error)
            try:
                participant.settle(None if cause is None else _failure(cause, len(participants)))
            # A supervisor: an error in the listener of one participant must not leave the others waiting for ever.
            except Exception:
                logger.exception("A listener failed when it was told of a commit")
        self._schedule()
        if not self._waiting and not self._in_flight:
            self._tell_idle()
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
            self.request(_Probe(), sync=True)

    async def look_again(self) -> None:
        """Bring `watch` up to date, if it says that entries are refused; returns in bounded time.

        A look is a round, as a commit alone can tell that commits succeed again. Concurrent requests share a round.
        """
        if self.watch.refusal is None:
            return
        await asyncio.sleep(max(0.0, self._next_look_s - self._loop.time()))
        if self.watch.refusal is None or self._closed:
            return
        self._next_look_s = self._loop.time() + LOOK_SECONDS
        look = _SingleWrite(lambda _: None, self._loop.create_future())
        self.request(look, sync=True)
        # Where the look fails or takes longer, entries are still refused.
        with contextlib.suppress(TimeoutError, LedgerError):
            await asyncio.wait_for(look.done, LOOK_SECONDS_MAX)

    def _tell_idle(self) -> None:
        idle, self._idle = self._idle, []
        for future in idle:
            if not future.done():
                future.set_result(None)


def _failure(cause: Exception, participants: int) -> LedgerWriteError:
    failure = LedgerWriteError(f"A commit of {participants} participants failed: {cause}")
    failure.__cause__ = cause
    return failure


class _Probe:
    """Has nothing to write: the round with its stamp is what it wants to happen."""

    def fill(self, batch: Batch) -> None:
        """Put nothing."""

    def settle(self, error: LedgerWriteError | None) -> None:
        """Nothing waits for it."""


class _Draft:
    """The writes of one participant, kept until it has made all of them (see `Batch`); with copies of `meta`."""

    def __init__(self) -> None:
        self.changes: list[Callable[[Batch], None]] = []

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        self.changes.append(lambda batch: batch.put(family, key, value))
        if family is Family.META and meta_copies.has_copy(key):
            self.put(Family.CURSORS, meta_copies.copy_key(key), value)

    def delete(self, family: Family, key: bytes) -> None:
        self.changes.append(lambda batch: batch.delete(family, key))
        if family is Family.META and meta_copies.has_copy(key):
            self.delete(Family.CURSORS, meta_copies.copy_key(key))

    def delete_range(self, family: Family, start: bytes, end: bytes) -> None:
        self.changes.append(lambda batch: batch.delete_range(family, start, end))


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
