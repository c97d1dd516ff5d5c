"""Policies of delayed delivery: their JSON, the level that decides for a topic, and their durability."""

import asyncio
import json

import msgspec
import pytest

from postdate.broker.topics.policies import MILLISECONDS_MAX, DelayedDeliveryPolicies, PolicyBook
from postdate.broker.topics.topic_name import TopicName
from tests.helpers.fakes.memory_records import MemoryRecords

DEFAULT = DelayedDeliveryPolicies(is_active=True, tick_time_ms=1_000, delay_ms_max=0)
OFF = DelayedDeliveryPolicies(is_active=False, tick_time_ms=5, delay_ms_max=7)
TOPIC = TopicName.parse("shop/eu/orders")


def of(is_active: object, tick_time: object, delay_max: object) -> bytes:
    return json.dumps({"active": is_active, "tickTime": tick_time, "maxDeliveryDelayInMillis": delay_max}).encode()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"active":true,"tickTime":500,"maxDeliveryDelayInMillis":9}', (True, 500, 9)),
        (b'{"active":false}', (False, 0, 0)),
        (b' {"tickTime": 0, "active": true}\n', (True, 0, 0)),
        (b'{"active":true,"x":1}', (True, 0, 0)),
        (of(True, MILLISECONDS_MAX, MILLISECONDS_MAX), (True, MILLISECONDS_MAX, MILLISECONDS_MAX)),
    ],
)
def test_policies_are_read_and_what_else_a_body_carries_is_not(text: bytes, expected: tuple[bool, int, int]) -> None:
    policies = msgspec.json.decode(text, type=DelayedDeliveryPolicies)

    assert (policies.is_active, policies.tick_time_ms, policies.delay_ms_max) == expected


def test_policies_are_written_as_pulsar_writes_them() -> None:
    assert msgspec.json.encode(OFF) == b'{"tickTime":5,"active":false,"maxDeliveryDelayInMillis":7}'


# A real Pulsar 4.2.4 takes those that are marked: it fills in false and 0, and converts.
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "truncated"),  # taken
        (b"null", "Expected `object`, got `null`"),  # taken
        (b"garbage", "malformed"),
        (b"[]", "Expected `object`, got `array`"),
        (b"{}", "missing required field `active`"),  # taken
        (b'{"actve":true}', "missing required field `active`"),  # taken
        (of(None, 1, 1), r"Expected `bool`, got `null` - at `\$.active`"),  # taken
        (of(1, 1, 1), r"\$.active"),  # taken
        (of("true", 1, 1), r"\$.active"),  # taken
        (of(True, 1.5, 1), r"\$.tickTime"),  # taken
        (of(True, None, 1), r"\$.tickTime"),  # taken
        (of(True, "7", 1), r"\$.tickTime"),  # taken
        (of(True, True, 1), r"\$.tickTime"),
        (of(True, 1, "1s"), r"\$.maxDeliveryDelayInMillis"),
        (of(True, -1, 0), r"Expected `int` >= 0 - at `\$.tickTime`"),  # taken
        (of(True, MILLISECONDS_MAX + 1, 0), r"\$.tickTime"),  # taken
        (of(True, 0, 10**30), r"\$.maxDeliveryDelayInMillis"),
    ],
)
def test_what_is_no_policies_is_refused_by_its_field(text: bytes, reason: str) -> None:
    with pytest.raises(msgspec.DecodeError, match=reason):
        msgspec.json.decode(text, type=DelayedDeliveryPolicies)


def test_the_limit_on_delays_counts_only_where_delays_do() -> None:
    assert OFF.enforced_delay_ms_max == 0
    assert DelayedDeliveryPolicies(is_active=True, tick_time_ms=5, delay_ms_max=7).enforced_delay_ms_max == 7


def test_a_topic_decides_over_its_namespace_and_that_over_the_configuration() -> None:
    async def story() -> list[DelayedDeliveryPolicies]:
        book = PolicyBook(MemoryRecords(), DEFAULT)
        seen = [book.applied(TOPIC)]
        await book.put("shop/eu", OFF)
        seen.append(book.applied(TOPIC))
        await book.put(TOPIC, DEFAULT)
        seen.append(book.applied(TOPIC))
        seen.append(book.applied(TopicName.parse("shop/eu/other")))
        await book.put(TOPIC, None)
        seen.append(book.applied(TOPIC))
        await book.put("shop/eu", None)
        return [*seen, book.applied(TOPIC)]

    assert asyncio.run(story()) == [DEFAULT, OFF, DEFAULT, OFF, OFF, DEFAULT]


def test_policies_are_there_after_a_restart() -> None:
    records = MemoryRecords({"another record": b"not ours"})
    asyncio.run(PolicyBook(records, DEFAULT).put(TOPIC, OFF))

    again = PolicyBook(MemoryRecords(records.records), DEFAULT)

    assert again.of(TOPIC) == OFF
    assert again.of("shop/eu") is None


def test_policies_that_could_not_be_stored_are_as_before() -> None:
    records = MemoryRecords()
    book = PolicyBook(records, DEFAULT)
    records.is_full = True

    with pytest.raises(OSError, match="no space left"):
        asyncio.run(book.put(TOPIC, OFF))

    assert book.of(TOPIC) is None
