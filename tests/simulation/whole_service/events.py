"""The events of a run, one function each; an event draws its choices from the run's chance."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final

from dispatcher.errors import CumulativeAckRefusedError, DispatcherError
from managed_ledger.entries.headers import NOT_DELAYED
from managed_ledger.errors import LedgerError, ManagedLedgerClosedError
from managed_ledger.positions.position import Position
from postdate.broker.errors import BrokerError
from postdate.broker.topics.policies import DelayedDeliveryPolicies
from snapshot_storage.faults import NO_FAULTS
from tests.simulation.whole_service.clients import SimulatedConsumer
from tests.simulation.whole_service.life import TOPIC
from tests.simulation.whole_service.oracle import Key, OffPeriod, SubscriptionModel, words_of
from tests.simulation.whole_service.variants import CLASSIC, DRAINING, KINDS, LAST_SENT, subscription_type

if TYPE_CHECKING:
    from tests.simulation.whole_service.simulation import Simulation

ADMINISTRATION_S: Final = 2.0
"""How long a request of a client or an administrator may take, in every state of the snapshot storage."""


FOR_EVER_S: Final = 1e9


def a_subscription(sim: "Simulation") -> SubscriptionModel | None:
    """Choose a subscription."""
    subs = list(sim.oracle.subs.values())
    return sim.chance.choice(subs) if subs else None


def _consumer(sim: "Simulation") -> tuple[SubscriptionModel, SimulatedConsumer] | None:
    sub = a_subscription(sim)
    consumers = sim.open_consumers(sub) if sub is not None else []
    if sub is None or not consumers or sim.dispatcher(sub) is None:
        return None
    return sub, sim.chance.choice(consumers)


def _holder(sim: "Simulation") -> tuple[SubscriptionModel, SimulatedConsumer] | None:
    """Choose a consumer that holds something; every other time the one that holds most."""
    sub = a_subscription(sim)
    consumers = [one for one in sim.open_consumers(sub) if sub.held_by.get(one)] if sub is not None else []
    if sub is None or not consumers or sim.dispatcher(sub) is None:
        return None
    if sim.chance.random() < 0.5:
        return sub, max(consumers, key=lambda one: len(sub.held_by[one]))
    return sub, sim.chance.choice(consumers)


# Publishing.


def deliver_at(sim: "Simulation", law: str) -> int:
    """Choose a delivery time by a law."""
    now_ms, chance = sim.clock.now_ms(), sim.chance
    match law:
        case "short":
            return now_ms + chance.randrange(1, 2_000)
        case "long":
            return now_ms + chance.randrange(10_000, 300_000)
        case "far":
            return now_ms + 3_600_000
        case "exponential":
            return now_ms + round(chance.expovariate(1 / 5_000))
        case "fixed":
            return now_ms + 1_500
        case "instants":
            return (now_ms // 1_000 + chance.randrange(1, 8)) * 1_000
        case "past":
            return max(0, now_ms - chance.randrange(0, 5_000))
        case _:
            return NOT_DELAYED


def publish(sim: "Simulation") -> None:
    """A producer sends some messages."""
    _publish(sim, sim.chance.choice([1, 1, 3, 8, 20, 60]))


def publish_many(sim: "Simulation") -> None:
    """A producer sends thousands."""
    _publish(sim, sim.chance.choice([500, 1_500, 3_000, 10_000]))


def _publish(sim: "Simulation", count: int) -> None:
    law = sim.chance.choice(sim.variant.delay_laws)
    sim.did(f"publish, delays {law}", count)
    is_batched = sim.chance.random() < 0.3
    for _ in range(count):
        sim.publish(
            key_hash=sim.chance.choice(sim.variant.keys),
            deliver_at_ms=deliver_at(sim, law),
            count=sim.chance.choice([1, 2, 5, 70]) if is_batched else 1,
            size=sim.chance.choice([0, 20]),
        )


# Consumers.


def sticky_ranges(sim: "Simulation", sub: SubscriptionModel) -> tuple[tuple[int, int], ...]:
    """Choose ranges for a new consumer: a free quarter of the slots or two, now and then one that is taken."""
    free = free_ranges(sub)
    if not free or sim.chance.random() < 0.1:
        return (sim.chance.choice(_QUARTERS),)
    return tuple(sorted(sim.chance.sample(free, sim.chance.randrange(1, len(free) + 1))))


_QUARTERS: Final = [(0, 16_383), (16_384, 32_767), (32_768, 49_151), (49_152, 65_535)]


def free_ranges(sub: SubscriptionModel) -> list[tuple[int, int]]:
    """Return the quarters of the slots that no consumer has."""
    taken = {one for consumer in sub.consumers for one in consumer.key_shared_policy.ranges}
    return [one for one in _QUARTERS if one not in taken]


def join(sim: "Simulation") -> None:
    """A consumer subscribes, and may ask for messages at once."""
    sub = a_subscription(sim)
    if sub is not None and not sub.is_busy and len(sub.consumers) + sub.joining < 5:
        permits = sim.chance.choice([0, 0, 1] if sim.variant.is_stingy else [0, 1, 5, 50, 1_000, 10_000])
        sim.did("join" if permits else "join without permits", permits)
        sub.joining += 1
        sim.start_task(_attach(sim, sub, sim.new_consumer(sub), permits))


async def attach(sim: "Simulation", sub: SubscriptionModel, consumer: SimulatedConsumer, permits: int) -> None:
    """Subscribe, and ask for messages."""
    sub.joining += 1
    await _attach(sim, sub, consumer, permits)


async def _attach(sim: "Simulation", sub: SubscriptionModel, consumer: SimulatedConsumer, permits: int) -> None:
    try:
        await sim.in_time(
            f"{sub.name}: the subscribe of {consumer.name}",
            sim.life.topic.subscribe(consumer, subscription_type(sub.kind), durable=True, start=None),
            ADMINISTRATION_S,
        )
        consumer.is_attached = True
        if permits:
            give_permits(sim, sub, consumer, permits)
    except (BrokerError, DispatcherError, ManagedLedgerClosedError):
        # Refused: another type or policy, ranges that are taken, an exclusive subscription; the service stops.
        sim.did("join, which is refused")
    finally:
        sub.joining -= 1


async def subscribe_anew(sim: "Simulation", kind: str) -> None:
    """Create a subscription, with a first consumer."""
    sim.subscriptions_made += 1
    name = f"s{sim.subscriptions_made}"
    ledger = sim.life.topic.ledger
    is_latest = sim.chance.random() < 0.3
    first = sim.life.topic.next_position() if is_latest else ledger.first_position
    sub = sim.oracle.new_subscription(name, kind, tuple(first))
    sub.is_busy = True
    consumer = sim.new_consumer(sub)
    await sim.in_time(
        f"{name}: the first subscribe",
        sim.life.topic.subscribe(consumer, subscription_type(kind), durable=True, start=first if is_latest else None),
        ADMINISTRATION_S,
    )
    sub.is_busy = False
    sim.oracle.begin_with(sub, {key for key in sim.oracle.entries if sim.cursor(sub).is_acknowledged(*key)})
    sim.watch(sub)
    consumer.is_attached = True
    permits = sim.chance.choice([0, 0, 1] if sim.variant.is_stingy else [0, 3, 100])
    if permits:
        give_permits(sim, sub, consumer, permits)


def leave(sim: "Simulation") -> None:
    """A consumer closes, every other time while the others wait for more."""
    found = _consumer(sim)
    if found is None:
        return
    sub, consumer = found
    if sim.chance.random() < 0.5:
        for other in sim.open_consumers(sub):
            if other is not consumer:
                give_permits(sim, sub, other, 1_000)
    sim.start_task(close_consumer(sim, sub, consumer))


async def close_consumer(sim: "Simulation", sub: SubscriptionModel, consumer: SimulatedConsumer) -> None:
    """Let a consumer close."""
    # The task can have begun late.
    if consumer.is_leaving or sim.life.is_dead:
        return
    consumer.is_leaving = True
    consumer.own_link.is_closed = True
    sim.note(f"{sub.name} {consumer.name} leaves")
    sim.did("leave, with so many in hand", len(sub.held_by.get(consumer, ())))
    await _leave(sim, sub, consumer)


async def _leave(sim: "Simulation", sub: SubscriptionModel, consumer: SimulatedConsumer) -> None:
    await sim.in_time(
        f"{sub.name}: the leave of {consumer.name}", sim.life.topic.consumer_left(consumer), ADMINISTRATION_S
    )


def crash(sim: "Simulation") -> None:
    """All consumers of a subscription lose their connection at once."""
    sub = a_subscription(sim)
    for consumer in sim.open_consumers(sub) if sub is not None else []:
        assert sub is not None
        consumer.is_leaving = True
        sim.note(f"{sub.name} {consumer.name} crashes")
        sim.did("crash, with so many in hand", len(sub.held_by.get(consumer, ())))
        sim.start_task(_leave(sim, sub, consumer))


def give_permits(sim: "Simulation", sub: SubscriptionModel, consumer: SimulatedConsumer, permits: int) -> None:
    """Let a consumer ask for messages."""
    dispatcher = sim.dispatcher(sub)
    if dispatcher is not None and consumer in sub.consumers:
        consumer.messages_asked += permits
        sim.note(f"{sub.name} {consumer.name} asks for {permits}")
        sim.did("flow", permits)
        dispatcher.consumer_flow(consumer, permits)


_PERMITS: Final = (1, 1, 3, 10, 100, 1_000)
_PERMITS_STINGY: Final = (1, 1, 1, 3)
_PERMITS_BULKY: Final = (1, 100, 5_000, 20_000)


def flow(sim: "Simulation") -> None:
    """A consumer asks for messages."""
    found = _consumer(sim)
    if found is not None:
        variant = sim.variant
        choice = _PERMITS_BULKY if variant.is_bulky else _PERMITS_STINGY if variant.is_stingy else _PERMITS
        give_permits(sim, *found, sim.chance.choice(choice))


def stick(sim: "Simulation") -> None:
    """A connection takes no more bytes."""
    found = _consumer(sim)
    if found is not None and found[1].own_link.takes_bytes:
        found[1].own_link.takes_bytes = False
        sim.did("a connection takes nothing")


def unstick(sim: "Simulation") -> None:
    """All connections take bytes again; some tell."""
    for sub in sim.oracle.subs.values():
        for consumer in sim.open_consumers(sub):
            let_write(sim, sub, consumer, is_told=sim.chance.random() < 0.5)


def let_write(sim: "Simulation", sub: SubscriptionModel, consumer: SimulatedConsumer, *, is_told: bool) -> None:
    """Let a connection take bytes again."""
    if not consumer.own_link.takes_bytes:
        consumer.own_link.takes_bytes = True
        sim.did("it takes bytes again, and tells" if is_told else "it takes bytes again, and does not tell")
        dispatcher = sim.dispatcher(sub)
        if is_told and dispatcher is not None:
            dispatcher.consumer_writable(consumer)


# Acknowledgements.


def acknowledge_keys(
    sim: "Simulation", sub: SubscriptionModel, consumer: SimulatedConsumer, keys: Sequence[Key]
) -> None:
    """Acknowledge entries whole."""
    dispatcher = sim.dispatcher(sub)
    assert dispatcher is not None
    sim.note(f"{sub.name} {consumer.name} acknowledges {list(keys)[:20]}")
    sim.did("acknowledge", len(keys))
    sim.oracle.acknowledged(sub, keys)
    for key in keys:
        sub.remembered.pop(key, None)
    dispatcher.acknowledge(consumer, list(keys))


def some(sim: "Simulation", keys: list[Key]) -> list[Key]:
    """Choose some of these, or all."""
    count = sim.chance.choice([1, 1, 3, len(keys)])
    if count >= len(keys):
        return keys
    return sim.chance.sample(keys, count) if sim.chance.random() < 0.5 else keys[:count]


def acknowledge(sim: "Simulation") -> None:
    """A consumer acknowledges some of what it holds."""
    found = _holder(sim)
    if found is not None:
        sub, consumer = found
        keys = list(sub.held_by.get(consumer, ()))
        if keys:
            acknowledge_keys(sim, sub, consumer, some(sim, keys))


def acknowledge_part(sim: "Simulation") -> None:
    """A consumer acknowledges some messages of batches that it was sent, now or before."""
    found = _consumer(sim)
    if found is None:
        return
    sub, consumer = found
    of = sub.remembered if sim.chance.random() < 0.3 else sub.held_by.get(consumer, {})
    batches = [key for key in of if key in sub.remembered and sub.remembered[key].bit_count() > 1]
    if not batches:
        return
    dispatcher = sim.dispatcher(sub)
    assert dispatcher is not None
    key = sim.chance.choice(batches)
    left = sub.remembered[key]
    places = [place for place in range(left.bit_length()) if left >> place & 1]
    for place in sim.chance.sample(places, sim.chance.randrange(1, len(places))):
        left &= ~(1 << place)
    sub.remembered[key] = left
    sim.did("acknowledge a part of a batch")
    sim.note(f"{sub.name} {consumer.name} acknowledges a part of {key}, {left:b} are left")
    sim.oracle.acknowledged_part(sub, key, left)
    dispatcher.acknowledge(consumer, [key], {key: words_of(left)})


def acknowledge_cumulative(sim: "Simulation") -> None:
    """A consumer acknowledges everything up to something that it was sent."""
    found = _holder(sim)
    if found is None:
        return
    sub, consumer = found
    dispatcher = sim.dispatcher(sub)
    held = sorted(sub.held_by.get(consumer, ()))
    if not held or dispatcher is None:
        return
    key = sim.chance.choice(held)
    if sub.is_single and sub.remembered.get(key, 0).bit_count() > 1 and sim.chance.random() < 0.5:
        _acknowledge_cumulative_part(sim, sub, consumer, key)
        return
    sim.note(f"{sub.name} {consumer.name} acknowledges through {key}")
    sim.did("acknowledge cumulatively" if sub.is_single else "acknowledge cumulatively, which is refused")
    if not sub.is_single:
        with suppress(CumulativeAckRefusedError):
            dispatcher.acknowledge_cumulative(consumer, Position(*key))
            sim.complain(f"{sub.name}: a shared subscription took a cumulative acknowledgement")
        return
    sub.passed = max(sub.passed, key)
    sim.oracle.acknowledged(sub, [one for one in sim.oracle.entries if one <= key])
    dispatcher.acknowledge_cumulative(consumer, Position(*key))


def _acknowledge_cumulative_part(
    sim: "Simulation", sub: SubscriptionModel, consumer: SimulatedConsumer, key: Key
) -> None:
    """Acknowledge everything before a batch, and its first messages."""
    dispatcher = sim.dispatcher(sub)
    assert dispatcher is not None
    left = sub.remembered[key]
    first = sim.chance.randrange(1, left.bit_length())
    left = left >> first << first
    sub.remembered[key] = left
    sim.note(f"{sub.name} {consumer.name} acknowledges through a part of {key}, {left:b} are left")
    sim.did("acknowledge cumulatively through a part of a batch")
    before = (key[0], key[1] - 1)
    sub.passed = max(sub.passed, before)
    sim.oracle.acknowledged(sub, [one for one in sim.oracle.entries if one < key])
    sim.oracle.acknowledged_part(sub, key, left)
    dispatcher.acknowledge_cumulative(consumer, Position(*key), words_of(left))


def cancel(sim: "Simulation") -> None:
    """A client without entries in hand acknowledges waiting ones: messages are cancelled, delayed ones above all."""
    sub = a_subscription(sim)
    if sub is None or sub.is_busy:
        return
    due = _due(sim, sub)
    waiting = [key for rows in sub.delayed.values() for _, key in rows]
    if not waiting or sim.chance.random() < 0.2:
        waiting += [key for keys in sub.immediate.values() for key in keys]
    if waiting:
        # Often all due entries, so that a dispatcher that was told of them finds none.
        cancel_keys(sim, sub, due if due and sim.chance.random() < 0.5 else some(sim, waiting))


def _due(sim: "Simulation", sub: SubscriptionModel) -> list[Key]:
    now_ms = sim.clock.now_ms()
    return [key for rows in sub.delayed.values() for deliver_at_ms, key in rows if deliver_at_ms <= now_ms]


def cancel_keys(sim: "Simulation", sub: SubscriptionModel, keys: Sequence[Key]) -> None:
    """Acknowledge waiting entries."""
    dispatcher = sim.dispatcher(sub)
    if dispatcher is not None:
        sim.note(f"{sub.name} cancels {list(keys)[:20]}")
        sim.did("cancel what waits", len(keys))
        sim.oracle.acknowledged(sub, keys)
        dispatcher.acknowledge(None, list(keys))


def let_due_go_another_way(sim: "Simulation", sub: SubscriptionModel) -> None:
    """Due entries are cancelled or skipped, or stay."""
    due = _due(sim, sub)
    if due:
        match sim.chance.choice(["cancel", "skip", "stay"]):
            case "cancel":
                cancel_keys(sim, sub, due)
            case "skip":
                _pass(sim, sub, min(due))


_JUST_IN_TIME_S_MAX: Final = 30.0

_FAR_FORTH_MS: Final = 30 * 86_400_000
_FAR_BACK_MS: Final = -3_600_000
"""Some steps of the wall clock are so large."""


def just_in_time(sim: "Simulation") -> None:
    """An event happens just as the time of a subscription's next delayed message comes."""
    sub = a_subscription(sim)
    if sub is not None:
        sim.start_task(_act_when_due(sim, sub, sim.chance.choice([cancel, cancel, seek, skip, crash, redeliver_all])))


