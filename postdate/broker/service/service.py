"""The service: what all connections and bundles share, and the bundles that it has open now.

    connections ─► topics ─► bundle ─► log (a RocksDB folder for all topics of the bundle)
                               └─────► dispatchers ─► trackers ─► snapshot storage of the bundle

    Service   connections, limits, grants, jobs, and which bundles are open: its owners tell it (`BundleKeeper`)
    Bundle    a log, its index, and the topics on them (`bundle`)
    place     where the bundles are: a data folder, or a prefix (`data_place`)

Sockets and signals are in `postdate.broker.server.server`, and the life of a topic in `topic_lives`.
"""

import asyncio
import functools
import logging
import shutil
import socket
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, Coroutine
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any, Final

from managed_ledger.bundles import BundleRange
from managed_ledger.completion import completed
from managed_ledger.durations import DurationHistogram
from managed_ledger.errors import LedgerError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.positions.value_types import Clock
from postdate.broker.admin.figures import StoreSnapshot
from postdate.broker.admin.metrics import stream_metrics
from postdate.broker.admin.trail import Trail
from postdate.broker.authentication.authenticator import Authenticator
from postdate.broker.authorization.grants import Actions, GrantBook
from postdate.broker.authorization.permissions import Authorizer
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.errors import NotServedError, ServiceStartError
from postdate.broker.event_loop import turns_of
from postdate.broker.hosts import is_wildcard
from postdate.broker.ownership.owners import Addresses, Owners, ServiceInfo, SoleOwner
from postdate.broker.scheduled.catalog import ScheduleCatalog
from postdate.broker.service.background import BackgroundTasks
from postdate.broker.service.backups import Backups
from postdate.broker.service.bundle import TASKS_SHARE, Bundle, BundleServices, default_policies
from postdate.broker.service.clock_steps import ClockWatch, steady_ms
from postdate.broker.service.data_place import DataPlace, SettingsStore
from postdate.broker.service.folder_place import FolderPlace
from postdate.broker.service.jobs import PeriodicJobs
from postdate.broker.service.refusal_log import RefusalLog
from postdate.broker.service.scheduler import Job
from postdate.broker.service.served_topics import ServedTopics, TopicsElsewhere
from postdate.broker.service.served_trail import ServedTrail
from postdate.broker.service.shared_settings import RecordsOfOneLog
from postdate.broker.service.topic_lives import NamespaceSums
from postdate.broker.slices import in_slices, side_by_side
from postdate.broker.topics.limits import ConnectionController
from postdate.broker.topics.link import ClientLink
from postdate.broker.topics.policies import DelayedDeliveryPolicies, PolicyBook, PolicyOwner
from postdate.broker.topics.publishing_buffer import PublishBuffer
from postdate.broker.topics.topic import Topic
from postdate.broker.topics.topic_name import TopicName
from snapshot_storage.errors import SnapshotStorageError
from snapshot_storage.s3.location import S3Location

logger = logging.getLogger(__name__)

RECEIVE_BYTES_MAX: Final = 32 * 1024
"""Bytes read from a socket at once: some 300 messages without a batch, or 1,000 acknowledgements. They are parsed at
once, 1 ms of work, and handled in slices."""

_LOOK_UPS_WAITING_MAX: Final = 10_000
"""Look-ups of topics whose bundles move that wait for them; more are answered as it is now."""

SETTINGS_LOOK_INTERVAL_S: Final = 1
"""The longest time for which grants and policies of another process are not in force here."""


