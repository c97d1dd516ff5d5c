"""The output of the commands on a screen: tables, a histogram, and sentences about changes. Pure.

Keys and names may be of any length and hold any character. Names are folded into their column, keys and properties are
cut at its end. Control characters are replaced, so that a producer's text cannot move the cursor of an operator's
terminal. `--json` has them as they are.
"""

import base64
from collections.abc import Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from managed_ledger.positions.value_types import Json
from postdate.command_line.output import counted, iso, plain_table, size

_BAR: Final = 28
_WIDTH_WITH_LAST_DUE: Final = 110
"""Where the table of topics has room for a second time beside names."""
_NAMES_WIDTH: Final = 16
_OWN_PROPERTIES: Final = "postdate."
"""The beginning of the properties that the service gives to messages which it moves."""
_STEPS_S: Final = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200),
    *(day * 86_400 for day in (1, 2, 7, 14, 30, 90, 365, 3_650, 36_500)),
)
"""The lengths of a histogram's bars, where the user has not said of which span it is."""
_EXPLAINED_MAX: Final = 5
"""So many messages are explained each by its sentences."""
_DAMAGED_SHOWN_MAX: Final = 10
_UNACKED_SHOWN_MAX: Final = 10


def printable(text: str) -> str:
    r"""Replace characters that a terminal would take for commands.

    >>> printable("a\tb"), printable("東京")
    ('a?b', '東京')
    """
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def topic_table(topics: Sequence[Json], width: int) -> Table:
    """Return the table of `postdate topics`, subscriptions below their topics.

    Args:
        topics: The answer of GET /postdate/v1/topics.
        width: The columns of the screen; the last due time needs more than 80.
    """
    times = ["nextDueMs", "lastDueMs"] if width >= _WIDTH_WITH_LAST_DUE else ["nextDueMs"]
    table = plain_table()
    table.add_column("topic", overflow="fold")
    for name in ("delayed", "overdue", "in hand", "backlog"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("next due", "last due")[: len(times)]:
        table.add_column(name, no_wrap=True)

    def figures(one: Json) -> list[str]:
        counts = [f"{one[name]:,}" for name in ("delayed", "overdue", "inHand", "backlog")]
        return counts + ["-" if one[name] is None else _to_the_second(one[name]) for name in times]

    for topic in topics:
        table.add_row(Text(printable(topic["name"]) + _paused_mark(topic)), *figures(topic))
        if without := topic.get("publishedWithoutSubscription", 0):
            table.add_row(Text(f"  published without a subscription: {without:,}"))
        for one in topic["subscriptions"]:
            table.add_row(Text(f"  {printable(one['name'])}{_subscription_marks(one)}"), *figures(one))
    return table


def _subscription_marks(one: Json) -> str:
    """Return what is unusual about a subscription.

    >>> _subscription_marks({"type": "Exclusive", "delays": False, "paused": True, "pausedBy": "anna"})
    ' (paused by anna) (Exclusive, does not delay)'
    """
    marks = f" (paused{_by_whom(one)})" if one["paused"] else ""
    return marks if one.get("delays", True) else f"{marks} ({one['type']}, does not delay)"


def _by_whom(one: Json) -> str:
    """Return the author and the note of a pause.

    >>> _by_whom({"pausedBy": "anna", "pauseNote": "a broken release"}), _by_whom({"pausedBy": None})
    (' by anna: a broken release', '')
    """
    by, note = one.get("pausedBy"), one.get("pauseNote")
    return printable((f" by {by}" if by else "") + (f": {note}" if note else ""))


def _paused_mark(topic: Json) -> str:
    """Return how much of a topic is paused: all of its subscriptions, some or none."""
    paused, total = sum(one["paused"] for one in topic["subscriptions"]), len(topic["subscriptions"])
    if not topic["paused"]:
        return ""
    return " (paused)" if paused == total else f" ({paused} of {total} paused)"


def _to_the_second(time_ms: int) -> str:
    """Write a time without its milliseconds, which are cut off."""
    return iso(time_ms - time_ms % 1_000).replace(".000Z", "Z")


def message_table(messages: Sequence[Json], now_ms: int) -> Table:
    """Return the table of `postdate scheduled list`.

    Args:
        messages: The messages, as GET .../scheduled gives them; with their payloads where those were asked for.
        now_ms: The present time.
    """
    table = plain_table(("due", "left"), ("", "left"), ("id", "left"))
    table.add_column("for", max_width=_NAMES_WIDTH)
    table.add_column("key")
    table.add_column("size", justify="right", no_wrap=True)
    has_payload = any("payload" in one for one in messages)
    for name in ("properties", "payload") if has_payload else ("properties",):
        table.add_column(name)
    for one in messages:
        # Those of the service itself come last.
        properties = sorted(one["properties"].items(), key=lambda item: item[0].startswith(_OWN_PROPERTIES))
        shown = ",".join(f"{name}={value}" for name, value in properties)
        row = [
            _to_the_second(one["deliverAtMs"]),
            _how_far(one["deliverAtMs"] - now_ms),
            one["messageId"],
            _in_one_line(",".join(one.get("waiting", ())) or "-"),
            _in_one_line(one["key"] if one["key"] is not None else one["keyBase64"] or "-"),
            size(one["sizeBytes"]),
            _in_one_line("DAMAGED" if one.get("damaged") else shown),
        ]
        if has_payload:
            row.append(_in_one_line(_payload_text(one)))
        table.add_row(*row)
    return table


def _how_far(span_ms: int) -> str:
    """Write how far a delivery time is from now, rounded to its largest unit.

    >>> _how_far(32_399_000), _how_far(3_599_600), _how_far(-250_000), _how_far(-10)
    ('in 9 h', 'in 1 h', 'overdue 4 min', 'due now')
    """
    far_ms = abs(span_ms)
    for unit, unit_ms, rounded_up_ms in (
        ("d", 86_400_000, 1_800_000),
        ("h", 3_600_000, 30_000),
        ("min", 60_000, 500),
        ("s", 1_000, 500),
    ):
        if far_ms > unit_ms - rounded_up_ms:
            count = round(far_ms / unit_ms)
            return f"in {count} {unit}" if span_ms > 0 else f"overdue {count} {unit}"
    return "due now"


def _payload_text(message: Json) -> str:
    r"""Return a payload as text, or how long it is.

    >>> _payload_text({"payload": "Z3LDvMOf"}), _payload_text({"payload": "/wA="})
    ('grüß', '(2 bytes)')
    >>> _payload_text({"payload": "eA==", "payloadCompression": "LZ4"})
    '(1 byte, LZ4)'
    """
    payload, compression = base64.b64decode(message.get("payload", "")), message.get("payloadCompression")
    if compression is None:
        try:
            return payload.decode()
        except UnicodeDecodeError:
            pass
    return f"({counted(len(payload), 'byte')}{'' if compression is None else f', {compression}'})"


def _in_one_line(text: str) -> Text:
    return Text(printable(text), no_wrap=True, overflow="ellipsis")


def message_notes(messages: Sequence[Json], *, is_more: bool) -> list[str]:
    """Return what is to be said below the table of messages.

    Args:
        messages: The messages.
        is_more: Whether there are more.
    """
    notes = []
    if any(one.get("damaged") for one in messages):
        notes.append("DAMAGED: the log is damaged there, so no consumer gets it: see `postdate ledger repair --help`.")
    if is_more:
        notes.append("There are more: narrow by time, key or property, or raise --limit.")
    return notes


def round_span(first_ms: int, last_ms: int, buckets: int) -> tuple[int, int, int]:
    """Return the beginning, the end and the number of a histogram's bars of a round length, for two times and a bound.

    >>> round_span(1_000, 7_199_000, 5)
    (0, 7200000, 4)
    >>> round_span(86_399_999, 86_400_000, 1)
    (0, 172800000, 1)
    """
    for step_ms in (1_000 * step_s for step_s in _STEPS_S):
        begin, end = first_ms // step_ms, last_ms // step_ms + 1
        if end - begin <= buckets:
            return begin * step_ms, end * step_ms, end - begin
    return first_ms, last_ms + 1, buckets


def count_lines(histogram: Json, bars: Json | None = None) -> list[str]:
    """Return the output of `postdate scheduled count`: the number, the first and the last time, and a histogram.

    Args:
        histogram: The answer of GET .../scheduled/histogram.
        bars: The one with the bars that are shown, of which those that are overdue are left out; None for the same.

    >>> for line in count_lines({"total": 3, "delayed": 2, "overdue": 1, "inHand": 4,
    ...     "nextDueMs": 0, "lastDueMs": 60_000, "buckets": [
    ...     {"fromMs": 0, "untilMs": 30_000, "count": 2}, {"fromMs": 30_000, "untilMs": 60_001, "count": 1}]}):
    ...     print(line)
    3 messages are scheduled: 2 delayed, 1 overdue; 4 more in hand
    the delayed ones: from 1970-01-01T00:00:00.000Z to 1970-01-01T00:01:00.000Z
    1970-01-01T00:00:00.000Z           2  ████████████████████████████
    1970-01-01T00:00:30.000Z           1  ██████████████
    >>> count_lines({"total": 2, "delayed": 0, "overdue": 2, "inHand": 0, "nextDueMs": None, "lastDueMs": None,
    ...     "buckets": []})
    ['2 messages are scheduled: 0 delayed, 2 overdue']
    """
    undelayed = [one["sentence"] for one in histogram.get("undelayed", ())]
    total, in_hand = histogram["total"], histogram["inHand"]
    if not total:
        return ["Nothing is scheduled" + (f"; {in_hand:,} in hand" if in_hand else ""), *undelayed]
    verb = "is" if total == 1 else "are"
    states = f"{histogram['delayed']:,} delayed, {histogram['overdue']:,} overdue"
    if in_hand:
        states += f"; {in_hand:,} more in hand"
    lines = [f"{counted(total, 'message')} {verb} scheduled: {states}"]
    if histogram["delayed"]:
        first, last = iso(histogram["nextDueMs"]), iso(histogram["lastDueMs"])
        lines.append(f"the delayed ones: for {first}" if first == last else f"the delayed ones: from {first} to {last}")
    buckets = (bars or histogram)["buckets"]
    if bars is not None:
        buckets = _without_first(buckets, bars["overdue"])
    most = max((one["count"] for one in buckets), default=0)
    if len(buckets) > 1 and most:
        for one in buckets:
            bar = "█" * -(-one["count"] * _BAR // most)
            begin = iso(one["fromMs"]) if bars is None else _to_the_second(one["fromMs"])
            lines.append(f"{begin}  {one['count']:>10,}  {bar}".rstrip())
    return lines + undelayed


def _without_first(buckets: Sequence[Json], count: int) -> list[Json]:
    """Return buckets without so many of their first messages, which are the overdue ones."""
    found = []
    for one in buckets:
        less = min(one["count"], count)
        count -= less
        found.append({**one, "count": one["count"] - less})
    return found


def changing_count(answer: Json, verb: str) -> int:
    """Return how many messages a change will concern, from the answer of its dry run.

    A message that a consumer has in hand stays, and one that is due is cancelled but not moved.

    >>> changing_count({"matched": 3, "alreadyDue": 1, "inHand": 1}, "cancelled")
    2
    >>> changing_count({"matched": 3, "alreadyDue": 1, "inHand": 1}, "rescheduled")
    1
    """
    left = int(answer["matched"]) - int(answer["inHand"])
    return left if verb == "cancelled" else left - int(answer["alreadyDue"])


def change_line(answer: Json, verb: str, tense: str = "") -> str:
    """Return how many messages a change concerns, and what it leaves out, by the reason.

    >>> change_line({"matched": 15, "alreadyDue": 2, "inHand": 0, "unknown": 0}, "rescheduled", "will be ")
    '13 messages will be rescheduled; left out: 2 due already'
    >>> change_line({"matched": 15, "alreadyDue": 1, "inHand": 2, "unknown": 1}, "cancelled", "would be ")
    '13 messages would be cancelled, 1 of them due already; left out: 2 in the hand of a consumer, 1 unknown'
    >>> change_line({"matched": 3, "delivered": 2, "alreadyDue": 0, "unknown": 0, "damaged": ["3:9"],
    ...     "damagedCount": 1}, "delivered")
    '2 messages delivered; left out: 1 damaged in the log (3:9)'

    Args:
        answer: The answer of the service, of a dry run or not.
        verb: The field of the answer with the number of changed messages.
        tense: What stands before the verb, of a dry run.
    """
    text = f"{counted(changing_count(answer, verb) if tense else answer[verb], 'message')} {tense}{verb}"
    left_out = {name: f"{answer[name]:,} {reason}" for name, reason in _LEFT_OUT.items() if answer.get(name, 0)}
    if verb == "cancelled" and "alreadyDue" in left_out:
        del left_out["alreadyDue"]
        text += f", {answer['alreadyDue']:,} of them due already"
    if "damagedCount" in left_out:
        shown = answer["damaged"][:_DAMAGED_SHOWN_MAX]
        left_out["damagedCount"] += f" ({', '.join(shown)}{', ...' if answer['damagedCount'] > len(shown) else ''})"
    return f"{text}; left out: {', '.join(left_out.values())}" if left_out else text


_LEFT_OUT: Final = {
    "alreadyDue": "due already",
    "inHand": "in the hand of a consumer",
    "gone": "gone meanwhile",
    "alreadyShifted": "shifted before",
    "unknown": "unknown",
    "damagedCount": "damaged in the log",
}
"""By the field of the answer, in the order in which they are told."""


def trail_table(entries: Sequence[Json]) -> Table:
    """Return the table of `postdate trail`.

    Args:
        entries: The entries that GET /postdate/v1/trail gives.
    """
    table = plain_table(("time", "left"))
    for name in ("by", "change", "of"):
        table.add_column(name, overflow="fold")
    table.add_column("count", justify="right", no_wrap=True)
    for one in entries:
        subscription = one["subscription"] and f"subscription {one['subscription']}"
        failed = "" if one["outcome"] == "done" else one["outcome"]
        meant = ", ".join(part for part in (one["topic"], subscription, one["selection"], failed) if part)
        table.add_row(
            _to_the_second(one["timeMs"]),
            printable(f"{one['role']} ({one['address']})" if one["role"] else one["address"]),
            one["action"],
            Text(printable(meant)),
            "-" if one["count"] is None else f"{one['count']:,}",
        )
    return table


def backlog_meant(topic: Json, subscription: str | None, what: str) -> tuple[int, int]:
    """Return the backlog that a pause or resume is about, in entries of the log, and its delayed messages.

    A pause holds the whole backlog, with what has no delivery time. A resume is about the subscriptions that a pause or
    a rate holds back.

    >>> held = {"name": "me", "backlog": 503, "delayed": 3, "paused": True, "ratePerSecond": None}
    >>> free = {"name": "you", "backlog": 7, "delayed": 0, "paused": False, "ratePerSecond": None}
    >>> backlog_meant({"subscriptions": [held, free]}, None, "resume")
    (503, 3)
    >>> backlog_meant({"subscriptions": [held, free]}, None, "pause")
    (510, 3)

    Args:
        topic: The answer of GET /postdate/v1/topics/{topic}.
        subscription: The name of one subscription, None for all.
        what: "pause" or "resume".
    """
    meant = [
        one
        for one in topic["subscriptions"]
        if subscription in (None, one["name"])
        and (what == "pause" or one["paused"] or one["ratePerSecond"] is not None)
    ]
    return sum(one["backlog"] for one in meant), sum(one["delayed"] for one in meant)


def backlog_sentence(backlog: int, delayed: int, what: str, rate: float | None = None) -> str:
    """Return what a pause or resume will do with a backlog.

    >>> backlog_sentence(503, 3, "resume")
    'A backlog of 503 entries will be let go: 3 delayed messages at their time, all else at once.'
    >>> backlog_sentence(1, 0, "pause")
    'A backlog of 1 entry will be held: 0 delayed messages from their time on, all else from now on.'
    >>> backlog_sentence(14, 14, "resume", 5)
    'A backlog of 14 entries will be let go at up to 5 messages a second: 14 delayed messages not before their time.'

    Args:
        backlog: The entries of the log that are meant.
        delayed: How many delayed messages are in them.
        what: "pause" or "resume".
        rate: How many messages a second are let go at most; None for no limit.
    """
    entries = f"{backlog:,} {'entry' if backlog == 1 else 'entries'}"
    if what == "resume" and rate is not None:
        let_go = f"let go at up to {rate:g} messages a second"
        return f"A backlog of {entries} will be {let_go}: {counted(delayed, 'delayed message')} not before their time."
    done, at, now = (
        ("held", "from their time on", "from now on") if what == "pause" else ("let go", "at their time", "at once")
    )
    return f"A backlog of {entries} will be {done}: {counted(delayed, 'delayed message')} {at}, all else {now}."


def pause_lines(answer: Json) -> list[str]:
    """Return lines about the pause of each subscription.

    >>> pause_lines({"subscriptions": [{"name": "me", "paused": True, "pausedSince": "2027-01-15T08:00:00.000Z",
    ...     "ratePerSecond": None}, {"name": "you", "paused": False, "pausedSince": None, "ratePerSecond": 50.0}]})
    ['me: paused since 2027-01-15T08:00:00.000Z', 'you: delivers, at most 50 a second until it has caught up']
    """
    lines = []
    for one in answer["subscriptions"]:
        rate = one["ratePerSecond"]
        state = "delivers" if rate is None else f"delivers, at most {rate:g} a second until it has caught up"
        if one["paused"]:
            state = f"paused since {one['pausedSince']}{_by_whom(one)}"
        lines.append(f"{one['name']}: {state}")
    return lines or ["The topic has no subscription"]


def explanation_lines(answer: Json) -> list[str | Table]:
    """Return an explanation: the sentence, then that of each message and subscription that it does not tell of.

    Of many messages, a table has how many are in which state.

    >>> explanation_lines({"sentence": "3:9 is delayed until T.", "messages": [{"messageId": "3:9",
    ...     "sentence": "3:9 is delayed until T.", "subscriptions": [{"subscription": "me", "state": "delayed",
    ...     "sentence": "3:9 is delayed until T."}]}]})
    ['3:9 is delayed until T.']
    """
    messages = answer["messages"]
    sentences: list[str | Table] = [answer["sentence"]]
    if len(messages) > _EXPLAINED_MAX:
        return [*sentences, f"In all {counted(len(messages), 'message')}:", _state_table(messages)]
    if len(messages) > 1 or len(messages[0]["subscriptions"]) > 1:
        for message in messages:
            states = message["subscriptions"]
            sentences += [
                f"{one['subscription']}: {one['sentence']}"
                for one in states
                # The answer's own sentence ends with a message's, which names its subscription only among several.
                if not answer["sentence"].endswith(
                    f"{one['subscription']}: {one['sentence']}" if len(states) > 1 else one["sentence"]
                )
            ]
    return sentences


def _state_table(messages: Sequence[Json]) -> Table:
    """Return how many messages are in which state, for whom, from when until when they are due, and why they wait."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for message in messages:
        for one in message["subscriptions"]:
            group = groups.setdefault((one["subscription"], one["state"], one["reason"] or ""), [])
            group.append(message["deliverAtMs"] or message["publishTimeMs"])
    table = plain_table(("for", "left"), ("state", "left"), ("messages", "right"), ("from", "left"), ("until", "left"))
    table.add_column("because", overflow="fold")
    for (subscription, state, reason), times in sorted(groups.items()):
        name = Text(printable(subscription))
        table.add_row(name, state, f"{len(times):,}", *map(_to_the_second, (min(times), max(times))), Text(reason))
    return table


def key_lines(status: Json) -> list[str]:
    """Return an answer of `keyStatus` as lines.

    >>> for line in key_lines({"key": "k", "hash": 7, "owner": "b", "waitingEntries": 2, "reason": "another one",
    ...     "blockedBy": "a", "blockedSinceTimestamp": 0, "unackedEntries": 1,
    ...     "unacked": [{"position": "1:5", "consumerName": "a"}]}):
    ...     print(line)
    key       k
    hash      7
    owner     b
    waiting   2 (another one)
    blocked   by a since 1970-01-01T00:00:00.000Z
    unacked   1: 1:5 at a
    """
    lines = [
        f"key       {status['key']}",
        f"hash      {status['hash']}",
        f"owner     {status['owner'] or 'no consumer'}",
        f"waiting   {status['waitingEntries']} ({status['reason']})",
    ]
    if status["blockedBy"] is not None:
        lines.append(f"blocked   by {status['blockedBy']} since {iso(status['blockedSinceTimestamp'])}")
    held = [f"{one['position']} at {one['consumerName']}" for one in status["unacked"][:_UNACKED_SHOWN_MAX]]
    more = ", ..." if status["unackedEntries"] > len(held) else ""
    return [*lines, f"unacked   {status['unackedEntries']}" + (f": {', '.join(held)}{more}" if held else "")]
