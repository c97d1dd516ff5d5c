"""Policies of delayed delivery: their JSON, the level that decides for a topic, and their durability."""

import asyncio
import json

import pytest

from postdate.broker.topics.policies import (
    MILLISECONDS_MAX,
    DelayedDeliveryPolicies,
    PolicyBook,
    PolicyError,
    parse_policies,
)
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
        (of(True, MILLISECONDS_MAX, MILLISECONDS_MAX), (True, MILLISECONDS_MAX, MILLISECONDS_MAX)),
    ],
)
def test_policies_are_read(text: bytes, expected: tuple[bool, int, int]) -> None:
    policies = parse_policies(text)

    assert (policies.is_active, policies.tick_time_ms, policies.delay_ms_max) == expected


# A real Pulsar 4.2.4 takes those that are marked: it fills in false and 0, converts, and overlooks.
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "The body is empty; DELETE removes policies"),  # taken
        (b" \n", "The body is empty"),  # taken
        (b"null", "must be an object with active, tickTime and maxDeliveryDelayInMillis, but is null"),  # taken
        (b"garbage", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "must be an object"),
        (b'"x"', "must be an object"),
        (b"{}", "active is missing: true heeds delivery times, false delivers everything at once"),  # taken
        (b'{"tickTime":5}', "active is missing"),  # taken
        (b'{"actve":true}', 'There is no field "actve", only active, .*; did you mean active[?]'),  # taken
        (b'{"active":true,"ticktime":5}', 'no field "ticktime", .*; did you mean tickTime[?]'),  # taken
        (b'{"active":true,"x":1}', 'There is no field "x", only .*maxDeliveryDelayInMillis$'),  # taken
        (b'{"active":true,"active":false}', '"active" is given twice'),  # taken
        (of(None, 1, 1), "active must be true or false, but is null"),  # taken
        (of(1, 1, 1), "active must be true or false, but is 1"),  # taken
        (of("true", 1, 1), 'active must be true or false, but is "true"'),  # taken
        (of("x" * 1000, 1, 1), 'active must be true or false, but is "x{99}[.]{3}$'),
        (of([], 1, 1), "active must be true or false"),
        (of(True, 1.5, 1), "tickTime must be a whole number of milliseconds, but is 1.5"),  # taken
        (of(True, None, 1), "tickTime must be a whole number of milliseconds, but is null"),  # taken
        (of(True, "7", 1), 'tickTime must be a whole number of milliseconds, but is "7"'),  # taken
        (of(True, True, 1), "tickTime must be a whole number"),
        (of(True, 1, "1s"), 'maxDeliveryDelayInMillis must be a whole number of milliseconds, but is "1s"'),
        (of(True, -1, 0), f"tickTime must be from 0 to {MILLISECONDS_MAX} milliseconds, but is -1"),  # taken
        (of(True, 0, -1), f"maxDeliveryDelayInMillis must be from 0 to {MILLISECONDS_MAX}"),  # taken
        (of(True, MILLISECONDS_MAX + 1, 0), "tickTime must be from 0 to"),  # taken
        (of(True, 0, 10**30), "maxDeliveryDelayInMillis must be from 0 to"),
        (b'{"active":true,"tickTime":' + b"9" * 10_000 + b"}", "not JSON: Exceeds the limit"),
    ],
)
def test_what_is_not_exactly_policies_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(PolicyError, match=reason):
        parse_policies(text)


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


def test_stored_policies_that_cannot_be_read_cost_only_themselves(caplog: pytest.LogCaptureFixture) -> None:
    records = MemoryRecords({"delayedDelivery shop/eu": b"{", f"delayedDelivery {TOPIC}": of(False, 5, 7)})

    book = PolicyBook(records, DEFAULT)

    assert (book.of("shop/eu"), book.of(TOPIC)) == (None, OFF)
    assert "'delayedDelivery shop/eu' are ignored" in caplog.text
