"""Who owns a bundle: what a service asks, and what its owners tell it.

look-up ─► Owners.owner_of(bundle) ─► this service, or the addresses of another one
Owners ─► BundleKeeper.open_bundle, close_bundle, when a bundle comes or goes
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from managed_ledger.bundles import BundleRange
from snapshot_storage.backoff import Backoff

logger = logging.getLogger(__name__)


class Addresses(NamedTuple):
    """Where clients reach a service; None where it has no such port."""

    service_url: str | None = None
    service_url_tls: str | None = None
    web_url: str | None = None
    web_url_tls: str | None = None


class ServiceInfo(NamedTuple):
    """A service of a cluster, or a worker of a service, as the others see it.

    Attributes:
        name: Unique among those that live; `host:port` of its web port, as Pulsar names brokers.
        addresses: Where clients reach it.
        bundles: The bundles that it has open.
        load: Messages a second that it takes and delivers, as it last said.
    """

    name: str
    addresses: Addresses
    bundles: tuple[BundleRange, ...] = ()
    load: float = 0.0


class LeaseFigures(NamedTuple):
    """Figures for metrics.

    Attributes:
        members: Services that live, with this one.
        owned_bundles: Bundles that are open here.
        renewal_age_s: Seconds since the last renewal that counts; None while there is none.
        takeovers: Bundles that were opened here after their owner had died.
        lapses: How often this service could not renew for a whole lease, and gave up its bundles.
    """

    members: int
    owned_bundles: int
    renewal_age_s: float | None
    takeovers: int
    lapses: int


class BundleKeeper(Protocol):
    """The service, as its owners know it: it opens and closes bundles when they say so."""

    async def open_bundle(self, bundle: BundleRange) -> None:
        """Open a bundle; its topics can be used on return. Nothing happens if it is open.

        Raises:
            LedgerError: It cannot be opened now, or another process has it.
            SnapshotStorageError: Something is wrong for good with its index.
            OSError: The disk refuses.
        """

    async def close_bundle(self, bundle: BundleRange, *, is_lost: bool = False) -> None:
        """Close a bundle: its clients look its topics up again. Nothing happens if it is closed.

        Args:
            bundle: The bundle.
            is_lost: Whether another service may have it already, so that nothing can be written any more.
        """

    def give_up(self, bundle: BundleRange) -> None:
        """Fail all writes to an open bundle from now on, also one under way; it is closed as lost later."""

    async def warm_bundle(self, bundle: BundleRange) -> None:
        """Bring what an opening of the bundle would have to read near, as far as that helps."""

    def load_of(self, bundle: BundleRange) -> float:
        """Messages a second that an open bundle takes and delivers, of the last minute or so."""


class Owners(Protocol):
    """Decides which bundles a service has; belongs to one event loop."""

    async def start(self, keeper: BundleKeeper) -> None:
        """Begin to take and to leave bundles. Returns once this service takes part, not when all are open."""

    def owner_of(self, bundle: BundleRange) -> ServiceInfo | None:
        """The service that has a bundle, or is about to; None while nobody is known to.

        Each look-up asks: what the service has open, and its load, is told by `services` alone.
        """

    def is_moving(self, bundle: BundleRange) -> bool:
        """Whether the owner of a bundle is not known for sure: it is silent, or the bundle is on its way to another."""

    async def moved(self, bundle: BundleRange) -> None:
        """Wait while a bundle moves, and no longer than a client would wait for the answer to a look-up."""

    def is_own(self, bundle: BundleRange) -> bool:
        """Whether this service has the bundle: it answers for its topics."""

    def may_deliver(self, bundle: BundleRange) -> bool:
        """Whether a delivery is safe now by this service's own clock: no other service can have the bundle yet."""

    def note_lost(self, bundle: BundleRange) -> None:
        """A bundle of this service is open no more, as its log was taken by another one, or it did not open again.

        The keeper closes it without being told to.
        """

    def services(self) -> Sequence[ServiceInfo]:
        """All services that live, this one first."""

    @property
    def own_name(self) -> str:
        """The name of this service."""

    def figures(self) -> LeaseFigures | None:
        """Figures for metrics; None where there are no leases."""

    def problems(self) -> Sequence[str]:
        """List what keeps this service from having its bundles, for `/health`; empty when all is well."""

    async def transfer(self, bundle: BundleRange, to: str | None = None) -> None:
        """Move a bundle to a service, to any other one with None.

        Raises:
            OwnershipError: There is no such service, no other one, or this kind of owner moves none.
        """

    def begin_to_leave(self) -> None:
        """Tell the others that this service is about to leave, so that they are ready; nobody waits for a move here."""

    async def close(self) -> None:
        """Leave the others: they take over at once. Bundles of this service are closed before, by this call."""


