"""The service: the state that all connections share, and the wiring of the rooms.

    connections ─► topics ─► log (one RocksDB folder for all topics)
                     └─────► subscriptions ─► dispatchers ─► trackers ─► snapshot storage (another folder)

This module opens and closes the folders and lists the periodic jobs; sockets and signals are in
`postdate.broker.server.server`, and the life of a topic in `topic_lives`.
"""

import asyncio
import logging
import shutil
import socket
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any, Final

from managed_ledger.completion import completed
from managed_ledger.errors import LedgerError, LedgerWriteError
from managed_ledger.ledger_store import LedgerStore
from managed_ledger.positions.value_types import Clock
from postdate.broker.admin.figures import StoreSnapshot
from postdate.broker.admin.metrics import stream_metrics
from postdate.broker.authentication.authenticator import Authenticator
from postdate.broker.authorization.grants import Actions, GrantBook
from postdate.broker.authorization.permissions import Authorizer
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.errors import ServiceStartError
from postdate.broker.event_loop import turns_of
from postdate.broker.hosts import is_wildcard
from postdate.broker.scheduled.catalog import ScheduleCatalog
from postdate.broker.service.clock_steps import ClockWatch, steady_ms
from postdate.broker.service.jobs import PeriodicJobs
from postdate.broker.service.refusal_log import RefusalLog
from postdate.broker.service.scheduler import Job
from postdate.broker.service.snapshot_storages import snapshot_storage_of
from postdate.broker.service.storage_opening import StorageOpening
from postdate.broker.service.topic_lives import TopicLives
from postdate.broker.slices import Turns, in_slices, side_by_side
from postdate.broker.topics.limits import ConnectionController
from postdate.broker.topics.link import ClientLink
from postdate.broker.topics.policies import DelayedDeliveryPolicies, PolicyBook, PolicyOwner
from postdate.broker.topics.producers import TopicEpochs
from postdate.broker.topics.publishing_buffer import PublishBuffer
from postdate.broker.topics.services import TopicServices
from postdate.broker.topics.topic_name import TopicName
from postdate.broker.tuning import trim_of_c_library
from snapshot_storage.errors import SnapshotStorageError
from snapshot_storage.storage import BucketSnapshotStorage
from tracker.factories import tracker_factory
from tracker.residual_snapshots import ResidualSnapshots

logger = logging.getLogger(__name__)

RECEIVE_BYTES_MAX: Final = 32 * 1024
"""Bytes read from a socket at once: some 300 messages without a batch, or 1,000 acknowledgements. They are parsed at
once, 1 ms of work, and handled in slices."""

SEALING_SHARE: Final = 0.6
"""The share of the time for a stop in which trackers may wait for snapshots."""
TASKS_SHARE: Final = 0.9
"""The share after which background tasks are cancelled; the rest is for the snapshot storage, which may hang."""


