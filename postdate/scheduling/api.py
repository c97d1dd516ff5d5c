"""One request to `/postdate/v1` and its answer, with the standard library alone.

A request is sent once and never retried, since a change whose answer was lost may have been made. The service checks
requests; its errors become exceptions with the field and the advice.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen
from uuid import uuid4

from managed_ledger.names import full_topic_name
from managed_ledger.positions.value_types import Json
from postdate.command_line.client_tls import ClientTlsError, client_context
from postdate.command_line.failures import reason_of
from postdate.scheduling.errors import ScheduleArgumentError, ScheduleRequestError, ServiceUnavailableError

PREFIX: Final = "/postdate/v1"
TIMEOUT_S: Final = 30.0
PAGE_MESSAGES: Final = 1_000
"""The most messages that the service gives in one page."""

CHANGE_TIMEOUT_S: Final = 600.0
"""How long a change may take: 500,000 messages in one call are in it."""

Token = str | Callable[[], str] | None
TlsFiles = tuple[str | None, str | None, str | None]
"""The authorities to trust, the caller's certificate and its key."""


class ScheduleApi:
    """The HTTP interface of scheduled messages at one service.

    Args:
        admin_url: The service's web port, like `http://127.0.0.1:8080`.
        token: The caller's token, where the service authenticates callers; a function is called for each request.
        tls_trust_certs_file: The authorities to trust for `https`; None for those of the system.
        tls_certificate_file: The caller's certificate, where the service asks for one.
        tls_private_key_file: The key of the certificate, without a password.

    Raises:
        ScheduleArgumentError: The address is invalid, or a file cannot be used.
    """

    def __init__(
        self,
        admin_url: str,
        *,
        token: Token = None,
        tls_trust_certs_file: str | None = None,
        tls_certificate_file: str | None = None,
        tls_private_key_file: str | None = None,
    ) -> None:
        if not admin_url.startswith(("http://", "https://")):
            raise ScheduleArgumentError(f"{admin_url!r} is no address of a web port: write http://host:port")
        self.admin_url = admin_url.rstrip("/")
        self.token = token
        self._tls = None
        self.tls_files = files = (tls_trust_certs_file, tls_certificate_file, tls_private_key_file)
        try:
            # Files that are named for `http` are still meant for something, as for a scheduler's publishing.
            if admin_url.startswith("https://") or files != (None, None, None):
                self._tls = client_context(*files)
        except ClientTlsError as error:
            raise ScheduleArgumentError(str(error)) from error

    def get(self, path: str) -> Json:
        """Send a GET; the path begins behind `/postdate/v1`.

        Raises:
            ScheduleRequestError: The service refuses.
            ServiceUnavailableError: It does not answer.
        """
        return self._send(Request(f"{self.admin_url}{PREFIX}{path}"), TIMEOUT_S)

    def pages(self, path: str, asked: Json, *, limit: int | None = None) -> Iterator[Json]:
        """Ask for a list page by page, each when it is needed, and for no more messages than the limit.

        Raises:
            ScheduleRequestError: The service refuses.
            ServiceUnavailableError: It does not answer.
        """
        left = limit
        after: Json = {}
        while left is None or left > 0:
            size = PAGE_MESSAGES if left is None else min(PAGE_MESSAGES, left)
            page = self.look(path, {**asked, "limit": size, **after})
            yield page
            if page["next"] is None:
                return
            left = None if left is None else left - len(page["messages"])
            after = {"after": page["next"]}

    def look(self, path: str, asked: Json) -> Json:
        """Send a POST that changes nothing: a key and properties may be longer than a query can be.

        Raises:
            ScheduleRequestError: The service refuses.
            ServiceUnavailableError: It does not answer.
        """
        return self._send(self._request(path, asked), TIMEOUT_S)

    def post(self, path: str, body: Json, *, operation_id: str | None = None) -> Json:
        """Send a POST; by `operation_id` another thread can read its progress meanwhile (`operation`).

        Raises:
            ScheduleRequestError: The service refuses, and nothing has changed.
            ServiceUnavailableError: It does not answer; whether it was done is not known.
        """
        request = self._request(path, body)
        if operation_id is not None:
            request.add_header("Operation-Id", operation_id)
        return self._send(request, CHANGE_TIMEOUT_S)

    def post_lines(self, path: str, bodies: Iterable[Json]) -> Json:
        """Send a POST with an object in each line, of which the service takes all or none.

        Raises:
            ScheduleRequestError: The service refuses, and nothing has changed.
            ServiceUnavailableError: It does not answer; whether it was done is not known.
        """
        data = b"".join(json.dumps(one).encode() + b"\n" for one in bodies)
        return self._send(self._request(path, data, "application/x-ndjson"), CHANGE_TIMEOUT_S)

    def service_url(self, topic: str) -> str:
        """Return where clients of Pulsar's protocol connect for a topic; with TLS where this caller uses it.

        Raises:
            ScheduleRequestError: The service refuses.
            ServiceUnavailableError: It does not answer.
        """
        path = topic_path(topic).removeprefix("/topics")
        found = self._send(Request(f"{self.admin_url}/lookup/v2/topic/persistent{path}"), TIMEOUT_S)
        names = ("brokerUrl", "brokerUrlTls") if self._tls is None else ("brokerUrlTls", "brokerUrl")
        return next(str(found[name]) for name in names if name in found)

    def admin(
        self, method: str, topic: str, path: str, body: Json | str | None = None, *, options: Json | None = None
    ) -> Json:
        """Send a request to one of Pulsar's admin paths for a topic; an answer without a body is empty.

        Args:
            method: The HTTP method.
            topic: The topic, in any form of its name that clients use.
            path: What follows the topic's own path, with its slash.
            body: The body, None for none.
            options: Parameters of the URL: texts, and flags, which are named where they are set.

        Raises:
            ScheduleRequestError: The service refuses, and nothing has changed.
            ServiceUnavailableError: It does not answer; whether it was done is not known.
        """
        chosen = {name: "true" if value is True else value for name, value in (options or {}).items() if value}
        query = f"?{urlencode(chosen)}" if chosen else ""
        url = f"{self.admin_url}/admin/v2/persistent{topic_path(topic).removeprefix('/topics')}{path}{query}"
        request = Request(url, data=None if body is None else json.dumps(body).encode(), method=method)
        request.add_header("Content-Type", "application/json")
        return self._send(request, CHANGE_TIMEOUT_S)

    def _request(self, path: str, body: Json | bytes, content_type: str = "application/json") -> Request:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = Request(f"{self.admin_url}{PREFIX}{path}", data=data, method="POST")
        request.add_header("Content-Type", content_type)
        return request

    def operation(self, operation_id: str) -> Json:
        """Return the progress of a running change.

        Raises:
            ScheduleRequestError: The service does not know it, as it has not begun yet.
            ServiceUnavailableError: The service does not answer.
        """
        return self.get(f"/operations/{quote(operation_id, safe='')}")

    def _send(self, request: Request, timeout_s: float) -> Json:
        token = self.token() if callable(self.token) else self.token
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urlopen(request, timeout=timeout_s, context=self._tls) as answer:
                data = answer.read()
                found: Json = json.loads(data) if data else {}
                return found
        except HTTPError as error:
            raise _refusal(error) from error
        except (URLError, HTTPException, OSError) as error:
            raise ServiceUnavailableError(f"no service answers at {self.admin_url}: {reason_of(error)}") from error
        except ValueError as error:
            raise ServiceUnavailableError(f"what answers at {self.admin_url} is no service of Postdate") from error