async def _act_when_due(sim: "Simulation", sub: SubscriptionModel, act: Callable[["Simulation"], None]) -> None:
    deliver_at_ms = min((entry.deliver_at_ms for entry in sim.oracle.future(sub)), default=0)
    wait_s = (deliver_at_ms - sim.clock.now_ms()) / 1_000
    if not 0 < wait_s < _JUST_IN_TIME_S_MAX:
        return
    # While it leaves the tracker, is read, or is on its way to a consumer.
    await asyncio.sleep(wait_s + sim.chance.choice([0.0, sim.chance.random() * sim.variant.log_latency_s]))
    for _ in range(sim.chance.randrange(20)):
        await asyncio.sleep(0)
    if not sim.life.is_dead and not sim.is_resting:
        sim.did("just in time")
        act(sim)


def acknowledge_late(sim: "Simulation") -> None:
    """A client acknowledges what it was sent over earlier connections."""
    found = _consumer(sim)
    if found is not None:
        sub, consumer = found
        keys = [key for key in sub.remembered if key in sim.oracle.entries]
        if keys:
            sim.did("acknowledge what an earlier connection was sent", len(keys))
            acknowledge_keys(sim, sub, consumer, some(sim, keys))


def forget(sim: "Simulation") -> None:
    """Acknowledgements get lost: the client has forgotten, the broker never heard."""
    sub = a_subscription(sim)
    if sub is not None and sub.remembered:
        sim.did("acknowledgements are lost", len(sub.remembered))
        sub.remembered.clear()


