"""Rest: faults are mended, consumers have permits, the clock runs on; then the verdict, without a nudge.

1. *silent*   all consumers can be sent to and are silent: due entries must be on their way by themselves; sometimes
              once more after some gave back all they have, while others can be sent all
2. *eager*    all consumers acknowledge all entries that they get: all due entries are acknowledged then
3. *quiet*    sometimes: a few delayed messages without a consumer for them, some due ones go another way, then
              permits, to one subscription after the other, and silence: nothing but the tracker can tell of the rest
6. *to the end* (of the final rest) time runs until the last message is due: silent, then eager
4. *paused*  sometimes: deliveries are held while messages fall due, and go on with so many a second
5. *newcomer* sometimes: a consumer joins where newcomers wait for others, and the first message of all is delayed
8. *damaged* sometimes: the log is damaged where some messages are, and unreadable for a while where others are
7. the counts are those of the oracle, nothing runs or is scheduled for ever, no snapshot is without an owner

*Outage* rounds are the one exception to "faults are mended": after a start without the storage, messages
that are published then must be on their way all the same.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from dispatcher.core.multiple_consumers import MultipleConsumersCore
from managed_ledger.disk.keys import Family
from managed_ledger.entries.headers import NOT_DELAYED
from managed_ledger.errors import StoreCorruptedError, StoreUnavailableError
from postdate.broker.topics.pause import NOT_PAUSED
from postdate.broker.topics.snapshot_sweep import UNNAMED_S_MIN
from tests.simulation.whole_service import events
from tests.simulation.whole_service.oracle import Key, PublishedEntry, SubscriptionModel
from tests.simulation.whole_service.scheduled import hold, let_go
from tests.simulation.whole_service.variants import CLASSIC, DRAINING, LAST_SENT, SHARED, STICKY, has_delays

if TYPE_CHECKING:
    from tests.simulation.whole_service.simulation import Simulation

PATIENCE_S: Final = 20.0
"""How late anything may be after everything was mended: time limits, retries and the trackers' longest waits."""

_DAMAGE_ROUND_MS: Final = 60_000
"""A round with damage takes less; entries that expire meanwhile would spoil it."""

_DAMAGE_DELAY_MS_MAX: Final = 5_000
"""The last of its messages is due so long after it was published."""

_ROUNDS_MAX: Final = 100
"""Entries that are sent again and again would be sent for ever; a run with tiny limits takes some thirty rounds."""


async def come_to_rest(sim: "Simulation", *, is_final: bool) -> None:
    """Come to rest, and judge what is there."""
    sim.note("rest" if not is_final else "final rest")
    sim.is_resting = True
    await _rest(sim, is_final=is_final)
    sim.is_resting = False


async def _rest(sim: "Simulation", *, is_final: bool) -> None:
    events.heal(sim)
    if not sim.is_active:
        await events.set_delays(sim, is_active=True)
    await asyncio.sleep(4.0)
    for sub in list(sim.oracle.subs.values()):
        await let_go(sim, sub, None)
    for sub in list(sim.oracle.subs.values()):
        await _let_all_be_sent(sim, sub)
    await asyncio.sleep(PATIENCE_S)
    sim.check()
    _judge_silence(sim)
    if sim.chance.random() < 0.4:
        await _give_back(sim)
        await asyncio.sleep(PATIENCE_S)
        sim.check()
        _judge_silence(sim)
    if not is_final and sim.chance.random() < 0.6:
        events.apply_faults(sim)
        return
    sim.are_clients_eager = True
    await _acknowledge_all(sim)
    _judge_eager(sim)
    if sim.chance.random() < 0.5:
        await _play_quiet_round(sim)
    if sim.chance.random() < 0.25:
        await _play_pause(sim)
    if sim.chance.random() < 0.5:
        await _play_newcomer(sim)
    if sim.chance.random() < 0.5:
        await _play_damage(sim)
    if is_final:
        await _run_to_the_end(sim)
    sim.are_clients_eager = False
    events.apply_faults(sim)


