"""The demo's verdict on made-up records: a clean one is clean, and every single fault is found.

The clock of these records is in milliseconds from 0. The service is killed at 5,000 and started again at 6,000.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from managed_ledger.positions.value_types import Int64Array
from postdate.demo.verdict import NEVER, Deliveries, Outage, PublishedMessages, Verdict, judge

KILLED_MS = 5_000
RESTARTED_MS = 6_000
GRACE_MS = 250

A, B = 0, 1
"""Two consumers."""


@dataclass(frozen=True)
class Message:
    """A published message: its entry id in the one ledger, its key, and when it is due."""

    entry_id: int
    key: int
    deliver_at_ms: int


@dataclass(frozen=True)
class RecordedDelivery:
    """A message at a consumer."""

    message: Message
    consumer: int
    received_ms: float
    acked_ms: float | None = None


FIRST = Message(0, key=1, deliver_at_ms=1_000)
SECOND = Message(1, key=1, deliver_at_ms=2_000)
OTHER_KEY = Message(2, key=2, deliver_at_ms=1_500)
SAME_TIME = Message(3, key=1, deliver_at_ms=2_000)
DURING_OUTAGE = Message(4, key=1, deliver_at_ms=5_500)
AFTERWARDS = Message(5, key=1, deliver_at_ms=8_000)
EVERYTHING = [FIRST, SECOND, OTHER_KEY, SAME_TIME, DURING_OUTAGE, AFTERWARDS]

CLEAN = [
    RecordedDelivery(FIRST, A, 1_001, 1_010),
    RecordedDelivery(OTHER_KEY, B, 1_502, 1_503),
    RecordedDelivery(SECOND, A, 2_001, 2_020),
    RecordedDelivery(SAME_TIME, A, 2_002, 2_021),
    RecordedDelivery(DURING_OUTAGE, A, 6_500, 6_510),
    RecordedDelivery(AFTERWARDS, A, 8_001, 8_002),
]


def column(values: Sequence[float]) -> Int64Array:
    """Make a column of a record."""
    return np.array(values, dtype=np.int64)


def published_columns(messages: Sequence[Message]) -> PublishedMessages:
    """Turn messages into columns, all in ledger 7."""
    return PublishedMessages(
        ledger_ids=column([7] * len(messages)),
        entry_ids=column([one.entry_id for one in messages]),
        keys=column([one.key for one in messages]),
        deliver_at_ms=column([one.deliver_at_ms for one in messages]),
    )


def delivery_columns(deliveries: Sequence[RecordedDelivery]) -> Deliveries:
    """Turn deliveries into columns, milliseconds into nanoseconds."""
    return Deliveries(
        consumers=column([one.consumer for one in deliveries]),
        ledger_ids=column([7] * len(deliveries)),
        entry_ids=column([one.message.entry_id for one in deliveries]),
        keys=column([one.message.key for one in deliveries]),
        deliver_at_ms=column([one.message.deliver_at_ms for one in deliveries]),
        received_ns=column([int(one.received_ms * 1e6) for one in deliveries]),
        acked_ns=np.array(
            [NEVER if one.acked_ms is None else int(one.acked_ms * 1e6) for one in deliveries], dtype=np.int64
        ),
        redelivery_counts=column([0] * len(deliveries)),
    )


def judged(deliveries: Sequence[RecordedDelivery], messages: Sequence[Message] = EVERYTHING) -> Verdict:
    """Judge deliveries of messages."""
    outage = Outage(KILLED_MS * 1_000_000, RESTARTED_MS * 1_000_000)
    return judge(published_columns(messages), delivery_columns(deliveries), outage, ack_grace_ms=GRACE_MS)


def faults(deliveries: Sequence[RecordedDelivery], messages: Sequence[Message] = EVERYTHING) -> dict[str, int]:
    """Return the faults that there are, with their counts."""
    verdict = judged(deliveries, messages)
    assert verdict.is_clean == (not any(finding.count for finding in verdict.faults.values()))
    return {name: finding.count for name, finding in verdict.faults.items() if finding.count}


def without(*left_out: Message) -> list[RecordedDelivery]:
    """Return the clean record without these messages."""
    return [one for one in CLEAN if one.message not in left_out]


def test_a_clean_record_is_clean() -> None:
    """Everything once, in time, in order, at one consumer for a key at a time."""
    verdict = judged(CLEAN)

    assert verdict.is_clean
    assert verdict.delivered == len(EVERYTHING)
    assert verdict.duplicates_at_kill == 0
    assert verdict.first_delivery_ns == 6_500 * 1_000_000


def test_the_order_of_the_rows_does_not_matter() -> None:
    """Consumers write their records one after the other; the judge goes by the times."""
    assert faults(list(reversed(CLEAN))) == {}


def test_a_message_that_never_came_is_lost() -> None:
    """Each one counts, and is named."""
    verdict = judged(without(OTHER_KEY))

    assert not verdict.is_clean
    assert verdict.lost.count == 1
    assert "(7, 2)" in verdict.lost.examples[0]


def test_without_any_delivery_everything_is_lost() -> None:
    """An empty record is no clean record."""
    assert faults([]) == {"lost": len(EVERYTHING)}


def test_a_delivery_before_its_time_is_early() -> None:
    """By a millisecond or by less."""
    assert faults([*without(OTHER_KEY), RecordedDelivery(OTHER_KEY, B, 1_499.9, 1_501)]) == {"early": 1}
    assert faults([*without(OTHER_KEY), RecordedDelivery(OTHER_KEY, B, 1_500, 1_501)]) == {}


def test_a_message_that_nobody_published_is_altered() -> None:
    """As is one that arrives with another key, or with another time, than it had."""
    unknown = Message(99, key=3, deliver_at_ms=1_000)
    other_key = Message(OTHER_KEY.entry_id, key=3, deliver_at_ms=OTHER_KEY.deliver_at_ms)
    other_time = Message(OTHER_KEY.entry_id, OTHER_KEY.key, OTHER_KEY.deliver_at_ms - 1)

    assert faults([*CLEAN, RecordedDelivery(unknown, A, 1_700, 1_701)]) == {"altered": 1}
    assert faults([*without(OTHER_KEY), RecordedDelivery(other_key, B, 1_502, 1_503)]) == {"altered": 1}
    assert faults([*without(OTHER_KEY), RecordedDelivery(other_time, B, 1_502, 1_503)]) == {"altered": 1}
    assert faults([RecordedDelivery(FIRST, A, 1_700, 1_701)], messages=[]) == {"altered": 1}


def test_a_later_time_before_an_earlier_one_is_out_of_order() -> None:
    """Within a key; the first delivery counts."""
    late = RecordedDelivery(FIRST, A, 2_100, 2_110)

    assert faults([*without(FIRST), late]) == {"out of order within a key": 1}


def test_among_equal_times_the_position_decides() -> None:
    """The one that was published first comes first."""
    turned = [RecordedDelivery(SAME_TIME, A, 2_001, 2_002), RecordedDelivery(SECOND, A, 2_003, 2_004)]

    assert faults([*without(SECOND, SAME_TIME), *turned]) == {"out of order within a key": 1}


def test_keys_do_not_wait_for_each_other() -> None:
    """An earlier message of another key may come later."""
    assert faults([*without(OTHER_KEY), RecordedDelivery(OTHER_KEY, B, 4_000, 4_001)]) == {}


def test_order_within_the_second_life_counts_also_for_what_comes_again() -> None:
    """After the kill, two messages that come once more must come in order, too."""
    unacked = [RecordedDelivery(SECOND, A, 2_001), RecordedDelivery(SAME_TIME, A, 2_002)]
    again = [RecordedDelivery(SECOND, A, 6_101, 6_110), RecordedDelivery(SAME_TIME, A, 6_102, 6_110)]
    turned = [RecordedDelivery(SECOND, A, 6_102, 6_110), RecordedDelivery(SAME_TIME, A, 6_101, 6_110)]
    rest = without(SECOND, SAME_TIME)

    assert faults([*rest, *unacked, *again]) == {}
    assert faults([*rest, *unacked, *turned]) == {"out of order within a key": 1}


def test_what_comes_again_may_come_after_later_messages_of_the_first_life() -> None:
    """A redelivery is not a first delivery."""
    unacked = RecordedDelivery(FIRST, A, 1_001)

    assert faults([*without(FIRST), unacked, RecordedDelivery(FIRST, A, 6_100, 6_110)]) == {}


def test_a_key_at_two_consumers_at_once_is_found() -> None:
    """B gets a message of a key while A has not acknowledged another one of it."""
    overlapping = [RecordedDelivery(SECOND, A, 2_001, 2_100), RecordedDelivery(SAME_TIME, B, 2_050, 2_060)]
    handed_over = [RecordedDelivery(SECOND, A, 2_001, 2_050), RecordedDelivery(SAME_TIME, B, 2_050, 2_060)]
    rest = without(SECOND, SAME_TIME)

    assert faults([*rest, *overlapping]) == {"keys with two owners at once": 1}
    assert faults([*rest, *handed_over]) == {}


def test_a_long_hold_hides_behind_no_shorter_one() -> None:
    """A's earlier message is held for longer than its later one: B overlaps with the earlier one."""
    held = [
        RecordedDelivery(FIRST, A, 1_001, 3_000),
        RecordedDelivery(SECOND, A, 2_001, 2_002),
        RecordedDelivery(SAME_TIME, B, 2_500, 2_501),
    ]

    assert faults([*without(FIRST, SECOND, SAME_TIME), *held]) == {"keys with two owners at once": 1}


