"""Changes that mean a property, a chunk, or the same message twice: all that are meant change, and each once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from managed_ledger.replacing import NewEntry, Replacement
from postdate.broker.admin.web import WebServer
from postdate.broker.protocol.commands import frame
from postdate.broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from tests.helpers.fakes.service_fakes import Peer
from tests.helpers.scheduled_topic import NOW_MS, ScheduledApi, play
from tests.helpers.send_frames import named_frames

DUE_MS = NOW_MS + 60_000
NEW_MS = NOW_MS + 90_000


def plain_frame(payload: bytes, **values: Any) -> bytes:
    """A SEND of producer 1: one message, with these fields of its metadata."""
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, deliver_at_time=DUE_MS, **values)
    data = metadata.SerializeToString()
    covered = len(data).to_bytes(4, "big") + data + payload
    entry = b"\x0e\x01" + google_crc32c.value(covered).to_bytes(4, "big") + covered
    send = {"producer_id": 1, "sequence_id": 1, "num_messages": 1}
    simple = frame(BaseCommand(type=BaseCommand.SEND, send=send))
    return (int.from_bytes(simple[:4], "big") + len(entry)).to_bytes(4, "big") + simple[4:] + entry


def chunk_frame(chunk: int, *, uuid: str = "p-1", of: int = 3) -> bytes:
    """One chunk of a message, as clients send it: the properties, time and sequence id of the message on each."""
    return plain_frame(b"chunk", uuid=uuid, chunk_id=chunk, num_chunks_from_msg=of, total_chunk_msg_size=15)


def test_a_property_cancels_the_messages_that_have_it_and_no_other(tmp_path: Path) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        a, b = await api.ids()

        listed = await api.ids("?property=name=a")
        dry = await api.post("cancel", property="name=a", dryRun=True)
        done = await api.post("cancel", property="name=a")

        assert listed == [a]
        assert dry == (200, {"matched": 1, "alreadyDue": 0, "inHand": 0, "unknown": 0})
        assert done == (200, dry[1] | {"gone": 0, "cancelled": 1})
        assert await api.ids() == [b]
        assert (await api.post("cancel", property="name=a"))[0] == 404

    play(tmp_path, story)


def test_each_message_counts_once_however_often_it_is_named(tmp_path: Path) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        a, b, plain = await api.publish(plain_frame(b"plain"), 3)

        answer = await api.post("cancel", messageIds=[plain, plain, f"{plain}0"])

        assert answer == (200, {"matched": 1, "alreadyDue": 0, "inHand": 0, "unknown": 1, "gone": 0, "cancelled": 1})
        assert await api.ids() == [a, b]

    play(tmp_path, story)


async def counts(api: ScheduledApi) -> set[tuple[str, Any]]:
    """Return every count of what is scheduled, with its name, in the messages that are listed."""
    histogram, topic = await api.get("/scheduled/histogram?buckets=7"), await api.get("")
    dry = await api.post("cancel", all=True, dryRun=True)
    return {
        ("total", histogram["total"]),
        ("delayed", histogram["delayed"]),
        ("buckets", sum(one["count"] for one in histogram["buckets"])),
        ("topic", topic["delayed"]),
        ("subscription", topic["subscriptions"][0]["delayed"]),
        ("matched", dry[1]["matched"]),
    }


def all_counts(count: int) -> set[tuple[str, Any]]:
    return {(name, count) for name in ("total", "delayed", "buckets", "topic", "subscription", "matched")}


def test_every_count_is_of_the_messages_that_a_list_shows(tmp_path: Path) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        ids = await api.publish(named_frames(["c", "d", "e"], deliver_at_ms=DUE_MS + 7) + plain_frame(b"plain"), 6)
        before = await counts(api)

        await api.post("cancel", property="name=d")
        after_cancel = await counts(api)
        _, moved = await api.post("reschedule", messageIds=[ids[0], ids[2]], deliverAtMs=NEW_MS)
        after_move = await counts(api)
        progress = await api.post("cancel", {"Operation-Id": "all"}, all=True)

        assert before == all_counts(6)
        assert after_cancel == after_move == all_counts(5)
        assert (moved["matched"], moved["rescheduled"], len(moved["ids"])) == (2, 2, 2)
        assert progress == (200, {"matched": 5, "alreadyDue": 0, "inHand": 0, "unknown": 0, "gone": 0, "cancelled": 5})
        operation = await api.get_operation("all")
        assert (operation["matched"], operation["done"]) == (5, 5)
        assert await api.ids() == []

    play(tmp_path, story)


@pytest.mark.parametrize("named", [0, 2])
def test_an_id_of_a_chunk_means_all_chunks_of_its_message(tmp_path: Path, named: int) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        data = b"".join(
            (chunk_frame(0), chunk_frame(0, uuid="p-other"), chunk_frame(1), plain_frame(b"x"), chunk_frame(2))
        )
        a, b, *rest = await api.publish(data, 7)
        chunks, others = [rest[0], rest[2], rest[4]], [rest[1], rest[3]]

        moved = await api.post("reschedule", messageIds=[chunks[named]], deliverAtMs=NEW_MS)
        new = [one["messageId"] for one in await api.listed() if one["deliverAtMs"] == NEW_MS]
        cancelled = await api.post("cancel", messageIds=[new[named]])

        ids = dict(zip(chunks, new, strict=True))
        reasons = {"alreadyDue": 0, "inHand": 0, "unknown": 0, "gone": 0, "alreadyShifted": 0}
        assert moved == (200, {"matched": 3, **reasons, "rescheduled": 3, "ids": ids})
        assert cancelled == (200, {"matched": 3, "alreadyDue": 0, "inHand": 0, "unknown": 0, "gone": 0, "cancelled": 3})
        assert await api.ids() == [a, b, *others]

    play(tmp_path, story)


def test_the_chunks_of_a_message_are_moved_in_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between two writes would leave chunks of two times, and the message would reach no consumer."""
    sizes: list[int] = []
    replace = ManagedLedger.replace

    def replace_and_note(log: ManagedLedger, entries: Sequence[NewEntry], **values: Any) -> Replacement:
        sizes.append(len(entries))
        return replace(log, entries, **values)

    monkeypatch.setattr(ManagedLedger, "replace", replace_and_note)

    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        # With the two before them, the first chunk is entry 255, the last of the first portion that is read.
        frames = [*(plain_frame(b"x") for _ in range(253)), *map(chunk_frame, range(3)), plain_frame(b"x")]
        await api.publish(b"".join(frames), 259)

        status, answer = await api.post("reschedule", all=True, deliverAtMs=NEW_MS)

        assert (status, answer["rescheduled"]) == (200, 259)
        assert sizes == [255, 4]

    play(tmp_path, story)