async def _let_all_be_sent(sim: "Simulation", sub: SubscriptionModel) -> None:
    """Give a subscription consumers that can take everything."""
    for consumer in sim.open_consumers(sub):
        events.let_write(sim, sub, consumer, is_told=True)
    if sub.kind == STICKY:
        free = events.free_ranges(sub)
        if free:
            await events.attach(sim, sub, sim.new_consumer(sub, tuple(free)), 0)
    elif not sim.open_consumers(sub):
        await events.attach(sim, sub, sim.new_consumer(sub), 0)
    for consumer in sim.open_consumers(sub):
        events.give_permits(sim, sub, consumer, 100_000_000)


async def _give_back(sim: "Simulation") -> None:
    """Let some consumers give back everything while all may be sent as much as there is."""
    for sub in list(sim.oracle.subs.values()):
        consumers = [one for one in sim.open_consumers(sub) if sub.held_by.get(one)]
        if not consumers:
            continue
        consumer = sim.chance.choice(consumers)
        if sim.chance.random() < 0.5:
            events.redeliver_everything(sim, sub, consumer)
        else:
            await events.close_consumer(sim, sub, consumer)
            await _let_all_be_sent(sim, sub)


def _judge_silence(sim: "Simulation") -> None:
    for sub in sim.oracle.subs.values():
        sim.oracle.sync(sub)
        if not _flows_without_acknowledgements(sim, sub):
            continue
        late = sim.oracle.overdue(sub, since_s=PATIENCE_S - 5)
        # A slot that moved is sent to its new consumer once the old one has acknowledged.
        late = [entry for entry in late if not (sub.kind == DRAINING and sub.holders.get(sub.slot(entry)))]
        if late:
            sim.complain(f"{sub.name}: {len(late)} entries are due and no consumer is sent them, such as {late[0].key}")


def _flows_without_acknowledgements(sim: "Simulation", sub: SubscriptionModel) -> bool:
    dispatcher = sim.variant.config.dispatcher
    if sub.is_single:
        return True
    if sim.variant.is_bounded_by_unacked:
        return False
    if sub.kind in (CLASSIC, LAST_SENT) and len(sub.consumers) > 1:
        return False
    if sub.kind == DRAINING and dispatcher.parked_entries_max < 1_000:
        # Entries that wait for one slot may leave no room for others.
        return not any(sub.holders.get(slot) for slot in (*sub.immediate, *sub.delayed))
    return True


async def _acknowledge_all(sim: "Simulation") -> None:
    """Acknowledge what is sent, for some seconds and then as long as more is sent."""
    rounds, deliveries_before = 0, -1
    while rounds < 4 or (sim.oracle.deliveries > deliveries_before and rounds < _ROUNDS_MAX):
        rounds, deliveries_before = rounds + 1, sim.oracle.deliveries
        for sub in sim.oracle.subs.values():
            sim.oracle.sync(sub)
            for consumer in sim.open_consumers(sub):
                keys = list(sub.held_by.get(consumer, ()))
                if keys:
                    events.acknowledge_keys(sim, sub, consumer, keys)
        await asyncio.sleep(PATIENCE_S / 4)
    sim.check()


def _judge_eager(sim: "Simulation") -> None:
    for sub in sim.oracle.subs.values():
        late = sim.oracle.overdue(sub, since_s=PATIENCE_S - 5)
        if late:
            sim.complain(
                f"{sub.name}: {len(late)} entries are due and are not sent although all others are acknowledged, "
                f"such as {late[0].key}{_what_is_first(sim, sub)}"
            )
        dispatcher = sim.dispatcher(sub)
        if dispatcher is None:
            continue
        delayed = dispatcher.stats().msg_delayed
        least, most = sim.oracle.future_counts(sub) if has_delays(sub.kind) else (0, 0)
        if sim.variant.tracker != "memory":
            # After a kill in a merge two snapshots have a message, which counts twice until one of them is loaded.
            most += sum(entry.published_at < sim.life.began_s for entry in sim.oracle.future(sub))
        if not least <= delayed <= most:
            sim.complain(
                f"{sub.name}: msgDelayed is {delayed}, and {least} to {most} entries wait for their time (item 9)"
            )
        backlog = sim.cursor(sub).backlog
        if backlog != sim.oracle.backlog(sub):
            sim.complain(f"{sub.name}: the backlog is {backlog}, and {sim.oracle.backlog(sub)} are not acknowledged")
    if sim.complaints:
        sim.check()


