"""When a dispatcher is to be told to look again: whenever an answer that made it wait is no longer true.

A dispatcher waits because nothing was due, because what is due must wait for an earlier message that is still being
loaded, or because reading was paused. A tracker keeps these answers as it gives them, and compares them, once in a
turn of its loop, with what it would answer now. So it does not matter which rows left the index, and by which way:
being told of a message ends when that message is no longer the first that is due.

    told of A ──► A is polled, refused, cleared, passed, put off ──► B is first: told of B

Left out: news that are no change of these answers, as a ledger range that was recovered; a tracker tells those itself.
Pure: no clock, no event loop.
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

        Returns:
            Whether it had been told of a message. If nothing is due all the same, as where the clock was put back, the
            tracker has to look when that message is due again.
        """
        told_deliver_at_ms, self._told_deliver_at_ms = self._told_deliver_at_ms, None
        return told_deliver_at_ms is not None

    def wait_behind(self, withheld_ms: int | None) -> None:
        """Count the dispatcher as told that due messages from this time on have to wait, None for no such time.

        Of several answers in one turn the first counts, as there may be several dispatchers: the index of a topic has
        the dispatchers of all its subscriptions.
        """
        if self._withheld_ms is None:
            self._withheld_ms = withheld_ms

    def pause(self, is_paused: bool) -> None:
        """Count the dispatcher as told whether reading is to pause."""
        self._is_paused = self._is_paused or is_paused

    def is_wanted(self, *, deliver_at_ms: int | None, withheld_ms: int | None = None, is_paused: bool = False) -> bool:
        """Return whether to tell the dispatcher, given what would be answered now; call once a turn.

        That is the time of the first message that can be handed out, the time from which on due ones have to wait, and
        whether reading is to pause.
        """
        is_due = deliver_at_ms is not None and deliver_at_ms != self._told_deliver_at_ms
        may_go_on = self._withheld_ms is not None and withheld_ms != self._withheld_ms
        is_unpaused = self._is_paused and not is_paused
        self._told_deliver_at_ms = deliver_at_ms
        self._withheld_ms = withheld_ms
        # A pause that the dispatcher did not ask about has not made it wait.
        self._is_paused = self._is_paused and is_paused
        return is_due or may_go_on or is_unpaused
