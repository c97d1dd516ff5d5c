"""Stats of a topic while hashes drain, by Postdate and by a real Pulsar: the same names, and sums that add up."""

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pulsar
import pytest
from click.testing import CliRunner
from pulsar import ConsumerType

from postdate.command_line.program import postdate as main
from tests.helpers.services.programs.clients import Clients, positions, receive, subscribe, wait_for
from tests.helpers.services.services import POSTDATE, RunningService, make_service
from tests.helpers.services.topic_stats import ask_topic

GOLDEN = Path(__file__).parents[2] / "golden" / "admin"
KEYS = [f"key-{number}" for number in range(20)]


def keys_that_drain(clients: Clients, service: RunningService, topic: str) -> tuple[pulsar.Consumer, pulsar.Consumer]:
    """Let one consumer hold two messages of each key, a second one join, and a third message of each key wait."""
    holder = subscribe(clients.new(), topic, ConsumerType.KeyShared, consumer_name="holder")
    producer = clients.new().create_producer(topic, batching_enabled=False)
    for _ in range(2):
        for key in KEYS:
            producer.send(b"held", partition_key=key)
    held = receive(holder, 2 * len(KEYS))
    joiner = subscribe(clients.new(), topic, ConsumerType.KeyShared, consumer_name="joiner")
    for key in KEYS:
        producer.send(b"next", partition_key=key)
    wait_for(lambda: ask_topic(service, topic, "stats")[1]["subscriptions"]["sub"]["msgInReplay"] > 0)
    holder.held = held
    return holder, joiner


def test_draining_hashes_are_shown_by_pulsars_names(clients: Clients, service: RunningService, topic: str) -> None:
    keys_that_drain(clients, service, topic)
    status, stats = ask_topic(service, topic, "stats")
    golden = json.loads((GOLDEN / "topic-stats.json").read_text())
    known = golden["subscriptions"]["orders"]

    assert status == 200
    subscription = stats["subscriptions"]["sub"]
    assert set(stats) <= set(golden)
    assert set(subscription) <= set(known)
    assert (subscription["type"], subscription["keySharedMode"]) == ("Key_Shared", "AUTO_SPLIT")
    assert subscription["allowOutOfOrderDelivery"] is False
    assert subscription["msgBacklog"] == 3 * len(KEYS)
    consumers = {one["consumerName"]: one for one in subscription["consumers"]}
    assert set(consumers) == {"holder", "joiner"}
    for consumer in consumers.values():
        assert set(consumer) <= set(known["consumers"][0])
        assert consumer["clientVersion"].startswith("Pulsar-CPP")
        assert abs(datetime.fromisoformat(consumer["connectedSince"]) - datetime.now(UTC)) < timedelta(minutes=5)
        assert consumer["drainingHashesCount"] == len(consumer["drainingHashes"])
        assert consumer["drainingHashesUnackedMessages"] == sum(one["unackMsgs"] for one in consumer["drainingHashes"])
    draining = consumers["holder"]["drainingHashes"]
    assert draining
    assert all(set(one) == {"hash", "unackMsgs", "blockedAttempts"} for one in draining)
    assert all(one["unackMsgs"] % 2 == 0 and one["blockedAttempts"] > 0 for one in draining)
    assert consumers["joiner"]["drainingHashes"] == []
    for name in ("drainingHashesCount", "drainingHashesClearedTotal", "drainingHashesUnackedMessages"):
        assert subscription[name] == sum(consumer[name] for consumer in consumers.values())

    # The ranges of the two cover every hash once, and draining hashes lie with the new owner.
    ranges = sorted(tuple(one) for consumer in consumers.values() for one in consumer["keyHashRangeArrays"])
    assert (ranges[0][0], ranges[-1][1]) == (1, 65535)
    assert all(before[1] + 1 == after[0] for before, after in pairwise(ranges))
    new = consumers["joiner"]["keyHashRangeArrays"]
    assert all(any(first <= one["hash"] <= last for first, last in new) for one in draining)


