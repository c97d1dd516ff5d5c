"""Each view of the page, in both themes and on a narrow window; pictures are in build/page."""

import re
from pathlib import Path

import pulsar
import pytest

from tests.integration.page.browser import Page

pytestmark = pytest.mark.exhaustive

VIEWS = {
    "schedule": ("#messages tbody tr", "Messages next to be due"),
    "search": ("#search", ""),
    "consumers": (".ring", "100.0 %"),
    "index": ("#view svg", "Immutable buckets"),
    "live": ("#rates", "Out"),
}
THEMES = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
WIDTHS = pytest.mark.parametrize("narrow", [False, True], ids=["wide", "narrow"])


def fits(page: Page) -> bool:
    found: bool = page.driver.execute_script(
        "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
    return found


@THEMES
@WIDTHS
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_a_topic_is_whole_in_each_theme_and_width(
    page: Page, topic: str, schedule: pulsar.Consumer, screenshots: Path, view: str, dark: bool, narrow: bool
) -> None:
    page.use(dark=dark, narrow=narrow)
    page.topic(topic, view)

    selector, text = VIEWS[view]
    page.one(selector)
    page.text_has("#view", text)
    page.text_has(".figures dd", "300")
    page.picture(screenshots / f"{view}-{'dark' if dark else 'light'}-{'narrow' if narrow else 'wide'}.png")

    assert fits(page)
    colour = page.driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", colour))) < 384) == dark


@THEMES
@WIDTHS
def test_the_topics_are_a_table_in_each_theme_and_width(
    page: Page, topic: str, schedule: pulsar.Consumer, screenshots: Path, dark: bool, narrow: bool
) -> None:
    page.use(dark=dark, narrow=narrow)
    page.open()

    page.text_has("#topics tbody tr", f"public/default/{topic}")
    page.picture(screenshots / f"topics-{'dark' if dark else 'light'}-{'narrow' if narrow else 'wide'}.png")

    assert fits(page)
    row = next(one.text for one in page.all("#topics tbody tr") if topic in one.text)
    assert "300" in row
