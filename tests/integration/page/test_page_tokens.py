"""The page of a service that asks for a token."""

import urllib.request
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pulsar
import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.helpers.browser import Page
from tests.helpers.services.quiet_client import QUIET
from tests.helpers.services.services import ADMIN, POSTDATE, RunningService, make_guarded
from tests.helpers.tokens import token

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    running = make_guarded(POSTDATE, tmp_path_factory.mktemp("guarded"), {"authenticateMetricsEndpoint": "true"})
    running.start()
    yield running
    running.stop()


@pytest.fixture
def guarded_page(driver: webdriver.Chrome, guarded: RunningService) -> Page:
    opened = Page(driver, guarded.web_url)
    opened.begin()
    opened.use()
    opened.open()
    return opened


def test_a_token_is_asked_for_and_kept_in_the_tab_alone(guarded_page: Page, guarded: RunningService) -> None:
    secret = token(ADMIN).decode()
    client = pulsar.Client(guarded.url, authentication=pulsar.AuthenticationToken(secret))
    client.subscribe("secrets", "me", consumer_type=pulsar.ConsumerType.Shared)
    client.close()
    guarded_page.text_has("dialog h2", "A token is required")
    assert guarded_page.all("#topics tbody tr") == []

    guarded_page.one("#token").send_keys("a.b.c", Keys.ENTER)
    guarded_page.text_has("dialog .wrong", "Authentication required")
    guarded_page.one("#token").send_keys(secret, Keys.ENTER)

    guarded_page.text_has("#topics tbody tr", "public/default/secrets")
    kept = guarded_page.driver.execute_script("return [JSON.stringify(localStorage), document.cookie, location.href]")
    assert not any(secret in one for one in kept)
    assert guarded_page.driver.execute_script("return sessionStorage.getItem('postdate.token')") == secret
    guarded_page.driver.refresh()
    guarded_page.text_has("#topics tbody tr", "public/default/secrets")
    guarded_page.press("Forget the token")
    guarded_page.text_has("dialog h2", "A token is required")


def test_who_may_not_look_is_told_so(guarded_page: Page) -> None:
    guarded_page.text_has("dialog h2", "A token is required")
    guarded_page.one("#token").send_keys(token("nobody").decode(), Keys.ENTER)
    guarded_page.text_has("main", "There is no topic yet")

    guarded_page.driver.execute_script("location.hash = '#/topic/public/default/secrets/live'")

    guarded_page.text_has("#problem", "Ask with the token of a role that may")


def test_a_role_that_may_not_consume_sees_how_much_and_not_what(guarded_page: Page, guarded: RunningService) -> None:
    secret = token(ADMIN).decode()
    with closing(pulsar.Client(guarded.url, authentication=pulsar.AuthenticationToken(secret), logger=QUIET)) as client:
        client.subscribe("counted", "me", consumer_type=pulsar.ConsumerType.Shared)
        producer = client.create_producer("counted")
        producer.send(b"of nobody's business", partition_key="bertha", deliver_after=timedelta(minutes=30))
        request = urllib.request.Request(
            f"{guarded.web_url}/admin/v2/persistent/public/default/counted/permissions/teller",
            b'["produce"]',
            {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"},
        )
        urllib.request.urlopen(request).close()
        guarded_page.one("#token").send_keys(token("teller").decode(), Keys.ENTER)
        guarded_page.text_has("#topics tbody tr", "public/default/counted")

        guarded_page.driver.execute_script("location.hash = '#/topic/public/default/counted?open=1:0'")

        guarded_page.text_has(".messages h2", "1 message due in the next hour")
        guarded_page.text_has(".messages p", "Messages are shown to roles that may consume from the topic.")
        guarded_page.text_has("#aside", "Ask with the token of a role that may")
        assert not guarded_page.one("#pause").is_enabled()
        assert guarded_page.one("#pause").get_attribute("title") == "Pausing and resuming are for super users"
        assert not guarded_page.one("#problem").is_displayed()
        assert "business" not in guarded_page.driver.page_source
        assert "bertha" not in guarded_page.driver.page_source
