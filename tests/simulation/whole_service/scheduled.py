"""Requests about scheduled messages, as events: publish, set by id, pause, resume, cancel, move, deliver now.

All but the HTTP requests is the broker's own (`postdate.broker.scheduled`). The oracle learns of a change where it
takes effect: at the log, which is asked to replace entries, and at the subscription, which is asked to cancel some.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import numpy as np

from managed_ledger.cursors.cursor import Cursor
from managed_ledger.entries.headers import NOT_DELAYED
from managed_ledger.entries.message_metadata import header_flags, metadata_bytes, parse_metadata
from managed_ledger.errors import LedgerError, ManagedLedgerClosedError
from managed_ledger.positions.position import Position
from managed_ledger.positions.value_types import Int64Array
from managed_ledger.replacing import Entries, NewEntry, Replacement
from postdate.broker.errors import BrokerError
from postdate.broker.scheduled.operations import ChangeOutcome, Operations, Progress, Selector, early_ms_of
from postdate.broker.scheduled.publishing import NewMessage
from postdate.broker.scheduled.selection import Wanted
from postdate.broker.scheduled.topic_schedule import TopicSchedule
from postdate.broker.topics.change_order import ChangeUnderWayError
from postdate.broker.topics.pause import NOT_PAUSED, PauseState
from postdate.broker.topics.subscription import Subscription
from tests.simulation.whole_service.events import ADMINISTRATION_S, Event, a_subscription, deliver_at, some
from tests.simulation.whole_service.oracle import Key, SubscriptionModel
from tests.simulation.whole_service.payloads import number_of, payload_of

if TYPE_CHECKING:
    from tests.simulation.whole_service.simulation import Simulation

_NewTime = Callable[[Int64Array, int], Int64Array]
"""Gives new times from the old ones and the time that it is."""

_REFUSALS: Final = (BrokerError, ChangeUnderWayError, LedgerError, ManagedLedgerClosedError)


# Publish.


def publish_over_http(sim: "Simulation") -> None:
    """A caller over HTTP publishes messages, all or none; now and then one is too large."""
    chance = sim.chance
    law = chance.choice(sim.variant.delay_laws)
    messages = []
    for _ in range(chance.choice([1, 1, 3, 20, 200])):
        deliver_at_ms = deliver_at(sim, law)
        key = f"key {chance.randrange(len(sim.variant.keys))}"
        time_ms = None if deliver_at_ms == NOT_DELAYED else deliver_at_ms
        messages.append(NewMessage(b"%d " % sim.next_number(), key, deliver_at_ms=time_ms))
    sim.start_task(_publish(sim, messages, is_too_large=chance.random() < 0.1))


async def _publish(sim: "Simulation", messages: list[NewMessage], *, is_too_large: bool) -> None:
    numbers = {int(one.payload) for one in messages}
    if is_too_large:
        payload = messages[-1].payload + b"x" * sim.variant.config.message_size_max
        messages[-1] = messages[-1]._replace(payload=payload)
    sim.published_unanswered.append(numbers)
    sim.note(f"over HTTP {len(messages)} are published, from number {min(numbers)} on")
    try:
        publishing = sim.life.producer.publish(sim.life.topic, messages)
        positions = await sim.in_time("a publish over HTTP", publishing, ADMINISTRATION_S)
    except _REFUSALS:
        sim.published_unanswered.remove(numbers)
        sim.did("publish over HTTP, refused")
        if is_too_large and any(number_of(one.payload) in numbers for one in sim.oracle.entries.values()):
            sim.complain(f"of messages that were refused together some are published: {sorted(numbers)[:5]}")
        return
    if sim.life.is_dead:
        return
    sim.published_unanswered.remove(numbers)
    sim.did("publish over HTTP", len(positions))
    found = [entry for at in positions if (entry := sim.oracle.entries.get(tuple(at))) is not None]
    if is_too_large or any(entry.committed_at is None for entry in found):
        sim.complain(f"a publish was answered that is too large, or is not durable: {positions[:5]}")


# Pause and resume.


def pause(sim: "Simulation") -> None:
    """An operator holds the deliveries of a subscription."""
    sub = a_subscription(sim)
    if sub is not None and not sub.is_busy and not sub.is_pausing and not sub.is_paused:
        sim.start_task(hold(sim, sub))


async def hold(sim: "Simulation", sub: SubscriptionModel) -> None:
    """Pause a subscription."""
    found = sim.subscription(sub)
    if found is None or found.pause.is_paused or sub.is_pausing:
        return
    sim.did("pause")
    sim.note(f"{sub.name} is paused")
    # A consumer that comes before it is durable is still sent messages.
    if await _set_pause(sim, sub, found, PauseState(paused_since_ms=sim.clock.now_ms())):
        # Entries given to consumers are not taken back, though they are not sent yet.
        sim.oracle.paused(sub, sim.unsent(sub))


_RATES: Final = (None, None, 1.0, 7.5, 40.0, 1_000.0)


def resume(sim: "Simulation") -> None:
    """The operator lets deliveries go on, at once or with so many messages a second."""
    sub = a_subscription(sim)
    if sub is not None and not sub.is_busy and not sub.is_pausing:
        sim.start_task(let_go(sim, sub, sim.chance.choice(_RATES)))


async def let_go(sim: "Simulation", sub: SubscriptionModel, rate_per_second: float | None) -> None:
    """Resume a subscription."""
    found = sim.subscription(sub)
    if found is None or found.pause == NOT_PAUSED or sub.is_pausing:
        return
    sim.did("resume" if rate_per_second is None else "resume at a rate")
    sim.note(f"{sub.name} goes on with {rate_per_second} messages a second")
    # Until it is noted durably, the state before is in force: a rate is promised from then on.
    sim.oracle.resumed(sub, None, sim.unsent(sub))
    if await _set_pause(sim, sub, found, PauseState(rate_per_second=rate_per_second)):
        sim.oracle.resumed(sub, rate_per_second, sim.unsent(sub))


async def _set_pause(sim: "Simulation", sub: SubscriptionModel, found: Subscription, state: PauseState) -> bool:
    # A kill meanwhile leaves the one or the other.
    sub.is_pausing = True
    sub.pauses_possible = {found.pause, state}
    with suppress(*_REFUSALS):
        await sim.in_time(f"{sub.name}: the pause or its end", found.set_pause(state), ADMINISTRATION_S)
        sub.pauses_possible = {state}
    sub.is_pausing = False
    return sub.pauses_possible == {state}


def adopt_pause(sim: "Simulation", sub: SubscriptionModel) -> None:
    """After a start: a pause holds, and a smooth resume goes on with its rate."""
    found = sim.subscription(sub)
    assert found is not None
    state = found.pause
    possible = set(sub.pauses_possible)
    if any(one.rate_per_second is not None for one in possible):
        # It ends when nothing waits any more.
        possible.add(NOT_PAUSED)
    if state not in possible:
        sim.complain(f"{sub.name}: after a restart its pause is {state}, and should be one of {possible}")
    sub.pauses_possible = {state}
    sub.is_pausing = False
    if state.is_paused:
        sim.did("a pause is there after a start")
        sim.oracle.paused(sub, set())
    else:
        sim.oracle.resumed(sub, state.rate_per_second, set())


# Cancel, reschedule, deliver now.


def cancel_by_id(sim: "Simulation") -> None:
    """Messages are cancelled by their ids, due ones too."""
    found = _chosen(sim)
    if found is None:
        return
    sim.start_task(_cancel(sim, *found))


async def _cancel(sim: "Simulation", subs: list[SubscriptionModel], keys: list[Key]) -> None:
    operations = _operations(sim, subs)
    sim.note(f"{[sub.name for sub in subs]} cancel by id {keys[:20]}")
    with suppress(*_REFUSALS):
        outcome = await operations.cancel(Selector(message_ids=[Position(*key) for key in keys]))
        if not sim.life.is_dead:
            sim.did("cancel by id", outcome.changed)
            _judge_sum(sim, outcome, outcome.changed + outcome.in_hand + outcome.gone)


def cancel_while_moved(sim: "Simulation") -> None:
    """Everything of a subscription is cancelled a moment after some of it begins to be moved; an operator looks on."""
    found = _chosen(sim)
    if found is not None:
        subs, keys = found
        sim.start_task(
            _replace(sim, "reschedule", subs, keys, lambda times_ms, now_ms: np.maximum(times_ms, now_ms) + 1)
        )
        sim.start_task(_cancel_all(sim, sim.chance.choice(subs), sim.chance.random() * 0.03))
        # The write of the copies takes some ten milliseconds; only then a message is the old one that is withheld.
        sim.start_task(_look(sim, sim.chance.choice(subs), sim.chance.random() * 0.015))


async def _cancel_all(sim: "Simulation", sub: SubscriptionModel, after_s: float) -> None:
    await asyncio.sleep(after_s)
    if sim.life.is_dead or not _delays(sim, sub) or sub.pending_seek is not None:
        return
    sim.note(f"{sub.name} cancels everything")
    meant, seeks = sim.scheduled_keys(sub), sub.seeks_seen
    numbers = {number_of(sim.oracle.entries[key].payload) for key in meant}
    with suppress(*_REFUSALS):
        outcome = await _operations(sim, [sub]).cancel(Selector())
        if sim.life.is_dead:
            return
        sim.did("cancel of everything", outcome.changed)
        _judge_sum(sim, outcome, outcome.changed + outcome.in_hand + outcome.gone)
        if sub.seeks_seen != seeks or sub.pending_seek is not None:
            return
        for key in sim.scheduled_keys(sub) - meant:
            entry = sim.oracle.entries[key]
            # A message that has come due may have been in a hand, and have come back. A copy that was made while the
            # topic's delays were off was not scheduled then, though it is once they are on again.
            if sim.oracle.is_due(entry) or sim.oracle.may_be_undelayed(sub, entry):
                continue
            if entry.copy_of is not None and number_of(entry.payload) in numbers:
                sim.complain(
                    f"{sub.name}: everything was cancelled, and {key}, a copy of {entry.copy_of}, is still to come"
                )


def _judge_sum(sim: "Simulation", outcome: ChangeOutcome, told: int) -> None:
    if told != outcome.matched:
        sim.complain(f"of {outcome.matched} messages that were meant, a change tells of {told}: {outcome}")


def look(sim: "Simulation") -> None:
    """An operator lists the messages of a subscription, while they are delivered, moved and cancelled."""
    sub = a_subscription(sim)
    if sub is not None and not sub.is_busy and _delays(sim, sub) and sim.oracle.delays_off_at < sim.clock.now_s():
        sim.start_task(_look(sim, sub))


async def _look(sim: "Simulation", sub: SubscriptionModel, after_s: float = 0.0) -> None:
    await asyncio.sleep(after_s)
    found = sim.subscription(sub)
    if found is None or sim.life.is_dead or sub.is_busy or not _delays(sim, sub):
        return
    if sub.pending_seek is not None or sim.oracle.delays_off_at >= sim.clock.now_s():
        return
    sim.oracle.sync(sub)
    expected = sim.scheduled_keys(sub)
    schedule = TopicSchedule(sim.life.topic, sim.life.service.catalog, [found], sim.clock.now_ms)
    schedule.moment  # noqa: B018 - it is of now
    with suppress(*_REFUSALS):
        rows = await schedule.rows(Wanted())
        if sim.life.is_dead:
            return
        sim.did("look", len(rows))
        seen = list(zip(rows.ledger_ids.tolist(), rows.entry_ids.tolist(), strict=True))
        # A ledger that was trimmed meanwhile cannot be read, and is gone before the oracle hears of it.
        present = {one.ledger_id for one in sim.life.topic.ledger.ledgers()}
        missing = {key for key in expected.difference(seen) & sim.oracle.entries.keys() if key[0] in present}
        beyond = set(seen) - expected
        if missing or beyond or len(set(seen)) != len(seen):
            sim.complain(f"{sub.name}: a look misses {sorted(missing)[:5]}, and has {sorted(beyond)[:5]} beyond")


def reschedule(sim: "Simulation") -> None:
    """Messages get another time: each is replaced by a copy, in one write with its acknowledgement."""
    shift_ms = sim.chance.choice([1, 200, 2_000, 20_000, -500])
    _move(sim, "reschedule", lambda times_ms, now_ms: np.maximum(times_ms + shift_ms, now_ms))


def deliver_now(sim: "Simulation") -> None:
    """Messages become due at once."""
    _move(sim, "deliver now", np.full_like)


def _move(sim: "Simulation", name: str, new_time: _NewTime) -> None:
    found = _chosen(sim)
    if found is not None:
        sim.start_task(_replace(sim, name, *found, new_time))


async def _replace(
    sim: "Simulation", name: str, subs: list[SubscriptionModel], keys: list[Key], new_time: _NewTime
) -> None:
    operations = _operations(sim, subs)
    sim.note(f"{[sub.name for sub in subs]} {name} {keys[:20]}")
    with suppress(*_REFUSALS):
        now_ms = sim.clock.now_ms()
        selector = Selector(message_ids=[Position(*key) for key in keys])
        outcome = await operations.move(selector, lambda times_ms: new_time(times_ms, now_ms))
        if sim.life.is_dead:
            return
        sim.did(name, outcome.changed)
        others = outcome.already_due + outcome.in_hand + outcome.gone + outcome.already_shifted
        _judge_sum(sim, outcome, outcome.changed + others)


def schedule_by_id(sim: "Simulation") -> None:
    """Some clients schedule messages by ids of their own at once, of which most are one id."""
    if not any(_delays(sim, sub) for sub in sim.oracle.subs.values()):
        return
    for _ in range(sim.chance.choice([1, 2, 4])):
        own_id = sim.chance.choice(["a", "a", "a", "b", "c"])
        delay_ms = sim.chance.choice([0, 50, 5_000, 60_000])
        sim.start_task(_schedule(sim, own_id, delay_ms, sim.chance.random() * 0.01))


async def _schedule(sim: "Simulation", own_id: str, delay_ms: int, after_s: float) -> None:
    await asyncio.sleep(after_s)
    subs = [sub for sub in sim.oracle.subs.values() if not sub.is_busy and _delays(sim, sub)]
    if sim.life.is_dead or not subs:
        return
    topic, now_ms = sim.life.topic, sim.clock.now_ms()
    sim.published += 1
    payload = payload_of(sim.published, 20, publish_time_ms=now_ms, own_id=own_id)
    flags = header_flags(parse_metadata(metadata_bytes(payload)))
    # Chunks have even hashes.
    new = NewEntry(payload, now_ms, now_ms + delay_ms, 2 * len(own_id) + 1, 1, flags)

    def append(acknowledged: Mapping[Cursor, Entries]) -> Replacement:
        sim.own_id_set = own_id
        try:
            return topic.ledger.replace([new], acknowledged=acknowledged, hidden={})
        finally:
            sim.own_id_set = None

    seeks = {sub: sub.seeks_seen for sub in subs}
    with suppress(*_REFUSALS):
        scheduled = await _operations(sim, subs).schedule(frozenset({own_id}), append)
        if sim.life.is_dead:
            return
        sim.did("schedule by id", 1 + scheduled.replaced)
        for sub in subs:
            if sub.seeks_seen == seeks[sub] and sub.pending_seek is None and not sub.is_busy:
                _judge_id(sim, sub, own_id)


def _judge_id(sim: "Simulation", sub: SubscriptionModel, own_id: str) -> None:
    """One message of an id waits for its time; what has come due may have been in a hand, and have come back."""
    entries = [sim.oracle.entries[key] for key in sim.scheduled_keys(sub)]
    ahead = [
        one.key
        for one in entries
        if one.own_id == own_id and not sim.oracle.is_due(one) and not sim.oracle.may_be_undelayed(sub, one)
    ]
    if len(ahead) > 1:
        sim.complain(f"{sub.name}: {sorted(ahead)} are all scheduled under the id {own_id}")


def _chosen(sim: "Simulation") -> tuple[list[SubscriptionModel], list[Key]] | None:
    """Choose subscriptions that delay, and messages that they are to get, delayed ones above all."""
    subs = [sub for sub in sim.oracle.subs.values() if not sub.is_busy and _delays(sim, sub)]
    if not subs:
        return None
    one = sim.chance.choice(subs)
    keys = [key for rows in one.delayed.values() for _, key in rows]
    keys += [key for key in one.in_hand if sim.oracle.entries[key].is_delayed]
    if not keys:
        return None
    return (subs if sim.chance.random() < 0.3 else [one]), some(sim, sorted(keys))


def _delays(sim: "Simulation", sub: SubscriptionModel) -> bool:
    found = sim.subscription(sub)
    return found is not None and found.has_delays


def _operations(sim: "Simulation", subs: list[SubscriptionModel]) -> Operations:
    """Return the operations as the web port makes them."""
    chosen = [found for sub in subs if (found := sim.subscription(sub)) is not None]
    topic, service = sim.life.topic, sim.life.service
    return Operations(
        topic,
        lambda: TopicSchedule(topic, service.catalog, chosen, sim.clock.now_ms, has_in_hand=True),
        now_ms=sim.clock.now_ms,
        early_ms=early_ms_of(sim.life.topic, is_strict=sim.variant.config.tracker.is_deliver_at_time_strict),
        progress=Progress(),
    )


SCHEDULED_EVENTS: Final[dict[str, Event]] = {
    event.__name__: event
    for event in (
        publish_over_http,
        pause,
        resume,
        cancel_by_id,
        cancel_while_moved,
        reschedule,
        deliver_now,
        schedule_by_id,
        look,
    )
}