def test_two_consumers_may_hold_different_keys() -> None:
    """One owner for each key, not for all."""
    assert (
        faults(
            [
                *without(FIRST, OTHER_KEY),
                RecordedDelivery(FIRST, A, 1_001, 1_900),
                RecordedDelivery(OTHER_KEY, B, 1_600, 1_700),
            ]
        )
        == {}
    )


def test_the_kill_ends_every_ownership() -> None:
    """Keys that A held when the service died have no owner: B may have the key in the next life."""
    held = RecordedDelivery(SAME_TIME, A, 2_002)
    again = RecordedDelivery(SAME_TIME, B, 6_100, 6_110)

    assert faults([*without(SAME_TIME), held, again]) == {}


def test_two_owners_at_the_moment_of_the_kill_are_found() -> None:
    """Both were handed the key by the first life, though their applications read it later."""
    after_kill = [RecordedDelivery(SECOND, A, 5_100), RecordedDelivery(SAME_TIME, B, 5_200)]
    again = [RecordedDelivery(SECOND, A, 6_100, 6_101), RecordedDelivery(SAME_TIME, A, 6_102, 6_103)]

    assert faults([*without(SECOND, SAME_TIME), *after_kill, *again]) == {"keys with two owners at once": 1}


def test_a_repetition_of_what_was_acknowledged_is_a_fault() -> None:
    """Acknowledged well before the kill, it must not come again."""
    assert faults([*CLEAN, RecordedDelivery(SECOND, A, 6_100, 6_110)]) == {"duplicates, other": 1}


