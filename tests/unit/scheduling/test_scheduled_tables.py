"""Tables of the commands about scheduled messages on a screen of 80 columns, with text of any script."""

from unicodedata import east_asian_width

import pytest

from scheduling.tables import explanation_lines, message_lines, topic_lines

TEXTS = ["東京" * 20, "a" + "東京" * 20, "キー値" * 9, "x" * 90, "🎉" * 30, "wide 東 and narrow " * 8]


def _columns(line: str) -> int:
    return sum(2 if east_asian_width(sign) in "WF" else 1 for sign in line)


@pytest.mark.parametrize("text", TEXTS)
def test_no_line_is_wider_than_80_columns_with_wide_characters(text: str) -> None:
    message = {"messageId": "12345:678", "deliverAtMs": 0, "key": text, "sizeBytes": 5, "properties": {text: text}}
    figures = {"name": text, "delayed": 1, "backlog": 1, "paused": False, "nextDueMs": 0}
    state = {"subscription": text, "sentence": text}
    answer = {"sentence": text, "messages": [{"subscriptions": [state, state]}]}

    lines = message_lines([message], is_more=False) + topic_lines([figures | {"subscriptions": [figures]}])
    lines += explanation_lines(answer)

    assert max(map(_columns, lines)) <= 80
    assert all(line.strip() for line in lines)


def test_columns_behind_wide_characters_stand_where_the_others_stand() -> None:
    messages = [
        {"messageId": "3:9", "deliverAtMs": 0, "key": key, "sizeBytes": 12, "properties": {"a": "b"}}
        for key in ("anna", "東京", "東京" * 9)
    ]

    starts = {_columns(line.partition("a=b")[0]) for line in message_lines(messages, is_more=False)[1:]}

    assert len(starts) == 1


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