def nack(sim: "Simulation") -> None:
    """A consumer asks for some entries again."""
    found = _holder(sim)
    if found is not None:
        sub, consumer = found
        keys = list(sub.held_by.get(consumer, ()))
        if keys:
            _redeliver(sim, sub, consumer, some(sim, keys))


def redeliver_all(sim: "Simulation") -> None:
    """A consumer asks for everything again."""
    found = _holder(sim)
    if found is not None:
        redeliver_everything(sim, *found)


def redeliver_everything(sim: "Simulation", sub: SubscriptionModel, consumer: SimulatedConsumer) -> None:
    """Let a consumer ask for everything again."""
    _redeliver(sim, sub, consumer, None)


def _redeliver(sim: "Simulation", sub: SubscriptionModel, consumer: SimulatedConsumer, keys: list[Key] | None) -> None:
    dispatcher = sim.dispatcher(sub)
    assert dispatcher is not None
    sim.note(f"{sub.name} {consumer.name} wants again {'everything' if keys is None else keys[:20]}")
    # An active consumer starts again from the first entry, also where it names others.
    is_all = keys is None or sub.is_single
    released = list(sub.held_by.get(consumer, ())) if is_all or keys is None else keys
    sim.did("redeliver everything, so many" if is_all else "nack", len(released))
    sim.oracle.released(sub, released, are_exempt=not is_all)
    dispatcher.redeliver_unacknowledged_messages(consumer, keys)