def test_a_repetition_without_a_kill_between_is_a_fault() -> None:
    """No consumer asked for it, and no crash excuses it, acknowledged or not."""
    assert faults([*CLEAN, RecordedDelivery(OTHER_KEY, B, 1_600, 1_601)]) == {"duplicates, other": 1}
    assert faults(
        [*without(OTHER_KEY), RecordedDelivery(OTHER_KEY, B, 1_502), RecordedDelivery(OTHER_KEY, B, 1_600, 1_601)]
    ) == {"duplicates, other": 1}


@pytest.mark.parametrize("acked_ms", [None, KILLED_MS - GRACE_MS + 1, KILLED_MS + 100])
def test_a_repetition_of_what_was_unacknowledged_at_the_kill_is_allowed(acked_ms: float | None) -> None:
    """Not acknowledged, or too shortly before for the acknowledgement to have been kept, or on a dead connection."""
    held = RecordedDelivery(OTHER_KEY, B, 4_800, acked_ms)
    verdict = judged([*without(OTHER_KEY), held, RecordedDelivery(OTHER_KEY, A, 6_100, 6_110)])

    assert verdict.is_clean
    assert verdict.duplicates_at_kill == 1


def test_the_kill_excuses_one_repetition_and_no_more() -> None:
    """The second one has no reason."""
    held = RecordedDelivery(OTHER_KEY, B, 4_800)
    twice = [RecordedDelivery(OTHER_KEY, A, 6_100, 6_110), RecordedDelivery(OTHER_KEY, A, 6_200, 6_210)]

    assert faults([*without(OTHER_KEY), held, *twice]) == {"duplicates, other": 1}


