"""The errors of reading and changing scheduled messages: one base, and callers branch on `retriable`."""

from collections.abc import Container
from typing import ClassVar


class SchedulingError(Exception):
    """The base of what a service or an address makes the client raise; wrong arguments raise other errors."""

    retriable: ClassVar[bool] = False


class ScheduleArgumentError(SchedulingError, ValueError):
    """An address or the name of a topic is invalid."""


class ScheduleRequestError(SchedulingError):
    """The service refused a request; nothing has changed.

    Attributes:
        status: The HTTP status.
        field: The field of the request that is wrong, None where the error is about no field.
        advice: How the caller mends the request.
    """

    def __init__(self, status: int, error: str, *, field: str | None, advice: str) -> None:
        super().__init__(f"{error}. {advice}" if advice else error)
        self.status = status
        self.field = field
        self.advice = advice

    def finds_nothing(self, selection: Container[str]) -> bool:
        """Whether nothing that is scheduled is selected: a message may always have been delivered a moment ago.

        Args:
            selection: The fields of the request that select messages.
        """
        return self.status == 404 and self.field is not None and self.field in selection


class NoSubscriptionError(SchedulingError):
    """No subscription would get the message when it is due, so it was not published.

    Subscribe as Shared or Key_Shared first, or name a subscription: `Scheduler(subscription=...)` makes one that is
    missing.
    """


class ServiceUnavailableError(SchedulingError):
    """The service does not answer, or fails (a status of 5xx). A change may have been made or not: look again.

    Every change can be repeated, but for a skip of a number of entries. A shift has to be repeated with the same
    `operation_id`: the service leaves out the messages that it has shifted before.

    Attributes:
        operation_id: The id of the shift whose outcome is not known; None for any other request.
    """

    retriable = True

    def __init__(self, error: str, *, operation_id: str | None = None) -> None:
        super().__init__(error)
        self.operation_id = operation_id
