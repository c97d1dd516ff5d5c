"""The broker's interface (consumers, permits, acknowledgements, seek, stats), and the shell that runs a core's actions.

The core decides, `reader.py` feeds it, `outbox.py` sends. All methods belong to one event loop; those that are not
coroutines take effect at once. Left out: permission to subscribe, the wire protocol, expiry (the broker tells
its result by `mark_delete_advanced`).

An exception in a core, or in a tracker, is a defect: a half changed core must decide nothing any more. The
dispatcher then stops for good: it sends nothing, reads nothing, and passes acknowledgements to the cursor alone, so
none is lost. Its owner lets the consumers come back to a new dispatcher, which begins with what the log and the cursor
say.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import TypeVar, assert_never

from pyroaring import BitMap

from dispatcher.config import DispatcherConfig, SubscriptionType
from dispatcher.consumer import ConsumerHandle
from dispatcher.core.acknowledgements.ack_sets import AckSet
from dispatcher.core.actions import (
    Action,
    Deliver,
    DropUnsent,
    ForgetDelayed,
    NotifyActive,
    TellDelayIgnored,
    TrackDelayed,
)
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.gate import DeliveryGate
from dispatcher.core.items import Item, Key, position_of
from dispatcher.core.subscription_core import SubscriptionCore
from dispatcher.errors import CumulativeAckRefusedError, DispatcherClosedError, DispatcherError
from dispatcher.inspection import consumer_stats, subscription_stats
from dispatcher.lateness import LatenessHistogram
from dispatcher.outbox import Outbox
from dispatcher.ports import Log, SubscriptionCursor
from dispatcher.reader import Reader
from dispatcher.slots import sticky_hash
from dispatcher.stats import ConsumerStats, EntryStatus, KeyStatus, NewcomerStats, SubscriptionStats
from managed_ledger.errors import EntriesDamagedError
from managed_ledger.positions.position import Position
from managed_ledger.positions.value_types import Clock
from tracker.delayed_delivery_tracker import DelayedDeliveryTracker
from tracker.errors import TrackerClosedError

logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")

_NO_ACK_SETS: Mapping[Key, AckSet] = MappingProxyType({})


class Dispatcher:
    """Delivers the entries of one subscription to its consumers.

    `make_dispatcher` makes one; `open` starts it.

    Args:
        subscription_type: For the stats.
        core: Decides.
        log: The managed ledger.
        cursor: The subscription's cursor.
        new_tracker: Makes the tracker, given what to call when something is available; None where nothing is delayed.
        config: Limits and waits.
        now_ms: The clock.
        may_deliver: Asked before each turn of delivery; while it says no, what is due waits.
        defers_tracker: Whether the tracker is made when the first entry is delayed.
    """

    def __init__(
        self,
        subscription_type: SubscriptionType,
        core: SubscriptionCore,
        log: Log,
        cursor: SubscriptionCursor,
        new_tracker: Callable[[Callable[[], None]], DelayedDeliveryTracker] | None,
        config: DispatcherConfig,
        now_ms: Clock,
        *,
        may_deliver: Callable[[], bool] = lambda: True,
        defers_tracker: bool = False,
    ) -> None:
        self.subscription_type = subscription_type
        self.core = core
        self._log = log
        self._cursor = cursor
        self._config = config
        self._now_ms = now_ms
        self._may_deliver = may_deliver
        self._reader = Reader(
            core,
            log,
            cursor,
            new_tracker,
            self._run_actions,
            self._on_damage,
            self.stop_for_defect,
            config,
            now_ms,
            defers_tracker=defers_tracker,
        )
        self._outboxes: dict[int, Outbox] = {}
        """By the index of the consumer."""
        self._by_handle: dict[int, Outbox] = {}
        """By the identity of the handle, which the outbox keeps alive."""
        self._indices = count()
        self._actions: list[Action] = []
        self._is_running_actions = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms: int | None = None
        self._is_closed = False
        self.failure: Exception | None = None
        """The defect that stopped it, None while all is well."""
        self.lateness = LatenessHistogram()
        """How late delayed messages were; its owner may set one of its own."""
        self.on_failure: Callable[[], None] | None = None
        """Called once when it stops for a defect."""
        self.on_delay_ignored: Callable[[], None] | None = None
        """Called once when an Exclusive or Failover subscription gets a message before its time."""

    # Life.

    def open(self) -> None:
        """Start to read; must be called on the event loop."""
        self._reader.open()

    async def close(self) -> None:
        """Send nothing any more and release everything; unacknowledged entries stay in the log."""
        if self._is_closed:
            return
        self._is_closed = True
        # All outboxes end at once. The reader and acknowledgements go on until they have, and no consumer may get what
        # comes after an entry that is not sent any more.
        outboxes = list(self._outboxes.values())
        self._send_nothing_any_more()
        for outbox in outboxes:
            await outbox.closed()
        await self._reader.close()
        # These refer to the dispatcher. Without them its memory goes without a collection of cycles.
        self._outboxes.clear()
        self._by_handle.clear()
        self.on_failure = self.on_delay_ignored = None

    def _send_nothing_any_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for outbox in self._outboxes.values():
            outbox.close()

    def stop_for_defect(self, defect: Exception) -> None:
        """Stop at once: a core or a tracker raised this, and may be half changed. `on_failure` is called; only once."""
        if self._is_closed or self.failure is not None:
            return
        self.failure = defect
        if isinstance(defect, TrackerClosedError):
            # A shared index is closed with its topic, and a consumer may come at that moment.
            logger.warning("the dispatcher of %r stops: its delayed index was closed", self._cursor.name)
        else:
            logger.critical("the dispatcher of %r stops for a defect", self._cursor.name, exc_info=defect)
        self._send_nothing_any_more()
        self._actions.clear()
        self._reader.stop()
        if self.tracker is not None:
            # A snapshot of a half changed index must not be stored.
            self.tracker.abandon()
        if self.on_failure is not None:
            self.on_failure()

    async def reset(self, position: Position) -> None:
        """Seek: forget everything that was read or sent; `position` is the next entry to be delivered."""
        self.core.reset()
        self._reader.pause()
        try:
            for outbox in self._outboxes.values():
                self._drop_unsent(outbox)
            if self.tracker is not None:
                await self.tracker.clear()
            await self._cursor.seek(position)
        finally:
            self._reader.resume()

    def heed_delays(self, through: Position) -> None:
        """Heed delivery times of entries up to a position, `AFTER_EVERYTHING` for all.

        Those behind it are delivered at once when they are read from now on; delayed messages keep their times.
        Without meaning where nothing can be delayed.
        """
        self._reader.heed_delays(through)

    def reset_tick_time(self, tick_time_ms: int) -> None:
        """Set the tick of the tracker; without meaning where nothing can be delayed."""
        self._reader.reset_tick_time(tick_time_ms)

    @property
    def has_delays(self) -> bool:
        """Whether entries can be delayed."""
        return self._reader.has_delays

    @property
    def tracker(self) -> DelayedDeliveryTracker | None:
        """The tracker of delayed entries; None where nothing can be delayed, or nothing was and it is made later."""
        return self._reader.tracker

    # Consumers.

    @property
    def consumers(self) -> list[ConsumerHandle]:
        """The connected consumers, in the order in which they came."""
        return [outbox.handle for outbox in self._outboxes.values()]

    def add_consumer(self, consumer: ConsumerHandle) -> None:
        """Register a consumer; it gets nothing before its first permits.

        Raises:
            DispatcherClosedError: The dispatcher is closed, or has stopped for a defect.
            ConsumerBusyError: The type allows no further consumer, or its Key_Shared policy differs.
            ConsumerAssignError: There is no range of hashes for it.
        """
        if self._is_closed or self.failure is not None:
            raise DispatcherClosedError(f"subscription {self._cursor.name!r} is closed")
        assert id(consumer) not in self._by_handle, "a consumer is added twice"

        state = ConsumerState(next(self._indices), consumer.name, consumer.priority_level, consumer.key_shared_policy)

        actions = self._ask(lambda core: core.add_consumer(state))
        if actions is not None:
            if self.core.plan is None:
                # It begins anew: with another range of slots (Key_Shared), or as the active consumer (Failover).
                self._reader.forget()
            self._outboxes[state.index] = self._by_handle[id(consumer)] = Outbox(
                consumer,
                state,
                self.core,
                self._log,
                self._config,
                self._may_deliver,
                self._on_refused,
                self._on_missing,
                self._on_damage,
                self._on_sent,
                self.stop_for_defect,
            )
            self._carry_out(actions)
        if self.failure is not None:
            raise DispatcherClosedError(f"subscription {self._cursor.name!r} is closed") from self.failure

    def remove_consumer(self, consumer: ConsumerHandle) -> None:
        """Let a consumer go; its unacknowledged entries go to others. One that is not known is ignored."""
        outbox = self._by_handle.pop(id(consumer), None)
        if outbox is None:
            return
        del self._outboxes[outbox.consumer.index]

        def remove(core: SubscriptionCore) -> list[Action]:
            self._drop_unsent(outbox)
            return core.remove_consumer(outbox.consumer)

        self._decide(remove)

    def consumer_flow(self, consumer: ConsumerHandle, permits: int) -> None:
        """Give a consumer permits for this many more messages."""
        outbox = self._by_handle.get(id(consumer))
        if outbox is not None:
            self._decide(lambda core: core.flow(outbox.consumer, permits))

    def consumer_writable(self, consumer: ConsumerHandle) -> None:
        """Go on sending to a consumer whose connection was not writable."""
        outbox = self._by_handle.get(id(consumer))
        if outbox is not None:
            outbox.wake()

    def get_consumer(self, key: bytes) -> ConsumerHandle | None:
        """Return the consumer to which the messages of a sticky key go now (PIP-34).

        With Key_Shared that is the one that has the key's slot; it gets new messages of the key once another consumer
        has acknowledged those that it holds (PIP-379). With Failover and Exclusive it is the active one.

        Args:
            key: The ordering key of the messages, or where there is none their partition key.

        Returns:
            None where there is no such consumer: none is connected, a Key_Shared consumer or an Exclusive one named
            ranges of hashes and the key is in none of them, or the dispatcher is closed. Always None with Shared, as
            any consumer may get the message.
        """
        outbox = self._outboxes.get(self.core.owner_of_hash(sticky_hash(key)))
        return outbox.handle if outbox is not None and self.failure is None else None

    def redeliver_unacknowledged_messages(
        self, consumer: ConsumerHandle, positions: Collection[Key] | None = None
    ) -> None:
        """Deliver again what a consumer was sent and holds: these positions, or everything."""
        outbox = self._by_handle.get(id(consumer))
        if outbox is None:
            return

        def redeliver(core: SubscriptionCore) -> list[Action]:
            if positions is None or not core.is_shared:
                return core.redeliver(outbox.consumer, positions, self._drop_unsent(outbox))
            # Entries in the outbox are not sent twice.
            sent = set(positions) - outbox.positions() if len(outbox) else positions
            return core.redeliver(outbox.consumer, sent, ())

        self._decide(redeliver)

    # Pause and resume.

    def use_gate(self, gate: DeliveryGate) -> None:
        """Use the gate of the dispatcher before this one, so that a rate counts what that one has sent."""
        self.core.use_gate(gate)

    def pause_deliveries(self) -> None:
        """Give consumers nothing more until `resume_deliveries`; due messages wait, in order."""
        self.core.close_gate()
        self._reader.wake()

    def resume_deliveries(
        self, rate_per_second: float | None = None, on_drained: Callable[[], None] | None = None
    ) -> None:
        """Go on, with so many messages a second until nothing waits any more, or with all at once.

        Args:
            rate_per_second: The most messages a second, None for no limit.
            on_drained: Called when nothing waits any more and the limit has ended.
        """
        if on_drained is not None:
            self._reader.on_drained = on_drained
        self._decide(lambda core: core.open_gate(rate_per_second))

    # Acknowledgements.

    def withdraw(self, entries: Mapping[int, BitMap]) -> None:
        """Give out no delayed entries that the cursor withholds; their number goes down at once."""
        positions = [(ledger_id, entry_id) for ledger_id, entry_ids in entries.items() for entry_id in entry_ids]
        self._decide(lambda core: core.withdraw(positions))

    def give_back(self, entries: Mapping[int, BitMap]) -> None:
        """Deliver entries after all that were withdrawn, when their time comes."""
        if self.failure is None:
            self._reader.reread(entries)

    def acknowledge(
        self,
        consumer: ConsumerHandle | None,
        positions: Sequence[Key],
        ack_sets: Mapping[Key, AckSet] = _NO_ACK_SETS,
    ) -> None:
        """Acknowledge entries, also those that another consumer holds.

        Args:
            consumer: The consumer that acknowledges.
            positions: The entries.
            ack_sets: For batches of which only a part is acknowledged: the rest.
        """
        outbox = self._by_handle.get(id(consumer))
        state = outbox.consumer if outbox is not None else None
        answer = self._ask(lambda core: core.acknowledge(state, positions, ack_sets))
        if answer is not None:
            acknowledged, actions = answer
            self._carry_out(actions, acknowledged)
        if self.failure is not None:
            # Also after a defect of the core: an entry that is wholly acknowledged stays so.
            self._acknowledge_in_cursor([position for position in positions if position not in ack_sets])

    def _acknowledge_in_cursor(self, positions: Sequence[Key]) -> None:
        if positions:
            ledger_ids, entry_ids = zip(*positions, strict=True)
            self._cursor.acknowledge(ledger_ids, entry_ids)

    def acknowledge_cumulative(self, consumer: ConsumerHandle, position: Position, ack_set: AckSet = ()) -> None:
        """Acknowledge everything up to a position; with `ack_set`, of that entry only what is clear in it.

        A position behind the last entry acknowledges nothing, as in Pulsar: no consumer was given it.

        Raises:
            CumulativeAckRefusedError: The subscription is shared.
        """
        if self.core.is_shared:
            raise CumulativeAckRefusedError(
                f"subscription {self._cursor.name!r} is shared: consumer {consumer.name!r} must acknowledge "
                "messages one by one"
            )
        if position > self._log.last_confirmed_position:
            logger.debug("%r acknowledges %s of %r, which does not exist", consumer.name, position, self._cursor.name)
            return
        through = position
        if ack_set:
            # Entry -1 is the place before the first entry of a ledger.
            through = Position(position.ledger_id, position.entry_id - 1)
            self.acknowledge(consumer, [position], {position: ack_set})
        self._cursor.acknowledge_cumulative(through)
        self._decide(lambda core: core.mark_deleted(through))

    def mark_delete_advanced(self) -> None:
        """Forget expired or skipped entries: the cursor's mark-delete position moved without acknowledgements."""
        through = self._cursor.mark_delete_position

        def pass_over(core: SubscriptionCore) -> list[Action]:
            self._reader.forget_delayed_through(through)
            return core.mark_deleted(through)

        self._decide(pass_over)

    # Statistics for operators.

    @property
    def has_read_all(self) -> bool:
        """Whether every durable entry was read."""
        return self._reader.has_read_all

    def delayed_if_quiet(self) -> int | None:
        """Return how many messages wait for their time where this is all there is; None where other entries wait, too.

        Entries that consumers have, and those that are damaged or being read, are such others.
        """
        tracker = self.tracker
        is_reading = not self.has_read_all or self._reader.reads_due
        is_quiet = self.failure is None and not is_reading and not self.core.has_entries_at_hand
        delayed = 0 if tracker is None else tracker.number_of_future_messages()
        return delayed if is_quiet and (tracker is None or delayed == tracker.number_of_delayed_messages()) else None

    def stats(self) -> SubscriptionStats:
        """Return the stats of the subscription and its consumers."""
        return subscription_stats(
            self.core,
            self.subscription_type,
            consumers=[(one.consumer, one.handle.consumer_id, len(one)) for one in self._outboxes.values()],
            reader=self._reader,
        )

    def damaged(self) -> dict[int, BitMap]:
        """Return the entries that are put aside, as the log is damaged where they are, by ledger."""
        return self.core.deliverable.damaged()

    def consumer_stats(self, consumer: ConsumerHandle) -> ConsumerStats | None:
        """Return the stats of one consumer, None if it is not registered."""
        outbox = self._by_handle.get(id(consumer))
        if outbox is None:
            return None
        return consumer_stats(self.core, outbox.consumer, consumer.consumer_id, len(outbox))

    def key_hash_ranges(self, consumer: ConsumerHandle) -> list[tuple[int, int]]:
        """Return the inclusive ranges of slots that a consumer owns; none unless Key_Shared."""
        outbox = self._by_handle.get(id(consumer))
        return [] if outbox is None or self.core.keys is None else self.core.keys.selector.ranges_of(outbox.consumer)

    def newcomer_stats(self) -> NewcomerStats | None:
        """Return what PIP-282 and the classic mode show of newcomers; None in the other modes and types."""
        return None if self.core.keys is None else self.core.keys.fence.newcomers(self.core.consumers, self._outboxes)

    def entry_status(self, position: Position, key_hash: int) -> EntryStatus:
        """Return the place of an entry that is not acknowledged, and the reason why it waits there."""
        self.core.advance(self._now_ms())
        return self.core.entry_status(position, key_hash)

    def in_hand(self, positions: Collection[Key]) -> set[Key]:
        """Return which of these entries consumers have been given and have not acknowledged."""
        return {at for at in positions for consumer in self.core.consumers.values() if at in consumer.pending.items}

    def entries_in_hand(self) -> dict[int, BitMap]:
        """Return all entries that consumers have been given and have not acknowledged, by ledger."""
        found: dict[int, BitMap] = {}
        for consumer in self.core.consumers.values():
            for ledger_id, entry_ids in consumer.pending.entries.items():
                found[ledger_id] = found.get(ledger_id, BitMap()) | entry_ids
        return found

    def key_status(self, key: bytes) -> KeyStatus | None:
        """Return the consumer of a sticky key and the reason why the key waits; None unless Key_Shared."""
        return None if self.core.keys is None else self.core.keys.key_status(sticky_hash(key))

    # Running actions.

    def _decide(self, decide: Callable[[SubscriptionCore], list[Action]]) -> None:
        """Let the core decide and run its actions; nothing once there was a defect.

        Raises:
            DispatcherError: The core refuses, and has not changed.
        """
        actions = self._ask(decide)
        if actions is not None:
            self._carry_out(actions)

    def _ask(self, ask: Callable[[SubscriptionCore], _Answer]) -> _Answer | None:
        """Return what the core answers now, None when there is a defect.

        Raises:
            DispatcherError: The core refuses, and has not changed.
        """
        if self.failure is not None:
            return None
        try:
            self.core.advance(self._now_ms())
            return ask(self.core)
        except DispatcherError:
            raise
        except Exception as defect:
            # A supervisor: the core may be half changed.
            self.stop_for_defect(defect)
            return None

    def _carry_out(self, actions: list[Action], acknowledged: Sequence[Key] = ()) -> None:
        """Do what the core has decided, acknowledgements first."""
        try:
            self._acknowledge_in_cursor(acknowledged)
            self._run_actions(actions)
        except Exception as defect:
            # A supervisor: some of it is not done, or half.
            self.stop_for_defect(defect)

    def _run_actions(self, actions: list[Action]) -> None:
        # A consumer may call back from an action; actions of that call run after those that are here already.
        self._actions.extend(actions)
        if not self._is_running_actions:
            self._is_running_actions = True
            try:
                while self._actions:
                    self._run_action(self._actions.pop(0))
            finally:
                self._is_running_actions = False
        self._arm_timer()
        self._reader.wake()

    def _run_action(self, action: Action) -> None:
        match action:
            case TrackDelayed(headers):
                self._reader.track(headers)
            case ForgetDelayed(positions):
                self._reader.forget_delayed(positions)
            case Deliver(consumer, items):
                outbox = self._outboxes.get(consumer.index)
                if outbox is not None:
                    outbox.put(items)
            case NotifyActive(consumer, is_active):
                outbox = self._outboxes.get(consumer.index)
                if outbox is not None:
                    outbox.handle.active_consumer_changed(is_active)
            case DropUnsent(consumer):
                outbox = self._outboxes.get(consumer.index)
                if outbox is not None:
                    self._drop_unsent(outbox)
            case TellDelayIgnored():
                if self.on_delay_ignored is not None:
                    self.on_delay_ignored()
            case _:
                assert_never(action)

    def _drop_unsent(self, outbox: Outbox) -> set[Key]:
        """Send none of the entries on their way; its permits go back."""
        unsent = outbox.drop()
        self.core.refund(outbox.consumer, unsent)
        return {position_of(item) for item in unsent}

    def _on_refused(self, consumer: ConsumerState, items: list[Item]) -> None:
        def refund(core: SubscriptionCore) -> list[Action]:
            core.refund(consumer, items)
            # The permits may be for waiting entries, or for entries that are not read yet.
            return []

        self._decide(refund)

    def _on_sent(self, consumer: ConsumerState, items: list[Item], payload_bytes: int) -> None:
        self.core.advance(self._now_ms())
        late_ms = self.core.sent(consumer, items, payload_bytes)
        if late_ms:
            self.lateness.note(late_ms)

    def _on_missing(self, positions: list[Key]) -> None:
        self.acknowledge(None, positions)

    def _on_damage(self, damage: EntriesDamagedError) -> None:
        if not self.core.deliverable.damaged():
            # Later ones belong to the same damage: `/health` names all of it.
            logger.error("%r goes on without damaged entries, which no consumer gets: %s", self._cursor.name, damage)
        self._decide(lambda core: core.put_aside(damage.entries))

    def _arm_timer(self) -> None:
        at_ms = self.core.next_wakeup_ms()
        if at_ms == self._timer_at_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at_ms = at_ms
        if at_ms is not None and not self._is_closed:
            delay = max(0, at_ms - self._now_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._timer_at_ms = None
        self._decide(lambda core: core.on_timer())