def _what_is_first(sim: "Simulation", sub: SubscriptionModel) -> str:
    """Tell of the first entry that is not acknowledged: with some fences all others wait for it."""
    first = min(key for key in sim.oracle.entries if key not in sub.acknowledged)
    if not sim.oracle.is_due(sim.oracle.entries[first]):
        return f"; {first}, the first that is not acknowledged, is delayed"
    dispatcher = sim.dispatcher(sub)
    core = None if dispatcher is None else dispatcher.core
    if isinstance(core, MultipleConsumersCore) and not core.budget.due_room():
        return f"; there is no room for {first}, which is due and the first that is not acknowledged (item 5)"
    return ""


_QUIET_DELAY_MS_MAX: Final = 12_000

_SETTLING_S: Final = 0.5
"""How long a subscription takes to read what was published and to send what is due, with a consumer that takes it."""

_OUTAGE_PATIENCE_S: Final = 12.0
"""How late anything may be after a start without the storage: a scan and the order of time are waited for 5 s each."""

_UNSEALED_ROWS_MIN: Final = 1_000


async def _play_quiet_round(sim: "Simulation") -> None:
    """Let delayed messages come due while no consumer can take them, and some of them go another way."""
    sim.are_clients_eager = False
    subs = [sub for sub in sim.oracle.subs.values() if has_delays(sub.kind)]
    for sub in subs:
        for consumer in sim.open_consumers(sub):
            await events.close_consumer(sim, sub, consumer)
        ranges = tuple(events.free_ranges(sub)) if sub.kind == STICKY else ()
        await events.attach(sim, sub, sim.new_consumer(sub, ranges), 0)
    for delay_ms in sim.chance.sample(range(250, _QUIET_DELAY_MS_MAX, 250), sim.chance.choice([2, 4, 8])):
        sim.publish(
            key_hash=sim.chance.choice(sim.variant.keys),
            deliver_at_ms=sim.clock.now_ms() + delay_ms,
            count=1,
            size=0,
        )
    sim.did("quiet round")
    for _ in range(sim.chance.choice([1, 1, 3])):
        await asyncio.sleep(sim.chance.random() * 3)
        for sub in subs:
            events.let_due_go_another_way(sim, sub)
    # One after the other: what one takes from a shared index, the others must hear of.
    sim.chance.shuffle(subs)
    for sub in subs:
        await asyncio.sleep(sim.chance.random() * 3)
        _judge_tracked(sim, sub)
        await _let_all_be_sent(sim, sub)
        _want_on_time(sim, sub)
    if subs and sim.chance.random() < 0.5:
        await asyncio.sleep(sim.chance.random() * _QUIET_DELAY_MS_MAX / 1_000)
        await _let_all_be_sent(sim, sim.chance.choice(subs))
    await asyncio.sleep(_QUIET_DELAY_MS_MAX / 1_000 + PATIENCE_S)
    for sub in subs:
        sub.on_time_since_s = float("inf")
    sim.check()
    _judge_silence(sim)
    sim.are_clients_eager = True
    await _acknowledge_all(sim)
    _judge_eager(sim)


def _want_on_time(sim: "Simulation", sub: SubscriptionModel) -> None:
    """From now on a consumer waits for what falls due, and the storage is well."""
    if _flows_without_acknowledgements(sim, sub) and not sim.has_bad_snapshots:
        sub.on_time_since_s = sim.clock.now_s() + _SETTLING_S


async def _play_newcomer(sim: "Simulation") -> None:
    """Let a consumer join where newcomers wait for others and the first message is delayed."""
    subs = [sub for sub in sim.oracle.subs.values() if sub.kind in (CLASSIC, LAST_SENT)]
    if not subs:
        return
    sub = sim.chance.choice(subs)

    def publish(count: int, delay_ms: int | None) -> None:
        for _ in range(count):
            at_ms = NOT_DELAYED if delay_ms is None else sim.clock.now_ms() + delay_ms
            sim.publish(key_hash=sim.chance.choice(sim.variant.keys), deliver_at_ms=at_ms, count=1, size=0)

    for consumer in sim.open_consumers(sub)[1:]:
        await events.close_consumer(sim, sub, consumer)
    sim.are_clients_eager = True
    publish(1, sim.chance.choice([2_000, 2_000, 120_000]))
    publish(sim.chance.choice([1, 5]), None)
    await _let_all_be_sent(sim, sub)
    await asyncio.sleep(0.5)
    sim.did("newcomer round")
    await events.attach(sim, sub, sim.new_consumer(sub), 0)
    publish(sim.chance.choice([0, 20]), sim.chance.choice([200, 1_000]))
    publish(sim.chance.choice([0, 10]), None)
    await _let_all_be_sent(sim, sub)
    await asyncio.sleep(4.0)
    await _acknowledge_all(sim)
    _judge_eager(sim)


