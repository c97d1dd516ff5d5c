"""How often a call has failed in a row, and when it may be tried again; only `transitions` changes it."""

from dataclasses import dataclass


@dataclass(slots=True)
class Attempts:
    """The failures of one kind of call for one bucket."""

    failures: int = 0
    """How many calls have failed since one succeeded."""
    at_ms: int = -1
    """When the next one may start."""
    successes_before: int = 0
    """How many calls of the kind had succeeded when this one last failed."""

    def reset(self) -> None:
        """Begin afresh: a call succeeded, or another kind of call is next."""
        self.failures = 0
        self.at_ms = -1
