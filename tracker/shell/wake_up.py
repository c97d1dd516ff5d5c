"""When a dispatcher is to be told to look again: whenever an answer that made it wait is no longer true.

A dispatcher waits because nothing was due, because what is due must wait for an earlier message that is being loaded,
or because reading was paused. A tracker keeps these answers, and compares them once a turn with what it would answer
now. So it does not matter which rows left the index, and how.

    told of A ──► A is polled, refused, cleared, passed, put off ──► B is first: told of B
"""

from dataclasses import dataclass


@dataclass(slots=True)
class WakeUp:
    """The answers that make a dispatcher wait, and the due message of which it was told."""

    _told_deliver_at_ms: int | None = None
    """The time of the first due message when the dispatcher was told last; None once it waits for a message."""
    _withheld_ms: int | None = None
    _is_paused: bool = False

    def wait_for_due(self) -> bool:
        """Count the dispatcher as waiting: it took what there was, or was answered that nothing is due.

        Return whether it had been told of a message: where the clock was put back, that is to be looked at again.
        """
        told_deliver_at_ms, self._told_deliver_at_ms = self._told_deliver_at_ms, None
        return told_deliver_at_ms is not None

    def wait_behind(self, withheld_ms: int | None) -> None:
        """Count the dispatcher as told that due messages from this time on have to wait, None for no such time.

        Of several answers in one turn the first counts: a shared index has several dispatchers.
        """
        if self._withheld_ms is None:
            self._withheld_ms = withheld_ms

    def pause(self, is_paused: bool) -> None:
        """Count the dispatcher as told whether reading is to pause."""
        self._is_paused = self._is_paused or is_paused

    def is_wanted(self, *, deliver_at_ms: int | None, withheld_ms: int | None = None, is_paused: bool = False) -> bool:
        """Return whether to tell the dispatcher, given what would be answered now; call once a turn."""
        is_due = deliver_at_ms is not None and deliver_at_ms != self._told_deliver_at_ms
        may_go_on = self._withheld_ms is not None and withheld_ms != self._withheld_ms
        is_unpaused = self._is_paused and not is_paused
        self._told_deliver_at_ms = deliver_at_ms
        self._withheld_ms = withheld_ms
        # A pause that the dispatcher did not ask about has not made it wait.
        self._is_paused = self._is_paused and is_paused
        return is_due or may_go_on or is_unpaused
