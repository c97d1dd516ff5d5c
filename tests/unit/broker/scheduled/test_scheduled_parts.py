"""Changes that mean a part of a batch, a chunk, or the same message twice: all that are meant change, or none does."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from broker.admin.web import WebServer
from broker.protocol.commands import frame
from broker.protocol.pb.pulsar_api_pb2 import BaseCommand
from managed_ledger.managed_ledger import ManagedLedger
from managed_ledger.pb.pulsar_metadata_pb2 import MessageMetadata
from managed_ledger.replacing import NewEntry, Replacement
from tests.helpers.fakes.service_fakes import Peer
from tests.helpers.scheduled_topic import NOW_MS, ScheduledApi, entry_of, play
from tests.helpers.send_frames import batch_frame

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


def test_a_property_cancels_the_messages_of_a_batch_that_have_it_and_no_other(tmp_path: Path) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        a, b = await api.ids()

        listed = await api.ids("?property=name=a")
        dry = await api.post("cancel", property="name=a", dryRun=True)
        done = await api.post("cancel", property="name=a")

        assert listed == [a]
        assert dry == (200, {"matched": 1, "alreadyDue": 0, "unknown": 0})
        assert done == (200, dry[1] | {"cancelled": 1})
        assert await api.ids() == [b]
        assert (await api.post("cancel", property="name=a"))[0] == 404

    play(tmp_path, story)


def test_a_cancelled_message_of_a_batch_is_none_of_its_keys_messages(tmp_path: Path) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        _, b = await api.ids()
        both = await api.get("/explain?key=k")
        await api.post("cancel", property="name=a")
        one = await api.get("/explain?key=k")

        assert len(both["messages"]) == 2
        assert [message["messageId"] for message in one["messages"]] == [b]
        assert one["sentence"].startswith("1 message of this key is not acknowledged")

    play(tmp_path, story)


@pytest.mark.parametrize("change", ["reschedule", "deliver-now"])
def test_a_part_of_a_batch_is_not_moved(tmp_path: Path, change: str) -> None:
    more = {"deliverAtMs": NEW_MS} if change == "reschedule" else {}

    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        before = await api.listed()
        batch = entry_of(before[0]["messageId"])

        status, answer = await api.post(change, property="name=a", **more)

        assert (status, answer["field"]) == (409, "property")
        assert batch in answer["error"]
        assert answer["advice"]
        assert await api.listed() == before

    play(tmp_path, story)


@pytest.mark.parametrize("selection", [{"all": True}, {"from": DUE_MS}, {"property": "name=a"}])
@pytest.mark.parametrize("change", ["reschedule", "deliver-now"])
def test_batches_of_which_a_part_is_meant_or_left_are_skipped_where_that_is_asked(
    tmp_path: Path, change: str, selection: dict[str, Any]
) -> None:
    """In an incident all that can be moved is moved at once."""
    more = {"deliverAtMs": NEW_MS} if change == "reschedule" else {}
    verb = "rescheduled" if change == "reschedule" else "delivered"

    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        a, b = await api.ids()
        await api.publish(plain_frame(b"x", properties=[{"key": "name", "value": "a"}]), 3)
        await api.post("cancel", messageIds=[b])

        refused, _ = await api.post(change, **selection, **more)
        dry = await api.post(change, **selection, **more, skipBatchesInPart=True, dryRun=True)
        done = await api.post(change, **selection, **more, skipBatchesInPart=True)

        assert refused == 409
        assert dry == (200, {"matched": 2, "alreadyDue": 0, "unknown": 0, "skipped": 1})
        assert done == (200, {**dry[1], verb: 1})
        left = {one["messageId"]: one["deliverAtMs"] for one in await api.listed()}
        assert left.pop(a) == DUE_MS
        assert list(left.values()) == [NEW_MS if change == "reschedule" else NOW_MS]

    play(tmp_path, story)


@pytest.mark.parametrize("selector", ["messageIds", "key", "all", "from"])
@pytest.mark.parametrize("change", ["reschedule", "deliver-now"])
def test_moving_a_batch_never_brings_a_cancelled_message_back(tmp_path: Path, change: str, selector: str) -> None:
    more = {"deliverAtMs": NEW_MS} if change == "reschedule" else {}

    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        a, b = await api.ids()
        await api.post("cancel", messageIds=[b])
        body: dict[str, Any] = {"messageIds": [entry_of(a)], "key": "k", "all": True, "from": DUE_MS}

        status, answer = await api.post(change, **{selector: body[selector]}, **more)

        assert (status, answer["field"]) == (409, selector)
        (left,) = await api.listed()
        assert (left["messageId"], left["deliverAtMs"]) == (a, DUE_MS)

    play(tmp_path, story)


def test_each_message_counts_once_however_often_and_by_whatever_id_it_is_named(tmp_path: Path) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        a, b, plain = await api.publish(plain_frame(b"plain"), 3)
        ids = [plain, f"{plain}:0", f"{plain}:7", plain]
        batch = entry_of(a)

        of_plain = await api.post("cancel", messageIds=ids)
        of_batch = await api.post("cancel", messageIds=[batch, a, b, f"{batch}:2"], dryRun=True)

        assert of_plain == (200, {"matched": 1, "alreadyDue": 0, "unknown": 1, "cancelled": 1})
        assert of_batch == (200, {"matched": 2, "alreadyDue": 0, "unknown": 1})
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
    """Batches of two and of three and a plain message; then one message is cancelled out of a batch, and one moved."""

    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        ids = await api.publish(batch_frame(["c", "d", "e"], deliver_at_ms=DUE_MS + 7) + plain_frame(b"plain"), 6)
        before = await counts(api)

        await api.post("cancel", property="name=d")
        after_part = await counts(api)
        one_of_three = await api.post("cancel", messageIds=[entry_of(ids[5])], dryRun=True)
        _, moved = await api.post("reschedule", messageIds=[entry_of(ids[0]), ids[2]], deliverAtMs=NEW_MS)
        after_move = await counts(api)
        progress = await api.post("cancel", {"Operation-Id": "all"}, all=True)

        assert before == all_counts(6)
        assert after_part == after_move == all_counts(5)
        assert one_of_three == (200, {"matched": 2, "alreadyDue": 0, "unknown": 0})
        assert (moved["matched"], moved["rescheduled"], len(moved["ids"])) == (3, 3, 2)
        assert progress == (200, {"matched": 5, "alreadyDue": 0, "unknown": 0, "cancelled": 5})
        operation = await api.get_operation("all")
        assert (operation["matched"], operation["done"]) == (5, 5)
        assert await api.ids() == []

    play(tmp_path, story)


def test_due_messages_of_a_batch_count_as_due(tmp_path: Path) -> None:
    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        due = (await api.publish(batch_frame(["c", "d"], deliver_at_ms=NOW_MS - 5), 4))[0]

        answer = await api.post("cancel", messageIds=[due])

        whole = await api.post("cancel", all=True)

        assert answer == (200, {"matched": 1, "alreadyDue": 1, "unknown": 0, "cancelled": 1})
        assert whole == (200, {"matched": 3, "alreadyDue": 1, "unknown": 0, "cancelled": 3})

    play(tmp_path, story)


@pytest.mark.parametrize("named", [0, 2])
@pytest.mark.parametrize("is_old", [False, True], ids=["", "in a log of an older version"])
def test_an_id_of_a_chunk_means_all_chunks_of_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: int, *, is_old: bool
) -> None:
    if is_old:
        monkeypatch.setattr("broker.clients.publishing.header_flags", lambda _: 0)

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
        assert moved == (200, {"matched": 3, "alreadyDue": 0, "unknown": 0, "rescheduled": 3, "ids": ids})
        assert cancelled == (200, {"matched": 3, "alreadyDue": 0, "unknown": 0, "cancelled": 3})
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
        # With the batch before them, the first chunk is entry 256, the last of the first portion that is read.
        frames = [*(plain_frame(b"x") for _ in range(254)), *map(chunk_frame, range(3)), plain_frame(b"x")]
        await api.publish(b"".join(frames), 260)

        status, answer = await api.post("reschedule", all=True, deliverAtMs=NEW_MS)

        assert (status, answer["rescheduled"]) == (200, 260)
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
    """In total and by time, also those of batches of which others do not match, or of which some are gone."""

    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        data = [plain_frame(b"x", partition_key=b"k"), plain_frame(b"y", partition_key=b"other")]
        data += [batch_frame(["a", "a", "b", "c"], deliver_at_ms=late_ms) for late_ms in (DUE_MS + 1, NEW_MS)]
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


def test_the_first_message_of_no_batch_is_named_with_or_without_its_index(tmp_path: Path) -> None:
    """A client's id has an index for each message; a change takes both forms, and answers in the given one."""

    async def story(server: WebServer, peer: Peer) -> None:
        api = ScheduledApi(server, peer)
        a, _, plain = await api.publish(plain_frame(b"x"), 3)

        assert (await api.get(f"/explain?messageId={plain}:0"))["messages"][0]["messageId"] == plain
        for wrong in (f"{plain}:1", f"{entry_of(a)}:2"):
            assert (await api.post("reschedule", messageIds=[wrong], deliverAtMs=NEW_MS))[0] == 404
            assert (await api.post("cancel", messageIds=[wrong]))[0] == 404
        part = await api.post("reschedule", messageIds=[plain, a], deliverAtMs=NEW_MS)
        moved = await api.post("reschedule", messageIds=[f"{plain}:0"], deliverAtMs=NEW_MS)
        new = moved[1]["ids"][f"{plain}:0"]
        twice = await api.post("reschedule", messageIds=[new, f"{new}:0"], shiftMs=1_000)
        newest = twice[1]["ids"][new]
        cancelled = await api.post("cancel", messageIds=[f"{newest}:0"])

        assert (part[0], part[1]["field"]) == (400, "messageIds")
        assert moved[1] == {"matched": 1, "alreadyDue": 0, "unknown": 0, "rescheduled": 1, "ids": {f"{plain}:0": new}}
        assert twice[1]["ids"] == {new: newest, f"{new}:0": newest}
        assert (cancelled[0], cancelled[1]["cancelled"]) == (200, 1)

    play(tmp_path, story)
