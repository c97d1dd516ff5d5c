"""Seeds of stories that are played whole: as many as the profile of Hypothesis allows."""

from hypothesis import settings

EXAMPLES_PER_STORY = 10
"""A story of hundreds of messages takes as long as so many examples of a property."""


def seeds() -> range:
    """Return the seeds: 1 with the profile `fast`, 6 with `default`, 20 with `ci`, 500 with `long`."""
    return range(max(1, settings().max_examples // EXAMPLES_PER_STORY))