def test_messages_that_move_to_one_time_by_their_ids_keep_the_order_of_their_times(tmp_path: Path) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        await api.post("cancel", all=True)
        (late,) = await api.publish(plain_frame(b"late", partition_key=b"k"), 1)
        assert (await api.post("reschedule", messageIds=[late], shiftMs=5_000))[0] == 200
        early_id, late_id = await api.publish(plain_frame(b"early", partition_key=b"k"), 2)
        # The log has them the other way round.
        assert int(late_id.partition(":")[2]) < int(early_id.partition(":")[2])

        _, answer = await api.post("reschedule", messageIds=[late_id, early_id], deliverAtMs=NEW_MS)

        assert await api.ids() == [answer["ids"][early_id], answer["ids"][late_id]]

    play(tmp_path, story)


def test_the_messages_of_a_key_or_property_are_counted_as_they_are_listed(tmp_path: Path) -> None:
    """In total and by time, also where some are gone."""

    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        data = [plain_frame(b"x", partition_key=b"k"), plain_frame(b"y", partition_key=b"other")]
        data += [named_frames(["a", "a", "b", "c"], deliver_at_ms=late_ms) for late_ms in (DUE_MS + 1, NEW_MS)]
        data += [chunk_frame(number) for number in range(3)]
        ids = await api.publish(b"".join(data), 15)
        await api.post("cancel", messageIds=[ids[-4]])

        for query in (
            "key=k",
            "property=name=a",
            "property=name=c",
            "key=k&property=name=b",
            "key=nobody",
            "keyBase64=aw==",
        ):
            for span in ("", f"&from={DUE_MS}", f"&until={NEW_MS}", f"&from={DUE_MS + 1}&until={NEW_MS + 1}"):
                listed = await api.listed(f"?{query}{span}")
                found = await api.get(f"/scheduled/histogram?{query}{span}&buckets=4")

                times = [one["deliverAtMs"] for one in listed]
                assert found["total"] == found["delayed"] == len(times)
                assert (found["nextDueMs"], found["lastDueMs"]) == (min(times, default=None), max(times, default=None))
                for bucket in found["buckets"]:
                    in_it = [time for time in times if bucket["fromMs"] <= time < bucket["untilMs"]]
                    assert bucket["count"] == len(in_it)

    play(tmp_path, story)
