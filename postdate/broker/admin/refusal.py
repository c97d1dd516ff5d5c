"""Refusals of the web port: one kind, and the one place that makes JSON of it.

Below `/postdate/v1` the body is `{"error": ..., "field": ..., "advice": ...}`. Everywhere else it is Pulsar's
`{"reason": ...}`, which tools for Pulsar show.
"""

import logging
from collections.abc import Mapping
from typing import Final

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from managed_ledger.errors import AppendRefusedError, BackupError, LedgerError, LedgerWriteError, LogFencedError
from postdate.broker.errors import (
    InvalidTopicNameError,
    NotAllowedError,
    NotServedError,
    ProducerBusyError,
    SnapshotsLeftError,
    TopicClosedError,
)
from postdate.broker.scheduled.publishing import NoReceivingSubscriptionError, PublishBufferFullError
from postdate.broker.scheduled.topic_schedule import TooManyRowsError
from postdate.broker.topics.change_order import ChangeUnderWayError

logger = logging.getLogger(__name__)

PREFIX: Final = "/postdate/v1"
_ADMIN_PREFIX: Final = "/admin/v2"
_DOCUMENT_ADVICE: Final = f"See {PREFIX}/openapi.json"


class RefusalError(Exception):
    """A request that is refused or failed; below 500 nothing has changed.

    Args:
        status: The HTTP status.
        error: The fault, as a text.
        field: The field of the request that is wrong, None where the error is about no field.
        advice: How the caller mends the request.
        headers: Headers of the answer.
    """

    def __init__(
        self,
        status: int,
        error: str,
        *,
        field: str | None = None,
        advice: str = _DOCUMENT_ADVICE,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(error)
        self.status = status
        self.field = field
        self.advice = advice
        self.headers = headers or {}

    def in_line(self, number: int) -> "RefusalError":
        """Return the refusal of a line of the body; a request of many lines is refused whole."""
        error = f"line {number}: {self}; nothing is published"
        return RefusalError(self.status, error, field=self.field, advice=self.advice)


def is_own(path: str) -> bool:
    """Whether a path is of this service's own interface, which refuses what it does not know."""
    return f"{path}/".startswith(f"{PREFIX}/")


@web.middleware
async def refusals_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer refusals and failures of the handlers with JSON."""
    try:
        return await handler(request)
    except Exception as error:
        if isinstance(error, ConnectionError) and (request.transport is None or request.transport.is_closing()):
            # The caller has left: this answer goes nowhere.
            return web.Response()
        refusal = refusal_of(request, error)
        if refusal is None:
            # The supervisor of the handlers: one bad answer must not take the port down.
            logger.exception("%s %s failed", request.method, request.path)
            refusal = RefusalError(500, "Internal error; the service's log has it")
    body = (
        {"error": str(refusal), "field": refusal.field, "advice": refusal.advice}
        if is_own(request.path)
        else {"reason": str(refusal)}
    )
    return web.json_response(body, status=refusal.status, headers=refusal.headers)


def refusal_of(request: web.Request, error: Exception) -> RefusalError | None:
    """Return the refusal that an error stands for, None for a failure."""
    match error:
        case RefusalError():
            return error
        case web.HTTPException():
            return _of_aiohttp(request, error)
        case InvalidTopicNameError():
            advice = "Write tenant/namespace/topic"
            return RefusalError(404 if is_own(request.path) else 412, str(error), field="topic", advice=advice)
        case NotAllowedError():
            return RefusalError(412, str(error))
        case NotServedError() | TopicClosedError() | SnapshotsLeftError():
            return RefusalError(503, str(error), advice="Repeat it")
        case ProducerBusyError():
            return RefusalError(409, str(error), advice="Repeat it when that producer is closed")
        case NoReceivingSubscriptionError():
            advice = "Subscribe as Shared or Key_Shared first, or name a subscription: a missing one is made"
            return RefusalError(409, str(error), field="subscription", advice=advice)
        case PublishBufferFullError():
            return RefusalError(503, str(error), advice="Repeat it in a moment", headers={"Retry-After": "1"})
        case TooManyRowsError():
            advice = "Narrow from and until and repeat, or use the jobs on Spark with the service stopped"
            return RefusalError(413, str(error), advice=advice)
        case ChangeUnderWayError():
            advice = "Repeat it when that one has ended, or name messages by ids that it does not mean"
            headers = {"Retry-After": "10"}
            return RefusalError(409, f"Nothing has changed: {error}", advice=advice, headers=headers)
        case AppendRefusedError():
            return RefusalError(507, str(error), advice="Give the log more room, and repeat")
        case BackupError():
            return RefusalError(409, str(error), field="target", advice="The backups that there are stay as they are")
        case LedgerWriteError(__cause__=LogFencedError()):
            advice = "Look whether it was before you repeat it; a message that has an id of its own is stored once"
            return RefusalError(503, f"Whether it was carried out is not known: {error.__cause__}", advice=advice)
        case LedgerError():
            advice = "See /health and the service's log; to repeat it is safe, but for skip of a number"
            return RefusalError(503, f"The log cannot be used now: {error}", advice=advice)
        case _:
            return None


def _of_aiohttp(request: web.Request, error: web.HTTPException) -> RefusalError:
    reason = f"{error.reason}: {request.path}"
    is_unknown = error.status == web.HTTPNotFound.status_code and request.match_info.route.resource is None
    if is_unknown and f"{request.path}/".startswith(f"{_ADMIN_PREFIX}/"):
        # Tools for Pulsar ask for more paths than there are here.
        reason += f"; see {PREFIX}/openapi.json for the paths that there are"
    # `Allow` of a 405 is part of its meaning.
    headers = {"Allow": error.headers[hdrs.ALLOW]} if hdrs.ALLOW in error.headers else {}
    return RefusalError(error.status, reason, headers=headers)