async def _play_pause(sim: "Simulation") -> None:
    """Hold the deliveries of a subscription while messages fall due, and let them go with so many a second."""
    subs = [sub for sub in sim.oracle.subs.values() if has_delays(sub.kind) and sim.subscription(sub) is not None]
    if not subs:
        return
    sub = sim.chance.choice(subs)
    await _let_all_be_sent(sim, sub)
    sim.are_clients_eager = True
    await hold(sim, sub)
    count, rate_per_second = sim.chance.choice([3, 20]), sim.chance.choice([2.0, 15.0])
    for _ in range(count):
        sim.publish(
            key_hash=sim.chance.choice(sim.variant.keys),
            deliver_at_ms=sim.clock.now_ms() + sim.chance.randrange(1, 1_500),
            count=1,
            size=0,
        )
    await asyncio.sleep(2.0)
    sim.check()
    sim.did("pause round")
    await let_go(sim, sub, rate_per_second)
    await asyncio.sleep(count / rate_per_second + PATIENCE_S)
    sim.check()
    found = sim.subscription(sub)
    dispatcher = sim.dispatcher(sub)
    # The time of messages that a batch took beyond the rate is waited for, too.
    pays_back = dispatcher is not None and dispatcher.core.gate.budget(sim.clock.now_ms()) <= 0
    if found is not None and found.pause != NOT_PAUSED and not pays_back and not sim.oracle.overdue(sub, since_s=0.0):
        sim.complain(f"{sub.name}: nothing waits any more, and it is still {found.pause}")
    # Where more fell due than the rate lets through.
    await let_go(sim, sub, None)
    await asyncio.sleep(PATIENCE_S)
    sim.check()
    _judge_eager(sim)


async def _play_damage(sim: "Simulation") -> None:
    """Let some messages be damaged and others unreadable when they are due; all else goes on, until the log is mended.

    A damaged entry is not acknowledged, and named. An unreadable one holds up the entries of its slot alone.
    """
    readers = [sub for sub in sim.oracle.subs.values() if has_delays(sub.kind) and sim.dispatcher(sub) is not None]
    # With PIP-282, and before it, a newcomer waits for all that is not acknowledged.
    subs = [sub for sub in readers if sub.kind not in (CLASSIC, LAST_SENT)]
    if not subs or sim.variant.config.ttl_ms <= _DAMAGE_ROUND_MS:
        return
    sim.are_clients_eager = True
    family = sim.chance.choice([Family.PAYLOADS, Family.PAYLOADS, Family.HEADERS])
    before = set(sim.oracle.entries)
    for _ in range(sim.chance.choice([4, 20])):
        at_ms = sim.clock.now_ms() + sim.chance.randrange(2_000, _DAMAGE_DELAY_MS_MAX)
        sim.publish(key_hash=sim.chance.choice(sim.variant.keys), deliver_at_ms=at_ms, count=1, size=0)
        await asyncio.sleep(sim.chance.choice([0.0, 0.03]))
    await asyncio.sleep(0.5)
    # Chunks of a message that began before have its time, which may be an hour from now: until then nothing reads them.
    due_until_ms = sim.clock.now_ms() + _DAMAGE_DELAY_MS_MAX
    due = {key for key, entry in sim.oracle.entries.items() if entry.deliver_at_ms < due_until_ms}
    new = sorted(due - before)
    disk = sim.life.disk
    chosen = sim.chance.sample(new, min(3, len(new)))
    unreadable = disk.spoil(family, chosen[1:], StoreUnavailableError) if sim.chance.random() < 0.7 else set()
    damaged = disk.spoil(family, chosen[:1], StoreCorruptedError)
    unreadable -= damaged
    if not damaged.union(unreadable) <= set(new):
        # A value has messages of before, too, or some that are due much later.
        disk.restore(StoreCorruptedError)
        disk.restore(StoreUnavailableError)
        return
    for ledger_id in {ledger_id for ledger_id, _ in new}:
        sim.life.log_reader.drop_ledger(ledger_id)
    sim.did("damage round")
    sim.note(f"damaged are {sorted(damaged)} of {family}, and unreadable {sorted(unreadable)}")
    # All of them put aside what is damaged, also those that are not judged meanwhile.
    lost = {sub: sorted(damaged & sub.waiting()) for sub in readers}
    for sub, keys in lost.items():
        for key in keys:
            sub.wait_no_more(sim.oracle.entries[key])
    for sub in subs:
        await _let_all_be_sent(sim, sub)
    await asyncio.sleep(_DAMAGE_DELAY_MS_MAX / 1_000 + PATIENCE_S)
    sim.check()
    for sub in subs:
        # Without headers no key is known. And entries to be read again count where unacknowledged ones are limited.
        if not unreadable or (family is Family.PAYLOADS and not sim.variant.is_bounded_by_unacked):
            _judge_damage(sim, sub, lost[sub], unreadable)
    disk.restore(StoreUnavailableError)
    await asyncio.sleep(PATIENCE_S)
    sim.check()
    for sub in subs:
        _judge_damage(sim, sub, lost[sub], set())
    # As a repair does: no consumer gets them any more.
    disk.restore(StoreCorruptedError)
    for sub, keys in lost.items():
        for key in keys:
            sub.let_wait(sim.oracle.entries[key])
        found = sim.subscription(sub)
        assert found is not None
        found.cancel(keys)
        if any("damaged" in problem for problem in found.problems()):
            sim.complain(f"{sub.name}: damage is named that was repaired")
    await _acknowledge_all(sim)
    _judge_eager(sim)


