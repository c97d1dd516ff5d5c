"""A cancel by id does what an acknowledgement does and no more: one synced write, and no message is read."""

import asyncio
from typing import Any

import pytest

from managed_ledger.positions.position import Position
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from postdate.broker.scheduled.operations import Selector
from tests.helpers.scheduled_world import KINDS, World, play


def by_id(world: World, entry_id: int) -> Selector:
    ledger = world.topic.ledger.ledgers()[0]
    return Selector(message_ids=[Position(ledger.ledger_id, entry_id)])


@KINDS
def test_a_cancel_by_id_is_one_synced_write_and_an_acknowledgement_one_write(kind: str) -> None:
    async def story(world: World) -> None:
        await world.start()
        await world.connect()
        await world.publish()
        await asyncio.sleep(10)
        committer = world.store.committer
        writes = []

        writes.append((committer.rounds, committer.synced_rounds))
        assert await world.cancel(by_id(world, 3)) == 1
        at_once = (committer.rounds, committer.synced_rounds)
        await asyncio.sleep(10)
        writes.append((committer.rounds, committer.synced_rounds))
        ack: dict[str, Any] = {"consumer_id": 1, "ack_type": 0}
        command = BaseCommand(type=BaseCommand.ACK, ack=ack)
        command.ack.message_id.add(ledgerId=world.topic.ledger.ledgers()[0].ledger_id, entryId=4)
        world.peer.send(command)
        await asyncio.sleep(10)
        writes.append((committer.rounds, committer.synced_rounds))

        assert at_once == writes[1]
        assert [count - writes[0][0] for count, _ in writes] == [0, 1, 2]
        assert [count - writes[0][1] for _, count in writes] == [0, 1, 1]

    play(kind, story)


def test_a_cancel_by_id_reads_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its header says that it is no chunk of a larger message, also after it was moved."""

    async def story(world: World) -> None:
        await world.start()
        await world.connect()
        await world.publish()
        copies = (await world.operations().move(by_id(world, 7), lambda times_ms: times_ms + 1_000)).moved
        monkeypatch.setattr(world.topic.ledger, "read_payloads", _fail)

        assert await world.cancel(by_id(world, 3)) == 1
        assert await world.cancel(Selector(message_ids=list(copies.values()))) == 1

    play("bucket", story)


async def _fail(*_: object) -> None:
    raise AssertionError("a message was read")