# Administration.


def seek(sim: "Simulation") -> None:
    """An administrator seeks a subscription to another position."""
    sub = a_subscription(sim)
    if sub is None or sub.is_busy or sim.subscription(sub) is None:
        return
    ledger = sim.life.topic.ledger
    where = sim.chance.random()
    if where < 0.2:
        position = ledger.first_position
    elif where < 0.4:
        position = sim.life.topic.next_position()
    else:
        durable = [key for key, entry in sim.oracle.entries.items() if entry.committed_at is not None]
        position = Position(*sim.chance.choice([*durable, tuple(ledger.first_position)]))
    sim.note(f"{sub.name} seeks {position}")
    sim.did("seek")
    sub.is_busy = True
    sub.pending_seek = tuple(position)
    sub.passed = max(sub.passed, tuple(position))
    sim.start_task(_seek(sim, sub, position))


async def _seek(sim: "Simulation", sub: SubscriptionModel, position: Position) -> None:
    found = sim.subscription(sub)
    assert found is not None
    await sim.in_time(f"{sub.name}: the seek", found.seek(position), ADMINISTRATION_S)
    sim.oracle.sync(sub)
    sub.before_seek = None
    sub.is_busy = False


async def expire(sim: "Simulation") -> None:
    """The retention check looks for what has outlived its time."""
    for sub in sim.oracle.subs.values():
        # The clock may be put forth while it looks.
        sub.expiring = sim.clock.now_ms() - sim.variant.config.ttl_ms
    sim.note("expires")
    sim.did("expiry")
    # Where the log cannot be read it is tried again at the next check.
    with suppress(LedgerError):
        await sim.in_time(
            "expiry", sim.life.topic.expire(sim.clock.now_ms(), sim.variant.config.ttl_ms), ADMINISTRATION_S
        )
    for sub in sim.oracle.subs.values():
        sub.expiring = None


