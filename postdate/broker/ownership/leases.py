"""Services that share a prefix: each renews an object of its own, watches the others', and takes its share of bundles.

    renew   each fifth of a lease, and at each change of what it has: one PUT
    look    each half second, or fifth of a lease: the known members; each fifth of a lease, a listing for new ones
    act     plan (`core.placement`), then one step for each bundle that needs one (`core.handover`)

Nothing here keeps data safe: two services that both believe that they own a bundle are told apart by the fence of its
log. This decides who tries, and when, so that a bundle has one owner soon, and is not opened here and there by turns.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from managed_ledger.bundles import BundleRange
from managed_ledger.errors import LogFencedError
from managed_ledger.objects.object_store import ObjectStore
from postdate.broker.ownership.core.handover import Step, next_step
from postdate.broker.ownership.core.membership import Member, Membership
from postdate.broker.ownership.core.placement import Plan, holder_of, next_other, place, runners_up
from postdate.broker.ownership.member_objects import MemberObjects
from postdate.broker.ownership.own_lease import LeaseGoneError, OwnLease
from postdate.broker.ownership.owners import Addresses, BundleKeeper, LeaseFigures, OwnershipError, ServiceInfo
from snapshot_storage.backoff import Backoff
from snapshot_storage.errors import SnapshotStorageError

logger = logging.getLogger(__name__)

DELIVERY_SHARE: Final = 0.8
"""Of a lease: after it, a service that could not renew delivers nothing, well before another may have the bundle."""
_LOOK_S: Final = 0.5
_EXPECTING_LOOK_S: Final = 0.1
_SETTLING_S: Final = 1.0
"""How long the first of several services that start together waits for the others, at most."""
WARM_S: Final = 20.0
"""How often a runner-up brings its copy of a bundle up to date."""
_LOOK_UP_MARGIN_S: Final = 5.0
_LOOK_UP_S_MAX: Final = 20.0
"""How long a look-up waits for an owner at most. A client gives up after 30 s by default, and one that is refused, or
sent to a dead service, makes pauses that grow to a minute."""
_FAILURES_MAX: Final = 3
_FAILING_S: Final = 60.0
_REFUSAL_S: Final = 300.0
"""A service that could not keep a bundle so many times within a minute leaves it to others for five minutes."""
_THREADS: Final = 8
_START_LEASES: Final = 3
"""How long a service that starts asks a storage that is slow, or busy."""


def since_boot_s() -> float:
    """Return seconds of a clock that never goes back, and counts while the machine sleeps where there is such a one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class LeaseOwners:
    """The services of a prefix, as one of them.

    Args:
        objects: The prefix.
        bundles: All its bundles.
        name: Of this service, unique among those of the prefix, and the same after a restart.
        addresses: Where clients reach this service.
        lease_s: How long a service that does not renew keeps its bundles, in seconds.
        clock_s: See `since_boot_s`; a test's own.
        executor: Runs the calls to the storage; None for threads of its own.
        new_id: Draws the id of a member.
    """

    def __init__(
        self,
        objects: ObjectStore,
        bundles: Sequence[BundleRange],
        *,
        name: str,
        addresses: Addresses,
        lease_s: float,
        clock_s: Callable[[], float] = since_boot_s,
        executor: Executor | None = None,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._bundles = tuple(bundles)
        self._name = name
        self._addresses = addresses
        self._lease_s = lease_s
        self._clock_s = clock_s
        self._new_id = new_id
        self._own_executor = ThreadPoolExecutor(_THREADS, "members") if executor is None else None
        # A slow storage must be able to answer; a call that hangs must leave time for others before the lease is over.
        self._members = MemberObjects(objects, executor or self._own_executor, lease_s * 0.25)  # type: ignore[arg-type]
        self._seen = Membership(lease_s)
        self._lease = OwnLease(self._members, new_id(), lease_s, clock_s)
        self._former: set[str] = set()
        self._keeper: BundleKeeper | None = None
        self._opened: set[BundleRange] = set()
        self._opening: set[BundleRange] = set()
        self._closing: set[BundleRange] = set()
        self._ready: set[BundleRange] = set()
        self._pinned: set[BundleRange] = set()
        self._lost_early: set[BundleRange] = set()
        self._given_up: set[BundleRange] = set()
        """Those that a lapse has closed, or will once a work about them has ended: nothing else is begun before."""
        self._wanted: dict[BundleRange, str] = {}
        self._work: dict[BundleRange, asyncio.Task[None]] = {}
        self._backoffs: dict[BundleRange, Backoff] = {}
        self._not_before_s: dict[BundleRange, float] = {}
        self._warmed_s: dict[BundleRange, float] = {}
        self._is_settled = False
        self._is_leaving = False
        self._has_changed = asyncio.Event()
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._listed_s = float("-inf")
        self._troubles: dict[str, str] = {}
        self._unopened: dict[BundleRange, str] = {}
        self._failed_s: dict[BundleRange, list[float]] = {}
        """When each bundle could not be opened here, or was lost, in the last minute."""
        self._refused_until_s: dict[BundleRange, float] = {}
        self._takeovers = 0
        self._lapses = 0

    async def start(self, keeper: BundleKeeper) -> None:
        """Join the others, and begin to take bundles.

        Raises:
            Exception: What the storage has for failures: it cannot be written to, or listed. What may pass is tried
                again for three leases before.
        """
        self._keeper = keeper
        until_s = self._clock_s() + _START_LEASES * self._lease_s
        await self._retried("renewed", self._renew, until_s)
        self._spawn(self._keep_renewing())
        await self._retried("listed", self._settle, until_s)
        if any(one.name == self._name for one in self._others()):
            logger.info(
                "This service has not stopped in order: what it had is opened here or elsewhere once its lease of "
                "before is over, within %g s",
                self._lease_s,
            )
        self._spawn(self._keep_looking())
        self._spawn(self._keep_copies_warm())

    async def _retried(self, what: str, work: Callable[[], Coroutine[Any, Any, None]], until_s: float) -> None:
        while True:
            try:
                await work()
            except (TimeoutError, SnapshotStorageError) as error:
                is_passing = isinstance(error, TimeoutError) or error.retriable
                if not is_passing or self._clock_s() >= until_s:
                    raise
                self._is_ill(what, error)
                await asyncio.sleep(self._lease_s / 20)
            else:
                self._is_well(what)
                return

    def owner_of(self, bundle: BundleRange) -> ServiceInfo | None:
        if self.is_own(bundle) or bundle in self._opening:
            return ServiceInfo(self._name, self._addresses)
        others = [one for one in self._others() if bundle not in one.closing]
        holder = holder_of(bundle, others)
        return None if holder is None else ServiceInfo(holder.name, holder.addresses)

    def is_moving(self, bundle: BundleRange) -> bool:
        if self.is_own(bundle):
            return False
        holder = holder_of(bundle, [one for one in self._others() if bundle not in one.closing])
        if holder is None or bundle not in holder.opened:
            return True
        return holder.is_leaving or self._seen.is_in_doubt(holder.id)

    async def moved(self, bundle: BundleRange) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(min(self._lease_s + _LOOK_UP_MARGIN_S, _LOOK_UP_S_MAX)):
                while self.is_moving(bundle) and not self._is_leaving:
                    await self._news.wait()

    def is_own(self, bundle: BundleRange) -> bool:
        return bundle in self._opened and bundle not in self._closing and not self._lease.has_lapsed()

    def may_deliver(self, bundle: BundleRange) -> bool:
        return self.is_own(bundle) and not self._lease.has_lapsed(DELIVERY_SHARE)

    def services(self) -> Sequence[ServiceInfo]:
        others = sorted(map(_info, self._others()))
        opened = () if self._lease.has_lapsed() else tuple(sorted(self._opened))
        return (ServiceInfo(self._name, self._addresses, opened, self._load()), *others)

    @property
    def own_name(self) -> str:
        return self._name

    def figures(self) -> LeaseFigures:
        """Return the figures of now."""
        return LeaseFigures(
            members=1 + len(self._others()),
            owned_bundles=len(self._opened),
            renewal_age_s=self._lease.age_s(),
            takeovers=self._takeovers,
            lapses=self._lapses,
        )

    def problems(self) -> Sequence[str]:
        """List what keeps this service from taking part, or from having a bundle."""
        found = [f"{self._members}: members cannot be {what}: {text}" for what, text in self._troubles.items()]
        if self._former and not self._is_settled:
            found.append("the lease of this service is over: its bundles are closed until the storage answers")
        # One of before that has not stopped in order is silent, and gone with its lease.
        if any(one.name == self._name and not self._seen.is_in_doubt(one.id) for one in self._others()):
            found.append(
                f"another service has the name {self._name} too, and clients are sent to either: give each an "
                "advertisedAddress of its own"
            )
        for bundle, text in self._unopened.items():
            if self.owner_of(bundle) is None:
                found.append(f"bundle {bundle} cannot be opened: {text}")
        return found

    def note_lost(self, bundle: BundleRange) -> None:
        """Hear that a bundle is open no more: the keeper has closed it by itself, or could not open it again."""
        if bundle in self._opening:
            self._lost_early.add(bundle)
        if bundle in self._opened:
            logger.warning("Bundle %s is not open here any more", bundle)
            self._opened.discard(bundle)
            self._pinned.discard(bundle)
            self._note_failure(bundle)
            self._put_off(bundle)
            self._publish()

    async def transfer(self, bundle: BundleRange, to: str | None = None) -> None:
        """Move a bundle; returns once the other service has it. It stays there for as long as that service lives.

        Raises:
            OwnershipError: There is no such service, or no other one, or it did not take the bundle in time.
        """
        target = self._target(bundle, to)
        self._wanted[bundle] = target.id
        self._publish()
        self._act()
        for _ in range(round((3 * self._lease_s + 10) / _EXPECTING_LOOK_S)):
            if self._wanted.get(bundle) != target.id:
                break
            await asyncio.sleep(_EXPECTING_LOOK_S)
        if self._placed_at(bundle) == target.id:
            return
        if self._wanted.get(bundle) == target.id:
            del self._wanted[bundle]
            self._publish()
        raise OwnershipError(f"Bundle {bundle} was not moved: {target.name} has gone, or did not take it in time")

    def begin_to_leave(self) -> None:
        self._is_leaving = True
        self._publish()

    async def close(self) -> None:
        """Close all bundles, side by side, then leave."""
        self.begin_to_leave()
        closings = [self._close_at_last(bundle) for bundle in self._bundles]
        await asyncio.gather(*closings)
        if self._alarm is not None:
            self._alarm.cancel()
        tasks = [*self._tasks, *self._work.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self._members.delete(self._lease.id)
        except Exception as error:  # Whatever a storage raises: the service stops all the same.
            logger.warning("The others will miss this service after %s s only: %s", self._lease_s, error)
        if self._own_executor is not None:
            self._own_executor.shutdown(wait=False, cancel_futures=True)

    # The lease.

    async def _keep_renewing(self) -> None:
        while True:
            began_s = self._clock_s()
            wait_s = self._lease_s / 5
            self._has_changed.clear()
            try:
                await self._renew()
                self._is_well("renewed")
            except LeaseGoneError:
                self._lapse("its object was deleted")
                wait_s = 0
            except Exception as error:  # Whatever a storage raises: it is tried again.
                self._is_ill("renewed", error)
                self._has_changed.clear()
                wait_s = self._lease_s / 20
                began_s = self._clock_s()
            wait_s = max(0.0, began_s + wait_s - self._clock_s())
            # Not `wait_for`: that of Python 3.11 misses a cancellation when the event comes at the same time.
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._has_changed.wait()

    async def _renew(self) -> None:
        lease = self._lease
        is_first = lease.age_s() is None
        await lease.renew(self._own()._replace(load=self._load()))
        if lease is not self._lease:
            # It lapsed meanwhile.
            await self._members.delete(lease.id)
            return
        self._watch_lease()
        if is_first and self._former:
            self._spawn(self._return(lease))

    def _watch_lease(self) -> None:
        """Give up the bundles when the lease is over, unless it was renewed."""
        age_s = self._lease.age_s()
        if self._lease.has_lapsed():
            self._lapse(f"it could not be renewed for {age_s:.1f} s")
        elif age_s is not None:
            if self._alarm is not None:
                self._alarm.cancel()
            left_s = max(0.001, self._lease_s - age_s)
            self._alarm = asyncio.get_running_loop().call_later(left_s, self._watch_lease)

    def _lapse(self, reason: str) -> None:
        """Begin another life, without bundles: others may have taken them."""
        logger.error("The lease of this service is over, as %s: its bundles are closed", reason)
        self._lapses += 1
        self._former.add(self._lease.id)
        self._lease = OwnLease(self._members, self._new_id(), self._lease_s, self._clock_s)
        self._is_settled = False
        lost = self._opened | self._opening | self._closing
        for state in (self._opened, self._opening, self._closing, self._ready, self._pinned, self._wanted):
            state.clear()
        self._given_up |= lost
        assert self._keeper is not None
        for bundle in lost:
            # At once: the work about it, such as a hand-over, may wait for a write that waits for the storage.
            self._keeper.give_up(bundle)
            self._spawn(self._close_as_lost(bundle, self._work.get(bundle)))
        self._publish()

    async def _close_as_lost(self, bundle: BundleRange, work: "asyncio.Task[None] | None") -> None:
        assert self._keeper is not None
        if work is not None:
            await asyncio.wait({work})
        closing = self._begin(bundle, self._keeper.close_bundle(bundle, is_lost=True))
        await asyncio.wait({closing})
        self._given_up.discard(bundle)
        self._act()

    async def _return(self, lease: OwnLease) -> None:
        """Take part again, once it was seen who else has come back."""
        for member_id in sorted(self._former):
            try:
                await self._members.delete(member_id)
            except Exception as error:  # Whatever a storage raises: the others see for themselves that it is dead.
                self._is_ill("deleted", error)
        while self._lease is lease and not self._is_settled:
            try:
                await asyncio.sleep(min(self._lease_s / 5, _SETTLING_S))
                await self._settle()
            except Exception as error:  # Whatever a storage raises: it is tried again.
                self._is_ill("listed", error)

    # The others.

    async def _settle(self) -> None:
        lease = self._lease
        await self._look()
        if not self._others():
            await asyncio.sleep(min(self._lease_s / 5, _SETTLING_S))
            await self._look()
        self._is_settled = lease is self._lease
        self._act()

    async def _keep_looking(self) -> None:
        while True:
            is_expecting = self._is_expecting()
            await asyncio.sleep(_EXPECTING_LOOK_S if is_expecting else min(self._lease_s / 5, _LOOK_S))
            is_listing = self._clock_s() - self._listed_s >= self._lease_s / 5
            try:
                await self._look(is_listing=is_listing)
                self._is_well("listed")
            except Exception as error:  # Whatever a storage raises: it is tried again.
                self._is_ill("listed", error)
            self._act()

    def _is_expecting(self) -> bool:
        """Whether a bundle may be this service's in a moment: another one lets go of it, or seems to be dead."""
        if any(one.held and self._seen.is_in_doubt(one.id) for one in self._others()):
            return True
        leaving = {bundle for one in self._others() for bundle in (one.held if one.is_leaving else one.closing)}
        if not leaving or not self._is_settled:
            return False
        plan = self._plan()
        return any(plan.get(bundle) == self._lease.id for bundle in leaving)

    async def _look(self, *, is_listing: bool = True) -> None:
        own = {self._lease.id, *self._former}
        known = self._seen.ids()
        if is_listing:
            known = await self._members.ids() - own
            self._listed_s = self._clock_s()
            self._seen.keep_only(known)
        answers = await asyncio.gather(*map(self._look_at, sorted(known)), return_exceptions=True)
        for member_id in self._seen.dead(leases=3):
            await self._members.delete(member_id)
            self._seen.see(member_id, None, began_s=0, answered_s=0)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def _look_at(self, member_id: str) -> None:
        began_s = self._clock_s()
        member = await self._members.read(member_id)
        was_dead = member_id in self._seen.dead()
        self._seen.see(member_id, member, began_s=began_s, answered_s=self._clock_s())
        if member is not None and member_id in self._seen.dead() and not was_dead:
            logger.warning("Service %s has not renewed for %s s: its bundles go to others", member.name, self._lease_s)

    # The bundles.

    def _act(self) -> None:
        """Begin the next step of each bundle that is to move."""
        self._tell_waiting()
        if not self._is_settled or self._is_leaving or self._lease.has_lapsed():
            return
        own, others, plan = self._own(), self._others(), self._plan()
        self._drop_wishes(own, others)
        for bundle in self._bundles:
            if plan.get(bundle) != own.id and bundle not in self._work and bundle in self._ready:
                self._ready.discard(bundle)
                self._publish()
            if (
                bundle in self._work
                or bundle in self._given_up
                or self._clock_s() < self._not_before_s.get(bundle, 0.0)
            ):
                continue
            match next_step(bundle, own, others, plan):
                case Step.OPEN:
                    self._opening.add(bundle)
                    self._publish()
                    self._begin(bundle, self._open(bundle, self._lease))
                case Step.WARM:
                    self._begin(bundle, self._warm(bundle, self._lease))
                case Step.CLOSE:
                    self._closing.add(bundle)
                    self._publish()
                    self._begin(bundle, self._close(bundle))

    def _begin(self, bundle: BundleRange, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a work about a bundle; there is one at a time, and it is not cut off."""
        task = asyncio.get_running_loop().create_task(work)
        self._work[bundle] = task
        task.add_done_callback(lambda task: self._end(bundle, task))
        return task

    def _end(self, bundle: BundleRange, task: "asyncio.Task[None]") -> None:
        if self._work.get(bundle) is task:
            del self._work[bundle]
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            logger.error("Bundle %s: %s", bundle, error, exc_info=error)
        self._act()

    async def _open(self, bundle: BundleRange, lease: OwnLease) -> None:
        assert self._keeper is not None
        is_takeover = any(bundle in one.held for one in self._seen.dead().values())
        self._lost_early.discard(bundle)
        try:
            await self._keeper.open_bundle(bundle)
        except Exception as error:  # Whatever a storage or a log raises: it is tried again.
            self._unopened[bundle] = str(error) or type(error).__name__
            logger.warning("Bundle %s cannot be opened now: %s", bundle, self._unopened[bundle])
            if not isinstance(error, LogFencedError):
                self._note_failure(bundle)
            self._put_off(bundle)
            is_open = False
        else:
            self._unopened.pop(bundle, None)
            is_open = bundle not in self._lost_early
        # After a lapse, whoever noticed it closes the bundle as lost.
        if lease is not self._lease:
            return
        self._opening.discard(bundle)
        self._ready.discard(bundle)
        if is_open:
            self._opened.add(bundle)
            self._takeovers += is_takeover
            self._backoffs.pop(bundle, None)
            if any(one.wanted.get(bundle) == lease.id for one in (self._own(), *self._others())):
                self._pinned.add(bundle)
            logger.info("Bundle %s is open here%s", bundle, ", as its owner is dead" if is_takeover else "")
        elif bundle in self._lost_early:
            self._put_off(bundle)
        self._publish()

    async def _warm(self, bundle: BundleRange, lease: OwnLease) -> None:
        assert self._keeper is not None
        try:
            await self._keeper.warm_bundle(bundle)
        except Exception as error:  # Whatever a storage raises: it is tried again.
            logger.warning("Bundle %s cannot be brought near now: %s", bundle, error)
            self._put_off(bundle)
            return
        self._warmed_s[bundle] = self._clock_s()
        if lease is self._lease and self._plan().get(bundle) == lease.id:
            self._ready.add(bundle)
            self._publish()

    async def _close(self, bundle: BundleRange) -> None:
        assert self._keeper is not None
        lease = self._lease
        try:
            await self._keeper.close_bundle(bundle)
        except Exception as error:  # Whatever a storage raises: the bundle is not served here any more.
            logger.warning("Bundle %s was not closed well: %s", bundle, error)
        if lease is self._lease:
            for state in (self._opened, self._closing, self._pinned):
                state.discard(bundle)
            self._publish()

    async def _close_at_last(self, bundle: BundleRange) -> None:
        while (work := self._work.get(bundle)) is not None and bundle in self._opened | self._opening:
            await asyncio.wait({work})
        if bundle in self._opened:
            self._closing.add(bundle)
            await self._close(bundle)

    async def _keep_copies_warm(self) -> None:
        """Keep copies of the bundles that this service would get next."""
        while True:
            await asyncio.sleep(self._lease_s / 5)
            if not self._is_settled or self._is_leaving:
                continue
            own, others, plan = self._own(), self._others(), self._plan()
            for bundle, member_id in runners_up(self._bundles, [own, *others], plan).items():
                is_due = self._clock_s() - self._warmed_s.get(bundle, float("-inf")) >= WARM_S
                is_elsewhere = plan[bundle] != own.id and any(bundle in one.opened for one in others)
                is_free = bundle not in self._work and bundle not in own.held
                if member_id == own.id and is_due and is_elsewhere and is_free and self._is_settled:
                    self._warmed_s[bundle] = self._clock_s()
                    await asyncio.wait({self._begin(bundle, self._warm(bundle, self._lease))})

    def _note_failure(self, bundle: BundleRange) -> None:
        """Leave a bundle to others that this service cannot keep: its disk may be full, which theirs are not."""
        now_s = self._clock_s()
        recent = [one for one in self._failed_s.get(bundle, ()) if now_s - one < _FAILING_S]
        self._failed_s[bundle] = [*recent, now_s]
        if len(recent) + 1 >= _FAILURES_MAX:
            self._refused_until_s[bundle] = now_s + _REFUSAL_S
            self._publish()

    def _put_off(self, bundle: BundleRange) -> None:
        """Leave a bundle alone for a while: after each failure for longer."""
        longest_s = max(1.0, self._lease_s / 2)
        new = Backoff(min_ms=round(min(self._lease_s, longest_s) * 100), max_ms=round(longest_s * 1_000))
        wait_s = self._backoffs.setdefault(bundle, new).next_seconds()
        self._not_before_s[bundle] = self._clock_s() + wait_s
        asyncio.get_running_loop().call_later(wait_s + 0.001, self._act)

    # Transfers.

    def _target(self, bundle: BundleRange, to: str | None) -> Member:
        members = [self._own(), *self._others()]
        if to is None:
            holder = holder_of(bundle, members)
            found = next_other(bundle, None if holder is None else holder.id, members)
            if found is None:
                raise OwnershipError(f"There is no other service that bundle {bundle} could move to")
            return found
        named = [one for one in members if one.name == to and not one.is_leaving]
        if not named:
            living = ", ".join(sorted(one.name for one in members))
            raise OwnershipError(f"There is no service {to}; those that live: {living}")
        return named[0]

    def _drop_wishes(self, own: Member, others: Sequence[Member]) -> None:
        """Forget transfers that are done, or whose target has gone, and pins that another member has by now."""
        for bundle, to in [*self._wanted.items()]:
            target = next((one for one in (own, *others) if one.id == to), None)
            if target is None or bundle in target.opened & target.pinned:
                del self._wanted[bundle]
                self._publish()
            elif target is own and bundle in own.opened:
                self._pinned.add(bundle)
                self._publish()
        for one in others:
            for bundle in one.opened & self._pinned - own.held:
                self._pinned.discard(bundle)
                self._publish()

    def _placed_at(self, bundle: BundleRange) -> str | None:
        holder = holder_of(bundle, [self._own(), *self._others()])
        return None if holder is None else holder.id

    # What this service says of itself.

    def _own(self) -> Member:
        """Return this service as a member; its load, which needs all its topics, is only for a renewal."""
        return Member(
            self._lease.id,
            self._name,
            self._addresses,
            opened=frozenset(self._opened),
            opening=frozenset(self._opening),
            closing=frozenset(self._closing),
            ready=frozenset(self._ready),
            pinned=frozenset(self._pinned),
            refused=frozenset(one for one, until_s in self._refused_until_s.items() if self._clock_s() < until_s),
            wanted=dict(self._wanted),
            is_leaving=self._is_leaving,
        )

    def _load(self) -> float:
        return 0.0 if self._keeper is None else float(sum(map(self._keeper.load_of, self._opened)))

    def _others(self) -> list[Member]:
        return [
            one
            for member_id, one in self._seen.living().items()
            if member_id != self._lease.id and member_id not in self._former
        ]

    def _plan(self) -> Plan:
        return place(self._bundles, [self._own(), *self._others()])

    def _publish(self) -> None:
        """Have the others see what has changed: with a renewal at once."""
        self._has_changed.set()
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        """Have those that wait for a move of a bundle look again."""
        self._news.set()
        self._news = asyncio.Event()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _is_ill(self, what: str, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if what not in self._troubles:
            logger.warning("%s: members cannot be %s now: %s", self._members, what, text)
        self._troubles[what] = text

    def _is_well(self, what: str) -> None:
        if what in self._troubles:
            del self._troubles[what]
            logger.info("%s: members can be %s again", self._members, what)


def _info(member: Member) -> ServiceInfo:
    return ServiceInfo(member.name, member.addresses, tuple(sorted(member.opened)), member.load)
