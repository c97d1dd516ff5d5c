"""Tables of the commands about scheduled messages on a screen of 80 columns, with text of any script."""

from typing import Any
from unicodedata import combining, east_asian_width

import pytest

from postdate.command_line.output import output_width
from postdate.scheduling.tables import count_lines, explanation_lines, message_lines, pause_lines, topic_lines

TEXTS = ["東京" * 20, "a" + "東京" * 20, "キー値" * 9, "x" * 90, "🎉" * 30, "wide 東 and narrow " * 8, "e\u0301" * 90]

STATES = {"delayed": 1, "overdue": 0, "inHand": 0}


def _columns(line: str) -> int:
    return sum(0 if combining(sign) else 2 if east_asian_width(sign) in "WF" else 1 for sign in line)


@pytest.mark.parametrize("text", TEXTS)
def test_no_line_is_wider_than_80_columns_with_wide_characters(text: str) -> None:
    message = {"messageId": "12345:678", "deliverAtMs": 0, "key": text, "sizeBytes": 5, "properties": {text: text}}
    figures = {"name": text, **STATES, "backlog": 1, "paused": False, "nextDueMs": 0, "lastDueMs": 0}
    state = {"subscription": text, "sentence": text}
    answer = {"sentence": text, "messages": [{"subscriptions": [state, state]}]}

    lines = message_lines([message], is_more=False) + topic_lines([figures | {"subscriptions": [figures]}])
    lines += explanation_lines(answer)

    assert max(map(_columns, lines)) <= 80
    assert all(line.strip() for line in lines)


def test_columns_behind_wide_characters_stand_where_the_others_stand() -> None:
    messages = [
        {"messageId": "3:9", "deliverAtMs": 0, "key": key, "sizeBytes": 12, "properties": {"a": "b"}}
        for key in ("anna", "東京", "東京" * 9, "e\u0301" * 5, "e\u0301" * 30)
    ]

    starts = {_columns(line.partition("a=b")[0]) for line in message_lines(messages, is_more=False)[1:]}

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
    lines = topic_lines([_topic("t", a=True, b=True), _topic("u", a=True, b=False), _topic("v", a=False)], 98)[1:]

    assert all("2027-01-15T08:00:00Z  2027-01-15T08:00:05Z" in line for line in lines if "1 " in line[20:])
    shown = [line.split("   ")[0].strip() for line in lines if line.strip()[0].isalpha()]
    assert shown == ["t (paused)", "a (paused)", "b (paused)", "u (1 of 2 paused)", "a (paused)", "b", "v", "a"]


@pytest.mark.parametrize("width", [80, 160])
def test_topics_that_differ_in_their_ends_look_different(width: int) -> None:
    names = [f"shop/eu/{'orders-' * 20}{end}" for end in ("one", "two")]

    lines = topic_lines([_topic(name, sub=True) for name in names], width)

    assert all(any(name[-20:] in line for line in lines) for name in names)
    assert max(map(_columns, lines)) <= width


def test_keys_and_names_are_whole_where_there_is_room() -> None:
    key, pauses = "k" * 90, {"subscriptions": [{"name": "s" * 90, "paused": False, "ratePerSecond": None}]}
    message = {"messageId": "3:9", "deliverAtMs": 0, "key": key, "sizeBytes": 12, "properties": {"a": "b" * 90}}

    assert key in message_lines([message], is_more=False, width=160)[1]
    assert key not in message_lines([message], is_more=False, width=80)[1]
    assert pause_lines(pauses, 160) == [f"{'s' * 90}: delivers"]
    assert [_columns(line) for line in pause_lines(pauses)] == [80]


@pytest.mark.parametrize(("columns", "width"), [("160", 160), ("80", 80), ("20", 80), ("", 80), ("wide", 80)])
def test_a_pipe_is_as_wide_as_columns_says_and_80_at_least(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)

    assert output_width() == width
