"""Requests of this service to the others of its cluster, over HTTP and with the caller's own credentials.

Postdate-Forwarded       whole: answer for all; part: answer for this service alone. Neither is forwarded again
Postdate-Forwarded-For   the caller's address
Postdate-Forwarded-Role  the caller's role, without which its own credentials count
Postdate-Secret          shared by the workers of a machine, or the services of a prefix; without it neither address
                         nor role is believed
"""

import asyncio
import hmac
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Final
from urllib.parse import quote, unquote

import aiohttp
from aiohttp import hdrs, web
from yarl import URL

from postdate.broker.admin.endpoint import FORWARDED, FORWARDED_FOR, PART, ROLE, WHOLE_ANSWER
from postdate.broker.admin.refusal import RefusalError
from postdate.broker.admin.replies import Reply
from postdate.broker.configuration.tls_config import TlsConfig
from postdate.broker.ownership.owners import ServiceInfo

CONNECT_TIMEOUT_S: Final = 3.0
LOOK_TIMEOUT_S: Final = 60.0
"""How long a look may take until its answer begins; a change may take as long as it needs."""
LOOK_TRIES: Final = 3
"""How often a look is sent where the service ends meanwhile."""
WATCH_INTERVAL_S: Final = 0.5
"""The interval of looks whether the service that is asked still has the topic."""

_LOOKS: Final = (hdrs.METH_GET, hdrs.METH_HEAD)
_PASSED_ON: Final = (hdrs.AUTHORIZATION, hdrs.CONTENT_TYPE, hdrs.ACCEPT_ENCODING, "Operation-Id")
_ROLE: Final = "Postdate-Forwarded-Role"
_SECRET: Final = "Postdate-Secret"
_NOT_PASSED_BACK: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "date", "server", "upgrade"})
_REPEAT: Final = "Repeat it: the topic moves to another service, or its own comes back"
_ERRORS: Final = (aiohttp.ClientError, TimeoutError, OSError)


