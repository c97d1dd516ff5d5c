"""Log lines about refused clients that retry for ever: one line a minute for each reason, and a count.

The first refusal is logged at once, those of the next minute are counted. Their count is logged after the minute: with
the next refusal, or by `say_counts`, which the service calls now and then.
"""

import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

REFUSAL_LOG_S: Final = 60.0
"""The shortest time between two log lines about refusals of one kind."""
_KINDS_MAX: Final = 1_000
"""The most kinds in memory: a client may cause new reasons for ever."""


@dataclass(slots=True)
class _Kind:
    logger: logging.Logger
    level: int
    text: str
    logged_s: float
    uncounted: int = 0


class RefusalLog:
    """Refusals of the last minute.

    Args:
        monotonic: A clock that never goes back, in seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._kinds: dict[Hashable, _Kind] = {}

    def __len__(self) -> int:
        """Return how many kinds are remembered."""
        return len(self._kinds)

    def log(self, logger: logging.Logger, level: int, kind: Hashable, text: str) -> None:
        """Log a refusal, or count it where one of its kind was logged within a minute."""
        now_s = self._monotonic()
        known = self._kinds.get(kind)
        if known is not None and now_s - known.logged_s < REFUSAL_LOG_S:
            known.uncounted += 1
            known.text = text
            return
        if known is not None:
            self._say_count(known)
        elif len(self._kinds) >= _KINDS_MAX:
            self._forget(list(self._kinds))
        logger.log(level, "%s", text)
        self._kinds[kind] = _Kind(logger, level, text, now_s)

    def say_counts(self) -> None:
        """Log how often the same was refused again, of each kind whose minute has ended."""
        now_s = self._monotonic()
        self._forget([kind for kind, known in self._kinds.items() if now_s - known.logged_s >= REFUSAL_LOG_S])

    def _forget(self, kinds: list[Hashable]) -> None:
        for kind in kinds:
            self._say_count(self._kinds.pop(kind))

    def _say_count(self, known: _Kind) -> None:
        if known.uncounted:
            times = "once" if known.uncounted == 1 else f"{known.uncounted} times"
            known.logger.log(known.level, "%s (%s more since the last such line)", known.text, times)
