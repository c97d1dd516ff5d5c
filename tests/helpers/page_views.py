"""The views of a topic on the page, each with an element and a text of it, and the themes."""

import pytest

VIEWS = {
    "schedule": ("#messages tbody tr", "Messages in the order of their times"),
    "search": ("#search", ""),
    "consumers": (".ring", "100.0 %"),
    "index": ("#view tbody tr", "sealed"),
    "live": ("#rates", "Out"),
}
THEMES = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
