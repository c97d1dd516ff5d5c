"""Policies of delayed delivery: their JSON, who decides for a topic, and that they are durable or unchanged."""

import asyncio
import json
from collections.abc import Mapping

import pytest

from broker.policies import (
    MILLISECONDS_MAX,
    DelayedDeliveryPolicies,
    MalformedPoliciesError,
    PolicyBook,
    PolicyValueError,
    parse_policies,
)
from broker.topic_name import TopicName

DEFAULT = DelayedDeliveryPolicies(is_active=True, tick_time_ms=1_000, delay_ms_max=0)
OFF = DelayedDeliveryPolicies(is_active=False, tick_time_ms=5, delay_ms_max=7)
TOPIC = TopicName.parse("shop/eu/orders")


class MemoryRecords:
    """Records in memory, with a disk that can be full."""

    def __init__(self, records: Mapping[str, bytes] = {}) -> None:
        self.records = dict(records)
        self.is_full = False

    async def put_record(self, name: str, value: bytes | None) -> None:
        if self.is_full:
            raise OSError("no space left")
        if value is None:
            self.records.pop(name, None)
        else:
            self.records[name] = value


def of(is_active: object, tick_time: object, delay_max: object) -> bytes:
    return json.dumps({"active": is_active, "tickTime": tick_time, "maxDeliveryDelayInMillis": delay_max}).encode()


# Each of these was put to a real Pulsar 4.2.4, which answers the same.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"active":true,"tickTime":500,"maxDeliveryDelayInMillis":9}', (True, 500, 9)),
        (b'{"tickTime":5}', (False, 5, 0)),
        (b"{}", (False, 0, 0)),
        (b'{"active":null,"tickTime":null}', (False, 0, 0)),
        (b'{"active":"true","tickTime":"7"}', (True, 7, 0)),
        (b'{"active":1,"tickTime":5,"x":1}', (True, 5, 0)),
    ],
)
def test_policies_are_read_as_pulsar_reads_them(text: bytes, expected: tuple[bool, int, int]) -> None:
    policies = parse_policies(text)

    assert policies is not None
    assert (policies.is_active, policies.tick_time_ms, policies.delay_ms_max) == expected


@pytest.mark.parametrize("text", [b"", b" ", b"null"])
def test_nothing_means_no_policies(text: bytes) -> None:
    assert parse_policies(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"garbage", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "must be an object"),
        (b'"x"', "must be an object"),
        (of("x", 1, 1), 'active must be true or false, but is "x"'),
        (of([], 1, 1), "active must be true or false"),
        (of(True, 1.5, 1), "tickTime must be a whole number of milliseconds, but is 1.5"),
        (of(True, True, 1), "tickTime must be a whole number"),
        (of(True, 1, "1s"), 'maxDeliveryDelayInMillis must be a whole number of milliseconds, but is "1s"'),
    ],
)
def test_what_is_no_policies_is_refused_with_400(text: bytes, reason: str) -> None:
    with pytest.raises(MalformedPoliciesError, match=reason) as caught:
        parse_policies(text)

    assert caught.value.status == 400


@pytest.mark.parametrize("value", [-1, MILLISECONDS_MAX + 1, 10**30])
def test_numbers_that_make_no_sense_are_refused_with_412(value: int) -> None:
    for text, name in ((of(True, value, 0), "tickTime"), (of(True, 0, value), "maxDeliveryDelayInMillis")):
        with pytest.raises(PolicyValueError, match=f"{name} must be from 0 to {MILLISECONDS_MAX}") as caught:
            parse_policies(text)

        assert caught.value.status == 412


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
