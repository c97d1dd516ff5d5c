"""One run: events by seed over any number of lives of the service, judged after every step, brought to rest at the end.

    result = Simulation(seed=7).run()
    assert result.complaints == []

All choices come from the seed, time is virtual and there are no threads, so a run repeats itself exactly; `digest`
tells.
"""

import asyncio
import hashlib
import traceback
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch
from urllib.parse import quote

from dispatcher.consumer import KeySharedMode, KeySharedPolicy
from dispatcher.core.multiple_consumers import MultipleConsumersCore
from dispatcher.core.queues.held_headers import HeldHeaders
from dispatcher.dispatcher import Dispatcher
from dispatcher.errors import DispatcherError
from managed_ledger.cursors.cursor import Cursor
from managed_ledger.entries.headers import CHUNK, LAST_CHUNK, MESSAGE_SHIFT, NO_CHUNK
from managed_ledger.errors import LedgerError
from managed_ledger.positions.position import Position
from managed_ledger.replacing import Entries, NewEntry, Replacement
from postdate.broker.errors import BrokerError
from postdate.broker.topics.subscription import Subscription
from snapshot_storage.memory import MemoryBucketSnapshotStorage
from tests.helpers.core_checks import check_tracker
from tests.helpers.fakes.apscheduler_clock import ListedTurns, apscheduler_clock
from tests.helpers.fakes.life_loop import Clock
from tests.helpers.fakes.managed_ledger_fakes import MemoryDatabase
from tests.simulation.whole_service import events
from tests.simulation.whole_service.clients import Link, SimulatedConsumer
from tests.simulation.whole_service.coverage import Coverage, Met
from tests.simulation.whole_service.life import Killed, Life
from tests.simulation.whole_service.mistimed import mistime_snapshots
from tests.simulation.whole_service.oracle import Key, Oracle, PublishedEntry, SubscriptionModel, Times
from tests.simulation.whole_service.payloads import content_of, number_of, payload_of
from tests.simulation.whole_service.rest import come_to_rest, play_outage_round
from tests.simulation.whole_service.scheduled import SCHEDULED_EVENTS, adopt_pause
from tests.simulation.whole_service.shipped import LogBucket, simulated_storage
from tests.simulation.whole_service.stalled import LEASE_S, StalledOwner, stall
from tests.simulation.whole_service.upkeep import Upkeep
from tests.simulation.whole_service.variants import Variant, has_delays, policy, subscription_type, variant_of
from tracker.bucket_tracker import BucketDelayedDeliveryTracker
from tracker.columns.row_order import first_key_at
from tracker.columns.row_queue import QueueSizes, RowQueue
from tracker.core import loading
from tracker.shared.shared_index import SharedIndexView
from tracker.shell.core_tracker import CoreTracker
from tracker.stats import BucketOperation

ADMINISTRATION_S: Final = 2.0
"""How long a request of an administrator or a client may take, in every state of the snapshot storage."""

TAKEOVER_S: Final = 15.0
"""How long it may take to open bundles on an object storage that fails now and then."""

COMPLAINTS_MAX: Final = 5

_MISTIMED_SHARE: Final = 0.15
"""How many lives begin with an index that has other times than the log."""

_SEGMENTS_BEYOND_MAX: Final = 20
"""Segments that may be loaded beyond the limit and beside one of each bucket: those with rows of one time."""

_ROWS_OF_A_BUCKET_MIN: Final = 4
"""Each due bucket may have so many rows loaded, even beyond the limit."""

_HTTP_SHARE: Final = 0.3
"""The share of seeds in which callers publish over HTTP, too."""
_HTTP_WEIGHT: Final = 6.0
_OWN_IDS_SHARE: Final = 0.5
_OWN_IDS_WEIGHT: Final = 4
"""How often they do, beside the weights of other events."""

_POP_ROWS_MIN: Final = 32
"""A poll merges at least so many due rows, and at most four times as many."""


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
    """Events that had an effect, and bounds that were met (`coverage.py`)."""


