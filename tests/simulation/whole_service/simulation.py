"""One run: events by seed over any number of lives of the service, judged after every step, brought to rest at the end.

    result = Simulation(seed=7).run()
    assert result.complaints == []

Everything comes from the seed, time is virtual and there are no threads, so a run repeats itself exactly; `digest`
tells.
"""

import asyncio
import hashlib
import traceback
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import quote

from broker.errors import BrokerError
from broker.topics.subscription import Subscription
from dispatcher.consumer import KeySharedMode, KeySharedPolicy
from dispatcher.core.multiple_consumers import MultipleConsumersCore
from dispatcher.dispatcher import Dispatcher
from dispatcher.errors import DispatcherError
from managed_ledger.cursor import Cursor
from managed_ledger.errors import LedgerError
from managed_ledger.position import Position
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tests.helpers.fakes.managed_ledger_fakes import MemoryDatabase
from tests.simulation.whole_service import events
from tests.simulation.whole_service.clients import SimulatedConsumer
from tests.simulation.whole_service.coverage import Coverage, Met
from tests.simulation.whole_service.life import Clock, Killed, Life
from tests.simulation.whole_service.oracle import Key, Oracle, PublishedEntry, SubscriptionModel, Times
from tests.simulation.whole_service.rest import come_to_rest, play_outage_round
from tests.simulation.whole_service.variants import Variant, has_delays, policy, subscription_type, variant_of
from tracker.bucket_tracker import BucketDelayedDeliveryTracker
from tracker.shared.shared_view import SharedIndexView

ADMINISTRATION_S: Final = 2.0
"""How long a request of an administrator or a client may take, whatever the snapshot storage does."""

COMPLAINTS_MAX: Final = 5


@dataclass
class Result:
    """How a run went."""

    seed: int
    variant: str
    complaints: list[str]
    steps: int
    lives: int
    deliveries: int
    digest: str
    trace: list[str] = field(repr=False)
    met: Met = field(repr=False)
    """What had an effect, and which bounds were met (`coverage.py`)."""


class FailedError(Exception):
    """Something was complained about; the run ends."""