class Service:
    """The state between the sockets and the bundles; belongs to one event loop. `open` makes one.

    Args:
        config: The configuration.
        place: Where the bundles are.
        owners: Decide which of them are open here.
        settings: The settings that all bundles share.
        now_ms: The wall clock in milliseconds.
        steady_ms: A clock that is never set, in milliseconds.
        authenticator: Finds the roles of clients; None lets every client in.
        rng: Chooses how long retries wait; the same seed makes the same choices.
    """

    def __init__(
        self,
        config: BrokerConfig,
        place: DataPlace,
        owners: Owners,
        settings: SettingsStore,
        *,
        now_ms: Clock,
        steady_ms: Clock = steady_ms,
        authenticator: Authenticator | None = None,
        rng: Random | None = None,
    ) -> None:
        self.config = config
        self.owners = owners
        self.authenticator = authenticator
        self.now_ms = now_ms
        self.steady_ms = steady_ms
        self.clock_watch = ClockWatch(now_ms, steady_ms)
        """Tells of steps of the wall clock, once `Housekeeping` has started it."""
        self.server_version = f"Postdate {version('postdate')}"
        self.connections: set[ClientLink] = set()
        self.ended_total = 0
        """How many connections have ended."""
        self.refusal_log = RefusalLog()
        """The lines about clients that are refused again and again."""
        self.publish_buffer = PublishBuffer(config.publish_buffer_bytes_max)
        self.connection_controller = ConnectionController(
            config.limits.connections_max, config.limits.connections_per_ip_max
        )
        self.receive_buffer = memoryview(bytearray(RECEIVE_BYTES_MAX))
        """The receive buffer of all connections: it is emptied in the same turn of the loop."""
        self._place = place
        self._settings = settings
        self._tasks = BackgroundTasks()
        self.grants = GrantBook(settings) if config.access.is_authorization_enabled else None
        self.authorizer = None if self.grants is None else Authorizer(self.grants, config.access.super_user_roles)
        self._namespace_policies = PolicyBook(settings, default_policies(config))
        self.catalog = ScheduleCatalog()
        """The scheduled messages of all topics, as columns."""
        self.bundles: dict[BundleRange, Bundle] = {}
        """The open ones, by range."""
        self._bundle_locks: defaultdict[BundleRange, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Held while a bundle is being opened or closed."""
        sums = NamespaceSums()
        self._shared = BundleServices(
            config=config,
            place=place,
            settings=settings,
            grants=self.grants,
            catalog=self.catalog,
            sums=sums,
            may_deliver=owners.may_deliver,
            now_ms=now_ms,
            steady_ms=steady_ms,
            rng=rng,
        )
        self.topics = ServedTopics(self.bundles, place.ranges, sums)
        self.topics_elsewhere: TopicsElsewhere | None = None
        """Asks the other services; None for one that is alone."""
        self.trail = ServedTrail(self.bundles, self.topics.range_of, Trail(settings, 0, now_ms, self.spawn))
        self.jobs = PeriodicJobs(
            config, self.bundles, self.connections, self.refusal_log, self.catalog, now_ms, steady_ms
        )
        self.backups = Backups(
            config,
            lambda: {bundle: one.store for bundle, one in sorted(self.bundles.items())},
            now_ms,
            ranges=place.ranges,
            shared=None if isinstance(settings, RecordsOfOneLog) else settings,
        )
        self.close_timeout_s = config.tracker.close_timeout_ms / 1_000
        """How long a stop waits at most for the snapshot storage, and for all that it does in the background."""
        self._stop_begun_at_s: float | None = None
        self._close_failure: LedgerError | None = None
        self.is_storage_hanging = False
        """Whether `close` has left threads that wait for the snapshot storage, as Python would at its end."""
        self._commits_of_closed = DurationHistogram()
        # Generated names must not repeat after a restart: clients reconnect with their old ones.
        self._producer_name_prefix = f"{config.cluster_name}-{uuid.uuid4().hex[:8]}"
        self._producers_named = 0
        self._waiting_count = 0

    @classmethod
    async def open(
        cls,
        config: BrokerConfig,
        *,
        now_ms: Clock,
        steady_ms: Clock = steady_ms,
        owners: Owners | None = None,
        place: DataPlace | None = None,
        rng: Random | None = None,
    ) -> "Service":
        """Open a service with the bundles that its owners give it.

        Args:
            config: The configuration.
            now_ms: The wall clock in milliseconds.
            steady_ms: A clock that is never set, in milliseconds.
            owners: Decide which bundles are open here; None for all of them.
            place: Where the bundles are; None for the data folder.
            rng: Chooses how long retries wait.

        Raises:
            ServiceStartError: The folder is in use, damaged or cannot be written, has other bundles than the
                configuration says, or something is wrong for good with the snapshots; the text says what to do.
            ConfigError: A key of authentication cannot be used.
        """
        authenticator = Authenticator.from_config(config)
        try:
            place = await FolderPlace.open(config) if place is None else place
            service = cls(
                config,
                place,
                owners or SoleOwner(place.ranges, addresses_of(config), service_name(config)),
                await place.shared_settings(),
                now_ms=now_ms,
                steady_ms=steady_ms,
                authenticator=authenticator,
                rng=rng,
            )
            try:
                await service.owners.start(service)
            except BaseException:
                await service.close()
                raise
        except (LedgerError, OSError, SnapshotStorageError) as error:
            raise ServiceStartError(_start_failure(config, error)) from error
        return service

    # ---- bundles ----

    async def open_bundle(self, bundle: BundleRange) -> None:
        """Open a bundle; its topics can be used on return. Nothing happens if it is open.

        Raises:
            LedgerError: It cannot be opened now, or another process has it.
            SnapshotStorageError: Something is wrong for good with its index.
            OSError: The disk refuses.
        """
        async with self._bundle_locks[bundle]:
            if bundle in self.bundles or self._stop_begun_at_s is not None:
                return

            opened: Bundle | None = None

            def on_lost() -> None:
                # One that is closed already is not this one any more, and may be open again.
                if opened is None or self.bundles.get(bundle) is opened:
                    self.owners.note_lost(bundle)
                    self.spawn(self.close_bundle(bundle, is_lost=True))

            opened = self.bundles[bundle] = await Bundle.open(bundle, self._shared, on_lost)

    async def close_bundle(self, bundle: BundleRange, *, is_lost: bool = False) -> None:
        """Close a bundle: its clients look its topics up again. Nothing happens if it is closed.

        Args:
            bundle: The bundle.
            is_lost: Whether another service may have it already, so that nothing can be written any more.
        """
        if is_lost:
            # A write that waits for a storage that is away would keep the bundle open.
            self.give_up(bundle)
        async with self._bundle_locks[bundle]:
            # From here on its topics are not served: who asks for one looks it up again.
            closing = self.bundles.pop(bundle, None)
            if closing is None:
                return
            begun_at_s = asyncio.get_running_loop().time() if self._stop_begun_at_s is None else self._stop_begun_at_s
            await closing.close(begun_at_s, self.close_timeout_s, is_lost=is_lost)
            self._commits_of_closed.add(closing.store.committer.write_seconds)
            self.is_storage_hanging |= closing.is_storage_hanging
            if self._stop_begun_at_s is not None:
                self._close_failure = self._close_failure or closing.close_failure

    def give_up(self, bundle: BundleRange) -> None:
        """Fail all writes to an open bundle from now on, also one under way: another service may have it already."""
        self._place.give_up(bundle)

    async def warm_bundle(self, bundle: BundleRange) -> None:
        """Bring what an opening of the bundle would have to read near, as far as that helps."""
        await self._place.warm(bundle)

    def load_of(self, bundle: BundleRange) -> float:
        """Messages a second that an open bundle takes and delivers, of the last minute or so."""
        found = self.bundles.get(bundle)
        return 0.0 if found is None else found.load

    def open_stores(self) -> list[LedgerStore]:
        """List the logs of the open bundles, in the order of their ranges."""
        return [self.bundles[bundle].store for bundle in sorted(self.bundles)]

    async def unload_bundle(self, bundle: BundleRange, to: str | None = None) -> None:
        """Move a bundle to another service; where there is none, close it and open it again.

        Args:
            bundle: The bundle.
            to: The name of the service; None for any other.

        Raises:
            OwnershipError: There is no such service, or bundles are not moved here.
            LedgerError: It cannot be opened again now; that is tried until it can.
        """
        if to is not None or len(self.owners.services()) > 1:
            await self.owners.transfer(bundle, to)
            return
        try:
            await self.close_bundle(bundle)
            await self.open_bundle(bundle)
        except BaseException:
            # The owners go on trying.
            self.owners.note_lost(bundle)
            raise

    @property
    def ranges(self) -> tuple[BundleRange, ...]:
        """All bundles of the place, open here or not, in order."""
        return self._place.ranges

    def range_of(self, name: TopicName) -> BundleRange:
        """Return the bundle of a topic, open here or not."""
        return self.topics.range_of(name)

    def look_up(self, name: TopicName) -> ServiceInfo:
        """Return the service that has a topic, or is about to.

        Raises:
            NotServedError: None is known to.
        """
        owner = self.owners.owner_of(self.topics.range_of(name))
        if owner is None:
            raise NotServedError(f"No service has {name} now: look it up again")
        return owner

    async def moved(self, name: TopicName) -> None:
        """Wait while the bundle of a topic moves to another service, before it is looked up."""
        if self._waiting_count < _LOOK_UPS_WAITING_MAX:
            self._waiting_count += 1
            try:
                await self.owners.moved(self.topics.range_of(name))
            finally:
                self._waiting_count -= 1

    # ---- topics ----

    async def set_policies(self, owner: PolicyOwner, policies: DelayedDeliveryPolicies | None) -> None:
        """Store the policies of a topic or a namespace, None to have none, and put them in force at once.

        A topic that is closed now finds out when it is opened.

        Raises:
            LedgerWriteError: They could not be stored, and nothing has changed; or they are stored, and in force where
                a topic could note it.
        """
        await self._policies_of(owner).put(owner, policies)
        if isinstance(owner, TopicName):
            found = [self.topics[owner]] if owner in self.topics else []
        else:
            found = [one async for one in in_slices(self.topics.all_open()) if one.name.namespace_name == owner]
        await side_by_side(topic.apply_policies() for topic in found)

    def own_policies(self, owner: PolicyOwner) -> DelayedDeliveryPolicies | None:
        """Return the policies of a topic or a namespace, None if it has none of its own.

        Raises:
            NotServedError: The topic's bundle is not open here.
        """
        return self._policies_of(owner).of(owner)

    def applied_policies(self, name: TopicName) -> DelayedDeliveryPolicies:
        """Return the policies in force for a topic: its own, its namespace's, or the configuration's.

        Raises:
            NotServedError: Its bundle is not open here.
        """
        return self._policies_of(name).applied(name)

    def _policies_of(self, owner: PolicyOwner) -> PolicyBook:
        return self.topics.bundle_of(owner).policies if isinstance(owner, TopicName) else self._namespace_policies

    @completed
    async def set_grant(self, owner: TopicName | str, role: str, actions: Actions | None) -> None:
        """Store a role's actions on a topic or a namespace, and close producers and consumers without permission.

        Raises:
            LedgerWriteError: The grant could not be stored; nothing has changed.
        """
        assert self.grants is not None
        await self.grants.grant(owner, role, actions)
        await self._check_permissions()

    async def _check_permissions(self) -> None:
        async for connection in in_slices(list(self.connections)):
            await connection.check_permissions()

    async def look_at_settings(self) -> None:
        """Put in force what another process has changed of grants and of the policies of namespaces."""
        if not await self._settings.look():
            return
        await self._check_permissions()

        async def apply(topic: Topic) -> None:
            try:
                await topic.apply_policies()
            except LedgerError as error:
                logger.warning("%s: policies are in force at its next opening: %s", topic.name, error)

        await side_by_side(map(apply, self.topics.all_open()))

    def new_producer_name(self) -> str:
        """Return a producer name that was never given before."""
        self._producers_named += 1
        return f"{self._producer_name_prefix}-{self._producers_named}"

    async def metrics(self) -> AsyncGenerator[bytes, None]:
        """Give the text for `/metrics`, a slice at a time, from numbers that are there: the log is not read."""
        disk_size_bytes, disk_free_bytes = _disk_usage(self.config.local_folder)
        chunks = stream_metrics(
            self.config.cluster_name,
            self.topics.figures(),
            list(self.topics.ended.values()),
            connection_count=len(self.connections),
            connections_max=self.config.limits.connections_max,
            topic_counts=dict(self.topics.counts),
            is_by_topic=self.config.has_topic_metrics,
            is_by_consumer=self.config.has_consumer_metrics,
            turns=turns_of(asyncio.get_running_loop()),
            store=StoreSnapshot(
                commits=self._commits(),
                problem_count=len(await self.problems()),
                is_refusing=self.refusal is not None,
                disk_size_bytes=disk_size_bytes,
                disk_free_bytes=disk_free_bytes,
                clock_steps=self.clock_watch.steps,
                object_storage=self._place.request_counts(),
                leases=self.owners.figures(),
                last_backup_s=self.backups.last_success_s,
            ),
        )
        async for chunk in chunks:
            yield chunk

    def _commits(self) -> DurationHistogram:
        """Return the commits of all bundles that are or were open here."""
        found = DurationHistogram()
        for one in (self._commits_of_closed, *(store.committer.write_seconds for store in self.open_stores())):
            found.add(one)
        return found

    @property
    def failure(self) -> str | None:
        """Why nothing can be stored any more though there is room, or was not at the stop; None while all is well."""
        failed = self._close_failure or next((one.failed for one in self.open_stores() if one.failed is not None), None)
        return None if failed is None else str(failed)

    @property
    def refusal(self) -> str | None:
        """Why new messages are refused, until there is room again; None while all bundles take them."""
        return next((one.refusal for one in self.open_stores() if one.refusal is not None), None)

    @property
    def unready(self) -> str | None:
        """Why no message can be taken, without what only roles may know; None while all are taken."""
        if self.failure is not None:
            return "Nothing can be stored"
        if self.refusal is not None:
            return "New messages are refused: there is no room for them"
        return next(iter(self._unopened()), None)

    def _unopened(self) -> list[str]:
        """Tell of the bundles that look-ups find here, and that are not open."""
        if self._stop_begun_at_s is not None:
            return []
        missing = (one for one in self._place.ranges if one not in self.bundles and self.owners.is_own(one))
        return [f"Bundle {one} is not open" for one in missing]

    async def problems(self) -> list[str]:
        """Return the present failures of the service, for `/health`; empty when all is well."""
        problems = [*self.owners.problems(), *self._unopened()]
        problems += [] if self._settings.problem is None else [self._settings.problem]
        for bundle in list(self.bundles.values()):
            # A full disk is that of all, and is told once.
            problems += [one for one in await bundle.problems() if one not in problems]
        return problems

    # ---- lifecycle ----

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run work of a connection or of the service in the background and keep hold of it until it ends."""
        return self._tasks.spawn(work)

    def housekeeping(self) -> list[Job]:
        """List the periodic jobs; a job without an interval in the configuration is left out."""
        look = Job("look at settings", SETTINGS_LOOK_INTERVAL_S, self.look_at_settings)
        return [*self.jobs.listed(checks_credentials=self.authenticator is not None), look]

    async def close(self, begun_at_s: float | None = None) -> None:
        """Accept nothing more, close all bundles, and leave the other services.

        Args:
            begun_at_s: When the stop began, on the clock of the event loop; now, if not given.
        """
        begun_at_s = asyncio.get_running_loop().time() if begun_at_s is None else begun_at_s
        self._stop_begun_at_s = begun_at_s
        self.owners.begin_to_leave()
        for connection in list(self.connections):
            connection.pause_reading("the service stops")
        # Writes that wait for an object storage that is away: nobody has a receipt for them.
        giving_up = asyncio.get_running_loop().call_at(begun_at_s + TASKS_SHARE * self.close_timeout_s, self._give_up)
        try:
            await side_by_side(bundle.close_topics() for bundle in self.bundles.values())
            for connection in list(self.connections):
                connection.close()
            await self._tasks.finish(begun_at_s + TASKS_SHARE * self.close_timeout_s)
        finally:
            await self.owners.close()
            giving_up.cancel()
            await self._place.close()

    def _give_up(self) -> None:
        for bundle in self._place.ranges:
            self._place.give_up(bundle)


def _start_failure(config: BrokerConfig, error: Exception) -> str:
    if isinstance(config.data_directory, S3Location):
        return f"The prefix {config.data_name} cannot be used: {error}"
    if isinstance(error, SnapshotStorageError):
        return f"The snapshots cannot be opened: {error}"
    advice = " Name a folder that can be written as dataDirectory." if isinstance(error, OSError) else ""
    return f"The data folder {config.data_name} cannot be opened: {error}.{advice}"


def addresses_of(config: BrokerConfig) -> Addresses:
    """Return where clients reach the service of a configuration."""
    host = public_host(config)
    return Addresses(
        service_url=_url(host, "pulsar", config.service_port),
        service_url_tls=_url(host, "pulsar+ssl", config.service_port_tls),
        web_url=_url(host, "http", config.web_port),
        web_url_tls=_url(host, "https", config.web_port_tls),
    )


def service_name(config: BrokerConfig) -> str:
    """Return the name of the service of a configuration among others, as Pulsar names brokers."""
    addresses = addresses_of(config)
    return (addresses.web_url or addresses.web_url_tls or "").partition("://")[2]


def public_host(config: BrokerConfig) -> str:
    """Return an address that clients can reach, which the wildcard address is not."""
    host = config.advertised_address or config.bind_address
    return _name_of_machine() if is_wildcard(host) else host


@functools.cache
def _name_of_machine() -> str:
    """Ask for it once: a name server may need seconds, and give another name later."""
    return socket.getfqdn()


def _url(host: str, scheme: str, port: int | None) -> str | None:
    """Give a URL that look-ups answer, None without such a port."""
    if port is None:
        return None
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _disk_usage(folder: Path) -> tuple[int | None, int | None]:
    """Give the size and the free bytes of a folder's file system, as far as that can be told."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None, None
    return usage.total, usage.free
