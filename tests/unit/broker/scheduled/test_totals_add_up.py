"""Delayed, overdue and in hand add up to the unacknowledged delayed messages, wherever they are counted."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from postdate.broker.admin.web import WebServer
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from postdate.broker.service.service import Service
from postdate.command_line.program import postdate as main
from tests.helpers.fakes.service_fakes import Peer
from tests.helpers.scheduled_topic import NOW_MS, TOPIC, ScheduledApi, play
from tests.helpers.send_frames import named_frames, send_frame
from tests.helpers.until import until

STATES = ("delayed", "overdue", "inHand")


async def shown(*words: str, of: ScheduledApi) -> list[str]:
    """Return what a command prints, line by line."""
    done = await asyncio.to_thread(CliRunner().invoke, main, [*words, "--url", of.web_url])
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


async def command(*words: str, of: ScheduledApi) -> Any:
    """Return what a command prints as JSON."""
    return json.loads("\n".join(await shown(*words, of=of)))


def _numbers(lines: list[str]) -> list[int]:
    """Return the numbers of the first line."""
    return [int(one) for one in re.findall(r"\b\d+\b", lines[0])]


async def metrics_of(service: Service, subscription: str) -> list[int]:
    """Return the three metrics of a subscription."""
    await service.jobs.count_delayed()
    text = b"".join([chunk async for chunk in service.metrics()]).decode()
    lines = [line for line in text.splitlines() if f'subscription="{subscription}"' in line]
    names = [f"postdate_subscription_{state}{{" for state in ("delayed", "overdue", "in_hand")]
    return [int(float(line.split()[-1])) for name in names for line in lines if line.startswith(name)]


async def counts_of(api: ScheduledApi, subscription: str | None) -> dict[str, Any]:
    """Return the counts of a subscription or of the topic, which all questions must agree about."""
    of_one = "" if subscription is None else f"&subscription={subscription}"
    topic = await api.get("")
    summary = topic if subscription is None else next(x for x in topic["subscriptions"] if x["name"] == subscription)
    found = {name: summary[name] for name in STATES}
    by_key = await api.get(f"/scheduled/histogram?buckets=3&key=k{of_one}")
    for histogram in (await api.get(f"/scheduled/histogram?buckets=3{of_one}"), by_key):
        assert {name: histogram[name] for name in STATES} == found
        assert histogram["total"] == found["delayed"] + found["overdue"]
        assert sum(one["count"] for one in histogram["buckets"]) == histogram["total"]
    assert len(await api.ids(f"?limit=100{of_one}")) == found["delayed"] + found["overdue"]
    summaries = (await command("topics", "--json", of=api))["topics"]
    (of_command,) = [one for one in summaries if one["name"] == TOPIC]
    assert {**topic, "name": TOPIC} == of_command
    of_this = [] if subscription is None else ["--subscription", subscription]
    counted = await command("scheduled", "count", TOPIC, "--json", *of_this, of=api)
    assert {name: counted[name] for name in STATES} == found
    assert _numbers(await shown("scheduled", "count", TOPIC, *of_this, of=api)) == [
        *([found["delayed"] + found["overdue"], found["delayed"], found["overdue"]] if histogram["total"] else []),
        *([found["inHand"]] if found["inHand"] else []),
    ]
    name = TOPIC if subscription is None else f"  {subscription}"
    lines = [line.removeprefix(" ") for line in await shown("topics", of=api)]
    (row,) = [line for line in lines if line.startswith(name)]
    assert _numbers([row.removeprefix(name)])[:3] == list(found.values())
    if subscription is not None:
        assert await metrics_of(api.service, subscription) == list(found.values())
    body = {} if subscription is None else {"subscription": subscription}
    _, dry = await api.post("cancel", all=True, dryRun=True, **body)
    assert dry["matched"] == sum(found.values())
    return found


@pytest.mark.parametrize("permits", [0, 2, 100])
def test_the_states_add_up_in_quiet_and_with_messages_in_hand(tmp_path: Path, permits: int) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        values = {"subType": CommandSubscribe.Shared, "consumer_id": 2, "consumer_name": "o"}
        await peer.request(BaseCommand.SUBSCRIBE, "subscribe", topic="t", subscription="other", **values)
        # Messages without a delay, which take permits, are in none of these counts.
        peer.send_bytes(send_frame(7))
        await api.publish(named_frames(["c", "d", "e", "f"], deliver_at_ms=NOW_MS - 1), 6)
        if permits:
            peer.send(BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "messagePermits": permits}))
            sent = min(permits, 5)
            await until(lambda: sum(one.type == BaseCommand.MESSAGE for one in peer.answers()) == sent)

        mine, others, all_of = [await counts_of(api, name) for name in ("sub", "other", None)]

        await api.post("cancel", all=True, subscription="other")

        assert (sum(mine.values()), sum(others.values())) == (6, 4)
        assert (mine["delayed"], others) == (2, {"delayed": 0, "overdue": 4, "inHand": 0})
        assert mine["inHand"] == {0: 0, 2: mine["inHand"], 100: 4}[permits]
        assert (mine["inHand"] > 0) is bool(permits)
        # The other subscription waits for all that is due, until it is cancelled there.
        assert all_of == {"delayed": 2, "overdue": 4, "inHand": 0}
        assert await counts_of(api, None) == mine

    play(tmp_path, story)