class Service:
    """The state between the sockets and the folders; belongs to one event loop.

    Args:
        config: The configuration.
        store: The opened log.
        storage: The snapshot storage.
        now_ms: The wall clock in milliseconds.
        steady_ms: A clock that is never set, in milliseconds.
        authenticator: Finds the roles of clients; None lets every client in.
        opening: Starts the storage, where it is not started yet.
        rng: Chooses how long retries wait; the same seed makes the same choices.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: LedgerStore,
        storage: BucketSnapshotStorage,
        *,
        now_ms: Clock,
        steady_ms: Clock = steady_ms,
        authenticator: Authenticator | None = None,
        opening: StorageOpening | None = None,
        rng: Random | None = None,
    ) -> None:
        self.config = config
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
        self.public_host = _public_host(config)
        """The host name or address in answers to look-ups."""
        self.service_url = _service_url(self.public_host, "pulsar", config.service_port)
        self.service_url_tls = _service_url(self.public_host, "pulsar+ssl", config.service_port_tls)
        self.receive_buffer = memoryview(bytearray(RECEIVE_BYTES_MAX))
        """The receive buffer of all connections: it is emptied in the same turn of the loop."""
        self._store = store
        self._close_failure: LedgerError | None = None
        self._storage = storage
        self.is_storage_hanging = False
        """Whether `close` has left threads that wait for the snapshot storage, as Python would at its end."""
        self._opening_storage = opening
        self.close_timeout_s = config.tracker.close_timeout_ms / 1_000
        """How long a stop waits at most for the snapshot storage, and for all that it does in the background."""
        sealing_ms = round(SEALING_SHARE * config.tracker.close_timeout_ms)
        # The index that all subscriptions of a topic share is made by the topic: its tracker is one like others.
        of_trackers = replace(config.tracker, close_timeout_ms=sealing_ms, is_index_shared=False)
        self.grants = GrantBook(store) if config.access.is_authorization_enabled else None
        self.authorizer = None if self.grants is None else Authorizer(self.grants, config.access.super_user_roles)
        self.catalog = ScheduleCatalog()
        """The scheduled messages of all topics, as columns."""
        self.policies = PolicyBook(store, _default_policies(config))
        services = TopicServices(
            limits=config.limits,
            deduplication=config.deduplication,
            dispatcher=replace(config.dispatcher, order_wait_ms_max=config.tracker.order_wait_ms_max),
            trackers=tracker_factory(of_trackers, storage, now_ms=now_ms, rng=rng),
            is_index_shared=config.tracker.is_index_shared,
            is_index_kept=config.bucket_snapshot_storage != "memory",
            residual=ResidualSnapshots(storage, timeout_ms=config.tracker.operation_timeout_ms),
            policies=self.policies,
            epochs=TopicEpochs(store),
            spawn=self.spawn,
            now_ms=now_ms,
            steady_ms=steady_ms,
        )
        self.topics = TopicLives(config, store, services, self.grants, self.catalog)
        self.jobs = PeriodicJobs(
            config, store, self.topics, self.connections, self.refusal_log, self.catalog, now_ms, steady_ms
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        # Generated names must not repeat after a restart: clients reconnect with their old ones.
        self._producer_name_prefix = f"{config.cluster_name}-{uuid.uuid4().hex[:8]}"
        self._producers_named = 0

    @classmethod
    async def open(cls, config: BrokerConfig, *, now_ms: Clock, steady_ms: Clock = steady_ms) -> "Service":
        """Open the data folder, and the snapshots unless they are away: see `storage_opening`.

        Raises:
            ServiceStartError: The folder is in use, damaged or cannot be written, or something is wrong for good with
                the snapshots; the text says what to do.
            ConfigError: A key of authentication cannot be used.
        """
        authenticator = Authenticator.from_config(config)
        folder = config.data_directory
        try:
            folder.mkdir(parents=True, exist_ok=True)
            async with _starting(config) as (storage, opening):
                store = await LedgerStore.open(folder / "ledgers", config.managed_ledger, now_ms=now_ms)
                # RocksDB has replayed its write-ahead log, and the C library would keep what that took: up to 20 MB.
                await asyncio.to_thread(trim_of_c_library())
                try:
                    await opening.settled()
                except BaseException:
                    await store.close()
                    raise
        except (LedgerError, OSError) as error:
            advice = " Name a folder that can be written as dataDirectory." if isinstance(error, OSError) else ""
            raise ServiceStartError(f"The data folder {folder} cannot be opened: {error}.{advice}") from error
        except SnapshotStorageError as error:
            raise ServiceStartError(f"The snapshots cannot be opened: {error}") from error
        return cls(
            config, store, storage, now_ms=now_ms, steady_ms=steady_ms, authenticator=authenticator, opening=opening
        )

    # ---- topics ----

    async def set_policies(self, owner: PolicyOwner, policies: DelayedDeliveryPolicies | None) -> None:
        """Store the policies of a topic or a namespace, None to have none, and put them in force at once.

        A topic that is closed now finds out when it is opened.

        Raises:
            LedgerWriteError: They could not be stored, and nothing has changed; or they are stored, and in force where
                a topic could note it.
        """
        await self.policies.put(owner, policies)
        if isinstance(owner, TopicName):
            found = [self.topics[owner]] if owner in self.topics else []
        else:
            found = [one async for one in in_slices(self.topics.all_open()) if one.name.namespace_name == owner]
        await side_by_side(topic.apply_policies() for topic in found)

    @completed
    async def set_grant(self, owner: TopicName | str, role: str, actions: Actions | None) -> None:
        """Store a role's actions on a topic or a namespace, and close producers and consumers without permission.

        Raises:
            LedgerWriteError: The grant could not be stored; nothing has changed.
        """
        assert self.grants is not None
        await self.grants.grant(owner, role, actions)
        logger.info("%s: role %r may now: %s", owner, role, ", ".join(sorted(actions or ())) or "nothing")
        async for connection in in_slices(list(self.connections)):
            await connection.check_permissions()

    def new_producer_name(self) -> str:
        """Return a producer name that was never given before."""
        self._producers_named += 1
        return f"{self._producer_name_prefix}-{self._producers_named}"

    async def metrics(self) -> AsyncGenerator[bytes, None]:
        """Give the text for `/metrics`, a slice at a time, from numbers that are there: the log is not read."""
        disk_size_bytes, disk_free_bytes = _disk_usage(self.config.data_directory)
        chunks = stream_metrics(
            self.config.cluster_name,
            self.topics.figures(),
            list(self.topics.ended.values()),
            connection_count=len(self.connections),
            topic_counts=dict(self.topics.counts),
            is_by_topic=self.config.has_topic_metrics,
            is_by_consumer=self.config.has_consumer_metrics,
            turns=turns_of(asyncio.get_running_loop()),
            store=StoreSnapshot(
                commits=self._store.committer.write_seconds,
                problem_count=len(await self.problems()),
                is_refusing=self.refusal is not None,
                disk_size_bytes=disk_size_bytes,
                disk_free_bytes=disk_free_bytes,
                clock_steps=self.clock_watch.steps,
            ),
        )
        async for chunk in chunks:
            yield chunk

    @property
    def failure(self) -> str | None:
        """Why nothing can be stored any more though there is room, or was not at the stop; None while all is well."""
        failed = self._close_failure or self._store.failed
        return None if failed is None else str(failed)

    @property
    def refusal(self) -> str | None:
        """Why new messages are refused, until there is room again; None while they are taken."""
        return self._store.refusal

    async def problems(self) -> list[str]:
        """Return the present failures of the service, for `/health`; empty when all is well."""
        problems = [] if self.refusal is None else [f"new messages are refused: {self.refusal}"]
        if self._store.damage is not None:
            problems.append(f"nothing of the log is compacted until it is repaired: {self._store.damage}")
        if self._opening_storage is not None and self._opening_storage.problem is not None:
            problems.append(self._opening_storage.problem)
        turns = Turns()
        for topic in self.topics.all_open():
            for of_one in topic.problems():
                problems += [f"{topic.name}: {problem}" for problem in of_one]
                await turns.give_way()
        return problems

    # ---- lifecycle ----

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run work in the background and keep hold of it until it ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def housekeeping(self) -> list[Job]:
        """List the periodic jobs; a job without an interval in the configuration is left out."""
        return self.jobs.listed(checks_credentials=self.authenticator is not None)

    async def close(self, begun_at_s: float | None = None) -> None:
        """Accept nothing more, seal large buckets, close the folders.

        Args:
            begun_at_s: When the stop began, on the clock of the event loop; now, if not given.
        """
        begun_at_s = asyncio.get_running_loop().time() if begun_at_s is None else begun_at_s
        for connection in list(self.connections):
            connection.pause_reading("the service stops")
        try:
            for error in await self.topics.close_all():
                if isinstance(error, LedgerWriteError):
                    self._close_failure = error
                logger.error("a topic could not be closed in order: %s", error)
            for connection in list(self.connections):
                connection.close()
            await self._finish_tasks(begun_at_s + TASKS_SHARE * self.close_timeout_s)
        finally:
            await self._close_snapshots(begun_at_s + self.close_timeout_s)
            await self._close_store()

    async def _close_snapshots(self, ends_at_s: float) -> None:
        """Close the snapshot storage; what takes too long is left, which loses no snapshot."""

        async def close() -> None:
            if self._opening_storage is not None:
                await self._opening_storage.close()
            await self._storage.close()

        # Cancelling it would not end it: its threads wait for the storage.
        closing = asyncio.get_running_loop().create_task(close())
        await asyncio.wait([closing], timeout=max(0.0, ends_at_s - asyncio.get_running_loop().time()))
        if closing.done():
            await closing
        else:
            self.is_storage_hanging = True
            logger.warning("the snapshot storage did not close within %g s of the stop", self.close_timeout_s)

    async def _close_store(self) -> None:
        try:
            await self._store.close()
        except LedgerError as error:
            # Messages with a receipt are on the disk; acknowledgements of the last moments may not be.
            self._close_failure = error
            logger.error("the log could not be closed in order: %s", error)

    async def _finish_tasks(self, ends_at_s: float) -> None:
        if self._tasks:
            left_s = ends_at_s - asyncio.get_running_loop().time()
            _, unfinished = await asyncio.wait(self._tasks, timeout=max(left_s, 0))
            for task in unfinished:
                logger.warning("did not end within %g s of the stop: %r", TASKS_SHARE * self.close_timeout_s, task)
                task.cancel()


@asynccontextmanager
async def _starting(config: BrokerConfig) -> AsyncIterator[tuple[BucketSnapshotStorage, StorageOpening]]:
    """Open the snapshots in parallel with the body; close them if the body fails."""
    storage = snapshot_storage_of(config)
    opening = StorageOpening(storage)
    opening.begin()
    try:
        yield storage, opening
    except BaseException:
        await opening.close()
        await storage.close()
        raise


def _public_host(config: BrokerConfig) -> str:
    """Return an address that clients can reach, which the wildcard address is not."""
    host = config.advertised_address or config.bind_address
    return socket.getfqdn() if is_wildcard(host) else host


def _service_url(host: str, scheme: str, port: int | None) -> str | None:
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


def _default_policies(config: BrokerConfig) -> DelayedDeliveryPolicies:
    tracker = config.tracker
    return DelayedDeliveryPolicies(
        is_active=tracker.is_enabled, tick_time_ms=tracker.tick_time_ms, delay_ms_max=tracker.delay_ms_max
    )
