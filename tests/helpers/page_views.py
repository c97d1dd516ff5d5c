"""The views of a topic on the page, each with an element and a text of it."""

VIEWS = {
    "schedule": ("#messages tbody tr", "Messages in the order of their times"),
    "search": ("#search", ""),
    "consumers": (".ring", "100.0 %"),
    "index": ("#view tbody tr", "sealed"),
    "live": ("#rates", "Out"),
}