def skip(sim: "Simulation") -> None:
    """An administrator skips some entries."""
    sub = a_subscription(sim)
    if sub is not None and not sub.is_busy:
        keys = sorted(key for key, entry in sim.oracle.entries.items() if entry.committed_at is not None)
        if keys:
            _pass(sim, sub, sim.chance.choice(keys))


async def clear(sim: "Simulation") -> None:
    """An administrator clears the backlog, every other time while a consumer is being sent what it asked for."""
    found = _consumer(sim)
    if found is not None and sim.chance.random() < 0.5:
        give_permits(sim, *found, 1_000)
        for _ in range(sim.chance.randrange(12)):
            await asyncio.sleep(0)
    sub = a_subscription(sim) if found is None else found[0]
    last = sim.last_position()
    if sub is not None and not sub.is_busy and last.entry_id >= 0:
        _pass(sim, sub, tuple(last))


def _pass(sim: "Simulation", sub: SubscriptionModel, through: Key) -> None:
    found = sim.subscription(sub)
    if found is None:
        return
    sim.oracle.sync(sub)
    sim.note(f"{sub.name} passes {through}")
    passed = [key for key in sim.oracle.entries if key <= through and key not in sub.acknowledged]
    sim.did("skip or clear", len(passed))
    sub.passed = max(sub.passed, through)
    sim.oracle.acknowledged(sub, [key for key in sim.oracle.entries if key <= through])
    found.skip(Position(*through))


