"""The page for users of screen readers: axe-core looks at each view and each dialog, in both themes.

axe-core knows what a screen reader needs, by the rules of WCAG 2.2 A and AA and by good practice: names of
buttons, labels, headings, landmarks, roles, contrast. It comes in the package `axe-playwright-python`.
"""

from importlib.resources import files
from typing import Any

import pulsar
import pytest

from tests.helpers.browser import Page
from tests.helpers.page_views import VIEWS

pytestmark = pytest.mark.exhaustive

AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
LOOKED_AT_MIN = 10
"""So many rules hold of something on the page at least, or axe-core has not looked."""
QUESTIONS = ["Cancel all 300…", "Move all 300…", "Deliver now all 300…", "Pause…"]


def violations(page: Page) -> dict[str, list[tuple[str, str, list[str]]]]:
    """The violations that axe-core finds in each theme: the rule, its text, and the elements that break it."""
    page.driver.execute_script(AXE)
    found = {}
    for theme in ("light", "dark"):
        page.use(dark=theme == "dark")
        page.until("matchMedia('(prefers-color-scheme: dark)').matches === arguments[0]", theme == "dark")
        result: dict[str, Any] = page.driver.execute_async_script("const done = arguments[0]; axe.run().then(done)")
        assert len(result["passes"]) > LOOKED_AT_MIN
        broken = [(one["id"], one["help"], one["nodes"]) for one in result["violations"]]
        found[theme] = [(rule, text, [node["html"][:200] for node in nodes]) for rule, text, nodes in broken]
    return found


NONE: dict[str, list[tuple[str, str, list[str]]]] = {"light": [], "dark": []}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_a_topic_can_be_read_without_seeing_it(
    page: Page, topic: str, schedule: pulsar.Consumer, view: str
) -> None:
    page.use()
    page.topic(topic, view)
    selector, text = VIEWS[view]
    page.one(selector)
    page.text_has("#view", text)

    assert violations(page) == NONE


def test_a_message_beside_the_list_can_be_read_without_seeing_it(
    page: Page, topic: str, schedule: pulsar.Consumer
) -> None:
    page.use()
    page.topic(topic)
    page.one("#messages tbody button").click()
    page.text_has("#payload", "reminder 0")

    assert violations(page) == NONE


def test_the_list_of_topics_can_be_read_without_seeing_it(page: Page, topic: str, schedule: pulsar.Consumer) -> None:
    page.use()
    page.open()
    page.text_has("#topics tbody tr", topic)

    assert violations(page) == NONE


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_can_be_read_without_seeing_it(
    page: Page, topic: str, schedule: pulsar.Consumer, question: str
) -> None:
    page.use()
    page.topic(topic, "schedule?span=all")
    page.text_has("h2", "300 messages scheduled")
    page.press(question)
    page.text_has("dialog .foreseen", "300")

    assert violations(page) == NONE
