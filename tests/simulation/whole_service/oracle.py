"""The verdicts: which entries may be sent and which must be, judged from the requests of clients alone.

The oracle uses no code of the dispatcher or the tracker. Slots are computed anew, order is that of sorted lists, and
the entries in a consumer's hands follow from those that were sent. Cursors and the log are asked in two cases, both of
which a kill leaves open: which entries and which acknowledgements were durable. Even then the answer must be a possible
one.

Invariants are those of ARCHITECTURE.md, section 9; each complaint names the promise.
"""

import bisect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dispatcher.consumer import Delivery
from managed_ledger.entries.headers import CHUNK, LAST_CHUNK, MESSAGE_SHIFT, NO_CHUNK, NOT_DELAYED
from managed_ledger.positions.value_types import Clock
from postdate.broker.topics.pause import NOT_PAUSED, PauseState
from tests.simulation.whole_service.clients import SimulatedConsumer
from tests.simulation.whole_service.variants import (
    CLASSIC,
    DRAINING,
    EXCLUSIVE,
    FAILOVER,
    LAST_SENT,
    SHARED,
    STICKY,
    has_delays,
)

Key = tuple[int, int]
Content = Callable[[bytes], bytes]
"""Returns what a producer wrote of an entry."""

_LATE_MS_MAX = 100
"""Some calls of a log that takes 10 ms each."""

_GRANT_S = 0.02
"""The time of one portion of a rate."""

DELAYED_ORDER_GRACE_S = 0.5
"""An entry that was durable so long before a later one became deliverable has been read by then."""


@dataclass(slots=True, eq=False)
class PublishedEntry:
    """An entry as a client published it."""

    key: Key
    payload: bytes
    hash: int
    deliver_at_ms: int
    count: int
    published_ms: int
    published_at: float
    committed_at: float | None = None
    """In seconds of the loop; None while it may be lost."""
    copy_of: Key | None = None
    """The entry that it replaces with another time."""
    flags: int = NO_CHUNK
    """Those of its header: whether it is a chunk, and of which message."""
    own_id: str | None = None
    """The id that its producer gave it."""

    @property
    def message(self) -> int | None:
        """The message of which it is a chunk; None if it is whole."""
        return self.flags >> MESSAGE_SHIFT if self.flags & CHUNK else None

    @property
    def is_delayed(self) -> bool:
        return self.deliver_at_ms != NOT_DELAYED

    @property
    def everything(self) -> int:
        """All messages of it, as bits."""
        return (1 << self.count) - 1


def bits_of(words: Iterable[int]) -> int:
    """Return an ack set of signed words of 64 bits as one number."""
    return sum((word & (2**64 - 1)) << (64 * place) for place, word in enumerate(words))


def words_of(bits: int) -> tuple[int, ...]:
    """Return a number as signed words of 64 bits, without zero words at the end."""
    words = []
    while bits:
        word = bits & (2**64 - 1)
        words.append(word - 2**64 if word >= 2**63 else word)
        bits >>= 64
    return tuple(words)


@dataclass(slots=True, eq=False)
class InHand:
    """An entry that a consumer was sent and that is not acknowledged."""

    consumer: SimulatedConsumer
    given_at: float


@dataclass(slots=True)
class OffPeriod:
    """A time in which delays were off."""

    keeps_through: Key
    """The last position of which delivery times were heeded all the same."""
    end_s: float = float("inf")


class Newcomer(NamedTuple):
    """The wait of a consumer that joined others (PIP-282, and the classic mode)."""

    bound: Key
    """The first position that it may not get meanwhile."""
    awaited: list[Key]
    """Entries that must be acknowledged first."""


@dataclass(slots=True)
class SmoothResume:
    """Deliveries go on with so many messages a second."""

    rate_per_second: float
    since_s: float
    held: set[Key]
    """Entries that were due and waited when they went on, and are not sent yet: they come at the rate."""

    sent: int = 0
    """How many messages have been."""

    largest: int = 1
    """The messages of the largest batch among them. It goes as a whole; messages of before may arrive behind it."""


