"""Tables of the commands about scheduled messages on a screen of 80 columns, with text of any script."""

import io
from typing import Any
from unicodedata import combining, east_asian_width

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from postdate.command_line.output import output_width
from postdate.scheduling.tables import (
    count_lines,
    explanation_lines,
    message_notes,
    message_table,
    pause_lines,
    printable,
    round_span,
    topic_table,
)

TEXTS = ["東京" * 20, "a" + "東京" * 20, "キー値" * 9, "x" * 90, "🎉" * 30, "wide 東 and narrow " * 8, "e\u0301" * 90]

STATES = {"delayed": 1, "overdue": 0, "inHand": 0}


def _lines(*what: Table | str, width: int = 80) -> list[str]:
    """Return what is printed on a screen of so many columns."""
    console = Console(width=width, file=io.StringIO(), highlight=False, emoji=False)
    with console.capture() as capture:
        for one in what:
            console.print(Text(printable(one)) if isinstance(one, str) else one)
    return [line.rstrip() for line in capture.get().splitlines() if line.strip(" ─")]


def _columns(line: str) -> int:
    return sum(0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in line)


@pytest.mark.parametrize("text", TEXTS)
def test_no_line_is_wider_than_80_columns_with_wide_characters(text: str) -> None:
    message = {"messageId": "12345:678", "deliverAtMs": 0, "key": text, "sizeBytes": 5, "properties": {text: text}}
    figures = {"name": text, **STATES, "backlog": 1, "paused": False, "nextDueMs": 0, "lastDueMs": 0}
    state = {"subscription": text, "sentence": text}
    answer = {"sentence": text, "messages": [{"subscriptions": [state, state]}]}

    tables = message_table([message], 0), topic_table([figures | {"subscriptions": [figures]}], 80)
    lines = _lines(*tables, *explanation_lines(answer))

    assert max(map(_columns, lines)) <= 80
    assert all(line.strip() for line in lines)


def test_columns_behind_wide_characters_stand_where_the_others_stand() -> None:
    messages = [
        {"messageId": "3:9", "deliverAtMs": 0, "key": key, "sizeBytes": 12, "properties": {"a": "b"}}
        for key in ("anna", "東京", "東京" * 9, "e\u0301" * 5, "e\u0301" * 30)
    ]

    starts = {_columns(line.partition("a=b")[0]) for line in _lines(message_table(messages, 0))[1:]}

    assert len(starts) == 1


def test_a_count_of_what_is_overdue_alone_names_no_times_to_come() -> None:
    overdue: dict[str, Any] = {
        "total": 3,
        "delayed": 0,
        "overdue": 3,
        "inHand": 0,
        "nextDueMs": None,
        "lastDueMs": None,
    }
    bucket = {"fromMs": 0, "untilMs": 1, "count": 3}

    assert count_lines(overdue | {"buckets": [bucket]}) == ["3 messages are scheduled: 0 delayed, 3 overdue"]


def test_no_sentence_of_an_explanation_stands_there_twice() -> None:
    def message(message_id: str, *names: str) -> dict[str, object]:
        states = [{"subscription": name, "sentence": f"{message_id} is due."} for name in names]
        return {"subscriptions": states}

    of_one = {"sentence": "idle: 3:9 is due.", "messages": [message("3:9", "done", "idle")]}
    of_key = {
        "sentence": "2 messages are there; the first one: 3:9 is due.",
        "messages": [message("3:9", "me"), message("3:10", "me")],
    }

    assert explanation_lines(of_one) == ["idle: 3:9 is due.", "done: 3:9 is due."]
    assert explanation_lines(of_key) == ["2 messages are there; the first one: 3:9 is due.", "me: 3:10 is due."]


def _topic(name: str, **subscriptions: bool) -> dict[str, Any]:
    figures = {**STATES, "backlog": 1, "nextDueMs": 1_800_000_000_000, "lastDueMs": 1_800_000_005_999}
    return {
        **figures,
        "name": name,
        "paused": any(subscriptions.values()),
        "subscriptions": [{**figures, "name": one, "paused": paused} for one, paused in subscriptions.items()],
    }


def test_topics_show_the_first_and_the_last_time_beside_a_pause() -> None:
    topics = [_topic("t", a=True, b=True), _topic("u", a=True, b=False), _topic("v", a=False)]
    lines = _lines(topic_table(topics, 110), width=110)[1:]

    assert all("2027-01-15T08:00:00Z  2027-01-15T08:00:05Z" in line for line in lines if "1 " in line[20:])
    shown = [line.strip().split("   ")[0] for line in lines]
    assert shown == ["t (paused)", "a (paused)", "b (paused)", "u (1 of 2 paused)", "a (paused)", "b", "v", "a"]


@pytest.mark.parametrize("width", [80, 160])
def test_topics_that_differ_in_their_ends_look_different(width: int) -> None:
    names = [f"shop/eu/{'orders-' * 20}{end}" for end in ("one", "two")]

    lines = _lines(topic_table([_topic(name, sub=True) for name in names], width), width=width)

    shown = "".join(line[: lines[0].index("delayed")].strip() for line in lines)
    assert all(name in shown for name in names)
    assert max(map(_columns, lines)) <= width


