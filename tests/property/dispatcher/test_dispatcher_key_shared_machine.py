"""A Key_Shared core under any order of events, with the invariants of PIP-34 and PIP-379 after every step.

The machine plays the shell: a read and a poll of the tracker are begun in one step and completed in a later one, so
that joins, leaves, acknowledgements and redeliveries fall in between. Assigned entries are sent later than they were
assigned. Held entries are admitted in a step of their own, or, where the machine is prompt, at the end of each, as the
shell does: then nothing may overtake them. At the end all consumers are served, and all published entries must have
been acknowledged.
"""

from collections import Counter
from dataclasses import dataclass, field
from itertools import compress

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyroaring import BitMap

from dispatcher.config import LAST_SENT_POSITION, DispatcherConfig, SubscriptionType
from dispatcher.core.actions import Action, Deliver, ForgetDelayed, TrackDelayed
from dispatcher.core.consumers import ConsumerState
from dispatcher.core.fences.draining_hashes import DrainingHashesTracker
from dispatcher.core.fences.recently_joined import RecentlyJoinedFence
from dispatcher.core.items import COUNT, ORDER, SLOT, Item, Key, position_of
from dispatcher.core.key_shared import KeySharedAssignor
from dispatcher.core.multiple_consumers import MultipleConsumersCore
from dispatcher.core.read_plan import LogPart, ReadRequest
from dispatcher.core.selectors.assignment import NO_OWNER
from dispatcher.factory import make_core
from dispatcher.slots import CONSISTENT_HASHING_RANGE, SLOTS_END
from managed_ledger.entries.headers import (
    CHUNK,
    LAST_CHUNK,
    MESSAGE_SHIFT,
    NO_CHUNK,
    NOT_DELAYED,
    EntryHeaders,
)
from managed_ledger.ledgers import LedgerInfo
from managed_ledger.positions.position import Position
from snapshot_storage.encoding.columns import DelayedIndexes

_ENTRIES_PER_LEDGER = 6
_START_MS = 1_000_000
_KEY_HASH, _KEY_STEP = 5, 7919
"""The hash of the first key, and how far the next one is."""


@dataclass
class _Entry:
    position: Position
    key_hash: int
    deliver_at_ms: int
    publish_time_ms: int
    message_count: int
    flags: int


@dataclass
class _Client:
    """A consumer as its own side sees it."""

    state: ConsumerState
    permits: int = 0
    unsent: list[Item] = field(default_factory=list)
    held: list[Key] = field(default_factory=list)