class OwnershipError(Exception):
    """A bundle cannot be moved; the text says why."""


class Reopening:
    """Opens bundles again that nobody else can have, until each is open; belongs to one event loop."""

    def __init__(self) -> None:
        self._tasks: dict[BundleRange, asyncio.Task[None]] = {}
        self._closing = asyncio.Event()

    def begin(self, keeper: BundleKeeper, bundle: BundleRange) -> None:
        """Open a bundle after a pause; nothing happens if that is going on."""
        if bundle not in self._tasks and not self._closing.is_set():
            task = self._tasks[bundle] = asyncio.get_running_loop().create_task(self._open(keeper, bundle))
            task.add_done_callback(lambda _: self._tasks.pop(bundle))

    async def _open(self, keeper: BundleKeeper, bundle: BundleRange) -> None:
        backoff = Backoff(min_ms=1_000, max_ms=30_000)
        while not self._closing.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), backoff.next_seconds())
                return
            try:
                await keeper.open_bundle(bundle)
            except Exception as error:  # Whatever a storage or a log raises: it is tried again.
                logger.warning("Bundle %s cannot be opened now: %s", bundle, error)
            else:
                return

    async def close(self) -> None:
        """Begin nothing more, and wait for what is being opened."""
        self._closing.set()
        await asyncio.gather(*self._tasks.values())


class SoleOwner:
    """The one service of a data folder: all bundles are its own."""

    def __init__(self, bundles: Sequence[BundleRange], addresses: Addresses, name: str) -> None:
        self._bundles = tuple(bundles)
        self._own = ServiceInfo(name, addresses, self._bundles)
        self._keeper: BundleKeeper | None = None
        self._reopening = Reopening()

    async def start(self, keeper: BundleKeeper) -> None:
        """Open all bundles."""
        self._keeper = keeper
        await asyncio.gather(*map(keeper.open_bundle, self._bundles))

    def owner_of(self, bundle: BundleRange) -> ServiceInfo | None:  # noqa: ARG002 - all are its own
        """This service."""
        return self._own

    def is_moving(self, bundle: BundleRange) -> bool:  # noqa: ARG002
        """Never."""
        return False

    async def moved(self, bundle: BundleRange) -> None:
        """None moves."""

    def is_own(self, bundle: BundleRange) -> bool:  # noqa: ARG002
        """Always."""
        return True

    def may_deliver(self, bundle: BundleRange) -> bool:  # noqa: ARG002
        """Always."""
        return True

    def note_lost(self, bundle: BundleRange) -> None:
        """Open it again: nobody else can have it."""
        if self._keeper is not None:
            self._reopening.begin(self._keeper, bundle)

    def services(self) -> Sequence[ServiceInfo]:
        """This one."""
        load = 0.0 if self._keeper is None else sum(map(self._keeper.load_of, self._bundles))
        return (self._own._replace(load=load),)

    @property
    def own_name(self) -> str:
        """The name of this service."""
        return self._own.name

    def figures(self) -> None:
        """There are no leases."""

    def problems(self) -> Sequence[str]:
        """None: the bundles tell theirs."""
        return ()

    async def transfer(self, bundle: BundleRange, to: str | None = None) -> None:  # noqa: ARG002
        """There is nobody to move a bundle to."""
        raise OwnershipError("There is no other service: nothing can be moved")

    def begin_to_leave(self) -> None:
        """There is nobody to be told."""

    async def close(self) -> None:
        """Close all bundles."""
        await self._reopening.close()
        if self._keeper is not None:
            await asyncio.gather(*map(self._keeper.close_bundle, self._bundles))
