"""Each view of the page, in the light theme and wide, and in the dark one and narrow; pictures are in build/page."""

import re
import time
from pathlib import Path

import pulsar
import pytest

from tests.helpers.browser import Page
from tests.helpers.page_views import VIEWS

pytestmark = pytest.mark.exhaustive

LOOKS = pytest.mark.parametrize(("dark", "narrow"), [(False, False), (True, True)], ids=["light-wide", "dark-narrow"])
"""The style sheet has colours that follow the theme and sizes that follow the width, and none that follow both."""


@LOOKS
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_a_topic_is_whole_in_each_theme_and_width(
    page: Page, topic: str, schedule: pulsar.Consumer, screenshots: Path, view: str, dark: bool, narrow: bool
) -> None:
    page.use(dark=dark, narrow=narrow)
    page.topic(topic, view)

    selector, text = VIEWS[view]
    page.one(selector)
    page.text_has("#view", text)
    page.until("(document.querySelectorAll('#figures dd').length === 0) === arguments[0]", view == "schedule")
    page.picture(screenshots / f"{view}-{'dark' if dark else 'light'}-{'narrow' if narrow else 'wide'}.png")

    assert page.fits()
    colour = page.driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", colour))) < 384) == dark


@LOOKS
def test_the_topics_are_a_table_in_each_theme_and_width(
    page: Page, topic: str, schedule: pulsar.Consumer, screenshots: Path, dark: bool, narrow: bool
) -> None:
    page.use(dark=dark, narrow=narrow)
    page.open()

    page.text_has("#topics tbody tr", f"public/default/{topic}")
    page.picture(screenshots / f"topics-{'dark' if dark else 'light'}-{'narrow' if narrow else 'wide'}.png")

    assert page.fits()
    row = next(one.text for one in page.all("#topics tbody tr") if topic in one.text)
    assert "300" in row


def test_the_topics_are_filtered_and_sorted(
    page: Page, client: pulsar.Client, topic: str, schedule: pulsar.Consumer
) -> None:
    client.create_producer(f"{topic}-quiet").close()
    page.use()
    page.open()
    page.text_has("#topics tbody tr", topic)

    page.one("#filter").send_keys(topic)
    page.until("document.querySelectorAll('#topics tbody tr').length === 2")
    page.press("Topic", "#topics")
    names = [one.text for one in page.all("#topics tbody a")]
    page.press("Delayed", "#topics")
    first = page.one("#topics tbody a").text

    assert names == [f"public/default/{topic}", f"public/default/{topic}-quiet"]
    assert first == f"public/default/{topic}"
    assert page.one("#topics th[aria-sort]").text.startswith("Delayed")
    page.one(".check input").click()
    page.until("document.querySelectorAll('#topics tbody tr').length === 0")