async def switch_delays(sim: "Simulation") -> None:
    """The topic's policy heeds delivery times no more, or again."""
    await set_delays(sim, is_active=not sim.is_active)


async def change_tick(sim: "Simulation") -> None:
    """The topic's policy has another tick."""
    sim.tick_time_ms = sim.chance.choice([1, 10, 1_000])
    sim.oracle.note_tick(sim.tick_time_ms)
    sim.note(f"the tick is {sim.tick_time_ms} ms")
    sim.did("change of the tick")
    await _set_policies(sim)


async def _set_policies(sim: "Simulation") -> None:
    policies = DelayedDeliveryPolicies(is_active=sim.is_active, tick_time_ms=sim.tick_time_ms, delay_ms_max=0)
    sim.policies_under_way += 1
    await sim.in_time("the change of policies", sim.life.service.set_policies(TOPIC, policies), ADMINISTRATION_S)
    sim.policies_under_way -= 1


def look_at_policies(sim: "Simulation") -> None:
    """Find out after a start which policies are in force: a change that was not answered may have survived or not."""
    stored, wanted = sim.life.topic.delayed_delivery, (sim.is_active, sim.tick_time_ms)
    if not sim.policies_under_way and (stored.is_active, stored.tick_time_ms) != wanted:
        sim.complain(f"the policies were {wanted} before the restart and are {stored}")
    sim.policies_under_way = 0
    if stored.is_active and not sim.is_active:
        _note_delays_on(sim)
    sim.is_active, sim.tick_time_ms = stored.is_active, stored.tick_time_ms


async def set_delays(sim: "Simulation", *, is_active: bool) -> None:
    """Set the topic's policy."""
    sim.did("delays on" if is_active else "delays off")
    await _change_delays(sim, is_active=is_active)


async def switch_delays_of_closed_topic(sim: "Simulation") -> None:
    """Do what `switch_delays` does after a start, before anything has opened the topic."""
    sim.did("delays of a closed topic on" if not sim.is_active else "delays of a closed topic off")
    await _change_delays(sim, is_active=not sim.is_active)


