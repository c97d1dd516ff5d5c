"""The core of the bucket tracker as its shell sees it: operations, questions, events in, actions out.

Synchronous and deterministic: the same calls give the same state and the same actions. Time arrives as `now_ms`,
storage arrives as events, work leaves as actions; the shell (`shell.bucket_tracker`) runs them.

    add ──► mutable bucket ──seal──► immutable buckets with segments ──load──► due rows ──► pop_due
                                      merge, delete, recover

After any call, if `has_work`, call `plan` and start the actions it gives. `state` holds everything that is known,
`transitions` change it, and `questions` read it. Questions change nothing: a reader of a ledger says so by `want`.
"""

from collections.abc import Callable, Iterable, Mapping
from random import Random

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pyroaring import BitMap

from snapshot_storage.bucket_key import LedgerRange
from snapshot_storage.encoding.columns import DelayedIndexes
from tracker.bucket_properties import BucketProperties
from tracker.columns.offers import check_acknowledged, check_tick_time, columns_of
from tracker.config import TrackerConfig
from tracker.core.actions import Action, Event
from tracker.core.checks import check
from tracker.core.position_cache import CACHED_BYTES_MAX
from tracker.core.questions import Questions
from tracker.core.state import TrackerState
from tracker.core.transitions import (
    adding,
    handing_out,
    losing,
    operations,
    planning,
    recovering,
    sealing,
    table,
)


class TrackerCore(Questions):
    """The bucket tracker without its I/O; belongs to one caller at a time.

    Args:
        config: How buckets are sealed, cut, loaded and merged.
        acknowledged_in: Gives the acknowledged entries of a ledger.
        rng: For the jitter of retries.
        keeps_positions: Whether all that is tracked is to be known at any time.
        cached_bytes_max: Memory that positions of segments that are not loaded may take.
        reads_ahead: Whether positions are read by turns until `want` is called for the first time.
    """

    def __init__(
        self,
        config: TrackerConfig,
        *,
        acknowledged_in: Callable[[int], BitMap],
        rng: Random,
        keeps_positions: bool = False,
        cached_bytes_max: int = CACHED_BYTES_MAX,
        reads_ahead: bool = False,
    ) -> None:
        state = TrackerState(
            config,
            acknowledged_in=acknowledged_in,
            rng=rng,
            keeps_positions=keeps_positions,
            cached_bytes_max=cached_bytes_max,
            reads_ahead=reads_ahead,
        )
        super().__init__(state)
        self.timers = state.timers
        """When to call `plan`; for reading."""
        planning.set_tick_time(state, config.tick_time_ms)

    # Adding.

    def add_message(self, ledger_id: int, entry_id: int, deliver_at_ms: int, now_ms: int) -> bool:
        """Track a message; False means it is due and was not tracked.

        PERFORMANCE: about 0.4 us, but for one in `SINGLES_MAX`, which takes the others along in 0.05 ms, and one in
        `RUN_ROWS_MAX`, which sorts as many in 0.4 ms.

        Raises:
            ValueError: The position is not one that can be tracked; nothing has changed.
        """
        return adding.add_one(self._state, ledger_id, entry_id, deliver_at_ms, now_ms)

    def add_messages(
        self, ledger_ids: ArrayLike, entry_ids: ArrayLike, deliver_at_ms: ArrayLike, *, now_ms: int
    ) -> NDArray[np.bool_]:
        """Do what `add_message` does for each row in turn; the result says which rows are tracked.

        Raises:
            ValueError: A position cannot be tracked, or the lengths differ; nothing has changed.
        """
        columns = columns_of(ledger_ids, entry_ids, deliver_at_ms)
        return adding.add(self._whole(), *columns, now_ms) if len(columns[0]) else np.empty(0, np.bool_)

    def _whole(self) -> TrackerState:
        """Return the state, with what was added one by one among the rows."""
        if self._state.mutable.singles.room:
            adding.take_singles(self._state)
        return self._state

    # Wanting and taking.

    def want(self, ledger_id: int) -> None:
        """Note that a reader has come to a ledger: its tracked positions are to be known for a while."""
        operations.want_ledger(self._state, ledger_id)

    def take_untracked(self) -> Mapping[int, BitMap]:
        """Return positions that are to be read from the log again, once."""
        return losing.take_untracked(self._whole())

    def take_untracked_ranges(self) -> list[LedgerRange]:
        """Return ranges of ledgers that are to be read from the log again, once."""
        return losing.take_untracked_ranges(self._state)

    def take_losses(self) -> list[tuple[str, str]]:
        """Return property key and reason of buckets that were given up, once."""
        return losing.take_losses(self._state)

    # Handing out.

    def pop_due(self, *, now_ms: int, limit: int) -> DelayedIndexes:
        """Hand out due messages in order of time, then position; each once."""
        return handing_out.hand_out(self._whole(), now_ms, limit)

    def note_acknowledged(self, ledger_id: int, entry_ids: BitMap) -> None:
        """Forget messages that were acknowledged without being handed out.

        Raises:
            ValueError: The entry ids are no bitmap; nothing has changed.
        """
        check_acknowledged(ledger_id, entry_ids)
        operations.acknowledge(self._whole(), ledger_id, entry_ids)

    # Life.

    @property
    def lead_ms(self) -> int:
        """How early messages may be handed out: the tick, or 0 where times are strict."""
        return self._state.lead_ms

    def set_tick_time(self, tick_time_ms: int) -> None:
        """Set how early messages may be handed out, unless times are strict.

        Raises:
            ValueError: It is below 0.
        """
        check_tick_time(tick_time_ms)
        planning.set_tick_time(self._state, tick_time_ms)

    def recover(self, properties: Mapping[str, str], *, now_ms: int) -> BucketProperties:
        """Begin to recover what the cursor's properties name; call once, before anything else but `trim`."""
        return recovering.recover(self._state, properties, now_ms)

    def trim(self, first_ledger_id: int) -> None:
        """Forget all ledgers below this one: the cursor is past them."""
        operations.trim(self._whole(), first_ledger_id)

    def pass_through(self, ledger_id: int, entry_id: int) -> None:
        """Forget everything up to a position: mark-delete has passed it."""
        operations.pass_through(self._whole(), ledger_id, entry_id)

    def seal(self, *, index_count_min: int) -> None:
        """Seal the mutable bucket now, if it holds at least so many indexes; for closing."""
        if self._whole().positions.mutable_count >= max(1, index_count_min):
            sealing.seal(self._state)

    def clear(self) -> None:
        """Forget every message and begin to delete every snapshot."""
        operations.clear(self._whole())

    # The shell's side.

    def handle(self, event: Event, *, now_ms: int) -> None:
        """Take the answer to an action."""
        planning.note_time(self._state, now_ms)
        table.handle(self._state, event, now_ms)

    def plan(self, *, now_ms: int) -> list[Action]:
        """Return the actions to start now; each is to be answered by one event."""
        return planning.plan(self._state, now_ms)

    def check(self, calls: Iterable[Action | Event] | None = None) -> None:
        """Assert every invariant, O(n).

        Args:
            calls: The actions, or answers to them, that were started and not handled yet; None if that is not known.
        """
        check(self._state, calls)