def _judge_damage(sim: "Simulation", sub: SubscriptionModel, damaged: list[Key], unreadable: set[Key]) -> None:
    """Judge that all but these are on their way, and that the damaged ones are put aside and named."""
    sim.oracle.sync(sub)

    def slot_of(entry: PublishedEntry) -> object:
        if sub.kind != SHARED:
            return sub.slot(entry)
        # The chunks of a message stay in order, also those of several keys.
        return entry.key if entry.message is None else entry.message

    slots = {slot_of(sim.oracle.entries[key]) for key in unreadable}
    late = [entry for entry in sim.oracle.overdue(sub, since_s=PATIENCE_S - 5) if slot_of(entry) not in slots]
    if late:
        sim.complain(f"{sub.name}: {len(late)} entries wait for unreadable ones, such as {late[0].key}")
    acknowledged = [key for key in damaged if sim.is_acknowledged(sub, key)]
    if acknowledged:
        sim.complain(f"{sub.name}: damaged entries were acknowledged, such as {acknowledged[0]}")
    found, dispatcher = sim.subscription(sub), sim.dispatcher(sub)
    assert found is not None
    assert dispatcher is not None
    aside = [(ledger_id, at) for ledger_id, entry_ids in dispatcher.damaged().items() for at in entry_ids]
    # One behind an unreadable one is not read yet.
    if aside != damaged and not (set(aside) <= set(damaged) and unreadable):
        sim.complain(f"{sub.name}: put aside are {aside}, and damaged {damaged}")
    if any("damaged" in problem for problem in found.problems()) != bool(aside):
        sim.complain(f"{sub.name}: damage is not named, or named without any")


async def play_outage_round(sim: "Simulation") -> None:
    """Start while the storage is away: messages published then are sent in time, before buckets are recovered."""
    sim.is_resting = True
    subs = [sub for sub in sim.oracle.subs.values() if not sub.is_busy]
    for sub in subs:
        await let_go(sim, sub, None)
        await _let_all_be_sent(sim, sub)
    before = set(sim.oracle.entries)
    for _ in range(sim.chance.choice([1, 3])):
        sim.publish(
            key_hash=sim.chance.choice(sim.variant.keys),
            deliver_at_ms=sim.clock.now_ms() + sim.chance.randrange(50, 3_000),
            count=1,
            size=0,
        )
    sim.did("outage round")
    await asyncio.sleep(3.0 + _OUTAGE_PATIENCE_S)
    sim.check()
    sim.is_resting = False
    if sim.variant.config.tracker.unsealed_row_count_max < _UNSEALED_ROWS_MIN:
        # More than is kept in memory waits for the storage.
        return
    for sub in subs:
        sim.oracle.sync(sub)
        if _flows_without_acknowledgements(sim, sub):
            late = [one for one in sim.oracle.overdue(sub, since_s=_OUTAGE_PATIENCE_S) if one.key not in before]
            if late:
                sim.complain(f"{sub.name}: {late[0].key} is due and is not sent, and the storage is away (item 8)")