def _refusal(error: HTTPError) -> ScheduleRequestError | ServiceUnavailableError:
    with error:
        try:
            answer: Any = json.load(error)
            text = answer.get("error", answer.get("reason"))
        except (ValueError, AttributeError, OSError):
            answer, text = {}, None
    text = text or f"the service answered {error.code} {error.reason}"
    advice = answer.get("advice") or ""
    # A failure within the service may come after a part of a change.
    if error.code >= 500:
        return ServiceUnavailableError(f"{text}. {advice}" if advice else text)
    return ScheduleRequestError(error.code, text, field=answer.get("field"), advice=advice)


def topic_path(topic: str) -> str:
    """Return the path of a topic's resources, from any form of its name that clients use.

    >>> topic_path("reminders"), topic_path("persistent://shop/eu/orders ü")
    ('/topics/public/default/reminders', '/topics/shop/eu/orders%20%C3%BC')

    Raises:
        ScheduleArgumentError: The text is no name of a topic.
    """
    domain, separator, name = full_topic_name(topic).partition("://")
    parts = name.split("/", 2)
    if not separator or domain != "persistent" or len(parts) != 3 or not all(parts):
        raise ScheduleArgumentError(f"{topic!r} is no topic: write topic, tenant/namespace/topic or persistent://...")
    return "/topics/" + "/".join(quote(part, safe="") for part in parts)


def new_operation_id() -> str:
    """Return an id for a change, by which its progress can be read."""
    return uuid4().hex
