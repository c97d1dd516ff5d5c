"""PIP-195's bucket tracker on an event loop, and its factory, under the path that a `broker.conf` names.

`core` makes every decision. Encoding and decoding happen in worker threads, storage calls are awaited.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from random import Random

from pyroaring import BitMap

from managed_ledger.positions.value_types import Clock
from snapshot_storage.encoding.columns import DelayedIndexes
from snapshot_storage.storage import BucketSnapshotStorage
from tracker.bucket_properties import names_buckets
from tracker.config import TrackerConfig
from tracker.core.actions import Answer, Call, Head
from tracker.delayed_delivery_tracker import DelayedDeliveryTrackerFactory, TrackedCursor, TrackerContext
from tracker.shell.calls_in_flight import CallsInFlight
from tracker.shell.core_tracker import CoreTracker, guarded
from tracker.shell.next_turn import WallClockWatch
from tracker.shell.tracker_calls import InThreads, RunBlocking, TrackerCalls
from tracker.stats import BucketFigures, TrackerStats

logger = logging.getLogger(__name__)


class BucketDelayedDeliveryTracker(CoreTracker):
    """Keeps the index in snapshots, loads what is due soon, and survives restarts.

    Args:
        context: The cursor and the dispatcher.
        config: How messages are tracked.
        storage: Where the snapshots are; started and closed by others.
        now_ms: The wall clock in milliseconds.
        threads: Run what takes long, for all trackers of a storage; None are some of its own.
        rng: For the jitter of retries.
        watch: Tells of steps of the clock; None is one of its own.
    """

    def __init__(
        self,
        context: TrackerContext,
        config: TrackerConfig,
        storage: BucketSnapshotStorage,
        *,
        now_ms: Clock,
        threads: InThreads | None = None,
        rng: Random | None = None,
        watch: WallClockWatch | None = None,
    ) -> None:
        super().__init__(context, config, now_ms=now_ms, rng=rng, watch=watch)
        self._stats = TrackerStats()
        calls = TrackerCalls(config, context, storage, threads if threads is not None else InThreads())
        self._calls = CallsInFlight(self._name, calls, self._stats, now_ms, self._handle_answer)
        self._is_settled: asyncio.Event | None = None
        """Set when no bucket is in flight any more; None while `close` does not wait for it."""
        self._is_abandoned = False
        self._is_full = False

    def start(self) -> None:
        """Begin to recover what the cursor's properties name; call once, on the event loop."""
        named = self._core.recover(self._context.cursor.properties, now_ms=self._now_ms())
        # Last: where the core raises, no caller has this tracker, and the cursor has to tell it nothing.
        self._context.cursor.add_listener(self._on_mark_delete_moved)
        self._turn_soon()
        for key, value in named.malformed.items():
            logger.warning("%s: ignored the property %s=%s, which names no bucket", self._name, key, value)

    # Figures.

    @guarded
    def due_bitmaps(self) -> Mapping[int, BitMap]:
        """Return the positions of what is due, loaded and not handed out."""
        return self._core.due_bitmaps(now_ms=self._now_ms())

    @guarded
    def tracked_ledger_ids(self) -> list[int]:
        """Return the ledgers in which something is tracked, in no order."""
        return list(self._core.tracked.bitmaps)

    @guarded
    def stats(self) -> TrackerStats:
        """Return the tracker's figures; the same object each time, brought up to date."""
        self._stats.message_count = self._core.tracked.count
        self._stats.bucket_total = self._core.bucket_total
        self._stats.index_loaded = self._core.loaded_row_count
        self._stats.segment_rows_loaded = len(self._core.loaded)
        self._stats.snapshot_size_bytes = sum(bucket.size_bytes for bucket in self._core.buckets.values())
        return self._stats

    @guarded
    def buckets(self) -> list[BucketFigures]:
        """Return the figures of each immutable bucket, in the order of their ledgers."""
        return self._core.bucket_figures()

    # The loop.

    def _start_calls(self, calls: Sequence[Call]) -> None:
        for key, reason in self._core.pop_losses():
            self._stats.buckets_lost += 1
            self._is_news = True
            logger.warning("%s: gave up the bucket %s, to be read from the log again: %s", self._name, key, reason)
        self._calls.start(calls)
        if self._stats.failing:
            # The outages of calls end that are not wanted any more, as their buckets are gone.
            self._stats.failing &= {kind.__name__ for kind in self._core.failing()}
        was_full, self._is_full = self._is_full, self._core.is_full
        if self._is_full and not was_full:
            logger.warning(
                "%s: %d indexes wait in memory for a snapshot that cannot be stored; reading pauses until it can",
                self._name,
                self._config.unsealed_row_count_max,
            )
        if self._is_settled is not None and self._core.unsettled_count == 0:
            self._is_settled.set()

    def _handle_answer(self, call: Call, answer: Answer) -> None:
        """Give the core the answer to a call."""
        if self._is_closed:
            # A closed tracker plans no more; after a defect its core is not even the one that asked.
            return
        try:
            self._core.handle(call, answer, now_ms=self._now_ms())
            has_losses = bool(self._core.losses)
        except Exception as defect:
            # A supervisor: the core may be half changed.
            self.stop_for_defect(defect)
            return
        if isinstance(answer, Head):
            self._stats.buckets_recovered += 1
        # Ranges that became readable are news, as is anything due.
        self._is_news = self._is_news or isinstance(answer, Head | DelayedIndexes)
        if has_losses:
            # No later row may be handed out before the dispatcher knows that an earlier one is to be read again.
            self._next_turn.run()
        else:
            self._turn_soon()

    # The end.

    async def close(self) -> None:
        """Close the tracker; seal the mutable bucket if it is worth it, so that a restart need not read it again."""
        self._next_turn.check_loop()
        if not (self._is_abandoned or self._is_closed):
            try:
                if self._config.index_count_at_close_min >= 0:
                    self._core.seal(index_count_min=self._config.index_count_at_close_min)
                await self._settle()
            except Exception as defect:
                # Closing goes on: the snapshots that the cursor's properties name are whole, and the log has the rest.
                self.stop_for_defect(defect)
        self._stop()
        # The log answers, and the next tracker of the cursor needs its answers. The storage may not answer even to a
        # cancellation, so this does not wait for it.
        await self._calls.wait_for_log(self._config.operation_timeout_ms / 1_000)

    async def _settle(self) -> None:
        """Wait until no bucket is in flight, but not for too long."""
        if not self._core.unsettled_count:
            return
        if self._is_settled is None:
            self._is_settled = asyncio.Event()
        self._turn_soon()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.close_timeout_ms / 1_000):
                await self._is_settled.wait()
        if not (self._is_abandoned or self._is_closed) and self._core.unsettled_count:
            logger.warning("%s: closed with %d buckets in flight", self._name, self._core.unsettled_count)

    def abandon(self) -> None:
        self._is_abandoned = True

    def _stop(self) -> None:
        if not self._is_closed:
            super()._stop()
            if self._is_settled is not None:
                self._is_settled.set()
            self._calls.cancel_storage_calls()

    def stop_for_defect(self, defect: Exception) -> None:
        self._is_abandoned = True
        super().stop_for_defect(defect)


class BucketDelayedDeliveryTrackerFactory(DelayedDeliveryTrackerFactory):
    """Makes bucket trackers on one storage."""

    def __init__(
        self,
        config: TrackerConfig,
        storage: BucketSnapshotStorage,
        *,
        now_ms: Clock,
        run_blocking: RunBlocking = asyncio.to_thread,
        rng: Random | None = None,
    ) -> None:
        self.config = config
        self._now_ms = now_ms
        self._rng = rng if rng is not None else Random()
        self._storage = storage
        self._threads = InThreads(run_blocking)
        self._watch = WallClockWatch(now_ms)

    async def start(self) -> None:
        """Open the storage."""
        await self._storage.start()

    async def close(self) -> None:
        """Close the storage."""
        await self._storage.close()

    def can_defer(self, cursor: TrackedCursor) -> bool:
        return not names_buckets(cursor.properties)

    def new_tracker(self, context: TrackerContext) -> BucketDelayedDeliveryTracker:
        tracker = BucketDelayedDeliveryTracker(
            context,
            self.config,
            self._storage,
            now_ms=self._now_ms,
            threads=self._threads,
            rng=self._rng,
            watch=self._watch,
        )
        tracker.start()
        return tracker