async def _change_delays(sim: "Simulation", *, is_active: bool) -> None:
    sim.is_active = is_active
    if not is_active:
        sim.oracle.delays_off_at = float("inf")
        committed = (key for key, entry in sim.oracle.entries.items() if entry.committed_at is not None)
        keeps_through = max(committed, default=(-1, -1))
        for sub in sim.oracle.subs.values():
            sub.off_periods.append(OffPeriod(keeps_through))
    sim.note(f"delays are {'on' if is_active else 'off'}")
    sim.disturb_order(1.0)
    await _set_policies(sim)
    if is_active:
        _note_delays_on(sim)


def _note_delays_on(sim: "Simulation") -> None:
    sim.oracle.delays_off_at = sim.clock.now_s()
    for sub in sim.oracle.subs.values():
        for off in sub.off_periods:
            off.end_s = min(off.end_s, sim.clock.now_s())


def step_clock(sim: "Simulation") -> None:
    """The wall clock is put back or forth."""
    if not sim.variant.has_clock_steps:
        return
    step_ms = sim.chance.choice([-1, 1]) * sim.chance.choice([1, 500, 10_000, 100_000])
    # By a die of its own: the stories of all seeds would be other ones else.
    is_far = Random(f"{sim.seed} far {sim.step}").random() < 0.4
    put_clock(sim, (_FAR_FORTH_MS if step_ms > 0 else _FAR_BACK_MS) if is_far else step_ms)


def put_clock(sim: "Simulation", step_ms: int) -> None:
    """Put the wall clock back or forth."""
    if step_ms < 0:
        sim.times.peaks.append((sim.clock.now_s(), sim.clock.now_ms()))
    sim.clock.offset_ms += step_ms
    if sim.upkeep is not None:
        sim.upkeep.clock_was_set()
    sim.did("the clock is put forth" if step_ms > 0 else "the clock is put back", abs(step_ms))
    sim.note(f"the clock makes a step of {step_ms} ms")
    sim.disturb_order(12.0)


async def keep_house(sim: "Simulation") -> None:
    """The retention check rolls over, trims and sweeps."""
    sim.note("keeps house")
    sim.did("retention check")
    await sim.in_time("retention", sim.life.topic.roll_over_and_trim(sim.clock.now_ms()), ADMINISTRATION_S)


async def unsubscribe(sim: "Simulation") -> None:
    """A subscription's last consumer deletes it; another one is made."""
    sub = a_subscription(sim)
    if sub is None or sub.is_busy:
        return
    consumers = sim.open_consumers(sub)
    # A consumer that comes after the end of a subscription makes another one of the same name.
    if len(consumers) != 1 or len(sub.consumers) != 1 or sub.joining:
        return
    sub.is_busy = True
    try:
        await sim.in_time(f"{sub.name}: the unsubscribe", sim.life.topic.unsubscribe(consumers[0]), ADMINISTRATION_S)
    except BrokerError:
        # Another one came meanwhile.
        sub.is_busy = False
        return
    sim.did("unsubscribe")
    del sim.oracle.subs[sub.name]
    await subscribe_anew(sim, sub.kind)


def change_kind(sim: "Simulation") -> None:
    """The next consumers of a subscription that all consumers left are of another type."""
    sub = a_subscription(sim)
    found = sim.subscription(sub) if sub is not None else None
    if sub is None or found is None or sub.is_busy or sub.joining or sub.consumers or found.consumers:
        return
    kinds = [kind for kind in KINDS if kind not in (CLASSIC, LAST_SENT, DRAINING)]
    own = [kind for kind in sim.variant.kinds if kind in (CLASSIC, LAST_SENT)]
    before, known = subscription_type(sub.kind), dict(sub.remaining)
    sub.kind = sim.chance.choice([*kinds, *(own or [DRAINING])])
    sim.note(f"{sub.name} is {sub.kind} from now on")
    sim.did("change of the type")
    # The next dispatcher begins anew; what clients hold of batches is forgotten with the last one.
    sim.oracle.begin_with(sub, sub.acknowledged)
    if subscription_type(sub.kind) is before:
        # Other rules of Key_Shared have no dispatcher of their own.
        sub.remaining.update(known)
    sub.got_when_due.clear()
    sim.disturb_order(8.0)


# Faults.


def apply_faults(sim: "Simulation") -> None:
    """Let storage and log behave as the variant says."""
    sim.life.storage.plan = sim.variant.plan
    sim.life.disk.read_failure_rate = sim.variant.read_failure_rate
    if sim.variant.plan is not NO_FAULTS and not sim.variant.waits_for_storage:
        sim.disturb_order(FOR_EVER_S)