def test_the_oldest_lost_acknowledgement_is_told() -> None:
    """How long before the kill it had been made."""
    held = RecordedDelivery(OTHER_KEY, B, 4_800, KILLED_MS - 100)
    verdict = judged([*without(OTHER_KEY), held, RecordedDelivery(OTHER_KEY, A, 6_100, 6_110)])

    assert verdict.ack_lost_before_kill_ms_max == 100
    assert judged(CLEAN).ack_lost_before_kill_ms_max == 0


def test_lateness_is_told_apart_across_the_outage() -> None:
    """Messages that fell due, or were waiting, while the service was away are counted apart."""
    verdict = judged(CLEAN)

    # Of those due while it was up: 1 ms, 2 ms, 1 ms, 2 ms before, and 1 ms afterwards.
    assert verdict.lateness_up.count == 5
    assert (verdict.lateness_up.p50_ms, verdict.lateness_up.max_ms) == (1.0, 2.0)
    assert verdict.lateness_outage.count == 1
    assert verdict.lateness_outage.max_ms == 1_000.0


def test_what_was_due_before_the_kill_and_came_after_it_was_late_by_the_outage() -> None:
    """It waited through the outage, whenever it was due."""
    verdict = judged([*without(OTHER_KEY), RecordedDelivery(OTHER_KEY, A, 6_200, 6_210)])

    assert verdict.is_clean
    assert verdict.lateness_outage.count == 2
    assert verdict.lateness_outage.max_ms == 6_200 - OTHER_KEY.deliver_at_ms


def test_the_outage_lasts_until_every_consumer_is_back() -> None:
    """A message that falls due before the last consumer has had a delivery may have had to wait for it."""
    late = RecordedDelivery(AFTERWARDS, B, 8_001, 8_002)
    verdict = judged([*without(AFTERWARDS), late])

    assert verdict.all_back_ns == 8_001 * 1_000_000
    assert (verdict.lateness_up.count, verdict.lateness_outage.count) == (4, 2)


def test_a_repetition_is_not_late() -> None:
    """Lateness is that of first deliveries."""
    held = RecordedDelivery(OTHER_KEY, B, 1_502)
    verdict = judged([*without(OTHER_KEY), held, RecordedDelivery(OTHER_KEY, A, 6_100, 6_110)])

    assert verdict.lateness_up.count + verdict.lateness_outage.count == len(EVERYTHING)


def test_examples_are_a_few_and_say_which() -> None:
    """A thousand faults are a count and some examples."""
    many = [Message(entry_id, key=entry_id, deliver_at_ms=1_000) for entry_id in range(1000)]
    verdict = judged([RecordedDelivery(one, A, 900, 901) for one in many], many)

    assert verdict.early.count == 1000
    assert len(verdict.early.examples) == 5
    assert "of key 0 " in verdict.early.examples[0]
    assert "at consumer 1" in verdict.early.examples[0]


