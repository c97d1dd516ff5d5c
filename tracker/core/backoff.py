"""How often a call has failed in a row, and when it may be tried again."""

from dataclasses import dataclass
from random import Random

from tracker.config import TrackerConfig


def backoff_ms(config: TrackerConfig, attempts: int, rng: Random) -> int:
    """Return how long to wait after this many failures: doubled each time, with a jitter of up to a half."""
    wait_ms = min(config.retry_backoff_ms_max, config.retry_backoff_ms_min << min(attempts - 1, 30))
    return wait_ms - rng.randrange(wait_ms // 2 + 1)


@dataclass(slots=True)
class Backoff:
    """The failures of one kind of call for one bucket; `CircuitBreaker` counts them."""

    attempts: int = 0
    """How many calls have failed since one succeeded."""
    at_ms: int = -1
    """When the next one may start."""
    successes_before: int = 0
    """How many calls of the kind had succeeded when this one last failed."""

    def reset(self) -> None:
        """Begin afresh: a call succeeded, or another kind of call is next."""
        self.attempts = 0
        self.at_ms = -1
