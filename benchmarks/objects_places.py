"""The places of the benchmark of object storage: how a service is made on each, and two that share a prefix."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from benchmarks.service import PULSAR_SETTINGS, STRICT
from postdate.demo.process import PostdateProcess, wait_until
from tests.helpers.services.prefix_services import LEASE_S, opened_at, prefix_settings, topic_by_bundle
from tests.helpers.services.real_pulsar import PULSAR_VERSION, RealPulsar
from tests.helpers.services.services import RunningService
from tests.helpers.storages.late_answers import late_answers
from tests.helpers.storages.s3_servers import VersityServer

NAMES: Final = ("folder", "prefix", "slow", "pulsar")
READY_S_MAX: Final = 120.0
_USUAL_LEASE_S: Final = 10


class PrefixPair:
    """Two services on one prefix, of which the first is the one that is measured and killed.

    Args:
        folder: Where their logs and tables go.
        settings_of: Returns the settings of one for its cache.
    """

    def __init__(self, folder: Path, settings_of: Callable[[Path], dict[str, str]]) -> None:
        folders = (folder / "first", folder / "second")
        self._first, self.second = (PostdateProcess(one, settings_of(one / "cache")) for one in folders)
        self.port, self.url, self.web_url = self._first.port, self._first.url, self._first.web_url

    @property
    def pid(self) -> int:
        """The process id of the first."""
        return self._first.pid

    def start(self, *, timeout_s: float = READY_S_MAX, wait: bool = True) -> None:
        """Start both and, by default, wait until each has its share."""
        starting = [one for one in (self._first, self.second) if not one.is_running]
        for one in starting:
            one.start(wait=False)
        if wait:
            for one in starting:
                one.wait_until_ready(timeout_s=timeout_s)
            wait_until(lambda: all(opened_at(one) for one in (self._first, self.second)), timeout_s=timeout_s)

    def topic(self) -> tuple[str, str]:
        """Return a bundle of the first, and a topic in it."""
        bundle = opened_at(self._first)[0]
        return bundle, topic_by_bundle()[bundle]

    def kill(self) -> None:
        """End the first with SIGKILL; from here on the addresses are the other's."""
        self._first.kill()
        self.port, self.url, self.web_url = self.second.port, self.second.url, self.second.web_url

    def stop(self) -> None:
        """End both."""
        for one in (self._first, self.second):
            one.stop()


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectsColumn:
    """A place that is measured.

    Attributes:
        title: Its head in the table.
        single: Makes the service of the first life in a folder.
        killed: Makes what is killed in the second life; a `PrefixPair` where another one takes over.
        asks_s3: Whether there are requests to count.
    """

    title: str
    single: Callable[[Path], RunningService]
    killed: Callable[[Path], RunningService]
    asks_s3: bool = False


@contextlib.contextmanager
def columns_of(only: Collection[str], *, added_ms: float, folder: Path) -> Iterator[list[ObjectsColumn]]:
    """Make places, with the S3 server and the proxy before it, which run meanwhile.

    Args:
        only: Which ones, of `NAMES`.
        added_ms: How much later the answers of the slow one come.
        folder: Where the S3 server keeps its objects.
    """
    columns = []
    with contextlib.ExitStack() as stack:
        if "folder" in only:
            columns.append(_alone("local folder", lambda place: PostdateProcess(place, STRICT)))
        if {"prefix", "slow"} & {*only}:
            server = VersityServer(folder / "s3")
            stack.callback(server.stop)
        if "prefix" in only:
            columns.append(_on_prefix("versitygw", server, server.endpoint))
        if "slow" in only:
            endpoint = stack.enter_context(late_answers(server.port, added_ms))
            columns.append(_on_prefix(f"versitygw + {added_ms:g} ms", server, endpoint))
        if "pulsar" in only:
            settings = PULSAR_SETTINGS | STRICT
            columns.append(_alone(f"Pulsar {PULSAR_VERSION}", lambda place: RealPulsar(place, settings)))
        yield columns


def _alone(title: str, make: Callable[[Path], RunningService]) -> ObjectsColumn:
    return ObjectsColumn(title, make, make)


def _on_prefix(title: str, server: VersityServer, endpoint: str) -> ObjectsColumn:
    prefixes = (f"{endpoint.rpartition(':')[2]}/{number}" for number in itertools.count())

    def settings_of(prefix: str, cache: Path, lease_s: int) -> dict[str, str]:
        changes = {"s3Endpoint": endpoint, "bundleLeaseSeconds": str(lease_s)}
        return STRICT | prefix_settings(server, prefix, cache) | changes

    def single(place: Path) -> RunningService:
        return PostdateProcess(place, settings_of(next(prefixes), place / "cache", _USUAL_LEASE_S))

    def pair(place: Path) -> RunningService:
        prefix = next(prefixes)
        return PrefixPair(place, lambda cache: settings_of(prefix, cache, LEASE_S))

    return ObjectsColumn(title, single, pair, asks_s3=True)
