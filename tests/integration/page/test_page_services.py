"""The page's view of services and bundles, which is shown where there are several; pictures are in build/page."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from tests.helpers.browser import Page
from tests.helpers.services.services import POSTDATE, make_service

pytestmark = pytest.mark.exhaustive

HEADS = "[...document.querySelectorAll('h2')].map(e => e.textContent)"


@pytest.fixture
def divided_page(driver: webdriver.Chrome, tmp_path: Path) -> Iterator[Page]:
    """The page of a service with four bundles, in a fresh tab; complaints in its console fail the test."""
    running = make_service(POSTDATE, tmp_path, {"numberOfBundles": "4"})
    running.start()
    opened = Page(driver, running.web_url)
    opened.begin()
    yield opened
    running.stop()
    assert opened.complaints() == []


@pytest.mark.parametrize(("dark", "narrow"), [(False, False), (True, True)], ids=["light-wide", "dark-narrow"])
def test_services_and_bundles_are_tables(divided_page: Page, screenshots: Path, dark: bool, narrow: bool) -> None:
    divided_page.use(dark=dark, narrow=narrow)
    divided_page.open()

    divided_page.text_has("#services h2", "Services")
    services, bundles = divided_page.all("#services tbody")
    name = divided_page.one("#services tbody th").text
    assert "well" in services.text
    assert services.text.count(name) == 1
    assert bundles.text.count(name) == 4
    assert "0x00000000_0x40000000" in bundles.text
    divided_page.picture(screenshots / f"services-{'dark' if dark else 'light'}-{'narrow' if narrow else 'wide'}.png")
    assert divided_page.fits()


def test_a_service_that_is_alone_with_one_bundle_shows_neither(page: Page) -> None:
    page.use()
    page.open()

    page.text_has("h2", "Last changes")
    page.until("performance.getEntriesByType('resource').some(e => e.name.endsWith('/postdate/v1/cluster'))")
    assert "Services" not in page.driver.execute_script(f"return {HEADS}")