def test_order_holds_from_one_life_to_the_next() -> None:
    """Each life is in order by itself, but the first deliveries of both together are not."""
    turned = RecordedDelivery(FIRST, A, 6_100, 6_110)

    assert faults([*without(FIRST), turned]) == {"out of order within a key": 1}


def test_two_owners_at_the_kill_are_found_though_one_acknowledged_before_the_other_read() -> None:
    """On dead connections, an acknowledgement between the two receipts has handed nothing over."""
    after_kill = [RecordedDelivery(SECOND, A, 4_900, 5_050), RecordedDelivery(SAME_TIME, B, 5_200)]
    again = [RecordedDelivery(SECOND, A, 6_100, 6_101), RecordedDelivery(SAME_TIME, A, 6_102, 6_103)]

    assert faults([*without(SECOND, SAME_TIME), *after_kill, *again]) == {"keys with two owners at once": 1}


@pytest.mark.parametrize(("acked_ms", "other"), [(KILLED_MS - GRACE_MS - 1, 1), (KILLED_MS - GRACE_MS, 0)])
def test_the_grace_is_exact(acked_ms: float, other: int) -> None:
    """A millisecond more and the acknowledgement must have been kept."""
    held = RecordedDelivery(OTHER_KEY, B, 4_700, acked_ms)
    verdict = judged([*without(OTHER_KEY), held, RecordedDelivery(OTHER_KEY, A, 6_100, 6_110)])

    assert (verdict.duplicates_other.count, verdict.duplicates_at_kill) == (other, 1 - other)


def test_the_oldest_of_several_lost_acknowledgements_is_told() -> None:
    """Not the youngest."""
    held = [RecordedDelivery(OTHER_KEY, B, 4_800, KILLED_MS - 100), RecordedDelivery(FIRST, A, 1_001, KILLED_MS - 30)]
    again = [RecordedDelivery(FIRST, A, 6_050, 6_060), RecordedDelivery(OTHER_KEY, B, 6_100, 6_110)]

    assert judged([*without(OTHER_KEY, FIRST), *held, *again]).ack_lost_before_kill_ms_max == 100


def test_nobody_waits_for_a_consumer_that_joined_afterwards() -> None:
    """The outage ends with those that were there before it, and what falls due later was not part of it."""
    joiner = 2
    verdict = judged([*without(AFTERWARDS), RecordedDelivery(AFTERWARDS, joiner, 8_001, 8_002)])

    assert verdict.all_back_ns == 6_500 * 1_000_000
    assert verdict.lateness_outage.count == 1


def test_a_position_is_its_ledger_first() -> None:
    """The last entry of a ledger comes before the first of the next one, due at the same time."""
    messages = published_columns([Message(9, key=1, deliver_at_ms=1_000), Message(0, key=1, deliver_at_ms=1_000)])
    deliveries = delivery_columns(
        [
            RecordedDelivery(Message(9, 1, 1_000), A, 1_001, 1_002),
            RecordedDelivery(Message(0, 1, 1_000), A, 1_003, 1_004),
        ]
    )
    ledgers = column([7, 8])
    outage = Outage(KILLED_MS * 1_000_000, RESTARTED_MS * 1_000_000)

    verdict = judge(
        replace(messages, ledger_ids=ledgers), replace(deliveries, ledger_ids=ledgers), outage, ack_grace_ms=GRACE_MS
    )

    assert verdict.is_clean


def test_a_position_that_nobody_published_is_altered_whatever_it_carries() -> None:
    """Also with the key and the time of a message that was published."""
    twin = Message(99, FIRST.key, FIRST.deliver_at_ms)

    assert judged([*CLEAN, RecordedDelivery(twin, A, 1_001, 1_002)]).altered.count == 1


def test_the_kill_ends_every_ownership_of_the_only_key() -> None:
    """A never acknowledges; its key is the last one of the first life and the first one of the second."""
    held, again = RecordedDelivery(FIRST, A, 1_001), RecordedDelivery(FIRST, B, 6_100, 6_110)

    assert faults([held, again], [FIRST]) == {}
