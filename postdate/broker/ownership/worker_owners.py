"""The owners of bundles where the workers of one machine share a data folder: a map that holds as long as they run.

A worker that has ended stays the owner: it is started again at the same addresses, where connections wait for it.
"""

import asyncio
from collections.abc import Sequence

from managed_ledger.bundles import BundleRange
from postdate.broker.ownership.owners import BundleKeeper, OwnershipError, Reopening, ServiceInfo


def spread(ranges: Sequence[BundleRange], workers: int) -> list[tuple[BundleRange, ...]]:
    """Give the bundles to the workers in turn.

    >>> from managed_ledger.bundles import even_ranges
    >>> [len(bundles) for bundles in spread(even_ranges(5), 3)]
    [2, 2, 1]
    """
    ordered = sorted(ranges)
    return [tuple(ordered[worker::workers]) for worker in range(workers)]


class WorkerOwners:
    """The workers and the front process that share a data folder; `Owners` of each of them.

    Args:
        services: The front process, which has no bundles, and the workers.
        own_name: The name of the one that this process is.
    """

    def __init__(self, services: Sequence[ServiceInfo], own_name: str) -> None:
        self._own = next(one for one in services if one.name == own_name)
        self._others = tuple(one for one in services if one.name != own_name)
        self._by_bundle = {bundle: one for one in services for bundle in one.bundles}
        self._keeper: BundleKeeper | None = None
        self._reopening = Reopening()

    async def start(self, keeper: BundleKeeper) -> None:
        """Open the bundles of this process."""
        self._keeper = keeper
        await asyncio.gather(*map(keeper.open_bundle, self._own.bundles))

    def owner_of(self, bundle: BundleRange) -> ServiceInfo | None:
        """The worker of a bundle, also while it is being started again."""
        return self._by_bundle.get(bundle)

    def is_moving(self, bundle: BundleRange) -> bool:  # noqa: ARG002 - the protocol's
        """Never."""
        return False

    async def moved(self, bundle: BundleRange) -> None:
        """None moves."""

    def is_own(self, bundle: BundleRange) -> bool:
        """Whether the map gives it to this process."""
        return bundle in self._own.bundles

    def may_deliver(self, bundle: BundleRange) -> bool:
        """Whether it is this process's own: a bundle never moves."""
        return self.is_own(bundle)

    def note_lost(self, bundle: BundleRange) -> None:
        """Open it again: nobody else can have it."""
        if self._keeper is not None:
            self._reopening.begin(self._keeper, bundle)

    def services(self) -> Sequence[ServiceInfo]:
        """This process, then the others; only its own load is known to it."""
        load = 0.0 if self._keeper is None else sum(map(self._keeper.load_of, self._own.bundles))
        return (self._own._replace(load=load), *self._others)

    @property
    def own_name(self) -> str:
        """The name of this process."""
        return self._own.name

    def figures(self) -> None:
        """There are no leases."""

    def problems(self) -> Sequence[str]:
        """None: the bundles tell theirs, and the supervisor those of workers."""
        return ()

    async def transfer(self, bundle: BundleRange, to: str | None = None) -> None:  # noqa: ARG002 - the protocol's
        """No bundle moves between workers."""
        raise OwnershipError("The workers of a service keep their bundles: nothing can be moved")

    def begin_to_leave(self) -> None:
        """There is nobody to be told."""

    async def close(self) -> None:
        """Close the bundles of this process."""
        await self._reopening.close()
        if self._keeper is not None:
            await asyncio.gather(*map(self._keeper.close_bundle, self._own.bundles))
