"""The views of a topic on the page, each with an element and a text of it."""

VIEWS = {
    "schedule": ("#messages tbody tr", "due in the next hour"),
    "consumers": ("#view tbody tr", "100.0 %"),
    "live": ("#rates dl", "Out"),
    "trail": ("#view h2", "Who has changed what"),
}
