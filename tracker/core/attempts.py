"""How often a call has failed in a row, and when it may be tried again.

A value: hardly a bucket ever has a failure, and all others share one.
"""

from typing import Final, NamedTuple


class Attempts(NamedTuple):
    """The failures of one kind of call for one bucket."""

    failures: int = 0
    """How many calls have failed since one succeeded."""
    at_ms: int = -1
    """When the next one may start."""
    successes_before: int = 0
    """How many calls of the kind had succeeded when this one last failed."""

    def at_once(self) -> "Attempts":
        """Return the same failures without the wait for another try."""
        return self._replace(at_ms=-1) if self.failures else NO_FAILURES


NO_FAILURES: Final = Attempts()
"""A call succeeded, or another kind of call is next."""