class Peers:
    """The other services.

    Args:
        tls: How this service's own ports have TLS; the others have certificates of the same authority.
        secret: Shared with the other services; None without any.
    """

    def __init__(self, tls: TlsConfig, secret: str | None = None) -> None:
        self._tls = tls
        self._secret = secret
        self._opened: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._opened is not None:
            await self._opened.close()

    def role_told(self, request: web.Request) -> str | None:
        """Return the role that another service says its caller has; None where it is not to be believed."""
        return unquote(request.headers[_ROLE]) if _ROLE in request.headers and self._is_known(request) else None

    def address_told(self, request: web.Request) -> str | None:
        """Return the address that another service says its caller has; None where it is not to be believed."""
        return request.headers.get(FORWARDED_FOR) if self._is_known(request) else None

    def _is_known(self, request: web.Request) -> bool:
        """Whether a request comes from another service that shares the secret."""
        shown = request.headers.get(_SECRET, "")
        return self._secret is not None and hmac.compare_digest(shown.encode(), self._secret.encode())

    async def forward(
        self, service: ServiceInfo, request: web.Request, body: bytes | None, is_owner: Callable[[], bool]
    ) -> web.StreamResponse:
        """Pass a request on to a service, and its answer back while it comes.

        Args:
            service: The service.
            request: The request.
            body: Its body, None if it has none.
            is_owner: Whether the service still has what is asked for; the wait for its answer ends where it has not.

        Raises:
            RefusalError: It does not answer.
        """
        timeout_s = LOOK_TIMEOUT_S if request.method in _LOOKS else None
        try:
            async with asyncio.timeout(timeout_s) as limit:
                reply = await _while(is_owner, self._send(service, request, request.method, WHOLE_ANSWER, body))
                limit.reschedule(None)
        except _ERRORS as error:
            what = f"{service.name}, which has what is asked for, does not answer: {_told(error)}"
            raise RefusalError(503, what, advice=_REPEAT, headers={"Retry-After": "1"}) from error
        async with reply:
            response = web.StreamResponse(status=reply.status, reason=reply.reason)
            for name, value in reply.headers.items():
                if name.lower() not in _NOT_PASSED_BACK:
                    response.headers.add(name, value)
            await response.prepare(request)
            try:
                async for chunk in reply.content.iter_any():
                    await response.write(chunk)
            except _ERRORS:
                if request.transport is not None:
                    # The status is sent already: an end in the middle tells the caller that the answer is not whole.
                    request.transport.abort()
                raise
            await response.write_eof()
            return response

    async def ask(self, service: ServiceInfo, request: web.Request, body: bytes | None, timeout_s: float) -> Reply:
        """Return the part of a service in the answer to a request about all topics.

        Args:
            service: The service.
            request: The request.
            body: Its body, None if it has none.
            timeout_s: How long a look may take; a change may take as long as it needs.
        """
        method = hdrs.METH_GET if request.method == hdrs.METH_HEAD else request.method
        sending = self._send(service, request, method, PART, body)
        return await _reply(service, sending, timeout_s if method == hdrs.METH_GET else None)

    async def look(self, service: ServiceInfo, path: str, role: str | None, timeout_s: float) -> Reply:
        """Return the part of a service in a look for a client that speaks Pulsar's protocol.

        Args:
            service: The service.
            path: The path, percent-encoded.
            role: The client's role, believed where the services share a secret; None without authentication.
            timeout_s: How long it may take.
        """
        sending = self._request(service, hdrs.METH_GET, path, {FORWARDED: PART} | self._known_by(role), None)
        return await _reply(service, sending, timeout_s)

    async def stream(
        self, service: ServiceInfo, request: web.Request, timeout_s: float
    ) -> AsyncGenerator[bytes, None] | None:
        """Return the body of a part, piece by piece; None where the service does not answer.

        Args:
            service: The service.
            request: The request.
            timeout_s: How long it may take until the answer begins.
        """
        try:
            async with asyncio.timeout(timeout_s):
                reply = await self._send(service, request, hdrs.METH_GET, PART, None)
        except _ERRORS:
            return None
        if reply.status != web.HTTPOk.status_code:
            reply.close()
            return None

        async def pieces() -> AsyncGenerator[bytes, None]:
            async with reply:
                async for chunk in reply.content.iter_any():
                    yield chunk

        return pieces()

    async def _send(
        self, service: ServiceInfo, request: web.Request, method: str, extent: str, body: bytes | None
    ) -> aiohttp.ClientResponse:
        passed = [
            name for name in _PASSED_ON if name in request.headers and (name, extent) != (hdrs.ACCEPT_ENCODING, PART)
        ]
        headers = {name: request.headers[name] for name in passed}
        headers |= {FORWARDED: extent, FORWARDED_FOR: request.remote or ""}
        headers |= self._known_by(request.get(ROLE))
        # As it came: what is percent-encoded stays so.
        return await self._request(service, method, request.raw_path, headers, body)

    async def _request(
        self, service: ServiceInfo, method: str, path: str, headers: dict[str, str], body: bytes | None
    ) -> aiohttp.ClientResponse:
        addresses = service.addresses
        url = addresses.web_url_tls or addresses.web_url
        if url is None:
            raise aiohttp.ClientConnectionError("it has no web port")
        # A look at a worker that ends just now waits for the one that takes its place. A POST may be done already, and
        # aiohttp itself repeats a PUT or a DELETE once.
        tries = LOOK_TRIES if method in _LOOKS else 1
        while True:
            tries -= 1
            try:
                return await self._session().request(
                    method,
                    URL(f"{url}{path}", encoded=True),
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    skip_auto_headers=(hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE, hdrs.USER_AGENT),
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                if isinstance(error, aiohttp.ClientConnectorError) or not tries:
                    raise

    def _known_by(self, role: str | None) -> dict[str, str]:
        """Return the headers by which another service knows this one, and believes the role of a caller."""
        if self._secret is None:
            return {}
        return {_SECRET: self._secret} | ({} if role is None else {_ROLE: quote(role)})

    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            context = ssl.create_default_context()
            if trusted := self._tls.trust_certs_path or self._tls.certificate_path:
                context.load_verify_locations(trusted)
            self._opened = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=context),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._opened


async def _reply(
    service: ServiceInfo, sending: Coroutine[Any, Any, aiohttp.ClientResponse], timeout_s: float | None
) -> Reply:
    """Return a whole answer, or why there is none."""
    try:
        async with asyncio.timeout(timeout_s), await sending as reply:
            return Reply(service.name, reply.status, await reply.read())
    except _ERRORS as error:
        return Reply(service.name, 0, _told(error).encode())


async def _while(
    is_owner: Callable[[], bool], work: Coroutine[Any, Any, aiohttp.ClientResponse]
) -> aiohttp.ClientResponse:
    """Wait for an answer, for as long as its service has what is asked for."""
    asking = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait([asking], timeout=WATCH_INTERVAL_S))[0]:
            if not is_owner():
                raise aiohttp.ClientConnectionError("it has lost that meanwhile")
        return asking.result()
    finally:
        asking.cancel()


def _told(error: Exception) -> str:
    return str(error) or ("it takes too long" if isinstance(error, TimeoutError) else type(error).__name__)