@LOOKS
def test_rates_and_lateness_are_told_while_messages_come(
    page: Page,
    client: pulsar.Client,
    topic: str,
    schedule: pulsar.Consumer,
    screenshots: Path,
    dark: bool,
    narrow: bool,
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    page.use(dark=dark, narrow=narrow)
    page.topic(topic, "live")
    now_ms = time.time_ns() // 1_000_000
    for number in range(200):
        producer.send_async(b"x", None, partition_key=f"key-{number}", deliver_at=now_ms + 1_000 + number * 30)
    producer.flush()

    page.text_has("#lateness dt", "p99")
    page.text_has("#lateness .quiet", "Since the service started")
    page.one(".chart canvas")
    page.text_has("#rates dt", "Out")
    page.picture(screenshots / f"rates-{'dark' if dark else 'light'}-{'narrow' if narrow else 'wide'}.png")

    assert page.fits()
    assert [one.text for one in page.all("#lateness dt")] == ["p50", "p99", "Delivered"]


REFUSED = """
const before = window.fetch;
window.fetch = (path, ...more) => path === "/metrics"
  ? Promise.resolve(new Response('{"reason": "not from here"}', { status: 403 }))
  : before(path, ...more);
"""


def test_where_metrics_are_refused_alone_the_rates_are_told_all_the_same(
    page: Page, topic: str, schedule: pulsar.Consumer
) -> None:
    """As by a proxy that keeps them from the outside."""
    page.use()
    kept = page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": REFUSED})
    try:
        page.topic(topic, "live")

        page.text_has("#lateness", "Lateness cannot be read: not from here. /metrics is not open to all here")
        page.text_has("#rates dt", "Out")
        assert not page.one("#problem").is_displayed()
    finally:
        page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": kept["identifier"]})


def test_a_slot_that_drains_says_who_holds_it(page: Page, client: pulsar.Client, topic: str, screenshots: Path) -> None:
    key_shared = pulsar.ConsumerType.KeyShared
    holder = client.subscribe(topic, "me", consumer_type=key_shared, consumer_name="holder", receiver_queue_size=60)
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(60):
        producer.send(b"x", partition_key=f"key-{number}")
    for _ in range(60):
        holder.receive(10_000)
    client.subscribe(topic, "me", consumer_type=key_shared, consumer_name="joiner")
    for number in range(60):
        producer.send(b"x", partition_key=f"key-{number}")

    page.use()
    page.topic(topic, "consumers")
    page.text_has("#view caption", "Draining slots of me, and the consumers that hold them")
    page.picture(screenshots / "draining-light-wide.png")

    rows = [one.text for one in page.all("#view tr")]
    assert any("joiner" in one and "%" in one for one in rows)
    assert all("holder" in one for one in rows[rows.index(next(one for one in rows if "Held by" in one)) + 1 :])


WITH_A_PROBLEM = """
const before = window.fetch;
window.fetch = async (path, ...more) => {
  const reply = await before(path, ...more);
  if (path !== "/health") return reply;
  const problems = ["persistent://NAME: it has stopped"];
  return new Response(JSON.stringify({ ...await reply.json(), status: "failing", problems }));
};
"""


def test_a_problem_of_a_topic_is_not_one_of_another_whose_name_it_begins_with(
    page: Page, client: pulsar.Client, topic: str
) -> None:
    for name in (topic, f"{topic}-eu"):
        client.create_producer(name).close()
    page.use()
    source = WITH_A_PROBLEM.replace("NAME", f"public/default/{topic}-eu")
    kept = page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": source})
    try:
        page.open()

        page.one("#filter").send_keys(topic)
        page.until("document.querySelectorAll('#topics tbody tr').length === 2")
        page.text_has("#topics tr.sick .ailments", "it has stopped")
        assert [one.text for one in page.all("#topics tr.sick a")] == [f"public/default/{topic}-eu"]
    finally:
        page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": kept["identifier"]})


def test_the_front_page_names_the_span_of_its_lateness(page: Page, client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "me", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    page.use()
    page.open()
    page.text_has("#rates dt", "Late since the start, p99")

    producer.send(b"x", deliver_at=time.time_ns() // 1_000_000 + 1)
    consumer.acknowledge(consumer.receive(10_000))

    page.text_has("#rates dt", "Late in the last 1")
    page.text_has("#rates dt", "Late since the start, p99")


AS_IF_LATER = """
const before = window.fetch;
window.fetch = async (path, ...more) => {
  const reply = await before(path, ...more);
  if (!path.includes("/stats")) return reply;
  const found = await reply.json();
  for (const one of Object.values(found.subscriptions)) for (const consumer of one.consumers) {
    for (const name of FIELDS) if (consumer[name]) consumer[name] -= 75_000;
  }
  return new Response(JSON.stringify(found));
};
"""


@pytest.mark.parametrize(
    ("fields", "is_silent"),
    [
        # It was idle for 75 s, and has just got a message.
        (["lastAckedTimestamp", "firstMessagesSentTimestamp"], False),
        (["lastAckedTimestamp", "firstMessagesSentTimestamp", "holdingSinceTimestamp"], True),
    ],
)
def test_a_consumer_that_holds_messages_for_a_minute_stands_out_and_one_that_was_idle_does_not(
    page: Page, client: pulsar.Client, topic: str, fields: list[str], is_silent: bool
) -> None:
    consumer = client.subscribe(topic, "me", consumer_type=pulsar.ConsumerType.KeyShared)
    producer = client.create_producer(topic)
    producer.send(b"x")
    consumer.acknowledge(consumer.receive(10_000))
    producer.send(b"x")
    consumer.receive(10_000)
    page.use()
    source = AS_IF_LATER.replace("FIELDS", str(fields))
    kept = page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": source})
    try:
        page.topic(topic, "consumers")

        page.text_has("#view tbody td", "1")
        assert bool(page.all("#view .wrong")) == is_silent
        page.text_has("#view td span", ", has held messages for 1." if is_silent else ":")
    finally:
        page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": kept["identifier"]})


def test_of_a_topic_that_is_not_there_the_message_alone_is_shown(page: Page, topic: str) -> None:
    page.topic(f"{topic}-nosuch", "schedule")

    page.text_has("#problem", "There is no topic")

    assert page.one("main h1").text.endswith(f"{topic}-nosuch")
    assert not [one.text for one in page.all("main button") if one.is_displayed()]
    # It asks no more from here on.
    page.open("#/")
    page.one("#topics")
    assert {"404 (Not Found)" in one for one in page.complaints()} == {True}
