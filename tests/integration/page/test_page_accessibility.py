"""The page for users of screen readers: axe-core looks at each view and each dialog, in both themes.

axe-core knows what a screen reader needs, by the rules of WCAG 2.2 A and AA and by good practice: names of
buttons, labels, headings, landmarks, roles, contrast. It comes in the package `axe-playwright-python`.
"""

from importlib.resources import files
from typing import Any

import pulsar
import pytest

from tests.helpers.browser import Page
from tests.helpers.page_views import THEMES, VIEWS

pytestmark = pytest.mark.exhaustive

AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
LOOKED_AT_MIN = 10
"""So many rules hold of something on the page at least, or axe-core has not looked."""
QUESTIONS = ["Cancel all…", "Reschedule all…", "Deliver all now…", "Pause"]


def violations(page: Page) -> list[tuple[str, str, list[str]]]:
    """The violations that axe-core finds: the rule, its text, and the elements that break it."""
    page.driver.execute_script(AXE)
    result: dict[str, Any] = page.driver.execute_async_script("const done = arguments[0]; axe.run().then(done)")
    assert len(result["passes"]) > LOOKED_AT_MIN
    found = result["violations"]
    return [(one["id"], one["help"], [node["html"][:200] for node in one["nodes"]]) for one in found]


@THEMES
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_a_topic_can_be_read_without_seeing_it(
    page: Page, topic: str, schedule: pulsar.Consumer, view: str, dark: bool
) -> None:
    page.use(dark=dark)
    page.topic(topic, view)
    selector, text = VIEWS[view]
    page.one(selector)
    page.text_has("#view", text)

    assert violations(page) == []


@THEMES
def test_the_list_of_topics_can_be_read_without_seeing_it(
    page: Page, topic: str, schedule: pulsar.Consumer, dark: bool
) -> None:
    page.use(dark=dark)
    page.open()
    page.text_has("#topics tbody tr", topic)

    assert violations(page) == []


@THEMES
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_can_be_read_without_seeing_it(
    page: Page, topic: str, schedule: pulsar.Consumer, question: str, dark: bool
) -> None:
    page.use(dark=dark)
    page.topic(topic)
    page.press(question)
    page.text_has("dialog .foreseen", "300")

    assert violations(page) == []
