"""Any service answers for all: what is about another one's topic is forwarded, and what is about all is merged.

    request ─► reach of its endpoint ─┬─ this service ─────────────────────────► handler
                                      ├─ the owner of a bundle ─► its web port ─► its answer, as it comes
                                      └─ all ─► handler, and the part of each other service ─► one answer

A redirect (307), as Pulsar answers, would send a browser and its token to an address that only this machine may reach.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final
from urllib.parse import quote

import msgspec
from aiohttp import web

from managed_ledger.bundles import BundleRange, bundle_of
from postdate.broker.admin.endpoint import (
    FORWARDED,
    Call,
    Endpoint,
    Handle,
    Reach,
    body_of,
    is_part,
    topic_name_in,
)
from postdate.broker.admin.metrics_merging import FamilyReader, merged_pages
from postdate.broker.admin.peers import Peers
from postdate.broker.admin.refusal import RefusalError
from postdate.broker.admin.replies import Reply
from postdate.broker.errors import NotServedError
from postdate.broker.ownership.owners import Owners, ServiceInfo
from postdate.broker.topics.topic_name import TopicName

_METRICS_PATIENCE_S: Final = 5.0
"""Less than the 10 s after which Prometheus gives a scrape up."""
_TOPICS_PATIENCE_S: Final = 10.0
"""Less than the 30 s after which a client of Pulsar's protocol gives a request up."""
_NO_OWNER_ADVICE: Final = "Repeat it in a moment: a service is about to take it"


