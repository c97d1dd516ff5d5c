"""The list of more topics than it loads at once: the first ones by name, and any other by the filter."""

from collections.abc import Iterator

import pulsar
import pytest
from selenium import webdriver

from postdate.demo.process import PostdateProcess
from tests.helpers.browser import Page
from tests.helpers.services.quiet_client import QUIET

pytestmark = pytest.mark.exhaustive

TOPICS = 1_200
LOADED = 1_000
"""As the page's `topics.js` says."""
SHOWN = 200


@pytest.fixture(scope="module")
def many_topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostdateProcess]:
    running = PostdateProcess(tmp_path_factory.mktemp("topics"))
    running.start()
    client = pulsar.Client(running.url, logger=QUIET)
    for number in range(TOPICS):
        client.create_producer(f"topic-{number:05}").close()
    client.close()
    yield running
    running.stop()


def test_more_topics_than_are_loaded_are_counted_and_each_is_found_by_its_name(
    driver: webdriver.Chrome, many_topics: PostdateProcess
) -> None:
    page = Page(driver, many_topics.web_url)
    page.begin()
    page.use()
    page.open()
    last = f"public/default/topic-{TOPICS - 1:05}"

    page.text_has("#main .quiet", f"{TOPICS - LOADED} more by name: filter to see them")
    assert len(page.all("#topics tbody tr")) == SHOWN
    page.press("Show more")
    page.until(f"document.querySelectorAll('#topics tbody tr').length === {3 * SHOWN}")
    page.one("#filter").send_keys(f"-{TOPICS - 1:05}")
    page.until(f"document.querySelector('#topics tbody a')?.textContent === '{last}'")
    assert len(page.all("#topics tbody tr")) == 1
    page.one("#topics tbody a").click()
    page.text_has("h1", last)

    assert page.complaints() == []
