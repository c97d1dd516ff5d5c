"""A message beside the list, what the front page says of a sick topic, the one zone, and a service that has stopped."""

import json
import re
import time
from contextlib import closing
from pathlib import Path

import pulsar
import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.helpers.browser import Page
from tests.helpers.services.quiet_client import QUIET
from tests.helpers.services.services import POSTDATE, RunningService, make_service

pytestmark = pytest.mark.exhaustive

ORDER = {"order": 17, "note": "Grüße", "lines": ["tea", "cup"] * 20}
HOUR_MS = 3_600_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def publish(
    client: pulsar.Client, topic: str, payload: bytes, after_ms: int, compression: str = "NONE", key: str = "anna"
) -> str:
    producer = client.create_producer(topic, compression_type=getattr(pulsar.CompressionType, compression))
    sent = producer.send(payload, partition_key=key, deliver_at=now_ms() + after_ms)
    producer.close()
    return f"{sent.ledger_id()}:{sent.entry_id()}"


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_a_message_opens_beside_the_list_with_its_payload_its_keys_owner_and_its_history(
    page: Page, client: pulsar.Client, topic: str, screenshots: Path, compression: str
) -> None:
    client.subscribe(topic, "me", consumer_type=pulsar.ConsumerType.KeyShared, consumer_name="worker-1")
    client.subscribe(topic, "audit", consumer_type=pulsar.ConsumerType.Shared)
    message_id = publish(client, topic, json.dumps(ORDER).encode(), HOUR_MS // 2, compression)
    page.use(narrow=True)
    page.topic(topic)
    page.one("#messages tbody th").click()

    page.text_has("#opened", f"Message {message_id}")
    page.text_has("#sentence", f"{message_id} is delayed until")
    assert json.loads(page.one("#payload").text) == ORDER
    page.press("Text", "#aside")
    assert page.one("#payload").text == json.dumps(ORDER)
    page.press("Hex", "#aside")
    assert page.one("#payload").text.startswith("000000  7b 22 6f 72 64 65 72 22")
    page.text_has("#aside dd", "worker-1 (slot")
    page.text_has("#aside dd", "No consumer owns keys here")
    page.text_has("#aside .history", "published by")
    page.picture(screenshots / "message-light-narrow.png")
    assert page.fits()

    page.press("Move…", "#aside")
    page.text_has("dialog .foreseen", "1 message will be moved.")
    page.press("Move 1 message", "dialog")
    page.until("document.querySelector('dialog') === null")
    # The old id is gone from the schedule; the copy tells where it comes from.
    page.topic(topic, "schedule?span=all")
    page.one("#messages tbody button").click()
    page.text_has("#aside .history", "first published; a move made this message of it")
    page.press("Close", "#aside")
    page.until("document.querySelector('#aside').hidden")


def test_a_payload_that_is_no_text_is_shown_in_hex_and_a_large_one_in_part(
    page: Page, client: pulsar.Client, topic: str
) -> None:
    client.subscribe(topic, "me", consumer_type=pulsar.ConsumerType.Shared)
    binary = publish(client, topic, b"\x00\x01\xff", HOUR_MS // 2)
    bomb = publish(client, topic, bytes(64 * 1024 * 1024), HOUR_MS // 2, "ZSTD")

    page.topic(topic, f"schedule?open={binary}")
    page.text_has("#payload", "000000  00 01 ff")
    page.one("#key").send_keys(bomb, Keys.ENTER)
    page.text_has("#opened", f"Message {bomb}")
    page.text_has("#aside .quiet", "Compressed with ZSTD, and shown as it is: it is too large")


def test_json_is_shown_so_unless_its_numbers_would_be_rounded(page: Page, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "me", consumer_type=pulsar.ConsumerType.Shared)
    card = publish(client, topic, b'{"card": "1234567890123456"}', HOUR_MS // 2)
    number = publish(client, topic, b'{"card": 1234567890123456789}', HOUR_MS // 2)

    page.topic(topic, f"schedule?open={card}")
    page.text_has("#payload", '{\n  "card": "1234567890123456"\n}')
    page.topic(topic, f"schedule?open={number}")
    page.text_has("#payload", '{"card": 1234567890123456789}')
    assert page.one("#aside button[disabled]").get_attribute("title") == "Its numbers would be rounded"


def test_a_key_that_looks_like_an_id_is_found_and_so_is_the_message_of_that_id(
    page: Page, client: pulsar.Client, topic: str
) -> None:
    client.subscribe(topic, "me", consumer_type=pulsar.ConsumerType.Shared)
    first = publish(client, topic, b"x", HOUR_MS // 2)
    publish(client, topic, b"x", HOUR_MS // 2, key=first)
    page.use()
    page.topic(topic)
    page.text_has(".messages h2", "2 messages")

    page.one("#key").send_keys(first, Keys.ENTER)
    page.text_has("#opened", f"Key {first}")
    page.text_has(".messages h2", f"1 message of key {first}")

    page.press("Message", "#aside")
    page.text_has("#opened", f"Message {first}")


def test_a_message_that_one_subscription_has_in_hand_is_said_to_wait_for_the_other_alone(
    page: Page, client: pulsar.Client, topic: str
) -> None:
    worker = client.subscribe(topic, "workers", consumer_type=pulsar.ConsumerType.Shared)
    client.subscribe(topic, "audit", consumer_type=pulsar.ConsumerType.Shared).close()
    publish(client, topic, b"x", 1)
    worker.receive(10_000)
    publish(client, topic, b"x", HOUR_MS // 2)
    page.use()

    page.topic(topic, "schedule?span=all")

    page.text_has("#messages .when.wrong", ", for audit alone")
    assert [one.text.endswith("alone") for one in page.all("#messages .when")] == [True, False]


def test_where_all_is_due_later_the_page_says_when_and_shows_it_when_asked(
    page: Page, client: pulsar.Client, topic: str
) -> None:
    client.subscribe(topic, "me", consumer_type=pulsar.ConsumerType.Shared)
    publish(client, topic, b"x", 5 * HOUR_MS // 4)
    page.use()
    page.topic(topic)

    page.text_has("#chart-summary", "The next one is due in 1.2 h: ")
    assert page.one("#view").text.count("0 messages") == 1
    assert not page.one(".chart").is_displayed()
    page.press("show all", "#chart-summary")
    page.text_has(".messages h2", "1 message scheduled")


def test_who_holds_a_key_is_one_field_away_also_where_nothing_of_it_is_scheduled(
    page: Page, topic: str, schedule: pulsar.Consumer
) -> None:
    page.use()
    page.topic(topic)
    page.one("#key").send_keys("customer-3", Keys.ENTER)
    page.text_has("#sentence", "30 messages of this key are not acknowledged; the first one:")
    page.text_has("#aside dd", "(slot")
    page.text_has(".messages h2", "30 messages of key customer-3")
    page.one("#key").clear()
    page.one("#key").send_keys("nobody", Keys.ENTER)
    page.text_has("#sentence", "has no unacknowledged message of this key")
    page.text_has("#aside dd", "(slot")
    # The browser itself notes each answer that is a 404.
    assert all("404" in one for one in page.complaints())


def test_a_sick_topic_looks_sick_and_says_why_and_all_times_are_of_one_zone(
    driver: webdriver.Chrome, tmp_path: Path, screenshots: Path
) -> None:
    running = make_service(POSTDATE, tmp_path, {"delayedDeliveryMaxDelayInMillis": "0"})
    running.start()
    page = Page(driver, running.web_url)
    page.begin()
    try:
        with closing(pulsar.Client(running.url, logger=QUIET)) as client:
            look_at_a_sick_topic(page, client, running, screenshots)
    finally:
        driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})
        running.stop()


def look_at_a_sick_topic(page: Page, client: pulsar.Client, running: RunningService, screenshots: Path) -> None:
    page.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "America/New_York"})
    page.use()
    page.open()
    page.text_has("main", "There is no topic yet")
    client.subscribe("orders", "workers", consumer_type=pulsar.ConsumerType.KeyShared).close()
    client.subscribe("alone", "me")
    publish(client, "alone", b"x", HOUR_MS)
    due = publish(client, "orders", b"x", 1)
    for after_ms in (30_000, HOUR_MS // 2, 20 * HOUR_MS, 30 * HOUR_MS):
        publish(client, "orders", b"x", after_ms)

    # What has just come due is on its way; after ten seconds it is not.
    page.open()
    page.text_has("#topics .ailments", "1 overdue for 1")
    page.text_has("#topics .ailments", "no consumer is connected")
    page.text_has("#topics .ailments", "me Exclusive, which does not delay: 1 entry is delivered whatever their time")
    assert page.one("#topics tbody tr.sick a").text == "public/default/orders"
    told = {one.text.split("\n")[0]: one for one in page.all("#due .figures > div")}
    assert {name: int(one.text.split("\n")[1]) for name, one in told.items()} == {
        "Overdue": 1,
        "Due within 1 minute": 1,
        "Due within 1 hour": 2,
        "Due within 24 hours": 3,
        "Delayed in all": 4,
        "Topics": 2,
    }
    assert page.all("#due dd.wrong")
    page.text_has("#health", "The service is well.")
    page.text_has("#rates dt", "Late since the start, p99")
    page.picture(screenshots / "front-light-wide.png")

    page.topic("orders")
    page.text_has("#ailments", "workers 1 overdue for")
    page.text_has(".messages h2", "2 messages due in the next hour")
    page.text_has("#chart-summary", "and 1 overdue")
    page.press("Show them")
    page.text_has(".messages h2", "1 message overdue")
    page.text_has("#messages tbody th", "overdue")
    page.one("#messages tbody button").click()
    page.text_has("#opened", f"Message {due}")
    page.text_has("#sentence", "has been due since")
    zone = page.one("#zone").text
    assert zone in ("Times: UTC-05:00", "Times: UTC-04:00")
    hour = (time.gmtime().tm_hour - int(zone[-4])) % 24
    for selector in ("#sentence", "#messages tbody th", "#aside .history", "#chart-summary"):
        assert {int(one) for one in re.findall(r"(\d\d):\d\d:\d\d", page.one(selector).text)} <= {hour, hour - 1}
    page.press("Times", ".bar")
    page.text_has("#messages thead", "Due (UTC)")
    page.text_has("#sentence", "has been due since")
    assert "Z" not in page.one("#sentence").text

    page.topic("empty")
    client.subscribe("empty", "me", consumer_type=pulsar.ConsumerType.Shared)
    page.topic("empty")
    page.text_has("#chart-summary", "Nothing is scheduled. Publish with deliver_after")
    assert not page.one(".chart").is_displayed()
    page.topic("alone")
    page.text_has("#chart-summary", "Nothing is scheduled for me: its subscription is Exclusive, which does not delay")

    page.topic("orders")
    page.text_has("#ailments", "workers 1 overdue for")
    running.kill()
    page.text_has("#problem", "The service does not answer; its last answer came at ")
    assert not [one.text for one in page.all(".changes button") if one.is_enabled()]
    page.picture(screenshots / "stopped-light-wide.png")
    page.driver.execute_script("location.hash = '#/'")
    page.text_has("main", "The topics could not be read.")
