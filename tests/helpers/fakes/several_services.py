"""Services that share a data folder, each with some of its bundles and a web port, in one process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from managed_ledger.bundles import BundleRange, bundle_of, even_ranges
from postdate.broker.admin.web import WebServer, start_web
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.ownership.owners import Addresses, BundleKeeper, OwnershipError, ServiceInfo
from postdate.broker.server.server import access_of, all_routes, forwarding_of
from postdate.broker.service.service import Service
from postdate.broker.topics.topic_name import TopicName

BUNDLES = even_ranges(4)
NOW_MS = 1_700_000_000_000


class FixedOwners:
    """A list of services that a test sets; it says who has which bundle."""

    def __init__(self, services: list[ServiceInfo], number: int) -> None:
        self.known = services
        self._number = number
        self._keeper: BundleKeeper | None = None

    async def start(self, keeper: BundleKeeper) -> None:
        self._keeper = keeper
        for bundle in self.known[self._number].bundles:
            await keeper.open_bundle(bundle)

    def owner_of(self, bundle: BundleRange) -> ServiceInfo | None:
        return next((one for one in self.known if bundle in one.bundles), None)

    def is_moving(self, bundle: BundleRange) -> bool:
        return False

    async def moved(self, bundle: BundleRange) -> None:
        pass

    def is_own(self, bundle: BundleRange) -> bool:
        return bundle in self.known[self._number].bundles

    def may_deliver(self, bundle: BundleRange) -> bool:
        return self.is_own(bundle)

    def note_lost(self, bundle: BundleRange) -> None:
        pass

    def services(self) -> Sequence[ServiceInfo]:
        own = self.known[self._number]
        return (own._replace(load=1.0), *(one for one in self.known if one is not own))

    @property
    def own_name(self) -> str:
        return self.known[self._number].name

    def figures(self) -> None:
        pass

    def problems(self) -> tuple[str, ...]:
        return ()

    async def transfer(self, bundle: BundleRange, to: str | None = None) -> None:
        raise OwnershipError("Nothing moves in this test")

    def begin_to_leave(self) -> None:
        pass

    async def close(self) -> None:
        assert self._keeper is not None
        for bundle in BUNDLES:
            await self._keeper.close_bundle(bundle)


@dataclass(frozen=True, slots=True)
class Part:
    """One of the services."""

    service: Service
    web: WebServer
    owners: FixedOwners

    @property
    def url(self) -> str:
        """The address of its web port."""
        return f"http://127.0.0.1:{self.web.port}"

    async def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Send a request, and return the status and the body."""
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"{self.url}{path}", json=body, headers=headers) as reply,
        ):
            is_json = reply.content_type == "application/json"
            return reply.status, await (reply.json() if is_json else reply.text())


def topic_at(number: int) -> TopicName:
    """Return a topic whose bundle the service of this number has."""
    names = (TopicName.parse(f"shop/eu/orders-{at}") for at in range(1_000))
    return next(one for one in names if BUNDLES.index(bundle_of(str(one), BUNDLES)) // 2 == number)


@asynccontextmanager
async def several_services(folder: Path, secret: str | None = None, **settings: Any) -> AsyncIterator[list[Part]]:
    """Open two services with two bundles each."""
    config = BrokerConfig(data_directory=folder, bundle_count=len(BUNDLES), **settings)
    known = [ServiceInfo(name, Addresses(), BUNDLES[2 * at : 2 * at + 2]) for at, name in enumerate(("one", "two"))]
    async with AsyncExitStack() as opened:
        parts: list[Part] = []
        for number, info in enumerate(list(known)):
            owners = FixedOwners(known, number)
            service = await Service.open(config, now_ms=lambda: NOW_MS, owners=owners)
            opened.push_async_callback(service.close)
            forwarding = forwarding_of(service, secret)
            opened.push_async_callback(forwarding.close)
            web = await start_web(
                "127.0.0.1",
                0,
                metrics=service.metrics,
                health=lambda: {"pid": 7, "uptime_ms": 12},
                problems=service.problems,
                routes=all_routes(service, forwarding),
                access=access_of(service, forwarding),
                elsewhere=forwarding,
            )
            opened.push_async_callback(web.close)
            known[number] = info._replace(addresses=Addresses(web_url=f"http://127.0.0.1:{web.port}"))
            parts.append(Part(service, web, owners))
        yield parts


def play_parts(
    folder: Path, story: Callable[[list[Part]], Awaitable[None]], secret: str | None = None, **settings: Any
) -> None:
    """Run a story on two services."""

    async def run() -> None:
        async with several_services(folder, secret, **settings) as parts:
            await story(parts)

    asyncio.run(run())