def test_the_stats_of_drained_hashes_are_cleared_when_they_are_acknowledged(
    clients: Clients, service: RunningService, topic: str
) -> None:
    holder, joiner = keys_that_drain(clients, service, topic)
    count = ask_topic(service, topic, "stats")[1]["subscriptions"]["sub"]["drainingHashesCount"]
    for message in holder.held:
        holder.acknowledge(message)
    receive(joiner, 1)

    def subscription() -> Any:
        return ask_topic(service, topic, "stats")[1]["subscriptions"]["sub"]

    wait_for(lambda: subscription()["drainingHashesCount"] == 0)
    assert subscription()["drainingHashesClearedTotal"] == count
    assert subscription()["drainingHashesUnackedMessages"] == 0


def test_the_stats_have_the_names_that_dashboards_read(
    clients: Clients, service: RunningService, topic: str, is_real_pulsar: bool
) -> None:
    """Every name that a real Pulsar has, of a consumer and of a subscription, but for what does not exist here."""
    keys_that_drain(clients, service, topic)
    subscription = ask_topic(service, topic, "stats")[1]["subscriptions"]["sub"]
    known = json.loads((GOLDEN / "topic-stats.json").read_text())["subscriptions"]["orders"]
    absent_words = (
        "filter",
        "dispatchThrottled",
        "chunked",
        "backlogSize",
        "earliest",
        "SizeInBytes",
        "SerializedSize",
    )

    for shown, names in ((subscription, set(known)), (subscription["consumers"][0], set(known["consumers"][0]))):
        missing = {name for name in names - set(shown) if not name.startswith(absent_words)}
        missing -= {name for name in missing if name.endswith(absent_words)}
        # `msgExpired` counts again from zero after each request.
        assert missing <= {"msgExpired"}
        assert not is_real_pulsar or set(shown) == names


def test_rates_counters_and_times_add_up(tmp_path: Path) -> None:
    """In windows of a second, while batches of ten come and go; a first batch is held back."""
    service = make_service(POSTDATE, tmp_path, {"statsUpdateFrequencyInSecs": "1"})
    service.start()
    clients = Clients(service.url)
    topic = "persistent://public/default/rates"
    seen: set[str] = set()
    bytes_per_message: list[float] = []
    try:
        consumer = subscribe(clients.new(), topic, ConsumerType.KeyShared, consumer_name="c")
        options = {"batching_enabled": True, "batching_max_messages": 10, "batching_type": pulsar.BatchingType.KeyBased}
        producer = clients.new().create_producer(topic, batching_max_publish_delay_ms=60_000, **options)

        def ten_more() -> list[pulsar.Message]:
            for _ in range(10):
                producer.send_async(b"x" * 20, None, partition_key="k")
            producer.flush()
            return receive(consumer, 10)

        def has_rates() -> bool:
            for message in ten_more():
                consumer.acknowledge(message)
            shown = ask_topic(service, topic, "stats")[1]
            one = shown["subscriptions"]["sub"]
            for name in ("msgRateOut", "msgThroughputOut", "msgRateRedeliver", "messageAckRate"):
                assert one[name] == sum(each[name] for each in one["consumers"])
            if one["msgRateOut"]:
                bytes_per_message.append(one["msgThroughputOut"] / one["msgRateOut"])
            seen.update(name for name in ("msgRateOut", "messageAckRate") if one[name] > 0)
            seen.update(name for name in ("msgRateIn", "averageMsgSize") if shown[name] > 0)
            return len(seen) == 4

        ten_more()
        wait_for(has_rates, timeout_s=60)

        (one,) = ask_topic(service, topic, "stats")[1]["subscriptions"]["sub"]["consumers"]
        assert bytes_per_message[0] == pytest.approx(one["bytesOutCounter"] / one["msgOutCounter"], rel=0.1)
        assert one["msgOutCounter"] % 10 == 0
        assert one["avgMessagesPerEntry"] == 10
        assert (
            0 < one["firstConsumedFlowTimestamp"] <= one["firstMessagesSentTimestamp"] <= one["lastConsumedTimestamp"]
        )
        for name in ("lastAckedTime", "lastConsumedTime"):
            assert datetime.fromisoformat(one[name]).timestamp() * 1000 == pytest.approx(one[f"{name}stamp"], abs=1)
        internal = ask_topic(service, topic, "internalStats")[1]
        assert internal["entriesAddedCounter"] == internal["numberOfEntries"] == one["msgOutCounter"] / 10
    finally:
        clients.close()
        service.stop()


