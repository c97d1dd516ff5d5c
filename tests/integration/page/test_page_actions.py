"""Actions on the page: they ask before they are carried out, they take effect, and they work from the keyboard."""

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pulsar
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from postdate.demo.process import wait_until
from tests.helpers.browser import Page
from tests.helpers.services.services import RunningService

pytestmark = pytest.mark.exhaustive

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


def ask(service: RunningService, topic: str, path: str) -> Any:
    with urllib.request.urlopen(
        f"{service.web_url}/postdate/v1/topics/public/default/{topic}/{path}".rstrip("/")
    ) as reply:
        return json.load(reply)


def change(service: RunningService, topic: str, kind: str, body: Any) -> None:
    request = urllib.request.Request(
        f"{service.web_url}/postdate/v1/topics/public/default/{topic}/scheduled/{kind}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request).close()


def delayed(service: RunningService, topic: str) -> int:
    count: int = ask(service, topic, "scheduled/histogram")["delayed"]
    return count


@pytest.fixture
def shown(page: Page, topic: str, schedule: pulsar.Consumer) -> Page:
    """The schedule of a topic with 300 messages, all of them."""
    page.use()
    page.topic(topic, "schedule?span=all")
    page.text_has("#messages tbody tr", "customer-0")
    page.text_has("h2", "300 messages scheduled")
    return page


def notice(page: Page) -> str:
    """What the page tells everybody of the last action, once it does."""
    shown = page.one("#notice")
    page.until("!arguments[0].hidden && arguments[0].checkVisibility()", shown)
    return shown.text


def confirm(page: Page, text: str) -> None:
    """Press the dialog's button once it says how many, and wait for the dialog to go."""
    page.press(text, "dialog")
    page.until("document.querySelector('dialog') === null")


def test_a_chosen_message_is_cancelled_after_a_question_that_says_how_many(
    shown: Page, page_service: RunningService, topic: str, screenshots: Path
) -> None:
    first = ask(page_service, topic, "scheduled?limit=1")["messages"][0]["messageId"]
    shown.one(f"input[value='{first}']").click()
    shown.press("Cancel 1 chosen…")
    shown.text_has("dialog .foreseen", "1 message will be cancelled.")
    shown.text_has("dialog p", f"Topic public/default/{topic}, all subscriptions: message {first}.")
    shown.picture(screenshots / "dialog-light-wide.png")
    assert delayed(page_service, topic) == 300

    red = shown.one("#confirm").value_of_css_property("background-color")
    assert shown.one(".changes button[data-kind=cancel]").value_of_css_property("color") == red
    confirm(shown, "Cancel 1 message")

    assert f"1 message of public/default/{topic} cancelled." in notice(shown)
    shown.picture(screenshots / "notice-light-wide.png")
    shown.text_has(".messages h2", "299 messages")
    assert delayed(page_service, topic) == 299
    assert ask(page_service, topic, "scheduled?limit=1")["messages"][0]["messageId"] != first


def test_a_schedule_is_moved_and_delivered(
    shown: Page, page_service: RunningService, topic: str, schedule: Any
) -> None:
    before = ask(page_service, topic, "scheduled/histogram")
    shown.press("Move all 300…")
    shown.one("#new-time-kind").send_keys("later")
    shown.text_has("dialog .foreseen", "300 messages will be moved.")
    confirm(shown, "Move 300 messages")
    after = ask(page_service, topic, "scheduled/histogram")

    assert (after["nextDueMs"], after["delayed"]) == (before["nextDueMs"] + 3_600_000, 300)
    assert "300 messages of public/default/" in notice(shown)

    shown.press("Deliver now all 300…")
    shown.text_has("dialog .foreseen", "300 messages will be delivered.")
    confirm(shown, "Deliver 300 messages")

    assert {schedule.receive(10_000).partition_key() for _ in range(300)} == {f"customer-{one}" for one in range(10)}


def test_what_the_service_refuses_is_told_with_its_advice(
    shown: Page, page_service: RunningService, topic: str
) -> None:
    shown.press("Move all 300…")
    shown.one("#new-time-kind").send_keys("later")
    amount = shown.one("#new-time-amount")
    amount.clear()
    amount.send_keys("-10")

    shown.text_has("dialog .wrong", "some of them would be due in the past. Shift by less")
    assert not shown.one("#confirm").is_enabled()
    assert delayed(page_service, topic) == 300
    # The browser itself notes each answer that is a 400.
    assert all("400" in one for one in shown.complaints())


def test_a_topic_is_paused_and_resumed(shown: Page, page_service: RunningService, topic: str) -> None:
    shown.press("Pause")
    shown.text_has("dialog .foreseen", "A backlog of 300 entries will be held: 300 delayed messages from their time on")
    shown.one("#note").send_keys("deploy")
    confirm(shown, "Pause")
    shown.text_has("#ailments", "me paused since")
    shown.text_has("#ailments", "by 127.0.0.1: “deploy”")
    shown.press("Resume")
    shown.text_has("dialog .foreseen", "A backlog of 300 entries will be let go: 300 delayed messages at their time")
    shown.one("#rate").send_keys("50")
    confirm(shown, "Resume")
    shown.until("document.querySelector('#ailments li') === null")

    with urllib.request.urlopen(f"{page_service.web_url}/postdate/v1/topics") as reply:
        state = next(one for one in json.load(reply)["topics"] if one["name"].endswith(topic))
    assert [one["paused"] for one in state["subscriptions"]] == [False]


def test_what_a_pause_held_is_let_go_at_the_rate_that_was_asked_for(
    shown: Page, page_service: RunningService, topic: str, schedule: pulsar.Consumer
) -> None:
    shown.press("Pause")
    shown.text_has("dialog .foreseen", "A backlog of 300 entries will be held: 300 delayed messages from their time on")
    confirm(shown, "Pause")
    shown.text_has("#ailments", "paused since")
    shown.press("Deliver now all 300…")
    shown.text_has("dialog .foreseen", "300 messages will be delivered.")
    confirm(shown, "Deliver 300 messages")
    shown.press("Resume")
    shown.text_has(
        "dialog .foreseen",
        "A backlog of 300 entries will be let go: 0 delayed messages at their time, all else at once",
    )
    shown.one("#rate").send_keys("100")
    confirm(shown, "Resume")

    limited = ask(page_service, topic, "")["subscriptions"]
    begin = time.monotonic()
    for _ in range(300):
        schedule.acknowledge(schedule.receive(10_000))
    taken_s = time.monotonic() - begin

    assert [(one["paused"], one["ratePerSecond"]) for one in limited] == [(False, 100.0)]
    # At most a second's messages are granted at once.
    assert taken_s > 1.0
    wait_until(lambda: ask(page_service, topic, "")["subscriptions"][0]["ratePerSecond"] is None, timeout_s=20)


def drag(page: Page) -> None:
    """Draw a range over the middle half of the chart."""
    chart = page.one(".u-over")
    width = chart.size["width"]
    ActionChains(page.driver).move_to_element_with_offset(chart, -width // 4, 0).click_and_hold().move_by_offset(
        width // 2, 0
    ).release().perform()


@pytest.mark.parametrize("how", ["drag", "span", "key", "property"])
def test_one_filter_means_the_same_for_the_chart_the_list_and_what_is_done_to_all_of_it(
    shown: Page, page_service: RunningService, topic: str, how: str
) -> None:
    if how == "drag":
        drag(shown)
    elif how == "span":
        shown.press("1 h", "#view")
    elif how == "key":
        shown.one("#key").send_keys("customer-3", Keys.ENTER)
    else:
        shown.one("#property").send_keys("campaign=spring", Keys.ENTER)
    least, most = {"drag": (140, 160), "span": (59, 60), "key": (30, 30), "property": (150, 150)}[how]
    shown.until("!document.querySelector('.messages h2').textContent.startsWith('300 ')")
    meant = int(shown.one(".messages h2").text.split()[0])
    assert least <= meant <= most
    shown.text_has("#chart-summary", f"{meant} messages ")

    shown.press(f"Cancel all {meant}…")
    shown.text_has("dialog .foreseen", f"{meant} messages will be cancelled.")
    confirm(shown, f"Cancel {meant} messages")
    assert delayed(page_service, topic) == 300 - meant
    shown.text_has(".messages h2", "0 messages")

    if how != "span":
        shown.press("Clear")
    shown.press("All", "#view")
    shown.text_has("h2", f"{300 - meant} messages scheduled")
    # The browser notes that nothing of the key is there any more.
    assert all("404" in one for one in shown.complaints())


def test_what_was_delivered_goes_from_the_list_and_what_was_chosen_stays_chosen(
    shown: Page, page_service: RunningService, topic: str, schedule: pulsar.Consumer
) -> None:
    first, second = [one["messageId"] for one in ask(page_service, topic, "scheduled?limit=2")["messages"]]
    shown.one(f"input[value='{second}']").click()

    change(page_service, topic, "deliver-now", {"messageIds": [first]})
    schedule.acknowledge(schedule.receive(10_000))

    shown.until("document.querySelector('#messages tbody input').value === arguments[0]", second)
    assert shown.one("#messages tbody input").is_selected()
    assert shown.one("button[data-kind=cancel]").text == "Cancel 1 chosen…"


def test_a_range_that_is_drawn_is_zoomed_into_and_the_way_back_is_the_browsers(shown: Page) -> None:
    shown.press("1 h", "#view")
    shown.text_has("#chart-summary", "a bar is 1 min")
    drag(shown)
    shown.text_has("#chart-summary", "a bar is 30 s")
    assert shown.one("#from").get_attribute("value") < shown.one("#until").get_attribute("value")
    shown.driver.back()
    shown.text_has("#chart-summary", "a bar is 1 min")

    ActionChains(shown.driver).move_to_element_with_offset(shown.one(".u-over"), 3, 0).click().perform()

    shown.text_has("#chart-summary", "a bar is 1 s. ")
    shown.until("document.querySelectorAll('#messages tbody tr').length <= 1")


def test_pages_of_messages_follow_one_another(shown: Page) -> None:
    first = shown.one("#messages tbody input").get_attribute("value")

    shown.press("Next page")

    shown.text_has(".messages", "Page 2: 50 messages")
    assert shown.one("#messages tbody input").get_attribute("value") != first
    shown.press("Previous page")
    shown.text_has(".messages", "Page 1: 50 messages")
    assert shown.one("#messages tbody input").get_attribute("value") == first

    # What is opened from the end of a phone's list is seen at once.
    shown.use(narrow=True)
    shown.all("#messages tbody button")[-1].click()
    shown.text_has("#opened", "Message ")
    top = shown.driver.execute_script("return document.querySelector('#aside').getBoundingClientRect().top")
    assert -2 < top < 900


def test_everything_is_done_with_the_keyboard_alone(shown: Page, page_service: RunningService, topic: str) -> None:
    def tab_to(text: str) -> None:
        for _ in range(80):
            ActionChains(shown.driver).send_keys(Keys.TAB).perform()
            if shown.driver.execute_script("return document.activeElement.textContent").startswith(text):
                outline = shown.driver.execute_script("return getComputedStyle(document.activeElement).outlineStyle")
                assert outline != "none"
                return
        pytest.fail(f"no way to {text}")

    shown.open()
    shown.one("#topics tbody a")
    tab_to(f"public/default/{topic}")
    ActionChains(shown.driver).send_keys(Keys.ENTER).perform()
    shown.text_has("h1", topic)
    shown.text_has("#messages tbody tr", "customer-0")
    tab_to("All")
    ActionChains(shown.driver).send_keys(Keys.ENTER).perform()
    shown.text_has("h2", "300 messages scheduled")
    tab_to("Cancel all 300…")
    ActionChains(shown.driver).send_keys(Keys.ENTER).perform()
    shown.text_has("dialog .foreseen", "300 messages will be cancelled.")
    tab_to("Cancel 300 messages")
    ActionChains(shown.driver).send_keys(Keys.SPACE).perform()
    shown.until("document.querySelector('dialog') === null")

    assert "300 messages" in notice(shown)
    assert delayed(page_service, topic) == 0


def test_a_name_that_looks_like_markup_is_shown_as_text(page: Page, client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, HOSTILE, consumer_type=pulsar.ConsumerType.Shared, consumer_name=HOSTILE)
    producer = client.create_producer(topic, producer_name=HOSTILE)
    at = time.time_ns() // 1_000_000 + 3_600_000
    producer.send(b"x", partition_key=HOSTILE, properties={HOSTILE: HOSTILE}, deliver_at=at)

    page.topic(topic)
    page.text_has("#messages tbody tr", HOSTILE)
    page.text_has("#subscription option", HOSTILE)
    page.topic(topic, "consumers")
    page.text_has("#view", HOSTILE)
    page.topic(topic)
    page.one("#key").send_keys(HOSTILE, Keys.ENTER)
    page.text_has("#aside h2", HOSTILE)
    page.text_has("#aside #sentence", "1 message of this key is not acknowledged")

    assert page.all("main img") == []
    assert "owned" not in page.driver.title