class FailedError(Exception):
    """The run has a complaint, and ends."""


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
        self.disk: MemoryDatabase | LogBucket = MemoryDatabase()
        if self.variant.logs is not None:
            self.disk = LogBucket(
                Random(f"bucket {seed}"), self.variant.logs, lambda what, size: self.coverage.note(what, size)
            )
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
            unacked_per_subscription_max=self.variant.config.dispatcher.unacked_per_subscription_max,
            has_clock_steps=self.variant.has_clock_steps,
        )
        self.oracle.rate_of = self._rate_of
        self.oracle.seeks_of = self._seeks_of
        self.oracle.attached = self._attached
        self.life: Life
        self.upkeep: Upkeep | None = None
        """The periodic jobs of this life, where the clock is put back and forth."""
        self.lives = 0
        self.step = 0
        self.trace: list[str] = []
        self.complaints: list[str] = []
        self.coverage = Coverage()
        self.storage_state = "works"
        """works, hangs, is down."""
        self.has_bad_snapshots = self.variant.storage == "lying"
        """Whether some can no longer be read, also after all faults are mended."""
        self.is_active = True
        self.tick_time_ms = self.variant.config.tracker.tick_time_ms
        self.policies_under_way = 0
        """How many changes of the topic's policies have not been answered in this life."""
        self.are_clients_eager = False
        """Whether every consumer acknowledges what it gets and asks for as much again."""
        self.published = 0
        self.own_id_set: str | None = None
        """The own id of the message that takes the place of others in this call; None otherwise."""
        self._chunk_times: dict[int, int] = {}
        self.consumers_made = 0
        self.subscriptions_made = 0
        self._known_ledgers: set[int] = set()
        self._cache: Path
        """Of local tables, which a new owner does not find."""
        self.published_unanswered: list[set[int]] = []
        """The numbers of what callers over HTTP have published, each time as one, and have no answer for."""
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
        self.is_stall = False
        """Whether the next kill is none: the process stands still, and goes on beside the next life."""
        self.stalled: StalledOwner | None = None

    # The story.

    def run(self) -> Result:
        """Play it to its end or to the first complaint."""
        with (
            apscheduler_clock(self.clock.now_ms) as listed,
            simulated_storage(),
            TemporaryDirectory(prefix="simulation-") as cache,
            # So few that the bound of rows in memory is met.
            patch.object(loading, "ROWS_OF_A_BUCKET_MIN", _ROWS_OF_A_BUCKET_MIN),
            # And so few that hardly a poll finds all its rows in what an earlier one merged.
            patch.object(RowQueue.__init__, "__defaults__", (QueueSizes(pop_rows_min=_POP_ROWS_MIN),)),
        ):
            self._cache = Path(cache)
            return self._run(listed)

    def _run(self, listed: ListedTurns) -> Result:
        start_s = 0.0
        is_over = False
        while not is_over and not self.complaints:
            self.lives += 1
            self.life = Life(
                self.variant,
                self.disk,
                self.stored,
                self.clock,
                self.chance,
                start_s,
                self.complain,
                self._cache / str(self.lives),
            )
            try:
                is_over = self.life.run(self._live(listed))
            except Killed:
                stalls = self.is_stall and self._try_stall()
                self.note("stalled" if stalls else "the power fails" if self.is_power_cut else "killed")
                self.did("stall" if stalls else "power cut" if self.is_power_cut else "kill")
                if self.is_power_cut and isinstance(self.disk, MemoryDatabase):
                    self.disk = self.disk.after_power_loss()
                self.is_after_power_cut = self.is_power_cut
            except FailedError:
                is_over = True
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                self.complain(f"{type(error).__name__} in {where.name} ({Path(where.filename).name}): {error}")
            start_s = self.life.loop.time()
            self._tasks.clear()
            if self.stalled is not None and self.stalled.life is self.life:
                start_s += LEASE_S
            else:
                self.life.dispose()
        self._end_stalled()
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

    def _try_stall(self) -> bool:
        """Let the life stand still as it is; False where it had hardly begun."""
        life, tasks = self.life, list(self._tasks)
        self._end_stalled()
        life.is_dead = True
        stories = tasks if life.story is None else [*tasks, life.story]
        if not life.run(stall(life, stories)):
            return False
        self.stalled = StalledOwner(self, life)
        return True

    def _end_stalled(self) -> None:
        if self.stalled is not None:
            self.stalled.life.dispose()
        self.stalled = None

    async def _live(self, listed: ListedTurns) -> bool:
        """Live until the story is over (True) or the service is restarted."""
        self._ends_life = self.is_power_cut = self.is_stall = self.is_resting = False
        self.upkeep = None
        # An outage outlives the service.
        self.life.storage.is_hanging = self.storage_state == "hangs"
        self.life.storage.is_down = self.storage_state == "is down"
        # By dice of their own: the stories of all seeds would be other ones else.
        if (die := Random(f"index {self.seed} {self.lives}")).random() < _MISTIMED_SHARE:
            mistime_snapshots(self, die)
        await self.in_time("start", self.life.open(), ADMINISTRATION_S if self.variant.logs is None else TAKEOVER_S)
        has_switch = "switch_delays" in self.variant.weights and Random(f"{self.seed} {self.lives}").random() < 0.15
        if has_switch and self.oracle.subs and not self.is_at_the_end:
            await events.switch_delays_of_closed_topic(self)
        await self.in_time("opening", self.life.open_topic(), ADMINISTRATION_S)
        self.upkeep = Upkeep(self, listed) if self.variant.has_clock_steps else None
        if self.upkeep is not None:
            self.upkeep.start()
        self._look_at_cursors()
        events.look_at_policies(self)
        events.apply_faults(self)
        self._is_closed_in_order = False
        if not self.oracle.subs:
            for kind in self.variant.kinds:
                await events.subscribe_anew(self, kind)
        if self.storage_state != "works" and self.chance.random() < 0.5:
            await play_outage_round(self)
        names, weights = list(self.variant.weights), list(self.variant.weights.values())
        # As with dice of their own above: all other seeds are the same stories as without callers over HTTP.
        if Random(f"HTTP {self.seed}").random() < _HTTP_SHARE:
            names.append("publish_over_http")
            weights.append(_HTTP_WEIGHT)
        if Random(f"own ids {self.seed}").random() < _OWN_IDS_SHARE:
            names.append("schedule_by_id")
            weights.append(_OWN_IDS_WEIGHT)
        while self.step < self.variant.steps:
            self.step += 1
            name = self.chance.choices(names, weights)[0]
            happening = (events.EVENTS.get(name) or SCHEDULED_EVENTS[name])(self)
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
        if self.upkeep is not None:
            await self.upkeep.close()
        config = self.variant.config
        await self.in_time("stop", self.life.service.close(), 15.0 + config.tracker.close_timeout_ms / 1_000)
        if self.life.is_dead:
            # It was killed while it stopped; what was left of the stop ran while the life was disposed of.
            return
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

    # For events.

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
        """Let the order of time not be promised for a while."""
        self.oracle.order_since = max(self.oracle.order_since, self.clock.now_s() + seconds)

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Let work go on beside the events."""
        task = self.life.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        # The next step finds a complaint.
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
                self.complain(f"{what} was cancelled without a request")
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
        return self.life.topic.ledger.cursors[_cursor_name(sub)]

    def is_acknowledged(self, sub: SubscriptionModel, key: Key) -> bool:
        """Return whether the cursor has an entry for acknowledged; of a subscription that is being made it has none."""
        cursor = self.life.topic.ledger.cursors.get(_cursor_name(sub))
        return cursor is not None and cursor.is_acknowledged(*key)

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
        return [] if found is None else list(found.consumers)  # type: ignore[arg-type]  # no other client subscribes

    def _rate_of(self, sub: SubscriptionModel) -> float | None:
        dispatcher = self.dispatcher(sub)
        return None if dispatcher is None else dispatcher.core.gate.rate_per_second

    def unsent(self, sub: SubscriptionModel) -> set[Key]:
        """Return what consumers have been given and not been sent yet."""
        dispatcher = self.dispatcher(sub)
        if dispatcher is None:
            return set()
        waiting = sub.waiting()
        if not sub.is_single:
            return dispatcher.in_hand(waiting)
        # An active consumer is given entries in the order of the log.
        return set(sorted(waiting)[: sum(one.unsent_entries for one in dispatcher.stats().consumers)])

    def scheduled_keys(self, sub: SubscriptionModel) -> set[Key]:
        """Return what a look shows of a subscription: delayed messages that no consumer has, or is about to be sent.

        A message that is being moved is the old one until its copy is durable. The next consumers may be of a type that
        does not delay: until they come, the subscription is of the last type.
        """
        found, entries = self.subscription(sub), self.oracle.entries
        if found is None or not found.has_delays:
            return set()
        waiting = {key for key in sub.waiting() if entries[key].is_delayed} - self.unsent(sub)
        moving = {
            old
            for old, copy in sub.replaced.items()
            if old in entries and copy in entries and entries[copy].committed_at is None
        }
        return waiting | moving

    def watch(self, sub: SubscriptionModel) -> None:
        """Have every move of the mark-delete position judged from now on, and know of every cancellation."""
        self._watch_cursor(sub)
        found = self.subscription(sub)
        assert found is not None
        cancel = found.cancel

        def on_cancel(positions: Sequence[Key]) -> None:
            if found.cursor.is_closed or life.is_dead:
                # The service stops: it is refused, and nothing is cancelled.
                cancel(positions)
                return
            self.note(f"{sub.name}: cancelled are {list(positions)[:20]}")
            self.oracle.sync(sub)
            self.oracle.cancelled(sub, positions)
            cancel(positions)

        life = self.life
        found.cancel = on_cancel  # type: ignore[method-assign]

    def _watch_replacements(self) -> None:
        """Know of all entries that give way to others, where the log is asked to replace them."""
        life = self.life
        ledger = life.topic.ledger
        replace = ledger.replace

        def on_replace(
            entries: Sequence[NewEntry],
            *,
            acknowledged: Mapping[Cursor, Entries],
            hidden: Mapping[Cursor, Sequence[int]],
        ) -> Replacement:
            replacement = replace(entries, acknowledged=acknowledged, hidden=hidden)
            if life.is_dead:
                return replacement
            if not acknowledged and self.own_id_set is None:
                self._published_together(entries, replacement.positions)
                return replacement
            # One that is being deleted takes part: the deletion may fail.
            subs = list(self.oracle.subs.values())
            names = {self.cursor(sub): sub.name for sub in subs if self.subscription(sub) is not None}
            deleted = {_cursor_name(sub): sub.name for sub in subs if self.subscription(sub) is None}
            names |= {cursor: deleted[cursor.name] for cursor in acknowledged if cursor.name in deleted}
            gone = {
                names[cursor]: {(ledger_id, entry_id) for ledger_id, ids in of_cursor.items() for entry_id in ids}
                for cursor, of_cursor in acknowledged.items()
                if cursor in names
            }
            if self.own_id_set is not None:
                (new,), (position,) = entries, replacement.positions
                self._appended_by_id(tuple(position), new, gone)
                return replacement
            # After a seek there can be several copies of one message. Moved to one time they are replaced in order of
            # time, and shifted in the order of the log.
            has_one_time = len({new.deliver_at_ms for new in entries}) == 1
            olds: dict[int, list[Key]] = {}
            for key in sorted(
                {key for keys in gone.values() for key in keys},
                key=lambda one: (self.oracle.entries[one].deliver_at_ms if has_one_time else 0, one),
                reverse=True,
            ):
                olds.setdefault(number_of(self.oracle.entries[key].payload), []).append(key)
            now_ms, now_s = self.clock.now_ms(), self.clock.now_s()
            copies = []
            for position, new in zip(replacement.positions, entries, strict=True):
                copy = PublishedEntry(
                    tuple(position), new.payload, new.sticky_hash, new.deliver_at_ms, new.message_count, now_ms, now_s
                )
                # Without one, the subscription is gone for which it was to be moved.
                found = olds.get(number_of(new.payload))
                copy.copy_of = found.pop() if found else None
                copy.flags = new.flags
                copy.own_id = None if copy.copy_of is None else self.oracle.entries[copy.copy_of].own_id
                self.uncommitted[copy.key] = copy
                copies.append(copy)
                self.note(f"{copy.copy_of} gives way to {copy.key} for {[n for n in gone if copy.copy_of in gone[n]]}")
            self.oracle.replaced(copies, gone, content_of, lambda sub: _cursor_name(sub) in ledger.cursors)
            return replacement

        ledger.replace = on_replace  # type: ignore[method-assign]

    def _appended_by_id(self, key: Key, new: NewEntry, gone: Mapping[str, Collection[Key]]) -> None:
        entry = PublishedEntry(
            key,
            new.payload,
            new.sticky_hash,
            new.deliver_at_ms,
            new.message_count,
            new.publish_time_ms,
            self.clock.now_s(),
            flags=new.flags,
            own_id=self.own_id_set,
        )
        self.uncommitted[key] = entry
        self.note(f"{key} of {self.own_id_set} takes the place of {dict(gone)}")
        self.oracle.took_place(entry, gone)

    def _published_together(self, entries: Sequence[NewEntry], positions: Sequence[Position]) -> None:
        """Know of entries that a caller over HTTP publishes, which are all durable or none."""
        now_ms, now_s = self.clock.now_ms(), self.clock.now_s()
        keys = [(position.ledger_id, position.entry_id) for position in positions]
        for key, new in zip(keys, entries, strict=True):
            entry = PublishedEntry(
                key, new.payload, new.sticky_hash, new.deliver_at_ms, new.message_count, now_ms, now_s
            )
            self.oracle.appended(entry)
            self.uncommitted[key] = entry
        self.note(f"published over HTTP are {keys[0]} to {keys[-1]}")

    def _watch_cursor(self, sub: SubscriptionModel) -> None:
        life = self.life
        sub.seeks_seen = self.cursor(sub).seeks

        def on_moved(position: Position) -> None:
            # A move of messages that is under way acknowledges them also on a cursor that was just deleted.
            if not life.is_dead and self.oracle.subs.get(sub.name) is sub:
                # A seek to what is being trimmed ends behind it.
                self._look_at_ledgers()
                self.oracle.mark_delete_moved(sub, tuple(position))

        self.cursor(sub).add_listener(on_moved)

    def new_consumer(self, sub: SubscriptionModel, ranges: tuple[tuple[int, int], ...] = ()) -> SimulatedConsumer:
        """Make a consumer; of a sticky one, choose the ranges where none are given."""
        self.consumers_made += 1
        wish = policy(sub.kind)
        if wish.mode is KeySharedMode.STICKY and not ranges:
            ranges = events.sticky_ranges(self, sub)
        life = self.life
        return SimulatedConsumer(
            self.consumers_made,
            sub.name,
            KeySharedPolicy(wish.mode, wish.allow_out_of_order_delivery, ranges),
            self.chance.choice([0, 0, 0, 1]),
            Link(self.life.reads, self.life.tell_writable),
            lambda consumer, deliveries: self._on_deliveries(life, sub, consumer, deliveries),
            lambda consumer: self._on_active(life, sub, consumer),
        )

    def _on_active(self, life: Life, sub: SubscriptionModel, consumer: SimulatedConsumer) -> None:
        if not life.is_dead:
            self.note(f"{sub.name} {consumer.name} is active")
            self.oracle.sync(sub)
            self.oracle.became_active(sub)

    def _on_deliveries(self, life: Life, sub: SubscriptionModel, consumer: SimulatedConsumer, deliveries: Any) -> None:
        if life.is_dead:
            if life.is_woken:
                life.on_woken_delivery(sub.name, [(one.ledger_id, one.entry_id) for one in deliveries])
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
        if self.upkeep is not None:
            self.upkeep.judge()
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
            self._check_memory(sub, dispatcher)
            self.coverage.look_at(dispatcher)
        if self.complaints:
            raise FailedError

    def _check_counts(self, sub: SubscriptionModel, dispatcher: Dispatcher) -> None:
        """Compare the stats of the consumers with what they asked for, got and acknowledged."""
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
            # A cancellation may wait for the one before it, which is being stored: the oracle knows it already.
            if sub.is_single or stats.unsent_entries:
                continue
            held = (len(sub.held_by.get(consumer, ())), sub.messages_held.get(consumer, 0))
            if held != (stats.pending_entries, stats.unacked_messages):
                self.complain(
                    f"{sub.name}: {consumer.name} holds {held[0]} entries and {held[1]} messages, the broker counts "
                    f"{stats.pending_entries} and {stats.unacked_messages}"
                )

    def _check_memory(self, sub: SubscriptionModel, dispatcher: Dispatcher) -> None:
        """Compare what is in memory with what the configuration allows (invariant 6)."""
        limits, tracker_limits = self.variant.config.dispatcher, self.variant.config.tracker
        # Messages of a lost snapshot are read again, and held where they are due.
        if isinstance(dispatcher.core, MultipleConsumersCore) and not self.has_bad_snapshots:
            held = len(dispatcher.core.intake.held_due)
            if tracker_limits.is_index_shared:
                held -= _held_of_first_time(dispatcher.core.intake.held_due)
            # A read, and what the tracker refuses of another one; on a shared index, what is read again for a poll.
            beyond = 2 * limits.scan_entries_max + 2 * limits.read_batch_entries_max * tracker_limits.is_index_shared
            # What an index has earlier than the log is held until the tracker has given all that is due before it.
            beyond += len(self.oracle.indexed_early)
            if held > limits.held_entries_max + beyond:
                self.complain(f"{sub.name}: {held} due entries are held, of {limits.held_entries_max} and some reads")
        if isinstance(dispatcher.tracker, BucketDelayedDeliveryTracker):
            stats = dispatcher.tracker.stats()
            loaded, made = stats.segment_rows_loaded, stats.operations[BucketOperation.CREATE].succeed
            # Rows of a bucket stay loaded when it is merged, so those that were made since none was loaded count.
            if not loaded or sub.buckets_of is not dispatcher.tracker:
                sub.buckets_of, sub.buckets_before = dispatcher.tracker, stats.bucket_total - made
            segments = max(stats.bucket_total, sub.buckets_before + made) + _SEGMENTS_BEYOND_MAX
            # Due rows that a poll merged and did not give count as loaded ones, of every bucket.
            surplus = 4 * max(limits.read_batch_entries_max, tracker_limits.loaded_row_count_max, _POP_ROWS_MIN)
            beyond = segments * tracker_limits.segment_row_count_max + surplus
            # One load may be as large as the limit, and one more while hand-out waits for it.
            loaded_max = max(tracker_limits.loaded_row_count_max, _ROWS_OF_A_BUCKET_MIN * segments)
            if loaded > 3 * loaded_max + beyond:
                self.complain(f"{sub.name}: {loaded} rows are loaded, of {loaded_max}")

    def _look_at_ledgers(self) -> None:
        ledgers = {ledger.ledger_id for ledger in self.life.topic.ledger.ledgers()}
        gone = self._known_ledgers - ledgers
        if gone:
            self.oracle.gone(gone)
        self._known_ledgers = ledgers

    # After a start.

    def _look_at_cursors(self) -> None:
        """Find out what survived of the last moments before a kill, which must be possible."""
        self.life.topic.ledger.add_listener(partial(self._on_committed, self.life))
        self._watch_replacements()
        known = {ledger.ledger_id: ledger.entries for ledger in self.life.topic.ledger.ledgers()}
        # Also those of a ledger that was begun and is not there any more.
        lost = {
            key
            for key, entry in self.oracle.entries.items()
            if entry.committed_at is None and key[1] >= known.get(key[0], 0)
        }
        there = {number_of(entry.payload) for key, entry in self.oracle.entries.items() if key not in lost}
        for numbers in self.published_unanswered:
            if numbers & there and numbers - there:
                self.complain(f"of messages that were published together some are lost: {sorted(numbers - there)[:5]}")
        self.published_unanswered = []
        if self.stalled is not None:
            self.stalled.adopt(self.oracle.entries.keys() - lost)
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
            if _cursor_name(sub) not in self.life.topic.ledger.cursors:
                if not sub.is_busy:
                    self.complain(f"{sub.name} is gone")
                del self.oracle.subs[sub.name]
                continue
            self._adopt(sub, unsure, lost)
            self.watch(sub)

    def _judge_replaced(self, sub: SubscriptionModel, durable: set[Key], lost: set[Key]) -> None:
        """Of what was replaced exactly one is there: the old entry, or the copy."""
        for old, copy in list(sub.replaced.items()):
            if copy in lost:
                del sub.replaced[old]
                if old in durable:
                    self.complain(f"{sub.name}: {old} is acknowledged, and its copy {copy} was lost")
            elif old in self.oracle.entries and old not in durable:
                self.complain(f"{sub.name}: {old} is there after a restart, and so is its copy {copy}")
        shown = sub.hidden & self.oracle.entries.keys() - durable
        if shown:
            self.complain(f"{sub.name}: copies for others are to be sent to it: {sorted(shown)[:5]}")

    def _adopt(self, sub: SubscriptionModel, unsure: set[Key], lost: set[Key]) -> None:
        """Take the acknowledged entries of the cursor, if they can be; `unsure` was durable, without a receipt."""
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
            self.complain(f"{sub.name}: acknowledged after a restart alone: {sorted(durable - possible)[:5]}")
        if self._is_closed_in_order and sub.acknowledged - durable:
            gone = sorted(sub.acknowledged - durable)[:5]
            self.complain(f"{sub.name}: acknowledgements did not survive a stop in order: {gone}")
        if sub.pending_seek is None and sub.before_seek is None:
            self._judge_replaced(sub, durable, lost)
            forgotten = (sub.synced if self.is_after_power_cut else sub.stored) & self.oracle.entries.keys() - durable
            if forgotten:
                self.complain(
                    f"{sub.name}: stored as acknowledged before, and not after a restart: {sorted(forgotten)[:5]}"
                )
        else:
            sub.synced = set()
            sub.replaced.clear()
            sub.hidden.clear()
            sub.got_when_due.clear()
        sub.stored = set(durable)
        if self.is_after_power_cut:
            sub.synced = set(durable)
        sub.consumers = []
        sub.expiring = sub.pending_seek = None
        sub.before_seek = None
        sub.is_busy = False
        sub.joining = 0
        sub.on_time_since_s = float("inf")
        self.oracle.begin_with(sub, durable)
        adopt_pause(self, sub)

    def _on_committed(self, life: Life) -> None:
        if life.is_dead:
            return
        confirmed = life.topic.ledger.last_confirmed_position
        for key in [key for key in self.uncommitted if key <= confirmed]:
            entry = self.uncommitted.pop(key)
            self._known_ledgers.add(key[0])
            self.oracle.committed(entry, self.is_acknowledged)

    @property
    def uncommitted(self) -> dict[Key, PublishedEntry]:
        """Entries that were appended in this life and are not durable yet."""
        return self.life.uncommitted

    def next_number(self) -> int:
        """Give the number of the next message."""
        self.published += 1
        return self.published

    def publish(self, *, key_hash: int, deliver_at_ms: int, count: int, size: int) -> None:
        """Append an entry."""
        now_ms = self.clock.now_ms()
        payload = payload_of(self.next_number(), size, publish_time_ms=now_ms)
        flags = NO_CHUNK
        if key_hash % 2 == 0:
            # Messages of every second key come in chunks of one time, three each; some lack some.
            message, chunk = divmod(self.published, 3)
            deliver_at_ms = self._chunk_times.setdefault(message, deliver_at_ms)
            flags = CHUNK | (LAST_CHUNK if chunk == 2 else 0) | (message & 0xFFFF) << MESSAGE_SHIFT
        position = self.life.topic.ledger.append_nowait(
            payload,
            publish_time_ms=now_ms,
            deliver_at_ms=deliver_at_ms,
            sticky_hash=key_hash,
            message_count=count,
            flags=flags,
        )
        key = (position.ledger_id, position.entry_id)
        now_s = self.clock.now_s()
        entry = PublishedEntry(key, payload, key_hash, deliver_at_ms, count, now_ms, now_s, flags=flags)
        self.oracle.appended(entry)
        self.uncommitted[key] = entry
        self.note(
            f"published {key[0]}:{key[1]} due {deliver_at_ms - now_ms if entry.is_delayed else None} x{count} "
            f"h{key_hash}"
        )

    def last_position(self) -> Position:
        return self.life.topic.ledger.last_confirmed_position


def _cursor_name(sub: SubscriptionModel) -> str:
    """Return the name of a subscription's cursor."""
    return quote(sub.name, safe="")


def _check_cores(dispatcher: Dispatcher) -> None:
    dispatcher.core.check()
    if isinstance(dispatcher.tracker, CoreTracker | SharedIndexView):
        check_tracker(dispatcher.tracker)


def _held_of_first_time(held: HeldHeaders) -> int:
    """Count held entries of the first time: they wait for the tracker's rows of that time, however many there are.

    A view of a shared index that keeps few rows has all messages of one time read again, and refuses them as due. The
    configuration does not bound these headers, 45 bytes each: a weakness of the product that is known and left.
    """
    first_ms = held.first_deliver_at_ms
    return 0 if first_ms is None else held.count_through(first_key_at(first_ms + 1))


__all__ = ["ADMINISTRATION_S", "FailedError", "Result", "Simulation", "has_delays", "subscription_type"]