def test_the_internal_stats_say_where_the_cursor_is(clients: Clients, service: RunningService, topic: str) -> None:
    consumer = subscribe(clients.new(), topic, ConsumerType.Shared)
    producer = clients.new().create_producer(topic, batching_enabled=False)
    for number in range(6):
        producer.send(b"%d" % number)
    messages = receive(consumer, 6)
    for at in (0, 2, 3, 5):
        consumer.acknowledge(messages[at])
    ledger, first = positions(messages)[0]

    def cursor() -> Any:
        return ask_topic(service, topic, "internalStats")[1]["cursors"]["sub"]

    wait_for(lambda: cursor()["markDeletePosition"] == f"{ledger}:{first}")
    wait_for(lambda: "," in cursor()["individuallyDeletedMessages"])
    status, stats = ask_topic(service, topic, "internalStats")
    golden = json.loads((GOLDEN / "topic-internal-stats.json").read_text())
    assert status == 200
    assert set(stats) <= set(golden)
    assert set(cursor()) <= set(golden["cursors"]["orders"])
    assert cursor()["individuallyDeletedMessages"] == f"[({ledger}:1..{ledger}:3],({ledger}:4..{ledger}:5]]"
    assert cursor()["readPosition"] == f"{ledger}:6"
    assert cursor()["numberOfEntriesSinceFirstNotAckedMessage"] == 6
    wait_for(lambda: cursor()["waitingReadOp"] and cursor()["subscriptionHavePendingRead"])
    assert (cursor()["pendingReadOps"], cursor()["subscriptionHavePendingReplayRead"]) == (0, False)
    assert ask_topic(service, topic, "stats")[1]["subscriptions"]["sub"]["nonContiguousDeletedMessagesRanges"] == 2
    assert (stats["currentLedgerEntries"], stats["lastConfirmedEntry"]) == (6, f"{ledger}:5")


def test_a_topic_that_does_not_exist_is_not_found(service: RunningService) -> None:
    for what in ("stats", "internalStats"):
        status, answer = ask_topic(service, "persistent://public/default/nobody-made-this", what)

        assert status == 404
        assert "nobody-made-this" in answer["reason"]


def test_a_key_says_who_holds_it_up(
    clients: Clients, service: RunningService, topic: str, is_real_pulsar: bool
) -> None:
    if is_real_pulsar:
        pytest.skip("a real Pulsar cannot be asked about a key")
    keys_that_drain(clients, service, topic)
    answers = [ask_topic(service, topic, f"subscription/sub/keyStatus?key={key}") for key in KEYS]
    blocked = [answer for status, answer in answers if status == 200 and answer["blockedBy"]]

    assert blocked
    one = blocked[0]
    assert (one["owner"], one["blockedBy"], one["unackedEntries"]) == ("joiner", "holder", 2)
    assert one["waitingEntries"] == 1
    assert {held["consumerName"] for held in one["unacked"]} == {"holder"}
    assert one["blockedSinceTimestamp"] > 0

    told = CliRunner().invoke(main, ["keys", topic, "sub", one["key"], "--url", service.web_url])
    assert told.exit_code == 0
    assert f"hash      {one['hash']}\nowner     joiner\nwaiting   1 (consumer holder" in told.output
    assert "blocked   by holder since 20" in told.output


def test_a_key_that_is_not_text_is_asked_for_as_base64(
    clients: Clients, service: RunningService, topic: str, is_real_pulsar: bool
) -> None:
    if is_real_pulsar:
        pytest.skip("a real Pulsar cannot be asked about a key")
    subscribe(clients.new(), topic, ConsumerType.KeyShared)
    status, by_text = ask_topic(service, topic, f"subscription/sub/keyStatus?key={quote('key-1')}")
    assert status == 200
    status, by_bytes = ask_topic(service, topic, "subscription/sub/keyStatus?keyBase64=a2V5LTE=")
    assert (status, by_bytes) == (200, by_text)
    assert by_bytes["hash"] != 0
    assert ask_topic(service, topic, "subscription/sub/keyStatus")[0] == 400