def test_keys_and_names_are_whole_where_there_is_room() -> None:
    key, pauses = "k" * 90, {"subscriptions": [{"name": "s" * 90, "paused": False, "ratePerSecond": None}]}
    message = {"messageId": "3:9", "deliverAtMs": 0, "key": key, "sizeBytes": 12, "properties": {"a": "b" * 90}}

    assert key in _lines(message_table([message], 0), width=260)[1]
    assert "k…" in _lines(message_table([message], 0))[1]
    assert pause_lines(pauses) == [f"{'s' * 90}: delivers"]
    assert max(map(_columns, _lines(*pause_lines(pauses)))) == 80


def test_what_is_below_a_list_says_that_there_is_more_and_what_is_damaged() -> None:
    whole = {"messageId": "3:9", "deliverAtMs": 0, "key": None, "keyBase64": None, "sizeBytes": 1, "properties": {}}
    damaged = whole | {"damaged": True}

    assert message_notes([whole], is_more=False) == []
    assert [note.split()[0] for note in message_notes([whole, damaged], is_more=True)] == ["DAMAGED:", "There"]
    assert "DAMAGED" in _lines(message_table([whole, damaged], 0))[2]


def test_no_text_of_a_producer_moves_the_cursor_of_a_terminal() -> None:
    message = {
        "messageId": "3:9",
        "deliverAtMs": 0,
        "key": "\x1b[31mred",
        "sizeBytes": 1,
        "properties": {"a\n": "\r[b]"},
    }

    (line,) = _lines(message_table([message], 0))[1:]

    assert "?[31mred" in line
    assert "a?=?[b]" in line


@pytest.mark.parametrize(("columns", "width"), [("160", 160), ("80", 80), ("20", 80), ("", 80), ("wide", 80)])
def test_a_pipe_is_as_wide_as_columns_says_and_80_at_least(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)

    assert output_width() == width


def test_a_list_says_how_far_each_message_is_for_whom_and_the_users_properties_first() -> None:
    message: dict[str, Any] = {
        "messageId": "3:9",
        "deliverAtMs": 1_800_000_000_123,
        "key": "anna",
        "sizeBytes": 12,
        "properties": {"postdate.originalPublishTime": "5", "kind": "call"},
        "waiting": ["me", "you"],
        "payload": "eyJhIjoxfQ==",
        "payloadCompression": None,
    }
    overdue = message | {"deliverAtMs": 1_799_999_700_000, "payload": "/wA=", "waiting": ["me"]}

    first, second = _lines(message_table([overdue, message], 1_800_000_000_000), width=200)[1:]

    assert first.split()[:6] == ["2027-01-15T07:55:00Z", "overdue", "5", "min", "3:9", "me"]
    assert second.split()[:6] == ["2027-01-15T08:00:00Z", "due", "now", "3:9", "me,you", "anna"]
    assert "kind=call,postdate.originalPublishTime=5" in second
    assert (first.endswith("(2 bytes)"), second.endswith('{"a":1}')) == (True, True)


def test_the_bars_of_a_count_have_round_lengths_and_leave_out_what_is_overdue() -> None:
    begin_ms, end_ms, number = round_span(1_800_000_005_000, 1_800_010_000_000, 24)
    buckets = [
        {"fromMs": begin_ms + place * 600_000, "untilMs": begin_ms + (place + 1) * 600_000, "count": 4}
        for place in range(number)
    ]
    answer = {"total": 7, "delayed": 5, "overdue": 2, "inHand": 0, "nextDueMs": 1_800_000_005_000}
    answer |= {"lastDueMs": 1_800_010_000_000, "buckets": []}

    lines = count_lines(answer, answer | {"buckets": buckets[:2], "overdue": 3})

    assert (end_ms - begin_ms, number) == (10_200_000, 17)
    assert [line.split()[:2] for line in lines[2:]] == [["2027-01-15T08:00:00Z", "1"], ["2027-01-15T08:10:00Z", "4"]]


def test_many_messages_are_explained_by_a_table_of_their_states() -> None:
    def state(subscription: str, name: str) -> dict[str, Any]:
        return {"subscription": subscription, "state": name, "sentence": "long", "reason": None}

    messages = [
        {
            "deliverAtMs": number * 60_000,
            "publishTimeMs": 0,
            "subscriptions": [state("me", "delayed"), state("you", name)],
        }
        for number, name in enumerate(["pending"] * 2 + ["delayed"] * 18)
    ]

    first, totals, _, *rows = _lines(*explanation_lines({"sentence": "The next one.", "messages": messages}), width=100)

    assert (first, totals) == ("The next one.", "In all 20 messages:")
    assert [row.split()[:3] for row in rows] == [
        ["me", "delayed", "20"],
        ["you", "delayed", "18"],
        ["you", "pending", "2"],
    ]
    assert rows[1].split()[3:] == ["1970-01-01T00:02:00Z", "1970-01-01T00:19:00Z"]
