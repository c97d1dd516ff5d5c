"""Scheduled messages that are damaged in the log are listed, explained and left out of changes, and each is named."""

from collections.abc import Callable

import pytest
from msgspec import UNSET

from managed_ledger.disk.keys import Family, block_key, pair
from managed_ledger.entries.blocks import encode_payloads, payload_at, payload_count, row_count
from managed_ledger.entries.headers import ROW_BYTES
from managed_ledger.positions.position import Position
from postdate.broker.scheduled.explanation import explain_found, explain_message
from postdate.broker.scheduled.listing import list_messages, topic_summary
from postdate.broker.scheduled.operations import Selector
from postdate.broker.scheduled.topic_schedule import TopicSchedule
from tests.helpers.scheduled_world import ALL, FIRST_DUE_MS, MESSAGES, World, play

DAMAGED = 3
"""The number of the damaged message."""


async def _damage_value(world: World, family: Family, rest: Callable[[bytes], list[bytes]]) -> Position:
    """Take the stored value of a message away, as a block that RocksDB cannot read, and forget what is in memory.

    `rest` divides a value into those of its entries.
    """
    await world.start()
    await world.connect()
    await world.publish()
    at = Position(world.topic.ledger.ledgers()[0].ledger_id, DAMAGED)
    table = world.disk.tables[family]
    key = max(key for key in table if key <= block_key(*at))
    stored, first = table.pop(key), pair.unpack(key)[1]
    for entry_id, value in enumerate(rest(stored), first):
        if entry_id != at.entry_id:
            table[block_key(at.ledger_id, entry_id)] = value
    world.store.reader.drop_ledger(at.ledger_id)
    return at


async def _damage_headers(world: World) -> Position:
    def rest(stored: bytes) -> list[bytes]:
        return [stored[place * ROW_BYTES : (place + 1) * ROW_BYTES] for place in range(row_count(stored))]

    return await _damage_value(world, Family.HEADERS, rest)


async def _damage(world: World) -> Position:
    def rest(stored: bytes) -> list[bytes]:
        return [encode_payloads([payload_at(stored, place)]) for place in range(payload_count(stored))]

    return await _damage_value(world, Family.PAYLOADS, rest)


def _schedule(world: World) -> TopicSchedule:
    return TopicSchedule(
        world.topic, world.service.catalog, list(world.topic.subscriptions.values()), world.clock.now_ms
    )


def test_a_list_shows_a_damaged_message_without_its_key() -> None:
    async def story(world: World) -> None:
        at = await _damage(world)
        messages, following = await list_messages(_schedule(world), ALL, limit=1_000, after=None, has_payload=True)

        assert (len(messages), following) == (MESSAGES, None)
        assert [one.message_id for one in messages if one.damaged] == [str(at)]
        (shown,) = [one for one in messages if one.damaged]
        assert (shown.key, shown.properties, shown.payload) == (None, {}, UNSET)
        # By properties alone it is not known whether it is meant.
        by_property = Selector(properties={"a": "b"})
        messages, _ = await list_messages(_schedule(world), by_property, limit=1_000, after=None, has_payload=False)
        assert messages == []

    play("memory", story)


def test_an_explanation_names_the_damage_and_the_remedy() -> None:
    async def story(world: World) -> None:
        at = await _damage(world)
        found = await explain_message(_schedule(world), at, now_ms=world.clock.now_ms(), ttl_ms=0)

        assert found is not None
        (state,) = found.messages[0].subscriptions
        assert state.state == "damaged"
        assert "the log is damaged" in found.sentence
        assert "postdate ledger repair" in found.sentence

    play("memory", story)


def test_the_explanation_of_a_key_has_its_damaged_messages_by_their_hash() -> None:
    async def story(world: World) -> None:
        at = await _damage(world)
        of_key = {}
        messages, _ = await list_messages(_schedule(world), ALL, limit=1_000, after=None, has_payload=False)
        for key in {one.key for one in messages if one.key is not None}:
            explained = await explain_found(
                _schedule(world), Selector(key=key.encode()), now_ms=world.clock.now_ms(), ttl_ms=0
            )
            states = {one.message_id: one.subscriptions[0].state for one in explained.answer.messages}
            of_key[key] = [message_id for message_id, state in states.items() if state == "damaged"]
        assert sorted(of_key.values()) == [[], [], [], [str(at)]]

    play("memory", story)


def test_a_move_leaves_damaged_messages_out_and_a_cancel_by_id_takes_them() -> None:
    async def story(world: World) -> None:
        at = await _damage(world)
        moved = await world.operations().move(ALL, lambda times_ms: times_ms + 1_000)
        assert (moved.matched, moved.changed, moved.gone) == (MESSAGES, MESSAGES - 1, 0)
        assert {ledger_id: list(ids) for ledger_id, ids in moved.damaged.items()} == {at.ledger_id: [DAMAGED]}

        by_filter = await world.operations().cancel(Selector(properties={"a": "b"}))
        assert (by_filter.matched, by_filter.changed, by_filter.damaged_count) == (0, 0, 1)
        assert await world.cancel(Selector(message_ids=[at])) == 1

    play("memory", story)


def test_a_damaged_header_leaves_its_own_message_out_and_no_others() -> None:
    async def story(world: World) -> None:
        at = await _damage_headers(world)
        messages, _ = await list_messages(_schedule(world), ALL, limit=1_000, after=None, has_payload=False)
        assert len(messages) == MESSAGES - 1
        summary = await topic_summary(world.topic, world.service.catalog, world.clock.now_ms)
        assert summary.delayed == MESSAGES - 1
        key = str(messages[0].key).encode()
        of_key = await explain_found(_schedule(world), Selector(key=key), now_ms=world.clock.now_ms(), ttl_ms=0)
        assert {one.subscriptions[0].state for one in of_key.answer.messages} == {"delayed"}

        moved = await world.operations().move(ALL, lambda times_ms: times_ms + 1_000)
        assert (moved.matched, moved.changed, moved.gone, moved.damaged_count) == (MESSAGES - 1, MESSAGES - 1, 0, 1)
        by_id = await world.operations().cancel(Selector(message_ids=[at, *list(moved.moved.values())[:1]]))
        assert (by_id.matched, by_id.changed, by_id.unknown) == (1, 1, 0)
        assert {ledger_id: list(ids) for ledger_id, ids in by_id.damaged.items()} == {at.ledger_id: [DAMAGED]}

    play("memory", story)


@pytest.mark.parametrize("kind", ["memory", "bucket", "shared"])
def test_a_damaged_message_is_a_problem_when_it_is_due_and_until_it_is_acknowledged(kind: str) -> None:
    async def story(world: World) -> None:
        at = await _damage(world)
        assert await world.service.problems() == []
        await world.run_until(FIRST_DUE_MS + MESSAGES * 1_000 + 30_000)

        assert len(world.came) == MESSAGES - 1
        (problem,) = await world.service.problems()
        assert f"1 entries of it go to no consumer: {at}." in problem
        assert "postdate ledger repair" in problem
        (subscription,) = world.topic.subscriptions.values()
        assert subscription.metrics().damaged == 1
        # As a repair does for every cursor.
        subscription.cancel([at])
        assert await world.service.problems() == []
        assert subscription.metrics().damaged == 0

    play(kind, story)