class SubscriptionModel:
    """The state that one subscription must have."""

    def __init__(self, name: str, kind: str, *, uses_points: bool) -> None:
        self.name = name
        self.kind = kind
        self.uses_points = uses_points
        self.acknowledged: set[Key] = set()
        self.remaining: dict[Key, int] = {}
        """Of batches of which a part is acknowledged: the rest."""
        self.in_hand: dict[Key, InHand] = {}
        self.held_by: dict[SimulatedConsumer, dict[Key, None]] = {}
        """The same by consumer; its messages are counted in `messages_held`."""
        self.messages_held: dict[SimulatedConsumer, int] = {}
        self.remembered: dict[Key, int] = {}
        """Messages that clients were sent and have not acknowledged, as they see it, also after a reconnect."""
        self.exempt: set[Key] = set()
        """Entries that were asked for again one by one: they may come later than their place."""
        self.immediate: dict[int, list[Key]] = {}
        self.delayed: dict[int, list[tuple[int, Key]]] = {}
        """Waiting entries, by slot and in order: committed, not acknowledged, in no consumer's hands."""
        self.holders: dict[int, dict[SimulatedConsumer, int]] = {}
        """By slot, how many entries which consumers have in hand."""
        self.begun: dict[int, SimulatedConsumer] = {}
        """Of messages in chunks, the consumer that has the first ones and not the last; for Shared."""
        self.consumers: list[SimulatedConsumer] = []
        self.seeks_seen = 0
        self.pending_seek: Key | None = None
        self.before_seek: set[Key] | None = None
        """Entries that were acknowledged before a seek that is not answered yet."""
        self.stored: set[Key] = set()
        """Entries that the cursor's record has for acknowledged, and a kill leaves so."""
        self.synced: set[Key] = set()
        """The same of a power cut."""
        self.passed: Key = (-1, -1)
        """The highest position that a seek, skip or cumulative acknowledgement was allowed to pass."""
        self.expiring: int | None = None
        """While entries expire: the latest time at which one can have died."""
        self.membership_changed_at = 0.0
        self.off_periods: list[OffPeriod] = []
        """When delays were off, and which entries kept their time."""
        self.sent: set[Key] = set()
        """Entries that were sent since the dispatcher began or had no consumers."""
        self.newcomers: dict[SimulatedConsumer, Newcomer] = {}
        """Of kinds in which newcomers wait for what others hold."""
        self.is_busy = False
        self.joining = 0
        """How many consumers are on their way to it."""
        self.deliveries = 0
        self.is_paused = False
        self.smooth: SmoothResume | None = None
        self.unsent: set[Key] = set()
        """Entries given to consumers, and not sent yet, when deliveries were paused or resumed."""
        self.is_pausing = False
        """Whether a pause or its end is not durable yet."""
        self.pauses_possible: set[PauseState] = {NOT_PAUSED}
        """The pauses that a restart may find."""
        self.got_when_due: set[Key] = set()
        """Entries that consumers were sent after their time: no copy of them may be made."""
        self.replaced: dict[Key, Key] = {}
        """Copies, by the entries that gave way to them."""
        self.hidden: set[Key] = set()
        """Copies that other subscriptions get."""
        self.buckets_of: object = None
        self.buckets_before = 0
        """The buckets when no rows were loaded, less those that its tracker had made until then."""
        self.on_time_since_s = float("inf")
        """From when on what falls due has to be sent at once."""

    @property
    def is_single(self) -> bool:
        return self.kind in (EXCLUSIVE, FAILOVER)

    @property
    def is_ordered(self) -> bool:
        """Whether the order of a key is promised, and one consumer per key."""
        return self.kind in (DRAINING, STICKY, EXCLUSIVE, FAILOVER)

    def slot(self, entry: PublishedEntry) -> int:
        """Return the slot that is ordered; one for all entries of kinds without keys."""
        if self.kind in (SHARED, EXCLUSIVE, FAILOVER):
            return 0
        if self.uses_points and self.kind != STICKY:
            return entry.hash % 65_535 + 1
        return entry.hash % 65_536 or 1

    # Waiting entries.

    def let_wait(self, entry: PublishedEntry) -> None:
        """Note that an entry is to be sent."""
        slot = self.slot(entry)
        if entry.is_delayed and has_delays(self.kind):
            bisect.insort(self.delayed.setdefault(slot, []), (entry.deliver_at_ms, entry.key))
        else:
            bisect.insort(self.immediate.setdefault(slot, []), entry.key)

    def wait_no_more(self, entry: PublishedEntry) -> None:
        """Note that it is not."""
        slot = self.slot(entry)
        if entry.is_delayed and has_delays(self.kind):
            _remove(self.delayed.get(slot, []), (entry.deliver_at_ms, entry.key))
        else:
            _remove(self.immediate.get(slot, []), entry.key)

    def waiting(self) -> set[Key]:
        """Return which entries are to be sent."""
        immediate = {key for keys in self.immediate.values() for key in keys}
        return immediate | {key for rows in self.delayed.values() for _, key in rows}

    # Entries in the hands of consumers.

    def give(self, entry: PublishedEntry, consumer: SimulatedConsumer, at: float) -> None:
        self.in_hand[entry.key] = InHand(consumer, at)
        self.held_by.setdefault(consumer, {})[entry.key] = None
        self.messages_held[consumer] = self.messages_held.get(consumer, 0) + self.left_of(entry)
        holders = self.holders.setdefault(self.slot(entry), {})
        holders[consumer] = holders.get(consumer, 0) + 1

    def take(self, entry: PublishedEntry) -> bool:
        """Note that no consumer has it in hand; return whether one had."""
        held = self.in_hand.pop(entry.key, None)
        if held is None:
            return False
        self.held_by[held.consumer].pop(entry.key)
        self.messages_held[held.consumer] -= self.left_of(entry)
        holders = self.holders[self.slot(entry)]
        holders[held.consumer] -= 1
        if not holders[held.consumer]:
            del holders[held.consumer]
        return True

    def left_of_set(self, entry: PublishedEntry) -> int:
        """Return which messages of an entry are not acknowledged, as bits."""
        return self.remaining.get(entry.key, entry.everything)

    def left_of(self, entry: PublishedEntry) -> int:
        """Return how many messages of an entry are not acknowledged."""
        return self.left_of_set(entry).bit_count()