class Forwarding:
    """The other services of a cluster, for the endpoints of this one; belongs to one event loop.

    Args:
        owners: Say which service has which bundle.
        ranges: All bundles, in order.
        peers: Sends requests.
        lines_bytes_max: How large a body of lines may be.
    """

    def __init__(self, owners: Owners, ranges: Sequence[BundleRange], peers: Peers, *, lines_bytes_max: int) -> None:
        self._owners = owners
        self._ranges = ranges
        self._peers = peers
        self._lines_bytes_max = lines_bytes_max

    async def close(self) -> None:
        """Close the connections to the other services."""
        await self._peers.close()

    def role_told(self, request: web.Request) -> str | None:
        """Return the role that another service says its caller has; None where it is not to be believed."""
        return self._peers.role_told(request)

    def address_told(self, request: web.Request) -> str | None:
        """Return the address that another service says its caller has; None where it is not to be believed."""
        return self._peers.address_told(request)

    async def forwarded(self, endpoint: Endpoint, request: web.Request) -> web.StreamResponse | None:
        """Have the request answered by the service that it is about; None where this one is to answer.

        Raises:
            RefusalError: No service has what it is about, or that one does not answer.
        """
        bundle = None if FORWARDED in request.headers else self._bundle_of(endpoint, request)
        if bundle is None or self._owners.is_own(bundle):
            return None
        owner = self._owners.owner_of(bundle)
        if owner is None:
            error = "No service has what is asked for now"
            raise RefusalError(503, error, advice=_NO_OWNER_ADVICE, headers={"Retry-After": "1"})
        if owner.name == self._owners.own_name:
            return None

        def is_owner() -> bool:
            now = self._owners.owner_of(bundle)
            return now is not None and now.name == owner.name

        return await self._peers.forward(owner, request, await self._body(endpoint, request), is_owner)

    def _bundle_of(self, endpoint: Endpoint, request: web.Request) -> BundleRange | None:
        """Return the bundle whose service is to answer a request; None where any can."""
        if endpoint.reaches is Reach.TOPIC:
            return bundle_of(str(topic_name_in(request)), self._ranges)
        return self._ranges[0] if endpoint.action and endpoint.reaches is not Reach.ANY else None

    async def merged(self, endpoint: Endpoint, call: Call[Any], own: Handle) -> object:
        """Return the answer of all services.

        Raises:
            RefusalError: One refuses or does not answer, and the answer would mislead without it.
        """
        others = self._owners.services()[1:]
        if not others or endpoint.merge is None:
            return await own()
        # The handler has read the body before, and aiohttp keeps it.
        body = await call.request.read() if call.request.body_exists else None
        asking = [
            asyncio.ensure_future(self._peers.ask(one, call.request, body, endpoint.patience_s)) for one in others
        ]
        try:
            replies = [await self._own_reply(own), *await asyncio.gather(*asking)]
        finally:
            for one in asking:
                one.cancel()
        return endpoint.merge(call.asked, replies)

    async def _own_reply(self, own: Handle) -> Reply:
        name = self._owners.own_name
        try:
            found = await own()
        except RefusalError as error:
            if error.status != web.HTTPNotFound.status_code:
                raise
            return Reply(name, error.status, msgspec.json.encode({"error": str(error)}))
        if isinstance(found, web.Response):
            assert isinstance(found.body, bytes)
            return Reply(name, found.status, found.body)
        return Reply(name, web.HTTPOk.status_code, msgspec.json.encode(found))

    async def topics(self, namespace: str, role: str | None) -> list[str]:
        """Return the topics of a namespace (`tenant/namespace`) that other services have and a client's role may see.

        Raises:
            NotServedError: A bundle has no owner now, or one does not answer.
        """
        owners = {one.name: one for one in map(self._owner, self._ranges)}
        owners.pop(self._owners.own_name, None)
        path = f"/admin/v2/persistent/{quote(namespace)}"
        looks = (self._peers.look(one, path, role, _TOPICS_PATIENCE_S) for one in owners.values())
        found = [_usable(one) for one in await asyncio.gather(*looks)]
        # One without topics of the namespace does not know it.
        return [name for one in found if one.status == 200 for name in msgspec.json.decode(one.body, type=list[str])]

    async def has_topic(self, name: TopicName, role: str | None) -> bool:
        """Whether there is a topic of another service, which a client's role may look up.

        Raises:
            NotServedError: It has no owner now but this service, or that one does not answer.
        """
        owner = self._owner(bundle_of(str(name), self._ranges))
        if owner.name == self._owners.own_name:
            raise NotServedError(f"{name} is not served here now: look it up again")
        parts = "/".join(quote(part, safe="") for part in name)
        path = f"/admin/v2/persistent/{parts}/subscriptions"
        return _usable(await self._peers.look(owner, path, role, _TOPICS_PATIENCE_S)).status == 200

    def _owner(self, bundle: BundleRange) -> ServiceInfo:
        owner = self._owners.owner_of(bundle)
        if owner is None:
            raise NotServedError("No service has some of the topics now: ask again")
        return owner

    async def metrics(self, request: web.Request, own: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """Return the metrics of all services, piece by piece; one that does not answer is told as such."""
        others = () if is_part(request) else self._owners.services()[1:]
        if not others:
            return own
        streams = await asyncio.gather(*(self._peers.stream(one, request, _METRICS_PATIENCE_S) for one in others))
        return self._merged_metrics(own, others, streams)

    async def _merged_metrics(
        self,
        own: AsyncGenerator[bytes, None],
        others: Sequence[ServiceInfo],
        streams: Sequence[AsyncGenerator[bytes, None] | None],
    ) -> AsyncGenerator[bytes, None]:
        found = {self._owners.own_name: own}
        found |= {one.name: stream for one, stream in zip(others, streams, strict=True) if stream is not None}
        silent = [one.name for one, stream in zip(others, streams, strict=True) if stream is None]
        readers = [FamilyReader(name, stream) for name, stream in found.items()]
        try:
            await asyncio.gather(*(one.begin() for one in readers))
            async with aclosing(merged_pages(readers, silent)) as pages:
                async for chunk in pages:
                    yield chunk
        finally:
            for stream in found.values():
                await stream.aclose()

    async def _body(self, endpoint: Endpoint, request: web.Request) -> bytes | None:
        """Return the body of a request to forward; its handler would read it at once, too."""
        if not request.body_exists:
            return None
        if endpoint.takes_lines:
            request = request.clone(client_max_size=self._lines_bytes_max)
        return await body_of(request)


def _usable(reply: Reply) -> Reply:
    """Return an answer, which may be that there is nothing.

    Raises:
        NotServedError: There is none.
    """
    if reply.status not in (200, 404):
        raise NotServedError(f"Not all services answer; {reply.reason}")
    return reply