class Simulation:
    """A run by seed.

    Args:
        seed: Decides everything.
        variant: Kinds and tracker (`kind+kind/tracker`), instead of those that the seed chooses.
    """

    def __init__(self, seed: int, variant: str | None = None) -> None:
        self.seed = seed
        self.variant: Variant = variant_of(seed, variant)
        self.chance = Random(f"events {seed}")
        self.clock = Clock()
        self.disk = MemoryDatabase()
        self.stored = MemoryBucketSnapshotStorage()
        self.times = Times(self.clock.now_s, self.clock.now_ms)
        tracker = self.variant.config.tracker
        self.oracle = Oracle(
            self.times,
            self.complain,
            tick_ms=0 if tracker.is_deliver_at_time_strict else tracker.tick_time_ms,
            uses_points=self.variant.uses_points,
            unacked_max=self.variant.config.dispatcher.unacked_per_consumer_max,
            keeps_times_in_order=self.variant.keeps_times_in_order,
            # The in-memory tracker knows no shorter time than its tick.
            precision_ms=tracker.tick_time_ms if self.variant.tracker == "memory" else 0,
        )
        self.oracle.seeks_of = self._seeks_of
        self.oracle.attached = self._attached
        self.life: Life
        self.lives = 0
        self.step = 0
        self.trace: list[str] = []
        self.complaints: list[str] = []
        self.coverage = Coverage()
        self.storage_state = "works"
        """works, hangs, is down."""
        self.has_bad_snapshots = self.variant.storage == "lying"
        """Whether some can no longer be read whatever is mended."""
        self.is_active = True
        self.tick_time_ms = self.variant.config.tracker.tick_time_ms
        self.are_clients_eager = False
        """Whether every consumer acknowledges what it gets and asks for as much again."""
        self.published = 0
        self.consumers_made = 0
        self.subscriptions_made = 0
        self._known_ledgers: set[int] = set()
        self._ends_life = False
        self.is_resting = False
        """Whether a rest is judged or the service stops: nothing else may happen meanwhile."""
        self.is_at_the_end = False
        """Whether this is the life after the last rest."""
        self._is_closed_in_order = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_power_cut = False
        """Whether what was not synced is lost with the next kill."""
        self.is_after_power_cut = False
        """Whether the last life ended so."""

    # The story.

    def run(self) -> Result:
        """Play it to its end or to the first complaint."""
        start_s = 0.0
        is_over = False
        while not is_over and not self.complaints:
            self.lives += 1
            self.life = Life(self.variant, self.disk, self.stored, self.clock, self.chance, start_s, self.complain)
            try:
                is_over = self.life.run(self._live())
            except Killed:
                self.note("the power fails" if self.is_power_cut else "killed")
                self.did("power cut" if self.is_power_cut else "kill")
                if self.is_power_cut:
                    self.disk = self.disk.after_power_loss()
                self.is_after_power_cut = self.is_power_cut
            except FailedError:
                is_over = True
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                self.complain(f"{type(error).__name__} in {where.name} ({Path(where.filename).name}): {error}")
            start_s = self.life.loop.time()
            self._tasks.clear()
            self.life.dispose()
        digest = hashlib.sha256("\n".join(self.trace).encode()).hexdigest()[:16]
        return Result(
            self.seed,
            self.variant.name,
            self.complaints,
            self.step,
            self.lives,
            self.oracle.deliveries,
            digest,
            self.trace,
            self.coverage.met,
        )

    async def _live(self) -> bool:
        """Live until the story is over (True) or the service is restarted."""
        self._ends_life = self.is_power_cut = self.is_resting = False
        # An outage outlives the service.
        self.life.storage.is_hanging = self.storage_state == "hangs"
        self.life.storage.is_down = self.storage_state == "is down"
        await self.in_time("start", self.life.open(), ADMINISTRATION_S)
        self._look_at_cursors()
        events.apply_faults(self)
        self._is_closed_in_order = False
        if not self.oracle.subs:
            for kind in self.variant.kinds:
                await events.subscribe_anew(self, kind)
        if self.storage_state != "works" and self.chance.random() < 0.5:
            await play_outage_round(self)
        names, weights = list(self.variant.weights), list(self.variant.weights.values())
        while self.step < self.variant.steps:
            self.step += 1
            name = self.chance.choices(names, weights)[0]
            happening = events.EVENTS[name](self)
            if happening is not None:
                await happening
            if self._ends_life:
                return False
            # Before anything that follows from it, and after that.
            self.check()
            await self._let_time_pass()
            self.check()
        await come_to_rest(self, is_final=True)
        if self.is_at_the_end:
            return True
        # Once more after a restart: nothing comes again, and what only an opening finds is cleaned up.
        self.is_at_the_end = True
        await self.close_life()
        return False

    async def close_life(self) -> None:
        """Stop the service in order; the next life follows."""
        self.is_resting = True
        config = self.variant.config
        await self.in_time("stop", self.life.service.close(), 15.0 + config.tracker.close_timeout_ms / 1_000)
        self._is_closed_in_order = True
        self.is_after_power_cut = False
        self._ends_life = True

    async def _let_time_pass(self) -> None:
        kind = self.chance.random()
        if kind < 0.3:
            return
        if kind < 0.6:
            for _ in range(self.chance.randrange(1, 12)):
                await asyncio.sleep(0)
        elif kind < 0.9:
            await asyncio.sleep(self.chance.random() * 0.05)
        else:
            await asyncio.sleep(self.chance.random() * 2)

    # What events need.

    def note(self, text: str) -> None:
        """Write a line of the trace."""
        self.trace.append(f"{self.clock.now_s():10.4f} {self.step:4d} {text}")

    def did(self, what: str, size: int = 1) -> None:
        """Count an event that had an effect."""
        self.coverage.note(f"event: {what}", size)

    def complain(self, text: str) -> None:
        """Note a broken promise; the run ends with the step."""
        if len(self.complaints) < COMPLAINTS_MAX:
            self.complaints.append(text)
        self.note(f"COMPLAINT {text}")

    def disturb_order(self, seconds: float) -> None:
        """Let the order of time be nobody's promise for a while."""
        self.oracle.order_since = max(self.oracle.order_since, self.clock.now_s() + seconds)

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Let something go on beside the events."""
        task = self.life.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        # What was complained about is found by the next step.
        if error is not None and not isinstance(error, FailedError):
            self.complain(f"{type(error).__name__}: {error}")

    async def in_time(self, what: str, work: Coroutine[Any, Any, Any], seconds: float) -> Any:
        """Await a request, which must be answered within a time."""
        begin = self.clock.now_s()
        late = self.life.loop.call_later(
            seconds, lambda: self.complain(f"{what} is not done after {seconds} s (item 4)")
        )
        try:
            # Not `wait_for`, which swallows the cancellation of a life that ended where the work was just done.
            async with asyncio.timeout(seconds + 0.5):
                result = await work
        except (BrokerError, DispatcherError, LedgerError) as error:
            self.note(f"{what} refused: {type(error).__name__}")
            raise
        except asyncio.CancelledError:
            if not self.life.is_dead:
                self.complain(f"{what} was cancelled by nobody")
            raise
        except Exception as error:
            if self.clock.now_s() < begin + seconds:
                self.complain(f"{what} failed: {error!r} (item 4)")
            raise FailedError from error
        finally:
            late.cancel()
        self.note(f"{what} took {self.clock.now_s() - begin:.4f} s")
        return result

    def subscription(self, sub: SubscriptionModel) -> Subscription | None:
        return self.life.topic.subscriptions.get(sub.name)

    def cursor(self, sub: SubscriptionModel) -> Cursor:
        return self.life.topic.ledger.cursors[quote(sub.name, safe="")]

    def dispatcher(self, sub: SubscriptionModel) -> Dispatcher | None:
        found = self.subscription(sub)
        return None if found is None else found.dispatcher

    def open_consumers(self, sub: SubscriptionModel) -> list[SimulatedConsumer]:
        """Return the consumers of a subscription that can send commands."""
        self.oracle.sync(sub)
        return [one for one in sub.consumers if one.is_attached and not one.is_leaving]

    def _seeks_of(self, sub: SubscriptionModel) -> int:
        found = self.subscription(sub)
        return sub.seeks_seen if found is None else found.cursor.seeks

    def _attached(self, sub: SubscriptionModel) -> list[SimulatedConsumer]:
        found = self.subscription(sub)
        return [] if found is None else found.consumers  # type: ignore[return-value]  # nobody else subscribes

    def watch_cursor(self, sub: SubscriptionModel) -> None:
        """Have every move of the mark-delete position judged, from now on."""
        sub.seeks_seen = self.cursor(sub).seeks

        def on_moved(position: Position) -> None:
            if not self.life.is_dead:
                self.oracle.mark_delete_moved(sub, tuple(position))

        self.cursor(sub).add_listener(on_moved)

    def new_consumer(self, sub: SubscriptionModel, ranges: tuple[tuple[int, int], ...] = ()) -> SimulatedConsumer:
        """Make a consumer; of a sticky one, choose the ranges where none are given."""
        self.consumers_made += 1
        wish = policy(sub.kind)
        if wish.mode is KeySharedMode.STICKY and not ranges:
            ranges = events.sticky_ranges(self, sub)
        return SimulatedConsumer(
            self.consumers_made,
            sub.name,
            KeySharedPolicy(wish.mode, wish.allow_out_of_order_delivery, ranges),
            self.chance.choice([0, 0, 0, 1]),
            lambda consumer, deliveries: self._on_deliveries(sub, consumer, deliveries),
            lambda consumer: self._on_active(sub, consumer),
        )

    def _on_active(self, sub: SubscriptionModel, consumer: SimulatedConsumer) -> None:
        if not self.life.is_dead:
            self.note(f"{sub.name} {consumer.name} is active")
            self.oracle.sync(sub)
            self.oracle.became_active(sub)

    def _on_deliveries(self, sub: SubscriptionModel, consumer: SimulatedConsumer, deliveries: Any) -> None:
        if self.life.is_dead:
            return
        self.oracle.sync(sub)
        if sub.name not in self.oracle.subs or self.oracle.subs[sub.name] is not sub:
            self.complain(f"{sub.name}: something was sent after it was deleted")
            return
        for delivery in deliveries:
            self.note(f"{sub.name} {consumer.name} <- {delivery.ledger_id}:{delivery.entry_id}")
            self.oracle.delivered(sub, consumer, delivery)
        if self.are_clients_eager:
            keys = [(delivery.ledger_id, delivery.entry_id) for delivery in deliveries]
            self.life.loop.call_later(0.001, self._acknowledge_eagerly, sub, consumer, keys)

    def _acknowledge_eagerly(self, sub: SubscriptionModel, consumer: SimulatedConsumer, keys: list[Key]) -> None:
        if consumer in self.open_consumers(sub) and self.dispatcher(sub) is not None:
            events.acknowledge_keys(self, sub, consumer, keys)
            count = sum(self.oracle.entries[key].count for key in keys if key in self.oracle.entries)
            events.give_permits(self, sub, consumer, count)

    # After each step.

    def check(self) -> None:
        """Judge what can be seen at any moment."""
        self._look_at_ledgers()
        for sub in self.oracle.subs.values():
            self.oracle.sync(sub)
            dispatcher = self.dispatcher(sub)
            if dispatcher is None:
                continue
            if dispatcher.failure is not None:
                self.complain(f"{sub.name}: the dispatcher has stopped: {dispatcher.failure!r}")
            try:
                _check_cores(dispatcher)
            except AssertionError as error:
                self.complain(f"{sub.name}: a core is inconsistent: {error!r}")
            self._check_counts(sub, dispatcher)
            self.coverage.look_at(dispatcher)
        if self.complaints:
            raise FailedError

    def _check_counts(self, sub: SubscriptionModel, dispatcher: Dispatcher) -> None:
        """Compare the stats of the consumers with what they asked for, got and acknowledged."""
        # What has expired is forgotten in portions.
        is_expiring = isinstance(dispatcher.core, MultipleConsumersCore) and bool(dispatcher.core.expired)
        for consumer in sub.consumers:
            stats = dispatcher.consumer_stats(consumer)
            if stats is None:
                continue
            left = consumer.messages_asked - consumer.messages_got
            charged = left - stats.available_permits
            if charged < stats.unsent_entries or (charged and not stats.unsent_entries):
                self.complain(
                    f"{sub.name}: {consumer.name} has {left} permits left, the broker counts {stats.available_permits} "
                    f"and {stats.unsent_entries} unsent entries: charged and not sent, or sent and not charged"
                )
            if sub.is_single or stats.unsent_entries or is_expiring:
                continue
            held = (len(sub.held_by.get(consumer, ())), sub.messages_held.get(consumer, 0))
            if held != (stats.pending_entries, stats.unacked_messages):
                self.complain(
                    f"{sub.name}: {consumer.name} holds {held[0]} entries and {held[1]} messages, the broker counts "
                    f"{stats.pending_entries} and {stats.unacked_messages}"
                )

    def _look_at_ledgers(self) -> None:
        ledgers = {ledger.ledger_id for ledger in self.life.topic.ledger.ledgers()}
        gone = self._known_ledgers - ledgers
        if gone:
            self.oracle.gone(gone)
        self._known_ledgers = ledgers

    # After a start.

    def _look_at_cursors(self) -> None:
        """Find out what survived of the last moments before a kill, which must be possible."""
        self.life.topic.ledger.add_listener(self._on_committed)
        known = {ledger.ledger_id: ledger.entries for ledger in self.life.topic.ledger.ledgers()}
        self._look_at_ledgers()
        unsure: set[Key] = set()
        for entry in list(self.oracle.entries.values()):
            is_there = entry.key[1] < known.get(entry.key[0], 0)
            if entry.committed_at is not None:
                if not is_there:
                    self.complain(f"{entry.key} was durable and is not in the log")
            elif is_there:
                entry.committed_at = self.clock.now_s()
                unsure.add(entry.key)
            else:
                self.oracle.never_was(entry)
        for sub in list(self.oracle.subs.values()):
            if quote(sub.name, safe="") not in self.life.topic.ledger.cursors:
                if not sub.is_busy:
                    self.complain(f"{sub.name} is gone")
                del self.oracle.subs[sub.name]
                continue
            self._adopt(sub, unsure)
            self.watch_cursor(sub)

    def _adopt(self, sub: SubscriptionModel, unsure: set[Key]) -> None:
        """Take what the cursor has for acknowledged, if it can be so; `unsure` was durable, and nobody was told."""
        cursor = self.cursor(sub)
        durable = {key for key in self.oracle.entries if cursor.is_acknowledged(*key)}
        possible = set(sub.acknowledged)
        if sub.pending_seek is not None:
            possible |= {key for key in self.oracle.entries if key < sub.pending_seek}
        # A seek that was not answered may have survived or not.
        possible |= sub.before_seek or set()
        if sub.expiring is not None:
            possible |= {
                key
                for key, entry in self.oracle.entries.items()
                if max(entry.published_ms, entry.deliver_at_ms) <= sub.expiring
            }
        possible |= {key for key in unsure if key <= sub.passed}
        if not durable <= possible:
            self.complain(f"{sub.name}: acknowledged after a restart, and by nobody: {sorted(durable - possible)[:5]}")
        if self._is_closed_in_order and sub.acknowledged - durable:
            lost = sorted(sub.acknowledged - durable)[:5]
            self.complain(f"{sub.name}: acknowledgements did not survive a stop in order: {lost}")
        if sub.pending_seek is None and sub.before_seek is None:
            lost = (sub.synced if self.is_after_power_cut else sub.stored) & self.oracle.entries.keys() - durable
            if lost:
                self.complain(f"{sub.name}: stored as acknowledged before, and not after a restart: {sorted(lost)[:5]}")
        else:
            sub.synced = set()
        sub.stored = set(durable)
        if self.is_after_power_cut:
            sub.synced = set(durable)
        sub.consumers = []
        sub.expiring = sub.pending_seek = None
        sub.before_seek = None
        sub.is_busy = False
        sub.joining = 0
        self.oracle.begin_with(sub, durable)

    def _on_committed(self) -> None:
        if self.life.is_dead:
            return
        confirmed = self.life.topic.ledger.last_confirmed_position
        for key in [key for key in self.uncommitted if key <= confirmed]:
            entry = self.uncommitted.pop(key)
            self._known_ledgers.add(key[0])
            self.oracle.committed(entry, lambda sub, at: self.cursor(sub).is_acknowledged(*at))

    @property
    def uncommitted(self) -> dict[Key, PublishedEntry]:
        """What was appended in this life and is not durable yet."""
        return self.life.uncommitted

    def publish(self, *, key_hash: int, deliver_at_ms: int, count: int, size: int) -> None:
        """Append an entry."""
        self.published += 1
        payload = b"%d " % self.published + b"x" * size
        now_ms = self.clock.now_ms()
        position = self.life.topic.ledger.append_nowait(
            payload, publish_time_ms=now_ms, deliver_at_ms=deliver_at_ms, sticky_hash=key_hash, message_count=count
        )
        key = (position.ledger_id, position.entry_id)
        entry = PublishedEntry(key, payload, key_hash, deliver_at_ms, count, now_ms, self.clock.now_s())
        self.oracle.appended(entry)
        self.uncommitted[key] = entry
        self.note(
            f"published {key[0]}:{key[1]} due {deliver_at_ms - now_ms if entry.is_delayed else None} x{count} "
            f"h{key_hash}"
        )

    def last_position(self) -> Position:
        return self.life.topic.ledger.last_confirmed_position


def _check_cores(dispatcher: Dispatcher) -> None:
    dispatcher.core.check()
    if isinstance(dispatcher.tracker, BucketDelayedDeliveryTracker | SharedIndexView):
        dispatcher.tracker.check()


__all__ = ["ADMINISTRATION_S", "FailedError", "Result", "Simulation", "has_delays", "subscription_type"]