def _judge_tracked(sim: "Simulation", sub: SubscriptionModel) -> None:
    """A tracker counts nothing that was acknowledged."""
    dispatcher = sim.dispatcher(sub)
    if dispatcher is None or dispatcher.tracker is None:
        return
    sim.oracle.sync(sub)
    delayed = [sim.oracle.entries[key] for rows in sub.delayed.values() for _, key in rows]
    # After a kill in a merge two snapshots have a message, which counts twice until one of them is loaded.
    most = len(delayed) + sum(entry.published_at < sim.life.began_s for entry in delayed)
    tracked = dispatcher.tracker.number_of_delayed_messages()
    if tracked > most:
        sim.complain(
            f"{sub.name}: {tracked} messages are tracked, and {len(delayed)} delayed ones are not acknowledged"
        )


async def _run_to_the_end(sim: "Simulation") -> None:
    """Let the last message come due, and see that nothing is left over."""
    sim.are_clients_eager = False
    deliver_at_ms = [entry.deliver_at_ms for sub in sim.oracle.subs.values() for entry in sim.oracle.future(sub)]
    if deliver_at_ms:
        await asyncio.sleep(max(0.0, (max(deliver_at_ms) - sim.clock.now_ms()) / 1_000))
        await asyncio.sleep(PATIENCE_S)
        sim.check()
        _judge_silence(sim)
        sim.are_clients_eager = True
        await _acknowledge_all(sim)
        _judge_eager(sim)
    await _judge_leftovers(sim)


async def _judge_leftovers(sim: "Simulation") -> None:
    if sim.upkeep is not None:
        await sim.upkeep.close()
    for _ in range(2):
        await events.keep_house(sim)
        # A snapshot that no property names is deleted when a second list finds it so.
        await asyncio.sleep(PATIENCE_S + UNNAMED_S_MIN)
    sim.check()
    for sub in sim.oracle.subs.values():
        if sim.oracle.backlog(sub):
            sim.complain(f"{sub.name}: {sim.oracle.backlog(sub)} entries are not acknowledged at the end")
    if sim.is_at_the_end or not sim.has_bad_snapshots:
        await _judge_snapshots(sim)
    timers, calls = sim.life.loop.timers_set, _calls_of_storage(sim)
    await asyncio.sleep(600)
    # A tracker may look at the clock every five seconds: rows of acknowledged messages go when their time comes. Where
    # their segments are small, each is loaded for that: one timer is the tracker's, and one the time limit of the call.
    timers, calls = sim.life.loop.timers_set - timers, _calls_of_storage(sim) - calls
    if timers > 130 * (1 + len(sim.oracle.subs)) + 2 * calls:
        sim.complain(f"{timers} timers were set in ten minutes of rest, and {calls} calls of the storage started")
    sim.check()


def _calls_of_storage(sim: "Simulation") -> int:
    """Return how many actions the trackers of this life have started."""
    return sum(one.all for _, stats, _ in sim.life.topic.delayed_indexes() for one in stats.operations.values())


async def _judge_snapshots(sim: "Simulation") -> None:
    """Every snapshot has an owner, and every property a snapshot; a delete that did nothing is found by an opening."""
    named = {
        int(value)
        for cursor in sim.life.topic.ledger.cursors.values()
        for key, value in cursor.properties.items()
        if key.startswith("#pulsar.internal.delayed.bucket")
    }
    present = {info.bucket_id for info in await sim.stored.list_bucket_snapshots()}
    if named - present:
        sim.complain(f"{len(named - present)} properties name no snapshot")
    if present - named:
        sim.complain(f"{len(present - named)} snapshots have no owner")
