"""Messages at the last delivery time that the protocol can name: counted, listed, changed and paused as all others."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from postdate.broker.admin.web import WebServer
from tests.helpers.fakes.service_fakes import Peer
from tests.helpers.scheduled_topic import NOW_MS, TOPIC, ScheduledApi, play
from tests.helpers.send_frames import named_frames

LAST_MS = 2**63 - 1


def _counts(histogram: dict[str, Any]) -> list[int]:
    return [bucket["count"] for bucket in histogram["buckets"]]


@pytest.mark.parametrize("names", [["z"], ["x", "y", "z"]])
def test_a_message_at_the_last_time_there_is_lies_in_the_last_bucket(tmp_path: Path, names: list[str]) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        await api.publish(named_frames(names, deliver_at_ms=LAST_MS), 2 + len(names))

        in_all = await api.get("/scheduled/histogram?buckets=3")
        in_one = await api.get("/scheduled/histogram?buckets=1")
        late = await api.get(f"/scheduled/histogram?buckets=3&from={NOW_MS + 90_000}")
        soon = await api.get(f"/scheduled/histogram?buckets=3&until={NOW_MS + 90_000}")

        assert (in_all["total"], in_all["delayed"], in_all["lastDueMs"]) == (2 + len(names), 2 + len(names), LAST_MS)
        assert _counts(in_all) == [2, 0, len(names)]
        assert (_counts(in_one), _counts(late)) == ([2 + len(names)], [0, 0, len(names)])
        assert (soon["total"], sum(_counts(soon))) == (2, 2)
        edges = [bucket[edge] for bucket in in_all["buckets"] for edge in ("fromMs", "untilMs")]
        assert edges == sorted(edges)
        assert max(edges) == LAST_MS

    play(tmp_path, story)


def test_messages_at_the_last_time_alone_are_counted_listed_held_and_changed(tmp_path: Path) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        await api.post("cancel", all=True)
        first, second = await api.publish(
            named_frames(["x"], deliver_at_ms=LAST_MS) + named_frames(["y"], deliver_at_ms=LAST_MS), 2
        )

        found = await api.get("/scheduled/histogram?buckets=5")
        page = await api.get("/scheduled?limit=1")
        rest = await api.get(f"/scheduled?limit=1&after={page['next']}")
        behind = await api.ids(f"?from={LAST_MS}")
        between = await api.ids(f"?from={LAST_MS - 1}&until={LAST_MS}")
        before = await api.ids(f"?until={LAST_MS - 1}")
        dry, _ = await api.post("cancel", **{"from": 253_402_300_800_000, "dryRun": True})
        explained = await api.get(f"/explain?messageId={first}")
        summary = await api.get("")
        statuses = []
        for what in ("pause", "resume"):
            url = f"http://127.0.0.1:{server.port}/postdate/v1/topics/{TOPIC}/{what}"
            async with aiohttp.request("POST", url) as reply:
                statuses.append(reply.status)
        refused, error = await api.post("reschedule", all=True, shiftMs=1)
        sent, outcome = await api.post("deliver-now", messageIds=[first])
        cancelled, _ = await api.post("cancel", messageIds=[second])

        assert (found["total"], sum(_counts(found)), found["nextDueMs"]) == (2, 2, LAST_MS)
        assert all(bucket["fromMs"] < bucket["untilMs"] for bucket in found["buckets"])
        assert [one["messageId"] for one in page["messages"] + rest["messages"]] == [first, second]
        assert rest["next"] is None
        assert (behind, between, before, dry) == ([first, second], [first, second], [], 200)
        assert explained["messages"][0]["deliverAtMs"] == summary["nextDueMs"] == LAST_MS
        assert statuses == [200, 200]
        assert (refused, error["field"]) == (400, "shiftMs")
        assert (sent, outcome["delivered"], cancelled) == (200, 1, 200)

    play(tmp_path, story)