class _Machine(RuleBasedStateMachine):
    core: MultipleConsumersCore
    is_prompt = False
    """Whether held entries are admitted at the end of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[_Entry] = []
        self.now_ms = _START_MS
        self.clients: list[_Client] = []
        self.acknowledged: set[Key] = set()
        self.tracked: dict[Key, int] = {}
        self.read: tuple[ReadRequest, list[_Entry], dict[int, list[Position]], Position] | None = None
        self.recovering: set[int] = set()
        self.popped: list[_Entry] | None = None
        self.first_given: dict[int, list[Item]] = {}
        self.given: set[Key] = set()
        self.ready: set[Key] = set()
        self.unordered_slots: set[int] = set()
        self.stays_held = True
        """Whether held entries had to stay at the end of the last step, and not for want of consumers that take any."""
        self.indices = 0
        self.draining: dict[int, int] = {}
        self.cleared: Counter[int] = Counter()

    @property
    def keys(self) -> KeySharedAssignor | None:
        """The assignor, where keys decide."""
        assignor = self.core.assignor if hasattr(self, "core") else None
        return assignor if isinstance(assignor, KeySharedAssignor) else None

    # The log.

    @rule(
        key=st.integers(0, 5),
        delay_ms=st.one_of(st.none(), st.integers(-50, 200)),
        clock_error_ms=st.integers(-30, 30),
        messages=st.sampled_from([1, 1, 1, 3]),
    )
    def publish(self, key: int, delay_ms: int | None, clock_error_ms: int, messages: int) -> None:
        number = len(self.log)
        position = Position(number // _ENTRIES_PER_LEDGER + 1, number % _ENTRIES_PER_LEDGER)
        due = NOT_DELAYED if delay_ms is None else self.now_ms + delay_ms
        # Messages of every third key come in chunks, three each; some lack their last.
        message, chunk = divmod(number, 3)
        flags = NO_CHUNK
        if key % 3 == 0:
            flags = CHUNK | (LAST_CHUNK if chunk == 2 else 0) | (message % 4) << MESSAGE_SHIFT
        key_hash = key * _KEY_STEP + _KEY_HASH
        self.log.append(_Entry(position, key_hash, due, self.now_ms + clock_error_ms, messages, flags))

    @rule(ms=st.sampled_from([1, 5, 10, 50, 300]))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.core.advance(self.now_ms)
        wakeup_ms = self.core.next_wakeup_ms()
        if wakeup_ms is not None and wakeup_ms <= self.now_ms:
            self._run(self.core.on_timer())

    # Consumers.

    @precondition(lambda self: len(self.clients) < 4)
    @rule(name=st.sampled_from(["a", "b", "c"]), permits=st.sampled_from([0, 1, 5, 100]))
    def join(self, name: str, permits: int) -> None:
        client = _Client(ConsumerState(self.indices, name))
        self.indices += 1
        self.clients.append(client)
        self._run(self.core.add_consumer(client.state))
        if permits:
            self._flow(client, permits)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self.clients.remove(client)
        self._reorder(client.state.pending.items)
        self._run(self.core.remove_consumer(client.state))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), permits=st.integers(1, 10))
    def flow(self, data: st.DataObject, permits: int) -> None:
        self._flow(data.draw(st.sampled_from(self.clients)), permits)

    def _flow(self, client: _Client, permits: int) -> None:
        client.permits += permits
        self._run(self.core.flow(client.state, permits))

    @precondition(lambda self: any(client.unsent for client in self.clients))
    @rule(data=st.data(), count=st.integers(1, 20))
    def send(self, data: st.DataObject, count: int) -> None:
        client = data.draw(st.sampled_from([client for client in self.clients if client.unsent]))
        batch, client.unsent = client.unsent[:count], client.unsent[count:]
        are_pending = self.core.are_pending(client.state, [position_of(item) for item in batch])
        for item, is_own in zip(batch, are_pending, strict=True):
            if is_own:
                client.held.append(position_of(item))
            else:
                client.permits += item[COUNT]
                self.core.refund(client.state, [item])

    # Acknowledgements.

    @precondition(lambda self: any(client.held for client in self.clients))
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from([client for client in self.clients if client.held]))
        positions = data.draw(st.lists(st.sampled_from(client.held), min_size=1, unique=True))
        through = data.draw(st.sampled_from([None, *self.clients]))
        self._acknowledge(client, positions, through)

    def _acknowledge(self, holder: _Client, positions: list[Key], through: _Client | None) -> None:
        consumer = through.state if through is not None else None
        acknowledged, actions = self.core.acknowledge(consumer, positions, {})
        assert acknowledged == positions
        self.acknowledged.update(positions)
        holder.held = [position for position in holder.held if position not in positions]
        self._run(actions)
        self._note_acknowledged()

    def _note_acknowledged(self) -> None:
        """Do what the shell does after the cursor has moved."""

    @precondition(lambda self: self.acknowledged)
    @rule(data=st.data())
    def acknowledge_again(self, data: st.DataObject) -> None:
        position = data.draw(st.sampled_from(sorted(self.acknowledged)))
        self._run(self.core.acknowledge(None, [position], {})[1])

    @precondition(lambda self: any(self._partial(client) for client in self.clients))
    @rule(data=st.data())
    def acknowledge_a_part(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from([client for client in self.clients if self._partial(client)]))
        position = data.draw(st.sampled_from(self._partial(client)))
        word = data.draw(st.sampled_from([0b011, 0b101, 0b110, 0b100]))
        acknowledged, actions = self.core.acknowledge(client.state, [position], {position: (word,)})
        if acknowledged:
            self.acknowledged.add(position)
            client.held.remove(position)
        self._run(actions)
        self._note_acknowledged()

    def _partial(self, client: _Client) -> list[Key]:
        return [position for position in client.held if self._entry(position).message_count == 3]

    @precondition(lambda self: any(client.held for client in self.clients))
    @rule(data=st.data())
    def redeliver(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from([client for client in self.clients if client.held]))
        positions = data.draw(st.lists(st.sampled_from(client.held), min_size=1, unique=True))
        self._reorder(positions)
        client.held = [position for position in client.held if position not in positions]
        self._run(self.core.redeliver(client.state, positions, ()))

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def redeliver_everything(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.clients))
        self._reorder(client.state.pending.items)
        unsent, client.unsent, client.held = client.unsent, [], []
        client.permits += sum(item[COUNT] for item in unsent)
        self.core.refund(client.state, unsent)
        self._run(self.core.redeliver(client.state, None, {position_of(item) for item in unsent}))

    @precondition(lambda self: self.log)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        """Mark-delete moves over all entries up to a position, of any consumer; a read may be under way."""
        through = data.draw(st.sampled_from(self.log)).position
        self.acknowledged.update(entry.position for entry in self.log if entry.position <= through)
        self.tracked = {position: at for position, at in self.tracked.items() if position > through}
        for client in self.clients:
            client.held = [position for position in client.held if position > through]
        self._run(self.core.mark_deleted(through))
        self._note_acknowledged()

    # Reads and polls, in two steps each.

    @precondition(lambda self: self.read is None)
    @rule()
    def begin_read(self) -> None:
        request = self.core.next_read(self._last_confirmed())
        if request is None:
            return
        plan = self.core.plan
        assert plan is not None
        found: list[_Entry] = []
        left_out: dict[int, list[Position]] = {}
        after = len(self.log)
        for at, entry in enumerate(self.log):
            if entry.position < request.first:
                continue
            is_past = request.through is not None and entry.position > request.through
            if is_past or len(found) == request.entries_max:
                after = at
                break
            ledger_id, entry_id = entry.position
            needs_index = request.is_scan and entry.position <= plan.needs_index_through
            if needs_index and ledger_id in self.recovering:
                left_out.setdefault(ledger_id, []).append(entry.position)
                continue
            early = plan.taken_early.bitmaps.get(ledger_id, BitMap())
            if entry.position not in self.acknowledged and entry.position not in self.tracked and entry_id not in early:
                found.append(entry)
        self.read = (request, found, left_out, self._position_at(after))

    @precondition(lambda self: self.read is not None)
    @rule()
    def complete_read(self) -> None:
        assert self.read is not None
        (request, found, left_out, next_position), self.read = self.read, None
        plan = self.core.plan
        assert plan is not None
        parts = [LogPart(min(at), max(at)) for _, at in sorted(left_out.items())]
        waiting_before = len(self.core.replay_queue)
        queued_before = self.core.replay_queue.queued
        held_before = len(self.core.intake.held_due)
        self._look_at_tracker()
        self._run(self.core.on_headers(request, _headers(found), next_position, parts))
        plan.note_recovered(self.recovering.__contains__)
        if held_before == 0 and all(entry.deliver_at_ms == NOT_DELAYED for entry in found):
            # I9. Beyond the limit a slot keeps one entry in front, and the rest is parked.
            assert len(self.core.replay_queue) <= max(waiting_before, self.core.budget.waiting_max())
            limit = self.core.budget.look_ahead_limit() + len(self.core.replay_queue.heaps)
            assert self.core.replay_queue.queued <= max(queued_before, limit)

    @precondition(lambda self: self.read is None and len(self.core.replay_queue))
    @rule(data=st.data())
    def read_a_late_one(self, data: st.DataObject) -> None:
        """A message is accepted that was due before one of its key that waits."""
        waiting = data.draw(st.sampled_from(sorted(self.core.replay_queue.items())))
        key = (self._entry(position_of(waiting)).key_hash - _KEY_HASH) // _KEY_STEP
        # Where order is by position, items have no time.
        self.publish(key, (waiting[ORDER] or self.now_ms) - 10 - self.now_ms, 0, 1)
        self.begin_read()
        if self.read is not None:
            self.complete_read()

    @precondition(lambda self: self.popped is None)
    @rule()
    def begin_taking_due(self) -> None:
        wanted = self.core.intake.due_entries_wanted()
        self._look_at_tracker()
        if self.core.intake.has_held_to_admit():
            self._admit_held()
            return
        due = sorted((at, position) for position, at in self.tracked.items() if at <= self.now_ms)[:wanted]
        if due:
            for _, position in due:
                del self.tracked[position]
            columns = np.array([position for _, position in due], dtype=np.int64)
            self.core.intake.on_popped(columns[:, 0], columns[:, 1])
            self.popped = [self._entry(position) for _, position in due]

    @precondition(lambda self: self.popped is not None)
    @rule()
    def complete_taking_due(self) -> None:
        assert self.popped is not None
        popped, self.popped = self.popped, None
        held_before = len(self.core.intake.held_due)
        headers = _headers(popped)
        rows = DelayedIndexes(headers.deliver_at_ms, headers.ledger_ids, headers.entry_ids)
        actions = self.core.intake.on_due(headers, rows)
        taken_in = held_before + len(popped) - len(self.core.intake.held_due)
        assert 0 <= taken_in <= self.core.config.admit_entries_max
        self._run(actions)

    # Helpers.

    def _run(self, actions: list[Action]) -> None:
        self._run_actions(actions)
        if self.is_prompt:
            self._admit_all_held()

    def _admit_held(self) -> None:
        held_before = len(self.core.intake.held_due)
        self._run_actions(self.core.intake.admit_held())
        assert 1 <= held_before - len(self.core.intake.held_due) <= self.core.config.admit_entries_max

    def _admit_all_held(self) -> None:
        # Nothing is read, and nothing held is admitted, before the headers of what was popped are there.
        self._look_at_tracker()
        while self.popped is None and self.core.intake.has_held_to_admit():
            self._admit_held()
        is_holding = self.core.intake.is_holding_due()  # The one other reason to hold entries.
        self.stays_held = self.popped is not None or is_holding or not self.core.budget.due_room()

    def _run_actions(self, actions: list[Action]) -> None:
        self._check_nothing_is_overtaken(actions)
        queue = list(actions)
        while queue:
            action = queue.pop(0)
            if isinstance(action, TrackDelayed):
                more = self._track(action.headers)
                self._check_nothing_is_overtaken(more)
                queue.extend(more)
            elif isinstance(action, ForgetDelayed):
                for position in action.positions:
                    assert position in self.acknowledged, "forgotten, and not acknowledged"
                    self.tracked.pop(position, None)
            else:
                assert isinstance(action, Deliver)
                client = next(client for client in self.clients if client.state is action.consumer)
                for item in action.items:
                    self._note_given(client, item)
                client.unsent.extend(action.items)

    def _check_nothing_is_overtaken(self, actions: list[Action]) -> None:
        """No earlier entry of its slot waits when an entry is delivered, to any consumer; not even a returning one."""
        if self.keys is None or self.keys.is_by_position:
            return
        last: dict[int, Item] = {}
        for action in actions:
            for item in action.items if isinstance(action, Deliver) else ():
                last[item[SLOT]] = max(item, last.get(item[SLOT], item))
        for item in self.core.replay_queue.items():
            assert item[SLOT] not in last or item > last[item[SLOT]], f"{last[item[SLOT]]} overtakes {item}"
        if not self.is_prompt or self.stays_held:
            return
        tracker_ms = min((at for at in self.tracked.values() if at <= self.now_ms), default=None)
        for position in _positions(self.core.intake.held_due.headers()):
            entry = self._entry(position)
            slot = CONSISTENT_HASHING_RANGE.slot(entry.key_hash)
            if slot not in last or slot in self.unordered_slots or position in self.acknowledged:
                continue
            if tracker_ms is None or entry.deliver_at_ms < tracker_ms:
                assert last[slot][:3] < (entry.deliver_at_ms, *position), f"{last[slot]} overtakes {position}, held"

    def _track(self, headers: EntryHeaders) -> list[Action]:
        refused = []
        for row, (due, *position) in enumerate(
            zip(headers.deliver_at_ms.tolist(), headers.ledger_ids.tolist(), headers.entry_ids.tolist(), strict=True)
        ):
            key = (position[0], position[1])
            assert key not in self.tracked, "tracked twice"
            # Every third is refused, as a tracker does whose clock is ahead.
            if due - self.now_ms < 3:
                refused.append(row)
            else:
                self.tracked[key] = due
        self._look_at_tracker()
        return self.core.intake.on_refused(headers.take(np.array(refused, dtype=np.intp))) if refused else []

    def _note_given(self, client: _Client, item: Item) -> None:
        entry = self._entry(position_of(item))
        assert entry.deliver_at_ms == NOT_DELAYED or entry.deliver_at_ms < self.now_ms + 3, "early"
        assert position_of(item) not in self.acknowledged, "acknowledged before"
        client.permits -= item[COUNT]
        if position_of(item) not in self.given:
            self.given.add(position_of(item))
            self.first_given.setdefault(item[SLOT], []).append(item)

    def _reorder(self, positions: object) -> None:
        """Order is not promised for a slot from which something goes back."""
        for position in positions:  # type: ignore[attr-defined]
            self.unordered_slots.add(CONSISTENT_HASHING_RANGE.slot(self._entry(position).key_hash))

    def _look_at_tracker(self) -> None:
        due = [at for at in self.tracked.values() if at <= self.now_ms]
        self.core.intake.tracker_told(min(due, default=None))

    def _entry(self, position: Key) -> _Entry:
        return self.log[(position[0] - 1) * _ENTRIES_PER_LEDGER + position[1]]

    def _last_confirmed(self) -> Position:
        return self.log[-1].position if self.log else Position(1, -1)

    def _position_at(self, at: int) -> Position:
        if at < len(self.log):
            return self.log[at].position
        last = self._last_confirmed()
        return Position(last.ledger_id, last.entry_id + 1)

    # Invariants.

    @invariant()
    def the_core_is_consistent(self) -> None:
        self.core.check()

    @invariant()
    def every_entry_is_in_one_place(self) -> None:
        places: dict[Key, list[str]] = {tuple(entry.position): [] for entry in self.log}
        for position in self.acknowledged:
            places[position].append("acknowledged")
        for position in self.tracked:
            places[position].append("tracked")
        for entry in self.popped or ():
            # It may have expired while its header was read.
            if entry.position not in self.acknowledged:
                places[entry.position].append("popped")
        for position in _positions(self.core.intake.held_due.headers()):
            places[position].append("held")
        for item in self.core.replay_queue.items():
            places[position_of(item)].append("waiting")
        for client in self.clients:
            for position in client.state.pending.items:
                places[position].append("pending")
        assert self.core.plan is not None
        plan = self.core.plan
        for position, found in places.items():
            is_delayed = self._entry(position).deliver_at_ms != NOT_DELAYED
            frontiers = [part.scanned_to for part in plan.ranges] if is_delayed else [plan.next_immediate]
            if not found:
                assert any(position >= frontier for frontier in frontiers), f"{position} is lost"
            assert len(found) <= 1, f"{position} is {found}"

    @invariant()
    def immediate_entries_of_a_slot_keep_their_order(self) -> None:
        for slot, items in self.first_given.items():
            if slot in self.unordered_slots or self.keys is None:
                continue
            immediate = [
                position_of(item) for item in items if self._entry(position_of(item)).deliver_at_ms == NOT_DELAYED
            ]
            assert immediate == sorted(immediate)

    @invariant()
    def delayed_entries_of_a_slot_become_ready_in_order_of_time(self) -> None:
        """I2 for what is delayed: nothing becomes ready while an earlier one of its slot is due and on its way.

        But for what was popped: here reads complete meanwhile, while the shell takes in what it popped before it reads.
        """
        if self.keys is None:
            return
        pending = [position for client in self.clients for position in client.state.pending.items]
        ready = {position_of(item) for item in self.core.replay_queue.items()} | set(pending)
        came = [self._entry(position) for position in ready - self.ready]
        self.ready |= ready
        held = _positions(self.core.intake.held_due.headers())
        due = [position for position, at in self.tracked.items() if at <= self.now_ms]
        on_their_way = [self._entry(at) for at in held + due]
        for entry in came:
            slot = CONSISTENT_HASHING_RANGE.slot(entry.key_hash)
            if entry.deliver_at_ms == NOT_DELAYED or slot in self.unordered_slots:
                continue
            for other in on_their_way:
                is_earlier = (other.deliver_at_ms, other.position) < (entry.deliver_at_ms, entry.position)
                assert other.key_hash != entry.key_hash or not is_earlier, f"{entry} is ready before {other}"

    @invariant()
    def permits_are_exact(self) -> None:
        for client in self.clients:
            assert client.state.permits == client.permits

    @invariant()
    def owners_and_ranges_agree_and_leave_no_gap(self) -> None:
        """I10."""
        if self.keys is None or not self.clients:
            return
        selector = self.keys.selector
        owners = np.full(SLOTS_END, NO_OWNER)
        for client in self.clients:
            for first, last in selector.ranges_of(client.state):
                assert (owners[first : last + 1] == NO_OWNER).all(), "two consumers have one range"
                owners[first : last + 1] = client.state.index
        assert (owners == selector.owners.table()).all()
        assert (owners[selector.hash_range.first : selector.hash_range.last + 1] != NO_OWNER).all()

    @invariant()
    def each_slot_that_stopped_draining_is_counted_once(self) -> None:
        """I11: drained or reclaimed; a step clears a slot once at most."""
        fence = None if self.keys is None else self.keys.fence
        if not isinstance(fence, DrainingHashesTracker):
            return
        draining = {entry.hash: entry.owner_index for entry in fence.entries()}
        for slot, owner in self.draining.items():
            if draining.get(slot) != owner:
                self.cleared[owner] += 1
        self.draining = draining
        for client in self.clients:
            assert fence.cleared_total(client.state.index) == self.cleared[client.state.index]

    def teardown(self) -> None:
        """Serve all consumers until no entry is left; then all entries are acknowledged."""
        if not hasattr(self, "core"):
            return
        self.recover()
        if not self.clients:
            self.join("last", 100)
        for _ in range(20 * len(self.log) + 200):
            if len(self.acknowledged) == len(self.log):
                break
            self.pass_time(100)
            for client in list(self.clients):
                self._flow(client, 100)
                client.held += [position_of(item) for item in client.unsent]
                client.unsent = []
                client.held = list(compress(client.held, self.core.are_pending(client.state, client.held)))
                if client.held:
                    self._acknowledge(client, list(dict.fromkeys(client.held)), client)
            if self.read is None:
                self.begin_read()
            if self.read is not None:
                self.complete_read()
            if self.popped is None:
                self.begin_taking_due()
            if self.popped is not None:
                self.complete_taking_due()
            # Most delayed entries come out here: few steps of a random walk have several due ones of a slot.
            self.delayed_entries_of_a_slot_become_ready_in_order_of_time()
        assert len(self.acknowledged) == len(self.log), "not everything came out"
        assert len(self.core.replay_queue) == 0
        self.every_entry_is_in_one_place()

    def _start(self, recovering: set[int], published: int) -> None:
        for number in range(published):
            delay_ms = [None, -20, 150, 5][number % 4]
            self.publish(number % 3, delay_ms, 0, 1)
        self.core.advance(self.now_ms)
        last = self._last_confirmed()
        for entry in self.log:
            # Delayed entries of ledgers that are being recovered come back as tracked.
            if entry.position.ledger_id in recovering and entry.deliver_at_ms != NOT_DELAYED:
                self.tracked[entry.position] = entry.deliver_at_ms
        self.recovering = set(recovering)
        self.core.start(Position(1, 0), last)

    @rule(ledger_id=st.integers(1, 3))
    def forget_positions(self, ledger_id: int) -> None:
        """The index is asked for too many ledgers, or not for a while."""
        self.recovering.add(ledger_id)

    @rule()
    def recover(self) -> None:
        self.recovering = set()
        assert self.core.plan is not None
        self.core.intake.recovered(self.recovering.__contains__)


_CONFIG = DispatcherConfig(
    look_ahead_per_consumer=4,
    look_ahead_per_subscription=10,
    read_batch_entries_max=5,
    unacked_per_consumer_max=6,
    unacked_per_subscription_max=14,
    return_entries_max=2_000,
)


class KeySharedMachine(_Machine):
    """The default: consistent hashing, draining."""

    @initialize(
        recovering=st.sets(st.integers(1, 3)),
        published=st.integers(0, 20),
        interval_ms=st.sampled_from([0, 10]),
        per_hash=st.sampled_from([1, 2, 500]),
        parked_max=st.sampled_from([0, 5, 1_000]),
        serve_max=st.sampled_from([1, 3, 2_000]),
        admit_max=st.sampled_from([1, 3, 1_000]),
        portion=st.sampled_from([1, 3, 2_000]),
        is_prompt=st.booleans(),
    )
    def start(
        self,
        recovering: set[int],
        published: int,
        interval_ms: int,
        per_hash: int,
        parked_max: int,
        serve_max: int,
        admit_max: int,
        portion: int,
        is_prompt: bool,
    ) -> None:
        config = DispatcherConfig(
            look_ahead_per_consumer=4,
            look_ahead_per_subscription=10,
            read_batch_entries_max=5,
            unacked_per_consumer_max=6,
            unacked_per_subscription_max=14,
            consistent_hashing_replica_points=3,
            look_ahead_per_hash=per_hash,
            parked_entries_max=parked_max,
            admit_entries_max=admit_max,
            key_shared_unblocking_interval_ms=interval_ms,
            serve_entries_max=serve_max,
            return_entries_max=portion,
        )
        self.core = make_core(SubscriptionType.KEY_SHARED, config, has_delays=True)
        self.is_prompt = is_prompt
        self._start(recovering, published)


class AutoSplitMachine(_Machine):
    """Ranges that are split."""

    @initialize(published=st.integers(0, 20), portion=st.sampled_from([1, 2_000]))
    def start(self, published: int, portion: int) -> None:
        config = DispatcherConfig(use_consistent_hashing=False, look_ahead_per_consumer=3, return_entries_max=portion)
        self.core = make_core(SubscriptionType.KEY_SHARED, config, has_delays=True)
        self._start(set(), published)


class OlderModesMachine(_Machine):
    """PIP-282 and the classic mode: they may let a slot be held twice, but lose nothing and keep every slot's order."""

    @initialize(
        recovering=st.sets(st.integers(1, 3)),
        published=st.integers(0, 20),
        parked_max=st.sampled_from([0, 1_000]),
        is_classic=st.booleans(),
        portion=st.sampled_from([1, 2_000]),
    )
    def start(self, recovering: set[int], published: int, parked_max: int, is_classic: bool, portion: int) -> None:
        config = DispatcherConfig(
            ordering_mode=LAST_SENT_POSITION,
            use_classic_implementation=is_classic,
            look_ahead_per_consumer=4,
            look_ahead_per_subscription=10,
            look_ahead_per_hash=2,
            parked_entries_max=parked_max,
            read_batch_entries_max=5,
            unacked_per_consumer_max=6,
            consistent_hashing_replica_points=3,
            return_entries_max=portion,
        )
        self.core = make_core(SubscriptionType.KEY_SHARED, config, has_delays=True, cursor=self, ledgers=self.ledgers)
        self._start(recovering, published)

    # The log and the cursor, as the fence sees them.

    @property
    def next_unacknowledged_position(self) -> Position:
        at = next((at for at, entry in enumerate(self.log) if entry.position not in self.acknowledged), len(self.log))
        return self._position_at(at)

    def acknowledged_in(self, ledger_id: int) -> BitMap:
        return BitMap(entry_id for ledger, entry_id in self.acknowledged if ledger == ledger_id)

    def is_acknowledged(self, ledger_id: int, entry_id: int) -> bool:
        return (ledger_id, entry_id) in self.acknowledged

    def ledgers(self) -> list[LedgerInfo]:
        last = self._last_confirmed()
        counts = [(n, _ENTRIES_PER_LEDGER) for n in range(1, last.ledger_id)] + [(last.ledger_id, last.entry_id + 1)]
        return [
            LedgerInfo(ledger_id, count, 0, 0, ledger_id == last.ledger_id, ledger_id != last.ledger_id)
            for ledger_id, count in counts
        ]

    def _note_acknowledged(self) -> None:
        self._run(self.core.on_timer())

    @invariant()
    def nobody_gets_what_is_beyond_its_bound(self) -> None:
        if self.keys is None:
            return
        fence = self.keys.fence
        assert isinstance(fence, RecentlyJoinedFence)
        for client in self.clients:
            bound = fence.bounds.get(client.state.index)
            if bound is not None:
                assert all(position < bound for position in client.state.pending.items)


