"""The page of a topic with a million delayed messages: the same as with few."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from benchmarks.scheduled import fill
from postdate.demo.process import PostdateProcess
from tests.helpers.browser import Page

pytestmark = pytest.mark.exhaustive

MESSAGES = 1_000_000


@pytest.fixture(scope="module")
def full_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostdateProcess]:
    """A service whose topic `orders` has a million messages to come within a week."""
    folder = tmp_path_factory.mktemp("million")
    log = folder / "data" / "ledgers"
    log.mkdir(parents=True)
    asyncio.run(fill(log, MESSAGES, time.time_ns() // 1_000_000 + 60_000))
    running = PostdateProcess(folder)
    running.start(timeout_s=120)
    yield running
    running.stop()


def test_a_million_messages_are_drawn_zoomed_listed_and_found(
    driver: webdriver.Chrome, full_service: PostdateProcess, screenshots: Path
) -> None:
    page = Page(driver, full_service.web_url)
    page.begin()
    page.use()
    page.topic("orders")

    page.press("All")
    page.text_has("#chart-summary", "1,000,000 messages scheduled")
    page.text_has("#messages tbody tr", "customer-")
    page.picture(screenshots / "million-light-wide.png")
    page.press("24 h", "#view")
    page.text_has("h2", "messages due in the next 24 hours")
    page.press("Next page")
    page.text_has(".messages", "Page 2: 50 messages, and more follow.")
    page.one("#key").send_keys("customer-7", Keys.ENTER)
    page.text_has("#sentence", "10 messages of this key are not acknowledged")
    page.press("All")
    page.press("Cancel all 10…")
    page.text_has("dialog .foreseen", "10 messages will be cancelled.")
    page.press("Cancel 10 messages", "dialog")
    page.text_has(".messages h2", "0 messages")
    page.press("Clear", "#view")
    page.press("All", "#view")
    page.text_has(".messages h2", "999,990 messages")

    # The browser asks the key again, of which nothing is scheduled now.
    assert all("404" in one for one in page.complaints())
