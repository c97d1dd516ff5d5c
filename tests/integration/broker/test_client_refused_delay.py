"""A message with too long a delay, from a client of each language: what it hears, and that its producer goes on.

No message is stored without a receipt that its client has seen.
"""

from datetime import timedelta
from typing import Any

import pulsar
import pytest

from tests.helpers.services.foreign_clients import run
from tests.helpers.services.programs.clients import Clients
from tests.helpers.services.services import DELAY_MAX_MS, RunningService
from tests.helpers.services.topic_stats import ask_topic

COUNT = 5
"""Messages before the refused one and as many behind it, without waiting for receipts, and then as many one by one."""
TOO_LATE = timedelta(hours=1_000)
REASON = f"Exceeds max allowed delivery delay of {DELAY_MAX_MS} milliseconds"


def stored(service: RunningService, topic: str) -> int:
    """Return how many messages of a topic the service has stored."""
    status, stats = ask_topic(service, topic, "stats")
    assert status == 200
    count: int = stats["msgInCounter"]
    return count


@pytest.mark.exhaustive
def test_the_go_and_the_java_client_hear_the_reason_and_go_on(
    service: RunningService, topic: str, language: str, is_real_pulsar: bool
) -> None:
    delay_ms = round(TOO_LATE.total_seconds() * 1_000)

    outcome = run(language, "refused", url=service.url, topic=topic, count=COUNT, delayMs=delay_ms)

    if is_real_pulsar and language == "go":
        # The producer hears no receipt any more.
        assert "timeout" in outcome["error"]
        assert stored(service, topic) > outcome["sent"]
        return
    assert outcome["error"] == ""
    assert REASON in outcome["refused"]
    # The Go client fails those behind the refused one with it, and they are not stored.
    assert outcome["sent"] == (2 * COUNT if language == "go" else 3 * COUNT)
    if is_real_pulsar:
        # It stores those again that the client had sent behind the refused one.
        assert stored(service, topic) >= outcome["sent"]
    else:
        assert stored(service, topic) == outcome["sent"]


def test_the_python_client_hears_an_error_and_goes_on(
    clients: Clients, service: RunningService, topic: str, is_real_pulsar: bool
) -> None:
    if is_real_pulsar:
        pytest.skip("this client sends such a message to a real Pulsar for ever")
    producer = clients.new().create_producer(topic, batching_enabled=False)
    answers: list[tuple[int, Any]] = []

    for number in range(2 * COUNT + 1):
        delay = {"deliver_after": TOO_LATE} if number == COUNT else {}
        producer.send_async(b"x", lambda result, _, number=number: answers.append((number, result)), **delay)
    for _ in range(COUNT):
        producer.send(b"x")

    assert dict(answers) == {
        number: pulsar.Result.ChecksumError if number == COUNT else pulsar.Result.Ok for number in range(2 * COUNT + 1)
    }
    assert stored(service, topic) == 3 * COUNT
