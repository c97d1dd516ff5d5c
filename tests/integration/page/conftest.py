"""A service with topics to look at, and a headless Chromium to look with.

Without Chromium and its driver the tests are skipped, except in CI, which must have them.
"""

import os
import shutil
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pulsar
import pytest
from selenium import webdriver

from tests.helpers.browser import Page, new_driver
from tests.helpers.services.quiet_client import QUIET
from tests.helpers.services.services import POSTDATE, RunningService, make_service


@pytest.fixture(scope="package")
def page_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    # Small ledgers and buckets, so that 300 messages fill some.
    settings = {
        "delayedDeliveryMaxDelayInMillis": "0",
        "delayedDeliveryMinIndexCountPerBucket": "50",
        "managedLedgerMaxEntriesPerLedger": "100",
        "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    }
    running = make_service(POSTDATE, tmp_path_factory.mktemp("page"), settings)
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="package")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        if os.environ.get("CI"):
            pytest.fail("CI must have Chromium and its driver: apt-get install chromium chromium-driver")
        pytest.skip("needs chromium and chromedriver")
    running = new_driver(tmp_path_factory.mktemp("chromium"))
    yield running
    running.quit()


@pytest.fixture
def page(driver: webdriver.Chrome, page_service: RunningService) -> Iterator[Page]:
    """The page of the service, in a fresh tab; complaints in its console fail the test."""
    opened = Page(driver, page_service.web_url)
    opened.begin()
    yield opened
    assert opened.complaints() == []


@pytest.fixture
def client(page_service: RunningService) -> Iterator[pulsar.Client]:
    opened = pulsar.Client(page_service.url, logger=QUIET)
    yield opened
    opened.close()


@pytest.fixture
def topic() -> str:
    return f"page-{uuid4().hex[:8]}"


@pytest.fixture
def schedule(client: pulsar.Client, topic: str) -> pulsar.Consumer:
    """A subscription and 300 messages of ten keys, one a minute from now on; gives the consumer."""
    consumer = client.subscribe(topic, "me", consumer_type=pulsar.ConsumerType.KeyShared)
    producer = client.create_producer(topic, producer_name=f"of-{topic}")
    now_ms = time.time_ns() // 1_000_000
    for number in range(300):
        producer.send_async(
            f"reminder {number}".encode(),
            callback=None,
            partition_key=f"customer-{number % 10}",
            properties={"campaign": "spring" if number % 2 else "autumn"},
            deliver_at=now_ms + int(timedelta(minutes=number + 1).total_seconds() * 1000),
        )
    producer.flush()
    return consumer


@pytest.fixture
def screenshots() -> Path:
    """Where each view's pictures go, to be looked at."""
    folder = Path("build") / "page"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
