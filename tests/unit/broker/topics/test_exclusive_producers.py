"""Topic epochs: a producer that has lost exclusive access does not get it back from the one that has it now."""

import asyncio
from pathlib import Path

import pytest

from managed_ledger.errors import LedgerWriteError
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, ProducerAccessMode, ServerError
from postdate.broker.service.service import Service
from postdate.broker.topics.producers import TopicEpochs
from postdate.broker.topics.topic_name import TopicName
from tests.helpers.fakes.service_fakes import Peer, play
from tests.helpers.until import until

EXCLUSIVE_MODES = ("Exclusive", "WaitForExclusive", "ExclusiveWithFencing")


async def produce(peer: Peer, mode: str, epoch: int | None = None, *, producer_id: int = 1) -> BaseCommand:
    """Ask for a producer of topic t."""
    shown = {} if epoch is None else {"topic_epoch": epoch}
    return await peer.request(
        BaseCommand.PRODUCER,
        "producer",
        topic="t",
        producer_id=producer_id,
        producer_access_mode=ProducerAccessMode.Value(mode),
        **shown,
    )


def successes(peer: Peer) -> list[tuple[bool, int | None]]:
    """Return of each PRODUCER_SUCCESS whether the producer may begin, and its epoch."""
    found = [one.producer_success for one in peer.answers() if one.type == BaseCommand.PRODUCER_SUCCESS]
    return [(one.producer_ready, one.topic_epoch if one.HasField("topic_epoch") else None) for one in found]


async def close(peer: Peer, producer_id: int = 1) -> None:
    await peer.request(BaseCommand.CLOSE_PRODUCER, "close_producer", producer_id=producer_id)


@pytest.mark.parametrize("mode", EXCLUSIVE_MODES)
def test_a_fenced_producer_stays_fenced(tmp_path: Path, mode: str) -> None:
    async def story(service: Service) -> None:
        fenced, other = Peer(service), Peer(service)
        await produce(fenced, "ExclusiveWithFencing")
        await produce(other, "ExclusiveWithFencing")

        beside = await produce(fenced, mode, 0)
        await close(other)
        alone = await produce(fenced, mode, 0)

        assert (successes(fenced), successes(other)) == ([(True, 0)], [(True, 1)])
        assert [beside.error.error, alone.error.error] == [ServerError.ProducerFenced] * 2
        assert not any(one.type == BaseCommand.CLOSE_PRODUCER for one in other.answers())

    play(tmp_path, story)


@pytest.mark.parametrize("mode", EXCLUSIVE_MODES)
def test_a_producer_that_nobody_has_replaced_comes_back_with_its_epoch(tmp_path: Path, mode: str) -> None:
    async def story(service: Service) -> None:
        peer = Peer(service)
        await produce(peer, mode)
        await close(peer)
        await produce(peer, mode, 0)
        await close(peer)
        await produce(peer, mode)
        await close(peer)
        await produce(peer, "Shared")

        assert successes(peer) == [(True, 0), (True, 0), (True, 1), (True, 1)]

    play(tmp_path, story)


def test_epochs_outlive_a_restart_and_go_with_their_topic(tmp_path: Path) -> None:
    async def first(service: Service) -> None:
        for _ in range(2):
            await produce(Peer(service), "ExclusiveWithFencing")

    async def second(service: Service) -> None:
        assert (await produce(Peer(service), "Exclusive", 0)).error.error == ServerError.ProducerFenced
        topic = await service.topics.get_or_create(TopicName.parse("t"))
        await service.topics.delete(topic)
        peer = Peer(service)
        await produce(peer, "Exclusive")
        assert successes(peer) == [(True, 0)]

    play(tmp_path, first)
    play(tmp_path, second)


def test_a_producer_that_waits_gets_an_epoch_when_it_becomes_ready(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        first, waiting = Peer(service), Peer(service)
        await produce(first, "Exclusive")
        await produce(waiting, "WaitForExclusive")
        await close(first)
        await until(lambda: len(successes(waiting)) == 2)

        assert successes(waiting) == [(False, None), (True, 1)]
        assert (await produce(first, "ExclusiveWithFencing", 0)).error.error == ServerError.ProducerFenced

    play(tmp_path, story)


def test_a_producer_that_waits_is_refused_when_another_takes_the_access(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        waiting, other = Peer(service), Peer(service)
        await produce(waiting, "Exclusive")
        await produce(waiting, "WaitForExclusive", producer_id=2)
        await produce(other, "ExclusiveWithFencing")
        sent_away = await until(lambda: [one for one in waiting.answers() if one.type == BaseCommand.CLOSE_PRODUCER])
        errors = [one.error for one in waiting.answers() if one.type == BaseCommand.ERROR]

        assert [one.close_producer.producer_id for one in sent_away] == [1]
        assert [(one.request_id, one.error) for one in errors] == [(2, ServerError.ProducerFenced)]

    play(tmp_path, story)


def test_no_producer_shows_an_epoch_beyond_all(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        assert (await produce(Peer(service), "Exclusive", 2**64 - 1)).error.error == ServerError.NotAllowedError

    play(tmp_path, story)


@pytest.mark.parametrize("mode", EXCLUSIVE_MODES)
def test_an_epoch_that_could_not_be_stored_fences_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    async def fail(*_: object) -> None:
        raise LedgerWriteError("the disk is full")

    async def story(service: Service) -> None:
        peer, other = Peer(service), Peer(service)
        await produce(peer, "Exclusive")
        await close(peer)
        with monkeypatch.context() as patch:
            patch.setattr(TopicEpochs, "put", fail)
            refused = await produce(other, mode)
        await produce(peer, "Exclusive", 0)

        assert refused.error.error == ServerError.ServiceNotReady
        assert successes(peer) == [(True, 0), (True, 0)]

    play(tmp_path, story)


@pytest.mark.parametrize("is_fenced", [False, True])
def test_a_producer_that_is_sent_away_while_its_epoch_is_stored_is_fenced_by_another_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_fenced: bool
) -> None:
    """As after a commit that failed: its client is to come back."""
    put = TopicEpochs.put

    async def story(service: Service) -> None:
        topic = await service.topics.get_or_create(TopicName.parse("t"))
        may_store = asyncio.Event()

        async def put_late(self: TopicEpochs, name: TopicName, epoch: int) -> None:
            if epoch == 0:
                await may_store.wait()
            await put(self, name, epoch)

        monkeypatch.setattr(TopicEpochs, "put", put_late)
        request = asyncio.create_task(produce(Peer(service), "Exclusive"))
        await until(lambda: topic.producers)
        if is_fenced:
            await produce(Peer(service), "ExclusiveWithFencing")
        else:
            topic.producers.remove(next(iter(topic.producers.values())))
        may_store.set()

        expected = ServerError.ProducerFenced if is_fenced else ServerError.ServiceNotReady
        assert (await request).error.error == expected

    play(tmp_path, story)


def test_a_producer_that_waits_and_asks_again_waits_on(tmp_path: Path) -> None:
    """Its client asks again where the first answer is late, and waits for the second one."""

    async def story(service: Service) -> None:
        first, waiting = Peer(service), Peer(service)
        await produce(first, "Exclusive")
        await produce(waiting, "WaitForExclusive")
        again = await produce(waiting, "WaitForExclusive")
        await close(first)
        await until(lambda: len(successes(waiting)) == 3)

        assert successes(waiting) == [(False, None), (False, None), (True, 1)]
        assert waiting.answers()[-1].producer_success.request_id == again.producer_success.request_id

    play(tmp_path, story)
