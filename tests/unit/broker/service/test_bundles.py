"""A service that opens and closes bundles at any time, and what its topics, settings and trail do meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from managed_ledger.bundles import BundleRange, even_ranges
from managed_ledger.objects.object_store import FolderObjects
from postdate.broker.authorization.grants import Action, GrantBook
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.errors import NotServedError, ServiceStartError
from postdate.broker.ownership.owners import Addresses, ServiceInfo, SoleOwner
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandLookupTopicResponse, ServerError
from postdate.broker.service.bundle import Bundle
from postdate.broker.service.service import Service, _name_of_machine, public_host
from postdate.broker.service.shared_settings import SharedSettings
from postdate.broker.topics.policies import DelayedDeliveryPolicies
from postdate.broker.topics.topic_name import TopicName
from snapshot_storage.s3.location import S3Location
from tests.helpers.fakes.service_fakes import Peer, play, subscribe
from tests.helpers.until import until

RANGES = even_ranges(4)


def topic_in(bundle: BundleRange, *, namespace: str = "public/default") -> TopicName:
    """Return a topic of a bundle."""
    names = (TopicName.parse(f"persistent://{namespace}/t-{number}") for number in range(1_000))
    return next(name for name in names if bundle.has(str(name)))


def on_four(folder: Path, story: Callable[[Service], Awaitable[None]]) -> None:
    """Run a story on a new folder of four bundles."""
    play(folder, story, bundle_count=4)


def test_a_topic_is_stored_in_its_bundle_and_all_are_listed(tmp_path: Path) -> None:
    names = [topic_in(one) for one in RANGES]

    async def story(service: Service) -> None:
        for name in names:
            await service.topics.get_or_create(name)
        assert service.topics.names() == sorted(map(str, names))
        assert [len(store.managed_ledger_names()) for store in service.open_stores()] == [1] * 4
        assert service.topics.counts == {"public/default": 4}

    on_four(tmp_path, story)
    assert [(tmp_path / f"bundles/{one}/ledgers").is_dir() for one in RANGES] == [True] * 4


def test_a_bundle_that_leaves_sends_its_clients_away_and_serves_again_when_it_comes(tmp_path: Path) -> None:
    leaving, staying = topic_in(RANGES[1]), topic_in(RANGES[2])

    async def story(service: Service) -> None:
        peer = Peer(service)
        await subscribe(peer, 1, topic=str(leaving))
        await subscribe(peer, 2, topic=str(staying))
        await peer.request(BaseCommand.PRODUCER, "producer", topic=str(leaving), producer_id=1, producer_name="p")

        await service.close_bundle(RANGES[1])

        await until(lambda: any(one.type == BaseCommand.CLOSE_PRODUCER for one in peer.answers()))
        closed = [one.close_consumer.consumer_id for one in peer.answers() if one.type == BaseCommand.CLOSE_CONSUMER]
        assert closed == [1]
        assert service.topics.names() == [str(staying)]
        with pytest.raises(NotServedError):
            await service.topics.existing(leaving)
        refused = await subscribe(peer, 3, topic=str(leaving))
        assert refused.error.error == ServerError.ServiceNotReady
        refused = await peer.request(BaseCommand.PRODUCER, "producer", topic=str(leaving), producer_id=2)
        assert refused.error.error == ServerError.ServiceNotReady

        await service.open_bundle(RANGES[1])
        assert (await subscribe(peer, 3, topic=str(leaving))).type == BaseCommand.SUCCESS
        assert service.topics.counts == {"public/default": 2}

    on_four(tmp_path, story)


def test_a_bundle_that_does_not_open_again_is_told_and_tried_until_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(service: Service) -> None:
        open_bundle, failures = Bundle.open, [OSError("the disk refuses")] * 2

        async def failing(*args: Any) -> Bundle:
            if failures:
                raise failures.pop()
            return await open_bundle(*args)

        monkeypatch.setattr(Bundle, "open", failing)
        assert not await service.problems()
        with pytest.raises(OSError, match="the disk refuses"):
            await service.unload_bundle(RANGES[1])

        assert service.unready == f"Bundle {RANGES[1]} is not open"
        assert await service.problems() == [service.unready]
        await until(lambda: RANGES[1] in service.bundles)
        assert not failures
        assert [service.unready, *await service.problems()] == [None]

        failures.append(OSError("again"))
        with pytest.raises(OSError, match="again"):
            await service.unload_bundle(RANGES[1])

    on_four(tmp_path, story)


def test_a_lost_bundle_closes_without_its_numbers_being_stored(tmp_path: Path) -> None:
    name = topic_in(RANGES[0])

    async def story(service: Service) -> None:
        peer = Peer(service)
        await subscribe(peer, 1, topic=str(name))
        store = service.bundles[RANGES[0]].store
        before = dict(store.records)

        await service.close_bundle(RANGES[0], is_lost=True)

        assert any(one.type == BaseCommand.CLOSE_CONSUMER for one in peer.answers())
        assert dict(store.records) == before
        await service.close_bundle(RANGES[0], is_lost=True)

    on_four(tmp_path, story)


def test_a_look_up_does_not_ask_each_topic_for_its_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(service: Service) -> None:
        asked: list[BundleRange] = []

        def load_of(bundle: BundleRange) -> float:
            asked.append(bundle)
            return 1.0

        monkeypatch.setattr(service, "load_of", load_of)
        assert service.look_up(topic_in(RANGES[0])).name == service.owners.own_name
        assert not asked
        assert [one.load for one in service.owners.services()] == [4.0]

    on_four(tmp_path, story)


class NobodysOwner(SoleOwner):
    """Knows of no owner of the last bundle, and allows deliveries when it is told to."""

    is_allowed = False

    def owner_of(self, bundle: BundleRange) -> ServiceInfo | None:
        return None if bundle == RANGES[3] else super().owner_of(bundle)

    def may_deliver(self, bundle: BundleRange) -> bool:
        return self.is_allowed


def test_a_look_up_answers_the_owner_and_not_ready_without_one(tmp_path: Path) -> None:
    async def run() -> None:
        owners = NobodysOwner(RANGES, Addresses("pulsar://other:1"), "other:2")
        config = BrokerConfig(data_directory=tmp_path, bundle_count=4)
        service = await Service.open(config, now_ms=lambda: 1_000, owners=owners)
        peer = Peer(service)
        found = await peer.request(BaseCommand.LOOKUP, "lookupTopic", topic=str(topic_in(RANGES[0])))
        answer = found.lookupTopicResponse
        assert answer.brokerServiceUrl == "pulsar://other:1"
        assert (answer.response, answer.authoritative) == (CommandLookupTopicResponse.Connect, True)
        assert not answer.proxy_through_service_url
        found = await peer.request(BaseCommand.LOOKUP, "lookupTopic", topic=str(topic_in(RANGES[3])))
        assert found.lookupTopicResponse.error == ServerError.ServiceNotReady
        await service.close()

    asyncio.run(run())


def test_nothing_is_delivered_while_the_owner_may_have_changed(tmp_path: Path) -> None:
    async def run() -> None:
        owners = NobodysOwner(RANGES, Addresses("pulsar://other:1"), "other:2")
        config = BrokerConfig(data_directory=tmp_path, bundle_count=4)
        service = await Service.open(config, now_ms=lambda: 1_000, owners=owners)
        name, peer = topic_in(RANGES[0]), Peer(service)
        await subscribe(peer, 1, topic=str(name))
        peer.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "messagePermits": 10}))
        topic = await service.topics.get_or_create(name)
        await topic.ledger.append(b"the payload", publish_time_ms=1_000)
        await asyncio.sleep(0.3)
        assert b"the payload" not in b"".join(peer.transport.written)
        owners.is_allowed = True
        await until(lambda: b"the payload" in b"".join(peer.transport.written))
        await service.close()

    asyncio.run(run())


def test_policies_and_grants_are_those_of_all_bundles(tmp_path: Path) -> None:
    names = [topic_in(one) for one in RANGES]
    off = DelayedDeliveryPolicies(is_active=False)

    async def story(service: Service) -> None:
        for name in names:
            await service.topics.get_or_create(name)
        await service.set_policies("public/default", off)
        await service.set_policies(names[0], DelayedDeliveryPolicies(is_active=True))
        service.trail.add(
            role=None, address="", action="a", topic=names[1].short, subscription=None, selection="", count=None
        )
        service.trail.add(role=None, address="", action="b", topic="", subscription=None, selection="", count=None)

    async def after(service: Service) -> None:
        assert [service.applied_policies(name).is_active for name in names] == [True, False, False, False]
        assert service.own_policies("public/default") == off
        assert sorted(one.action for one in service.trail.newest_first()) == ["a", "b"]
        assert [one.action for one in service.bundles[RANGES[1]].trail.newest_first()] == ["a"]

    on_four(tmp_path, story)
    on_four(tmp_path, after)


def test_grants_of_two_processes_at_once_both_count_and_each_comes_into_force_in_both(tmp_path: Path) -> None:
    async def run() -> None:
        mine, others = [await SharedSettings.open(FolderObjects(tmp_path)) for _ in range(2)]
        await GrantBook(others).grant("a/b", "anna", frozenset({Action.PRODUCE}))
        book = GrantBook(mine)
        assert not book.of("a/b").roles
        await book.grant("a/b", "berta", frozenset({Action.CONSUME}))
        assert set(book.of("a/b").roles) == {"anna", "berta"}
        assert await mine.look(), "the grant of the other process was read before the change"
        assert await others.look()
        assert set(GrantBook(others).of("a/b").roles) == {"anna", "berta"}
        assert not await others.look()
        assert not await mine.look()

    asyncio.run(run())


def test_the_name_of_the_machine_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["before.example", "after.example"])
    monkeypatch.setattr("socket.getfqdn", lambda: next(names))
    _name_of_machine.cache_clear()
    config = BrokerConfig(bind_address="0.0.0.0")
    try:
        assert [public_host(config), public_host(config)] == ["before.example"] * 2
    finally:
        _name_of_machine.cache_clear()


@pytest.mark.parametrize(("first", "then"), [(4, 2), (None, 2), (1, 4)])
def test_another_number_than_the_folder_has_is_refused(tmp_path: Path, first: int | None, then: int) -> None:
    async def nothing(service: Service) -> None:
        pass

    play(tmp_path, nothing, bundle_count=first)
    with pytest.raises(ServiceStartError, match="postdate bundles split"):
        play(tmp_path, nothing, bundle_count=then)
    play(tmp_path, nothing)


class SlowPlace:
    """A place whose storage does not answer."""

    ranges = RANGES

    async def shared_settings(self) -> None:
        raise TimeoutError("the storage has not answered for 2.5 s")


def test_a_storage_that_does_not_answer_at_the_start_is_no_matter_of_folders() -> None:
    config = BrokerConfig(data_directory=S3Location("bucket", "mine"))
    with pytest.raises(ServiceStartError) as caught:
        asyncio.run(Service.open(config, now_ms=lambda: 1_000, place=SlowPlace()))
    assert str(caught.value) == ("The prefix s3://bucket/mine cannot be used: the storage has not answered for 2.5 s")
