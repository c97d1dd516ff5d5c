"""Messages at the last delivery time that the protocol can name: counted, listed, changed and paused as all others."""

from pathlib import Path
from typing import Any

import pytest

from postdate.broker.admin.web import WebServer
from tests.helpers.fakes.service_fakes import Peer
from tests.helpers.scheduled_topic import NOW_MS, ScheduledApi, play
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