def break_storage(sim: "Simulation") -> None:
    """The snapshot storage answers no more, or refuses."""
    sim.storage_state = sim.chance.choice(["hangs", "is down"])
    sim.life.storage.is_hanging = sim.storage_state == "hangs"
    sim.life.storage.is_down = sim.storage_state == "is down"
    sim.note(f"the storage {sim.storage_state}")
    sim.did(f"the storage {sim.storage_state}")
    sim.disturb_order(FOR_EVER_S)


def mend_storage(sim: "Simulation") -> None:
    """It works again."""
    storage = sim.life.storage
    if sim.storage_state != "works":
        storage.is_hanging = storage.is_down = False
        sim.storage_state = "works"
        sim.note("the storage is mended")
        sim.did("the storage is mended")
        if storage.plan is NO_FAULTS:
            restore_order(sim)


def restore_order(sim: "Simulation") -> None:
    """Let the order of time be a promise again, once what went wrong is over."""
    if sim.oracle.order_since > sim.clock.now_s() + 1_000 and not sim.has_bad_snapshots:
        sim.oracle.order_since = sim.clock.now_s() + 15.0


async def lose_snapshot(sim: "Simulation") -> None:
    """A snapshot vanishes from the storage."""
    snapshots = await sim.stored.list_bucket_snapshots()
    if snapshots:
        sim.note("a snapshot is lost")
        sim.did("a snapshot is lost")
        # That is found out when it is loaded, which can be much later. Its messages keep their place in order.
        sim.has_bad_snapshots = True
        await sim.stored.delete_bucket_snapshot(sim.chance.choice(snapshots).bucket_id)


def heal(sim: "Simulation") -> None:
    """Faults end: of the storage, of reads and of the clock."""
    sim.life.storage.plan = NO_FAULTS
    sim.life.disk.read_failure_rate = 0.0
    mend_storage(sim)
    restore_order(sim)


def kill(sim: "Simulation") -> None:
    """The process is killed soon."""
    sim.life.kill_after(sim.chance.choice([0, 1, 3, 10, 40, 150]))


def cut_power(sim: "Simulation") -> None:
    """The machine loses power: writes that were not synced are gone."""
    sim.is_power_cut = True
    kill(sim)


def stall(sim: "Simulation") -> None:
    """The process stands still soon, and another one takes over; it may wake up."""
    # The jobs of a life are those of the one process whose clock is put back and forth.
    sim.is_stall = sim.upkeep is None
    if sim.is_stall and sim.chance.random() < 0.7:
        # So that something has no receipt yet.
        publish(sim)
    kill(sim)


def wake(sim: "Simulation") -> None:
    """The process that stood still goes on, and does not know what happened meanwhile."""
    if sim.stalled is not None:
        sim.note("the stalled owner wakes up")
        sim.stalled.wake()
        sim.did("woken: for a while")


async def restart(sim: "Simulation") -> None:
    """The service is stopped in order and started again."""
    sim.note("restarts")
    sim.did("restart")
    await sim.close_life()


# Time.


async def wait(sim: "Simulation") -> None:
    """Some time passes."""
    await asyncio.sleep(sim.chance.random() * 3)


async def wait_long(sim: "Simulation") -> None:
    """A long time passes."""
    await asyncio.sleep(sim.chance.random() * 60)


async def rest(sim: "Simulation") -> None:
    """The service comes to rest, and due messages must have been sent."""
    from tests.simulation.whole_service.rest import come_to_rest

    await come_to_rest(sim, is_final=False)


Event = Callable[["Simulation"], Coroutine[Any, Any, None] | None]

EVENTS: Final[dict[str, Event]] = {
    event.__name__: event
    for event in (
        publish,
        publish_many,
        join,
        leave,
        crash,
        flow,
        stick,
        unstick,
        acknowledge,
        acknowledge_part,
        acknowledge_cumulative,
        acknowledge_late,
        forget,
        nack,
        redeliver_all,
        seek,
        expire,
        skip,
        clear,
        cancel,
        just_in_time,
        switch_delays,
        change_tick,
        step_clock,
        keep_house,
        unsubscribe,
        change_kind,
        break_storage,
        mend_storage,
        lose_snapshot,
        kill,
        cut_power,
        restart,
        stall,
        wake,
        wait,
        wait_long,
        rest,
    )
}
