"""The rights of a role: operations that they allow, grants that are kept, and connections that end with a grant."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from postdate.broker.authorization.grants import Action, GrantBook
from postdate.broker.authorization.permissions import Authorizer
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandSubscribe, Schema, ServerError
from postdate.broker.service.service import Service
from postdate.broker.topics.topic_name import TopicName
from tests.helpers.fakes.memory_records import MemoryRecords
from tests.helpers.fakes.service_fakes import Peer
from tests.helpers.guarded_service import CONSUME, NOTHING, ORDERS, PRODUCE, connect, play, produce_request
from tests.helpers.send_frames import send_frame
from tests.helpers.tokens import token
from tests.helpers.until import until

# ---- rules ----


def authorizer(*grants: tuple[TopicName | str, str, frozenset[Action]]) -> Authorizer:
    book = GrantBook(MemoryRecords())

    async def give() -> None:
        for owner, role, actions in grants:
            await book.grant(owner, role, actions)

    asyncio.run(give())
    return Authorizer(book, ["root"])


def test_without_a_grant_a_role_may_do_nothing_and_a_super_user_everything() -> None:
    rules = authorizer()

    for role, expected in (("anna", False), ("", False), (None, False), ("root", True)):
        assert rules.may(role, Action.PRODUCE, ORDERS) is expected
        assert rules.may(role, Action.CONSUME, ORDERS) is expected
        assert rules.may_look_up(role, ORDERS) is expected
        assert rules.may_list_topics(role, "shop/eu") is expected
        assert rules.is_super_user(role) is expected


def test_the_grants_on_a_topic_go_with_it_and_leave_the_others() -> None:
    records = MemoryRecords()
    book = GrantBook(records)
    returns = TopicName.parse("shop/eu/returns")

    async def story() -> None:
        for owner in (ORDERS, returns, "shop/eu"):
            await book.grant(owner, "anna", PRODUCE)
        await book.forget_topic(ORDERS)
        await book.forget_topic(ORDERS)

    asyncio.run(story())
    for kept in (book, GrantBook(records)):
        grants = kept.of("shop/eu")
        assert (grants.roles, grants.topics) == ({"anna": PRODUCE}, {"returns": {"anna": PRODUCE}})


@pytest.mark.parametrize("owner", [ORDERS, "shop/eu"])
@pytest.mark.parametrize(("given", "other"), [(Action.PRODUCE, Action.CONSUME), (Action.CONSUME, Action.PRODUCE)])
def test_a_grant_is_for_one_action_of_one_role(owner: TopicName | str, given: Action, other: Action) -> None:
    rules = authorizer((owner, "anna", frozenset({given})))

    assert rules.may("anna", given, ORDERS)
    assert not rules.may("anna", other, ORDERS)
    assert rules.may_look_up("anna", ORDERS)
    assert not rules.may_look_up("berta", ORDERS)
    assert not rules.is_super_user("anna")


def test_a_grant_for_a_topic_is_for_its_partitions_and_for_no_other_topic() -> None:
    rules = authorizer((ORDERS, "anna", PRODUCE))

    assert rules.may("anna", Action.PRODUCE, TopicName.parse("shop/eu/orders-partition-3"))
    for other in ("shop/eu/order", "shop/eu/orders2", "shop/us/orders", "shop/eu/orders-partition-", "orders"):
        assert not rules.may("anna", Action.PRODUCE, TopicName.parse(other))
    assert not rules.may_list_topics("anna", "shop/eu")


def test_a_grant_for_a_namespace_is_for_all_its_topics_and_for_their_list() -> None:
    rules = authorizer(("shop/eu", "anna", CONSUME))

    assert rules.may("anna", Action.CONSUME, TopicName.parse("shop/eu/anything"))
    assert rules.may_list_topics("anna", "shop/eu")
    assert not rules.may_list_topics("anna", "shop/us")


def test_grants_of_topic_and_namespace_add_up() -> None:
    rules = authorizer(("shop/eu", "anna", CONSUME), (ORDERS, "anna", PRODUCE))

    assert rules.may("anna", Action.CONSUME, ORDERS)
    assert rules.may("anna", Action.PRODUCE, ORDERS)
    assert not rules.may("anna", Action.PRODUCE, TopicName.parse("shop/eu/other"))


# ---- records ----


def test_grants_are_read_again_and_leave_no_record_behind() -> None:
    async def story() -> None:
        records = MemoryRecords()
        book = GrantBook(records)
        await book.grant("shop/eu", "anna", PRODUCE | CONSUME)
        await book.grant("shop/eu", "nobody", NOTHING)
        await book.grant(ORDERS, "berta", CONSUME)
        await book.grant("shop/us", "anna", PRODUCE)

        again = GrantBook(records)
        assert [again.of(name) for name in ("shop/eu", "shop/us")] == [book.of(name) for name in ("shop/eu", "shop/us")]
        assert again.of("shop/eu").roles == {"anna": PRODUCE | CONSUME, "nobody": NOTHING}
        assert again.of("shop/eu").topics == {"orders": {"berta": CONSUME}}
        for owner, role in ((ORDERS, "berta"), ("shop/eu", "anna"), ("shop/eu", "nobody"), ("shop/us", "anna")):
            await book.grant(owner, role, None)
        assert records.records == {}

    asyncio.run(story())


def test_grants_that_come_at_once_are_all_kept() -> None:
    async def story() -> None:
        records = MemoryRecords()
        book = GrantBook(records)
        await asyncio.gather(*(book.grant("shop/eu", f"role-{n}", PRODUCE) for n in range(50)))

        assert len(GrantBook(records).of("shop/eu").roles) == 50

    asyncio.run(story())


def test_a_grant_that_cannot_be_stored_changes_nothing() -> None:
    async def story() -> None:
        records = MemoryRecords()
        book = GrantBook(records)
        await book.grant("shop/eu", "anna", PRODUCE)
        records.is_full = True

        for change in (CONSUME, None):
            with pytest.raises(OSError, match="no space"):
                await book.grant("shop/eu", "anna", change)

        assert book.of("shop/eu").roles == {"anna": PRODUCE}

    asyncio.run(story())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"namespace":{"anna":["fly"]},"topics":{}}',
        b'{"namespace":[],"topics":{}}',
        b"\xff",
    ],
)
def test_a_record_that_cannot_be_read_grants_nothing(text: bytes, caplog: pytest.LogCaptureFixture) -> None:
    book = GrantBook(
        MemoryRecords({"permissions shop/eu": text, "permissions shop/us": b'{"namespace":{"a":[]},"topics":{}}'})
    )

    assert book.of("shop/eu").roles == {}
    assert book.of("shop/us").roles == {"a": NOTHING}
    assert "nothing is granted" in caplog.text


# ---- connections ----


Ask = Callable[[Peer], Awaitable[BaseCommand]]


def subscribe_request(peer: Peer) -> Awaitable[BaseCommand]:
    return peer.request(
        BaseCommand.SUBSCRIBE,
        "subscribe",
        topic=str(ORDERS),
        subscription="s",
        subType=CommandSubscribe.Shared,
        consumer_id=1,
        initialPosition=CommandSubscribe.Earliest,
    )


REQUESTS: dict[str, tuple[Ask, frozenset[Action]]] = {
    "partitions": (
        lambda peer: peer.request(BaseCommand.PARTITIONED_METADATA, "partitionMetadata", topic=str(ORDERS)),
        PRODUCE | CONSUME,
    ),
    "look-up": (
        lambda peer: peer.request(BaseCommand.LOOKUP, "lookupTopic", topic=str(ORDERS)),
        PRODUCE | CONSUME,
    ),
    "schema": (
        lambda peer: peer.request(BaseCommand.GET_SCHEMA, "getSchema", topic=str(ORDERS)),
        PRODUCE | CONSUME,
    ),
    "new schema": (
        lambda peer: peer.request(
            BaseCommand.GET_OR_CREATE_SCHEMA,
            "getOrCreateSchema",
            topic=str(ORDERS),
            schema=Schema(name="s", schema_data=b"", type=Schema.String),
        ),
        PRODUCE | CONSUME,
    ),
    "producer": (produce_request, PRODUCE),
    "subscribe": (subscribe_request, CONSUME),
}


def error_of(answer: BaseCommand) -> int | None:
    """Return the error of an answer of any kind, None for none."""
    for field, part in answer.ListFields():
        if field.name in ("error", "partitionMetadataResponse", "lookupTopicResponse") and part.HasField("error"):
            return int(part.error)
    return None


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_needs_a_grant_and_creates_nothing_without(tmp_path: Path, name: str) -> None:
    ask, needed = REQUESTS[name]

    async def story(service: Service) -> None:
        peer = connect(service, token("anna"))
        assert error_of(await ask(peer)) == ServerError.AuthorizationError
        for actions in ({Action.PRODUCE}, {Action.CONSUME}):
            if not needed & actions:
                await service.set_grant(ORDERS, "anna", frozenset(actions))
                assert error_of(await ask(peer)) == ServerError.AuthorizationError
        assert not service.topics
        assert not peer.transport.closed

        await service.set_grant(ORDERS, "anna", needed)
        assert error_of(await ask(peer)) is None
        assert error_of(await ask(connect(service, token("root")))) is None

    play(tmp_path, story)


def test_the_list_of_topics_needs_a_grant_for_the_namespace(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        def ask(peer: Peer) -> Awaitable[BaseCommand]:
            return peer.request(
                BaseCommand.GET_TOPICS_OF_NAMESPACE, "getTopicsOfNamespace", namespace=ORDERS.namespace_name
            )

        peer = connect(service, token("anna"))
        await service.set_grant(ORDERS, "anna", PRODUCE)
        assert error_of(await ask(peer)) == ServerError.AuthorizationError
        await service.set_grant(ORDERS.namespace_name, "anna", CONSUME)
        assert error_of(await ask(peer)) is None

    play(tmp_path, story)


def test_who_loses_the_grant_to_consume_is_sent_nothing_more_and_can_do_nothing_with_the_subscription(
    tmp_path: Path,
) -> None:
    async def story(service: Service) -> None:
        await service.set_grant(ORDERS, "anna", CONSUME)
        root, anna = connect(service, token("root")), connect(service, token("anna"))
        await produce_request(root)
        await subscribe_request(anna)
        anna.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "messagePermits": 10}))

        await service.set_grant(ORDERS, "anna", None)
        written = len(anna.transport.written)
        root.send_bytes(send_frame(0))
        await until(lambda: any(one.type == BaseCommand.SEND_RECEIPT for one in root.answers()))
        for _ in range(20):
            await asyncio.sleep(0)

        assert anna.answers()[-1].close_consumer.consumer_id == 1
        assert len(anna.transport.written) == written
        assert not anna.transport.closed
        for kind, field in (
            (BaseCommand.SEEK, "seek"),
            (BaseCommand.UNSUBSCRIBE, "unsubscribe"),
            (BaseCommand.GET_LAST_MESSAGE_ID, "getLastMessageId"),
            (BaseCommand.CONSUMER_STATS, "consumerStats"),
        ):
            assert error_of(await anna.request(kind, field, consumer_id=1)) is not None
        assert error_of(await subscribe_request(anna)) == ServerError.AuthorizationError
        topic = service.topics[ORDERS]
        assert [len(one.consumers) for one in topic.subscriptions.values()] == [0]

    play(tmp_path, story)


def test_who_loses_the_grant_to_produce_stores_nothing_more(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        await service.set_grant(ORDERS.namespace_name, "anna", PRODUCE)
        anna = connect(service, token("anna"))
        await produce_request(anna)
        anna.send_bytes(send_frame(0))
        await until(lambda: any(one.type == BaseCommand.SEND_RECEIPT for one in anna.answers()))

        await service.set_grant(ORDERS.namespace_name, "anna", CONSUME)
        anna.send_bytes(send_frame(1))
        topic = service.topics[ORDERS]
        await topic.ledger.committed()

        assert anna.answers()[-1].close_producer.producer_id == 1
        assert topic.messages_in_total == 1
        assert not topic.producers
        assert error_of(await produce_request(anna)) == ServerError.AuthorizationError

    play(tmp_path, story)


def test_who_keeps_another_grant_for_the_same_is_left_alone(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        await service.set_grant(ORDERS.namespace_name, "anna", PRODUCE | CONSUME)
        await service.set_grant(ORDERS, "anna", PRODUCE | CONSUME)
        anna, berta = connect(service, token("anna")), connect(service, token("berta"))
        await service.set_grant(ORDERS, "berta", PRODUCE)
        await produce_request(anna)
        await subscribe_request(anna)
        await produce_request(berta)

        await service.set_grant(ORDERS, "anna", None)

        assert len(service.topics[ORDERS].producers) == 2
        assert anna.connection.consumers
        assert berta.connection.producers

    play(tmp_path, story)


def test_a_grant_that_goes_while_a_subscribe_is_under_way_lets_nobody_in(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        await service.set_grant(ORDERS, "anna", PRODUCE | CONSUME)
        outcomes = []
        for ask in (subscribe_request, produce_request):
            for turns in range(60):
                anna = connect(service, token("anna"))
                request = asyncio.ensure_future(ask(anna))
                for _ in range(turns):
                    await asyncio.sleep(0)
                await service.set_grant(ORDERS, "anna", None)
                outcomes.append(error_of(await request))
                topic = service.topics.get(ORDERS)
                if topic is not None:
                    assert not topic.producers
                    assert not [consumer for one in topic.subscriptions.values() for consumer in one.consumers]
                await service.set_grant(ORDERS, "anna", PRODUCE | CONSUME)
                anna.connection.close()
        # Both happened: the grant went before the answer, and after it.
        assert set(outcomes) == {None, ServerError.AuthorizationError}

    play(tmp_path, story)


def test_a_client_that_speaks_for_another_is_refused_as_there_are_no_proxies(tmp_path: Path) -> None:
    async def story(service: Service) -> None:
        peer = Peer(service, has_to_connect=False)
        command = BaseCommand(type=BaseCommand.CONNECT, connect={"client_version": "test", "protocol_version": 20})
        command.connect.auth_method_name = "token"
        command.connect.auth_data = token("root")
        command.connect.original_principal = "anna"
        peer.send(command)

        (refusal,) = peer.answers()
        assert (refusal.error.error, refusal.error.message) == (ServerError.AuthorizationError, "Invalid roles.")
        assert peer.transport.closed

    play(tmp_path, story)
