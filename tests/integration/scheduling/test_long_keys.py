"""Keys and properties that are longer than a query can be: what can be published can be looked at and changed."""

import json
from datetime import timedelta
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pulsar
import pytest
from click.testing import CliRunner

from postdate.command_line.program import postdate as main
from postdate.scheduling.scheduler import Scheduler
from postdate.scheduling.values import Matching
from tests.helpers.services.services import RunningService

HOUR = timedelta(hours=1)
KEY = "k" * 9_000
PROPERTIES = {f"name-{n}": f"a value with spaces and ümlauts {n}" for n in range(1_000)}


@pytest.fixture
def handle(scheduler: Scheduler) -> str:
    """One message with the long key and all properties, beside one that has a part of both."""
    scheduler.schedule(b"other", key=KEY[:-1], properties=dict(list(PROPERTIES.items())[:-1]), after=HOUR)
    return scheduler.schedule(b"long", key=KEY, properties=PROPERTIES, after=HOUR)


@pytest.mark.parametrize("matching", [Matching(key=KEY), Matching(properties=PROPERTIES)], ids=["key", "properties"])
def test_a_scheduler_counts_lists_and_cancels_by_them(scheduler: Scheduler, handle: str, matching: Matching) -> None:
    assert scheduler.count(matching) == 1
    (found,) = scheduler.upcoming(matching, has_payload=True)
    assert (found.handle, found.key, found.properties, found.payload) == (handle, KEY, PROPERTIES, b"long")
    assert scheduler.cancel(matching).changed == 1
    assert (scheduler.count(matching), scheduler.count()) == (0, 1)


def test_every_command_that_looks_takes_them(postdate_service: RunningService, topic: str, handle: str) -> None:
    def told(command: str, *words: str) -> str:
        done = CliRunner().invoke(main, [*command.split(), topic, *words, "--url", postdate_service.web_url])
        assert done.exit_code == 0, done.output
        return done.output

    properties = [word for name, value in PROPERTIES.items() for word in ("--property", f"{name}={value}")]
    assert json.loads(told("scheduled count", "--key", KEY, "--json"))["total"] == 1
    assert "1 message is scheduled" in told("scheduled count", *properties)
    assert [one["messageId"] for one in json.loads(told("scheduled list", "--key", KEY, "--json"))["messages"]] == [
        handle
    ]
    assert "is delayed until" in told("explain", "--key", KEY)
    assert "owner" in told("keys", "me", KEY)
    assert "1 message would be cancelled" in told("scheduled cancel", "--key", KEY, "--dry-run")


@pytest.mark.parametrize("look", ["scheduled", "scheduled/histogram", "explain"])
def test_a_query_that_is_too_long_is_told_of_the_body_form(
    postdate_service: RunningService, topic: str, consumer: pulsar.Consumer, look: str
) -> None:
    address = f"{postdate_service.web_url}/postdate/v1/topics/public/default/{topic}/{look}?{urlencode({'key': KEY})}"

    with pytest.raises(HTTPError) as refused:
        urlopen(address, timeout=10)

    with refused.value as answer:
        assert answer.code == 414
        told = json.load(answer)
    assert "too long" in told["error"]
    assert "POST .../scheduled/list" in told["advice"]
