"""The storages that the suite runs over; S3 over three servers, of which the real ones are marked."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.storages.faulty_backends import FaultyBackend, OtherFaultyBackend
from tests.helpers.storages.s3_servers import REAL_SERVERS, MotoServer, RealServer, S3Server
from tests.helpers.storages.snapshot_backends import (
    Backend,
    MemoryBackend,
    RocksDBBackend,
    S3Backend,
)


class _Servers:
    """Starts a server when the first test asks for it."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self._tmp_path_factory = tmp_path_factory
        self.running: dict[type[S3Server], S3Server] = {}

    def __call__(self, kind: type[S3Server]) -> S3Server:
        if kind not in self.running:
            folder = self._tmp_path_factory.mktemp(kind.__name__)
            self.running[kind] = kind(folder) if issubclass(kind, RealServer) else MotoServer()
        return self.running[kind]


@pytest.fixture(scope="session")
def s3_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Servers]:
    servers = _Servers(tmp_path_factory)
    yield servers
    for server in servers.running.values():
        server.stop()


@pytest.fixture(params=[pytest.param(MotoServer, id="MotoServer"), *REAL_SERVERS])
def s3_server(request: pytest.FixtureRequest, s3_servers: _Servers) -> S3Server:
    return s3_servers(request.param)


@pytest.fixture(
    params=[
        pytest.param(MemoryBackend, id="MemoryBackend"),
        pytest.param(RocksDBBackend, id="RocksDBBackend"),
        pytest.param(FaultyBackend, id="FaultyBackend-seed-1"),
        pytest.param(OtherFaultyBackend, id="FaultyBackend-seed-2"),
        # Not moto: its reads beside a delete end in an error of its own. `make test` has S3 in `test_s3_snapshots.py`.
        *REAL_SERVERS,
    ]
)
def backend(request: pytest.FixtureRequest, tmp_path: Path, s3_servers: _Servers) -> Backend:
    if issubclass(request.param, S3Server):
        return S3Backend(s3_servers(request.param))
    made: Backend = request.param(tmp_path)
    return made
