"""What several services answer, and how an endpoint says what is made of it.

A service that does not answer is a refusal, as a list or a sum without its topics would mislead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from postdate.broker.admin.refusal import RefusalError

_REPEAT: Final = "Repeat it in a moment: a service that is gone is replaced; GET /health says what is wrong"


@dataclass(frozen=True, slots=True)
class Reply:
    """What one of several services answers.

    Attributes:
        service: Its name.
        status: The HTTP status; 0 where it does not answer.
        body: The body, or why there is none.
    """

    service: str
    status: int
    body: bytes

    @property
    def reason(self) -> str:
        """Why there is no answer to use."""
        if not self.status:
            return f"{self.service} does not answer: {self.body.decode(errors='replace')}"
        return f"{self.service} answers {self.status}: {_reason_in(self.body)}"


Merge = Callable[[Any, Sequence[Reply]], object]
"""Makes the answer of what was asked and of the replies, that of the service that was asked first."""


def whole(type_: Any, merged: Callable[[Any, Sequence[Any]], object]) -> Merge:
    """Return a merge that needs an answer of each service, but for those that say that they have nothing (404).

    Args:
        type_: The type of the answers.
        merged: Makes one of them, of what was asked and of one or more of them.
    """

    def merge(asked: Any, replies: Sequence[Reply]) -> object:
        missing = [one for one in replies if one.status not in (200, 404)]
        if missing:
            error = f"Not all services answer; {'; '.join(one.reason for one in missing)}"
            raise RefusalError(503, error, advice=_REPEAT, headers={"Retry-After": "1"})
        found = [msgspec.json.decode(one.body, type=type_) for one in replies if one.status == 200]
        if not found:
            raise RefusalError(404, _reason_in(replies[0].body))
        return merged(asked, found)

    return merge


def _reason_in(body: bytes) -> str:
    """Return the text of a refusal."""
    try:
        found = msgspec.json.decode(body)
        return str(found.get("error") or found["reason"])
    except (msgspec.MsgspecError, UnicodeDecodeError, LookupError, TypeError, AttributeError):
        return body.decode(errors="replace")[:200] or "nothing"
