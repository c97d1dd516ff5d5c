"""A message that a consumer has in hand, or is about to be sent, is not scheduled any more for its subscription."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from postdate.broker.admin.web import WebServer
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from tests.helpers.fakes.service_fakes import Peer
from tests.helpers.scheduled_topic import NOW_MS, ScheduledApi, play
from tests.helpers.send_frames import named_frames
from tests.helpers.until import until

OTHER: dict[str, Any] = {
    "topic": "t",
    "subscription": "other",
    "subType": CommandSubscribe.Shared,
    "consumer_id": 2,
    "consumer_name": "o",
}


async def in_hand(api: ScheduledApi, peer: Peer) -> str:
    """Let the consumer of `sub` have a message that is due; return its id."""
    due = (await api.publish(named_frames(["c"], deliver_at_ms=NOW_MS - 1), 3))[0]
    peer.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "messagePermits": 10}))
    await until(lambda: any(one.type == BaseCommand.MESSAGE for one in peer.answers()))
    return due


@pytest.mark.parametrize("selection", [{"messageIds": 1}, {"property": "name=c"}, {"until": NOW_MS}])
@pytest.mark.parametrize("change", ["cancel", "reschedule", "deliver-now"])
def test_what_a_consumer_has_is_not_changed_and_the_answer_says_so(
    tmp_path: Path, change: str, selection: dict[str, Any]
) -> None:
    verb = {"cancel": "cancelled", "reschedule": "rescheduled", "deliver-now": "delivered"}[change]
    more = {"deliverAtMs": NOW_MS + 5_000} if change == "reschedule" else {}

    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        due = await in_hand(api, peer)
        meant = {"messageIds": [due]} if "messageIds" in selection else selection

        dry = await api.post(change, **meant, **more, dryRun=True)
        status, answer = await api.post(change, **meant, **more)

        assert dry == (200, {"matched": 1, "alreadyDue": 0, "inHand": 1, "unknown": 0})
        assert status == 200
        assert {name: answer[name] for name in dry[1]} == dry[1]
        assert (answer[verb], answer["gone"]) == (0, 0)
        assert due not in await api.ids()
        assert (await api.get(f"/explain?messageId={due}"))["messages"][0]["subscriptions"][0]["state"] == "pending"
        assert (await api.get("/explain?key=k"))["messages"][0]["messageId"] == due

    play(tmp_path, story)


def test_without_a_subscription_it_is_cancelled_where_it_can_be_and_counted_as_in_hand(tmp_path: Path) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        await peer.request(BaseCommand.SUBSCRIBE, "subscribe", **OTHER)
        due = await in_hand(api, peer)
        before = await api.ids("?subscription=other"), await api.ids("?subscription=sub"), await api.ids()
        # What `sub` has in hand is waited for by the other one alone.
        waiting = {one["messageId"]: one["waiting"] for one in await api.listed()}
        assert (waiting.pop(due), [*waiting.values()]) == (["other"], [["sub"]] * 2)

        answers = [await api.post("cancel", all=True), await api.post("cancel", messageIds=[due])]

        assert [due in ids for ids in before] == [True, False, True]
        assert answers[0][1] == {
            "matched": 3,
            "alreadyDue": 0,
            "inHand": 1,
            "unknown": 0,
            "gone": 0,
            "cancelled": 2,
        }
        assert (answers[1][1]["inHand"], answers[1][1]["cancelled"]) == (1, 0)
        assert await api.ids("?subscription=other") == await api.ids() == []

    play(tmp_path, story)


@pytest.mark.parametrize("kind", [CommandSubscribe.Exclusive, CommandSubscribe.Failover])
def test_what_a_subscription_without_delays_still_gets_is_not_counted_as_cancelled(tmp_path: Path, kind: int) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        await peer.request(BaseCommand.SUBSCRIBE, "subscribe", **OTHER | {"subType": kind})
        scheduled = (await api.publish(named_frames(["c"], deliver_at_ms=NOW_MS + 9_000), 3))[0]

        dry = (await api.post("cancel", messageIds=[scheduled], dryRun=True))[1]
        everywhere = (await api.post("cancel", messageIds=[scheduled]))[1]
        peer.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 2, "messagePermits": 10}))
        await until(lambda: any(one.type == BaseCommand.MESSAGE for one in peer.answers()))

        assert (dry["matched"], dry["inHand"]) == (1, 1)
        assert (everywhere["matched"], everywhere["inHand"], everywhere["cancelled"]) == (1, 1, 0)
        assert scheduled not in await api.ids()

    play(tmp_path, story)


@pytest.mark.parametrize("kind", [CommandSubscribe.Exclusive, CommandSubscribe.Failover])
def test_what_a_subscription_without_delays_still_gets_is_not_counted_as_replaced(tmp_path: Path, kind: int) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        await peer.request(BaseCommand.SUBSCRIBE, "subscribe", **OTHER | {"subType": kind})
        timer = {"id": "order-17", "payload": "x", "deliverAtMs": NOW_MS + 9_000}
        old, new = [(await api.post("../scheduled", **timer))[1] for _ in range(2)]
        await peer.request(BaseCommand.UNSUBSCRIBE, "unsubscribe", consumer_id=2)
        newest = (await api.post("../scheduled", **timer))[1]

        assert [(one["replaced"], one["inHand"]) for one in (old, new, newest)] == [(0, 0), (0, 1), (1, 0)]

    play(tmp_path, story)


def test_what_a_consumer_gives_back_is_scheduled_again(tmp_path: Path) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        due = await in_hand(api, peer)
        held = await api.ids()
        peer.send(BaseCommand(type=BaseCommand.CLOSE_CONSUMER, close_consumer={"consumer_id": 1, "request_id": 77}))
        await until(lambda: _lists(api, due))

        status, answer = await api.post("cancel", messageIds=[due])

        assert due not in held
        assert (status, answer["cancelled"], answer["alreadyDue"], answer["inHand"]) == (200, 1, 1, 0)

    play(tmp_path, story)


async def _lists(api: ScheduledApi, message_id: str) -> bool:
    return message_id in await api.ids()


def test_an_unknown_subscription_is_still_refused(tmp_path: Path) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        assert (await api.post("cancel", all=True, subscription="nobody"))[0] == 404
        async with aiohttp.request("GET", f"http://127.0.0.1:{server.port}/postdate/v1/topics") as reply:
            assert reply.status == 200

    play(tmp_path, story)