class SharedMachine(_Machine):
    """Without keys, but for the chunks of a message."""

    @initialize(recovering=st.sets(st.integers(1, 3)), published=st.integers(0, 20))
    def start(self, recovering: set[int], published: int) -> None:
        self.core = make_core(SubscriptionType.SHARED, _CONFIG, has_delays=True)
        self._start(recovering, published)

        self.begun: dict[int, tuple[_Client, list[Key]]] = {}
        """The consumer that was given chunks of a message, and these chunks, until its last one."""

    def _note_given(self, client: _Client, item: Item) -> None:
        """One consumer gets the chunks of a message, from its first one to the last."""
        super()._note_given(client, item)
        entry = self._entry(position_of(item))
        if not entry.flags & CHUNK:
            return
        message = entry.flags >> MESSAGE_SHIFT
        owner, chunks = self.begun.get(message, (client, []))
        # Chunks given by now count: later actions may give it the next message of this number.
        if (
            owner is not client
            and owner in self.clients
            and any(chunk in owner.state.pending.items for chunk in chunks)
        ):
            raise AssertionError(f"{position_of(item)} is of a message that another consumer has begun")
        if entry.flags & LAST_CHUNK:
            self.begun.pop(message, None)
        else:
            self.begun[message] = (client, [*(chunks if owner is client else ()), position_of(item)])


def _positions(headers: EntryHeaders) -> list[Key]:
    return list(zip(headers.ledger_ids.tolist(), headers.entry_ids.tolist(), strict=True))


def _headers(entries: list[_Entry]) -> EntryHeaders:
    rows = [
        (
            entry.position.ledger_id,
            entry.position.entry_id,
            entry.deliver_at_ms,
            entry.publish_time_ms,
            entry.key_hash,
            100,
            entry.message_count,
            entry.flags,
        )
        for entry in entries
    ]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 8)
    narrow = [columns[:, number].astype(np.int64 if number < 4 else np.int32) for number in range(7)]
    return EntryHeaders(*narrow, columns[:, 7].astype(np.uint32))


TestKeyShared = KeySharedMachine.TestCase
TestAutoSplit = AutoSplitMachine.TestCase
TestOlderModes = OlderModesMachine.TestCase
TestShared = SharedMachine.TestCase