def _remove(found: list, one: object) -> None:  # type: ignore[type-arg]
    at = bisect.bisect_left(found, one)
    if at < len(found) and found[at] == one:
        del found[at]


@dataclass(slots=True)
class Times:
    """The clocks as the oracle sees them."""

    now_s: Callable[[], float]
    now_ms: Clock
    peaks: list[tuple[float, int]] = field(default_factory=list)
    """When the clock was put back, and how late it was before."""


class Oracle:
    """Judges every delivery, and says what is missing."""

    def __init__(
        self,
        times: Times,
        complain: Callable[[str], None],
        *,
        tick_ms: int,
        uses_points: bool,
        unacked_max: int,
        keeps_times_in_order: bool,
        precision_ms: int,
        unacked_per_subscription_max: int,
        has_clock_steps: bool,
    ) -> None:
        self.entries: dict[Key, PublishedEntry] = {}
        self.subs: dict[str, SubscriptionModel] = {}
        self.delays_off_at = float("-inf")
        """When delays were switched off last; infinite while they are."""
        self.order_since = 0.0
        """From when on nothing has disturbed the order of time."""
        self.complain = complain
        self.deliveries = 0
        self.late_ms_max = _LATE_MS_MAX + precision_ms
        """How late a message may be that a consumer waits for."""
        self._moved_messages: set[int] = set()
        """Messages in chunks of which one has another time than the others, as no client can make it."""
        self.worst_late_ms = 0
        self.indexed_late: set[Key] = set()
        """Entries that some snapshot has at a later time than the log: these are late by it, and no others."""
        self.indexed_early: set[Key] = set()
        """Entries that some snapshot has at an earlier time than the log."""
        self._times = times
        self._tick_ms = tick_ms
        self._uses_points = uses_points
        self._unacked_max = unacked_max
        self._precision_ms = precision_ms
        self._unacked_per_subscription_max = unacked_per_subscription_max
        self._has_clock_steps = has_clock_steps
        self._keeps_times_in_order = keeps_times_in_order

    def note_tick(self, tick_ms: int) -> None:
        """Note another tick: the longest one ever blurs the times, where they are not strict or the index is coarse."""
        if self._tick_ms:
            self._tick_ms = max(self._tick_ms, tick_ms)
        if self._precision_ms:
            self._precision_ms = max(self._precision_ms, tick_ms)
            self.late_ms_max = _LATE_MS_MAX + self._precision_ms

    # Publishing.

    def appended(self, entry: PublishedEntry) -> None:
        assert entry.key not in self.entries
        self.entries[entry.key] = entry

    def committed(self, entry: PublishedEntry, is_acknowledged: Callable[[SubscriptionModel, Key], bool]) -> None:
        """Note that an entry is durable; every subscription must get it that has not passed it already."""
        for sub in self.subs.values():
            self.sync(sub)
        entry.committed_at = self._times.now_s()
        for sub in self.subs.values():
            if entry.key <= sub.passed and is_acknowledged(sub, entry.key):
                sub.acknowledged.add(entry.key)
            elif entry.key not in sub.acknowledged:
                sub.let_wait(entry)

    def never_was(self, entry: PublishedEntry) -> None:
        """Note that an entry was lost before it was durable."""
        del self.entries[entry.key]
        for sub in self.subs.values():
            sub.acknowledged.discard(entry.key)
            sub.hidden.discard(entry.key)

    def gone(self, ledger_ids: set[int]) -> None:
        """Note which ledgers were trimmed: all subscriptions must have acknowledged all of them."""
        for entry in [entry for entry in self.entries.values() if entry.key[0] in ledger_ids]:
            for sub in self.subs.values():
                if entry.committed_at is not None and entry.key not in sub.acknowledged:
                    self.complain(f"{sub.name}: {entry.key} was trimmed and is not acknowledged")
                sub.acknowledged.discard(entry.key)
                sub.remaining.pop(entry.key, None)
                sub.remembered.pop(entry.key, None)
                sub.replaced.pop(entry.key, None)
                sub.hidden.discard(entry.key)
                sub.got_when_due.discard(entry.key)
            del self.entries[entry.key]

    # Subscriptions.

    def new_subscription(self, name: str, kind: str, first: Key) -> SubscriptionModel:
        sub = self.subs[name] = SubscriptionModel(name, kind, uses_points=self._uses_points)
        if self.delays_off_at > self._times.now_s():
            sub.off_periods.append(OffPeriod((-1, -1)))
        self.begin_at(sub, first)
        return sub

    def begin_at(self, sub: SubscriptionModel, first: Key) -> None:
        """Let all entries before a position be acknowledged and no others; no consumer has one in hand."""
        # The cursor does not know entries that are not durable yet.
        known = {key for key, entry in self.entries.items() if key < first and entry.committed_at is not None}
        # An entry that is being replaced is gone for all subscriptions, also if an event comes in between.
        under_way = {old: new for old, new in sub.replaced.items() if not self._is_committed(new)}
        known |= under_way.keys() & self.entries.keys()
        sub.hidden = {key for key in sub.hidden if not self._is_committed(key)}
        known |= sub.hidden & self.entries.keys()
        sub.replaced = under_way
        sub.got_when_due.clear()
        self.begin_with(sub, known)
        sub.passed = max(sub.passed, first)

    def _is_committed(self, key: Key) -> bool:
        entry = self.entries.get(key)
        return entry is None or entry.committed_at is not None

    def begin_with(self, sub: SubscriptionModel, acknowledged: set[Key]) -> None:
        """Let exactly these be acknowledged; no consumer has an entry in hand."""
        sub.acknowledged = acknowledged
        sub.remaining = {}
        sub.in_hand.clear()
        sub.held_by.clear()
        sub.messages_held.clear()
        sub.holders.clear()
        sub.exempt.clear()
        sub.sent.clear()
        sub.newcomers.clear()
        sub.immediate.clear()
        sub.delayed.clear()
        for key in sorted(self.entries.keys() - acknowledged):
            if self.entries[key].committed_at is not None:
                sub.let_wait(self.entries[key])

    seeks_of: Callable[[SubscriptionModel], int]
    """How often a subscription's cursor was sought; set by the simulation, which has the cursors."""
    attached: Callable[[SubscriptionModel], list[SimulatedConsumer]]
    """The consumers that are attached to it."""
    rate_of: Callable[[SubscriptionModel], float | None]
    """The rate with which its dispatcher sends, None without a limit."""

    def sync(self, sub: SubscriptionModel) -> None:
        """Catch up with what was asked for and has taken effect by now: a seek, consumers that left."""
        attached = self.attached(sub)
        if len(attached) != len(sub.consumers) or attached != sub.consumers:
            for consumer in sub.consumers:
                if consumer not in attached:
                    self._left(sub, consumer)
            if sub.kind in WAITS_FOR_OTHERS and sub.consumers and set(sub.consumers) <= set(attached):
                newcomer = self._newcomer(sub)
                sub.newcomers |= {one: newcomer for one in attached if one not in sub.consumers}
            if not attached:
                sub.sent.clear()
            sub.consumers = list(attached)
            sub.membership_changed_at = self._times.now_s()
        seeks = self.seeks_of(sub)
        if seeks != sub.seeks_seen:
            sub.seeks_seen = seeks
            if sub.pending_seek is None:
                self.complain(f"{sub.name}: the cursor was sought without a request")
            else:
                sub.before_seek = sub.acknowledged
                self.begin_at(sub, sub.pending_seek)
                sub.pending_seek = None
                sub.stored = sub.synced = set(sub.acknowledged)

    def _newcomer(self, sub: SubscriptionModel) -> Newcomer:
        """Return what a consumer has to wait for at least that joins now, as far as it can be seen from outside."""
        durable = sorted(key for key, entry in self.entries.items() if entry.committed_at is not None)
        end = (durable[-1][0], durable[-1][1] + 1) if durable else (0, 0)
        if sub.kind == LAST_SENT:
            bound = next((key for key in durable if key not in sub.acknowledged and key not in sub.sent), end)
            return Newcomer(bound, [key for key in durable if key < bound and key not in sub.acknowledged])
        # Where reading has come to is not known, but that it is behind what was sent and not beyond the end.
        return Newcomer(end, [key for key in sub.in_hand if not self.entries[key].is_delayed])

    def became_active(self, sub: SubscriptionModel) -> None:
        """Note that another consumer is active now: it gets everything that is not acknowledged."""
        self.released(sub, list(sub.in_hand), are_exempt=False)

    def _left(self, sub: SubscriptionModel, consumer: SimulatedConsumer) -> None:
        self.released(sub, list(sub.held_by.get(consumer, ())), are_exempt=False)
        sub.held_by.pop(consumer, None)
        sub.messages_held.pop(consumer, None)

    def released(self, sub: SubscriptionModel, keys: Iterable[Key], *, are_exempt: bool) -> None:
        """Note that the consumers that have these entries in hand gave them back."""
        # With them goes what was given to it and not sent yet: then more was sent than can be seen from outside.
        sub.newcomers.clear()
        for key in keys:
            entry = self.entries[key]
            if sub.take(entry):
                sub.let_wait(entry)
                if are_exempt:
                    sub.exempt.add(key)

    # Acknowledgements.

    def acknowledged(self, sub: SubscriptionModel, keys: Iterable[Key]) -> None:
        """Note that entries are wholly acknowledged."""
        for key in keys:
            entry = self.entries.get(key)
            if entry is None or key in sub.acknowledged:
                continue
            if not sub.take(entry):
                sub.wait_no_more(entry)
            sub.acknowledged.add(key)
            sub.remaining.pop(key, None)
            sub.exempt.discard(key)

    def acknowledged_part(self, sub: SubscriptionModel, key: Key, left: int) -> None:
        """Note that of an entry only these messages are not acknowledged by this client."""
        entry = self.entries[key]
        if key in sub.acknowledged:
            return
        before = sub.remaining.get(key, entry.everything)
        now = before & left
        if not now:
            self.acknowledged(sub, [key])
            return
        held = sub.in_hand.get(key)
        if held is not None:
            sub.messages_held[held.consumer] -= before.bit_count() - now.bit_count()
        sub.remaining[key] = now

    # Scheduled messages.

    def replaced(
        self,
        copies: Sequence[PublishedEntry],
        gone: Mapping[str, Collection[Key]],
        content: Content,
        has_cursor: Callable[[SubscriptionModel], bool],
    ) -> None:
        """Note that entries give way to copies for some subscriptions: no consumer may have them, or get them again.

        The copies are hidden from the others, but for a subscription that is being made.
        """
        for copy in copies:
            old = None if copy.copy_of is None else self.entries[copy.copy_of]
            if old is not None:
                is_same = content(copy.payload) == content(old.payload)
                if not is_same or (copy.hash, copy.count) != (old.hash, old.count):
                    self.complain(f"{copy.key} is no copy of {old.key}")
            self.appended(copy)
            if copy.message is not None:
                self._moved_messages.add(copy.message)
            for sub in self.subs.values():
                if old is not None and old.key in gone.get(sub.name, ()):
                    self._gives_way(sub, old.key, copy.key)
                elif has_cursor(sub):
                    sub.hidden.add(copy.key)
                    sub.acknowledged.add(copy.key)

    def took_place(self, new: PublishedEntry, gone: Mapping[str, Collection[Key]]) -> None:
        """Note that a message was scheduled in place of those of its own id."""
        self.appended(new)
        for name, olds in gone.items():
            for old in olds:
                if self.entries[old].own_id != new.own_id:
                    self.complain(f"{new.key} took the place of {old}, which has another id")
                self._gives_way(self.subs[name], old, new.key, may_have_been_sent=True)

    def _gives_way(self, sub: SubscriptionModel, old: Key, copy: Key, *, may_have_been_sent: bool = False) -> None:
        self.sync(sub)
        held = sub.in_hand.get(old)
        if held is not None:
            self.complain(f"{sub.name}: {old} was replaced by {copy} while {held.consumer.name} holds it")
        elif old in sub.acknowledged:
            self.complain(f"{sub.name}: {old} was replaced by {copy} and is acknowledged")
        elif old in sub.got_when_due and not self._has_clock_steps and not may_have_been_sent:
            self.complain(f"{sub.name}: {old} was replaced by {copy} and was sent before")
        self.acknowledged(sub, [old])
        sub.replaced[old] = copy

    def cancelled(self, sub: SubscriptionModel, keys: Collection[Key]) -> None:
        """Judge a cancel: a message that a consumer has cannot be prevented any more."""
        for key in keys:
            held = sub.in_hand.get(key)
            if held is not None:
                self.complain(f"{sub.name}: {key} was cancelled while {held.consumer.name} holds it")
        self.acknowledged(sub, keys)

    def paused(self, sub: SubscriptionModel, unsent: set[Key]) -> None:
        """Note that deliveries are held, but for what consumers have been given."""
        sub.is_paused, sub.smooth, sub.unsent = True, None, unsent

    def resumed(self, sub: SubscriptionModel, rate_per_second: float | None, unsent: set[Key]) -> None:
        """Note that deliveries go on."""
        sub.is_paused, sub.unsent = False, unsent
        sub.smooth = None
        if rate_per_second is not None:
            held = {entry.key for entry in self.overdue(sub, since_s=0)} - unsent
            sub.smooth = SmoothResume(rate_per_second, self._times.now_s(), held)

    def _judge_pause(self, sub: SubscriptionModel, entry: PublishedEntry) -> None:
        if entry.key in sub.unsent:
            sub.unsent.discard(entry.key)
            return
        if sub.is_paused:
            self.complain(f"{sub.name}: {entry.key} was sent although deliveries are paused")
        smooth = sub.smooth
        if smooth is None:
            return
        is_held = entry.key in smooth.held
        smooth.held.discard(entry.key)
        if self.rate_of(sub) is None:
            # It is over when nothing waits any more. Entries held from the first have been given then, at the rate.
            if not smooth.held:
                sub.smooth = None
            if not is_held:
                return
        # A clock that is put forth grants more.
        # A rate is granted in portions, and the rest of two of them is kept where the same rate is asked for again.
        most = smooth.rate_per_second * (self._times.now_s() - smooth.since_s + 2 * _GRANT_S) + smooth.largest
        if smooth.sent > most and not self._has_clock_steps:
            self.complain(
                f"{sub.name}: {smooth.sent} messages were sent in {self._times.now_s() - smooth.since_s:.3f} s before "
                f"{entry.key}, at {smooth.rate_per_second} messages a second"
            )
        smooth.sent += entry.count
        smooth.largest = max(smooth.largest, entry.count)

    def mark_delete_moved(self, sub: SubscriptionModel, through: Key) -> None:
        """Judge a move of the mark-delete position: a client must have asked for it."""
        self.sync(sub)
        late = list(self._waiting_through(sub, through))
        late += [key for key in sub.in_hand if key <= through]
        if not late:
            return
        for key in late:
            entry = self.entries[key]
            if sub.expiring is None or max(entry.published_ms, entry.deliver_at_ms) > sub.expiring:
                self.complain(f"{sub.name}: {key} counts as acknowledged, without an acknowledgement")
        self.acknowledged(sub, late)

    def _waiting_through(self, sub: SubscriptionModel, through: Key) -> list[Key]:
        found = []
        for keys in sub.immediate.values():
            found += keys[: bisect.bisect_right(keys, through)]
        for rows in sub.delayed.values():
            found += [key for _, key in rows if key <= through]
        return found

    # Deliveries.

    def delivered(self, sub: SubscriptionModel, consumer: SimulatedConsumer, delivery: Delivery) -> None:
        """Judge one delivery."""
        self.deliveries += 1
        sub.deliveries += 1
        key = (delivery.ledger_id, delivery.entry_id)
        entry = self.entries.get(key)
        if entry is None or entry.committed_at is None or entry.payload != delivery.payload:
            self.complain(f"{sub.name}: {key} was sent, and is not what was published")
            return
        if consumer not in sub.consumers:
            self.complain(f"{sub.name}: {key} was sent to {consumer.name}, which is not attached")
            return
        if consumer.messages_asked - consumer.messages_got <= 0:
            self.complain(f"{sub.name}: {key} was sent to {consumer.name}, which had no permits")
        consumer.messages_got += entry.count
        if key in sub.acknowledged:
            self.complain(f"{sub.name}: {key} was sent to {consumer.name} and is acknowledged (item 9)")
            return
        self._judge_time(sub, entry)
        self._judge_lateness(sub, entry)
        self._judge_pause(sub, entry)
        self._judge_hands(sub, entry, consumer)
        if self._unacked_max and not sub.is_single and sub.messages_held.get(consumer, 0) >= self._unacked_max:
            self.complain(f"{sub.name}: {key} was sent to {consumer.name}, which holds too many")
        left = sub.remaining.get(key, entry.everything)
        shown = bits_of(delivery.ack_set) if delivery.ack_set else entry.everything
        if shown != left:
            self.complain(
                f"{sub.name}: {key} was sent with messages {shown:b}, and {left:b} are not acknowledged (item 9)"
            )
        if sub.is_ordered:
            self._judge_order(sub, entry)
        if consumer in sub.newcomers:
            self._judge_newcomer(sub, entry, consumer)
        sub.sent.add(key)
        sub.wait_no_more(entry)
        sub.exempt.discard(key)
        sub.give(entry, consumer, self._times.now_s())
        sub.remembered[key] = left
        if self._times.now_ms() >= entry.deliver_at_ms - self._tick_ms:
            sub.got_when_due.add(key)
        self._judge_unacked(sub)

    def _judge_time(self, sub: SubscriptionModel, entry: PublishedEntry) -> None:
        if not entry.is_delayed or not has_delays(sub.kind) or self.is_due(entry):
            return
        if self.may_be_undelayed(sub, entry):
            return
        self.complain(
            f"{sub.name}: {entry.key} was sent {entry.deliver_at_ms - self._times.now_ms()} ms before its time"
        )

    def _judge_lateness(self, sub: SubscriptionModel, entry: PublishedEntry) -> None:
        """Where a consumer with permits waits and nothing else is going on, what falls due comes at once."""
        if entry.key in self.indexed_late:
            return
        if entry.is_delayed and has_delays(sub.kind) and self._due_at_s(entry) >= sub.on_time_since_s:
            late_ms = self._times.now_ms() - entry.deliver_at_ms
            self.worst_late_ms = max(self.worst_late_ms, late_ms)
            if late_ms > self.late_ms_max:
                self.complain(f"{sub.name}: {entry.key} was sent {late_ms} ms late to a consumer that waited")

    def _judge_unacked(self, sub: SubscriptionModel) -> None:
        """The last entry may go beyond the limit of a subscription, and no entry may follow it."""
        limit = self._unacked_per_subscription_max
        if not limit or sub.is_single:
            return
        held = sum(sub.messages_held.values())
        if held >= limit and held - max(sub.left_of(self.entries[key]) for key in sub.in_hand) >= limit:
            self.complain(f"{sub.name}: its consumers hold {held} messages, of {limit} that they may")

    def is_due(self, entry: PublishedEntry) -> bool:
        """Whether its time has come, or had before the clock was put back."""
        earliest_ms = entry.deliver_at_ms - self._tick_ms
        if self._times.now_ms() >= earliest_ms:
            return True
        return any(at >= entry.published_at and peak >= earliest_ms for at, peak in self._times.peaks)

    def may_be_undelayed(self, sub: SubscriptionModel, entry: PublishedEntry) -> bool:
        """Whether delays were off when it was published, or later, and it is not of those that keep their times."""
        return any(entry.published_at <= off.end_s and entry.key > off.keeps_through for off in sub.off_periods)

    def _were_delays_off(self, entry: PublishedEntry) -> bool:
        """Whether delays were off at some time since it was published: it may have been due then."""
        return self.delays_off_at >= entry.published_at

    def _judge_hands(self, sub: SubscriptionModel, entry: PublishedEntry, consumer: SimulatedConsumer) -> None:
        if sub.is_single:
            others = [other for other, keys in sub.held_by.items() if keys and other is not consumer]
            if others:
                self.complain(f"{sub.name}: {entry.key} was sent to {consumer.name}, and {others[0].name} is active")
            if entry.key in sub.in_hand:
                self.complain(f"{sub.name}: {entry.key} was sent twice")
                sub.take(entry)
            return
        held = sub.in_hand.get(entry.key)
        if held is not None:
            self.complain(f"{sub.name}: {entry.key} was sent to {consumer.name} while {held.consumer.name} holds it")
            sub.take(entry)
        if sub.kind == SHARED and entry.message is not None:
            self._judge_chunk(sub, entry, entry.message, consumer)
        if sub.is_ordered:
            others = [other for other in sub.holders.get(sub.slot(entry), ()) if other is not consumer]
            if others:
                self.complain(
                    f"{sub.name}: {entry.key} was sent to {consumer.name} while {others[0].name} holds others of its "
                    "slot"
                )

    def _judge_chunk(
        self, sub: SubscriptionModel, entry: PublishedEntry, message: int, consumer: SimulatedConsumer
    ) -> None:
        """One consumer gets the chunks of a message, from its first one to the last, while it has one of them."""
        if message in self._moved_messages:
            return
        owner = sub.begun.get(message)
        held = () if owner is None or owner is consumer else sub.held_by.get(owner, ())
        if owner is not None and any(self.entries[key].message == message for key in held):
            self.complain(
                f"{sub.name}: chunk {entry.key} was sent to {consumer.name}, {owner.name} has begun its message"
            )
        if entry.flags & LAST_CHUNK:
            sub.begun.pop(message, None)
        else:
            sub.begun[message] = consumer

    def _judge_order(self, sub: SubscriptionModel, entry: PublishedEntry) -> None:
        slot = sub.slot(entry)
        if not (entry.is_delayed and has_delays(sub.kind)):
            for key in sub.immediate.get(slot, ()):
                if key >= entry.key:
                    break
                if key not in sub.exempt:
                    self.complain(f"{sub.name}: {entry.key} was sent before {key} of the same key (item 3)")
                    break
            return
        if not self._keeps_times_in_order:
            return
        deliverable_s = max(entry.committed_at or 0.0, self._due_at_s(entry) - self._tick_ms / 1_000)
        if entry.deliver_at_ms - self._tick_ms > self._times.now_ms():
            # It was due and read before the clock was put back, and others have their times before it since.
            return
        if deliverable_s < self.order_since or self._were_delays_off(entry):
            return
        for deliver_at_ms, key in sub.delayed.get(slot, ()):
            if (deliver_at_ms + self._precision_ms, key) >= (entry.deliver_at_ms, entry.key):
                break
            if deliver_at_ms - self._tick_ms > self._times.now_ms():
                # The clock was put back: what had been read as due before that is sent, what was tracked waits again.
                break
            committed_at = self.entries[key].committed_at
            assert committed_at is not None
            if key in sub.exempt or key in self.indexed_late:
                continue
            if max(committed_at, self.order_since) + DELAYED_ORDER_GRACE_S <= deliverable_s:
                self.complain(f"{sub.name}: {entry.key} was sent before {key} of the same key, which was due before it")
                break

    def _judge_newcomer(self, sub: SubscriptionModel, entry: PublishedEntry, consumer: SimulatedConsumer) -> None:
        bound, awaited = sub.newcomers[consumer]
        # Trimmed entries are acknowledged by all subscriptions.
        left = next((key for key in awaited if key in self.entries and key not in sub.acknowledged), None)
        if left is None:
            del sub.newcomers[consumer]
        elif entry.key >= bound:
            self.complain(
                f"{sub.name}: {entry.key} was sent to {consumer.name}, which joined before that was sent, and {left} "
                "is not acknowledged"
            )

    def _due_at_s(self, entry: PublishedEntry) -> float:
        """Return when its time came, in seconds of the loop; the clock has not been put back or forth since then."""
        return self._times.now_s() - (self._times.now_ms() - entry.deliver_at_ms) / 1_000

    # Missing deliveries.

    def overdue(self, sub: SubscriptionModel, *, since_s: float) -> list[PublishedEntry]:
        """Return waiting entries that were deliverable for so long, oldest first."""
        now_s, now_ms = self._times.now_s(), self._times.now_ms()
        found = []
        for keys in sub.immediate.values():
            found += [entry for key in keys if now_s - ((entry := self.entries[key]).committed_at or now_s) >= since_s]
        for rows in sub.delayed.values():
            for deliver_at_ms, key in rows:
                entry = self.entries[key]
                if now_ms - deliver_at_ms >= since_s * 1_000 and now_s - (entry.committed_at or now_s) >= since_s:
                    found.append(entry)
        return sorted(found, key=lambda entry: entry.key)

    def future(self, sub: SubscriptionModel) -> list[PublishedEntry]:
        """Return what waits for its time."""
        now_ms = self._times.now_ms()
        return [
            self.entries[key] for rows in sub.delayed.values() for deliver_at_ms, key in rows if deliver_at_ms > now_ms
        ]

    def future_counts(self, sub: SubscriptionModel) -> tuple[int, int]:
        """Return how many entries wait for their time at least and at most.

        A tick may blur what is due just now, and what was published while delays were off may be due.
        """
        now_ms = self._times.now_ms()
        rows = [row for rows in sub.delayed.values() for row in rows]
        least = sum(
            deliver_at_ms > now_ms + self._tick_ms and not self._were_delays_off(self.entries[key])
            for deliver_at_ms, key in rows
        )
        # An index with a later time than the log counts a message until then.
        return least, sum(
            deliver_at_ms > now_ms - self._precision_ms or key in self.indexed_late for deliver_at_ms, key in rows
        )

    def backlog(self, sub: SubscriptionModel) -> int:
        """Return how many committed entries are not acknowledged."""
        return sum(map(len, sub.immediate.values())) + sum(map(len, sub.delayed.values())) + len(sub.in_hand)


WAITS_FOR_OTHERS = (CLASSIC, LAST_SENT)
"""Kinds in which a newcomer waits for the entries that others hold, of all keys."""
