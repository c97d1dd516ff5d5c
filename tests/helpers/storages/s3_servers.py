"""S3 servers for tests: moto inside this process, and two real ones, versitygw and MinIO.

The real ones are built once by `make s3-servers` (pinned versions, with Go) into `build/s3-servers`, need no root,
and keep their data in a folder of the test run. On a laptop without them their tests are skipped. CI must have them:
there the tests fail, so that a suite which never runs is noticed.
"""

import base64
import os
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from postdate.demo.process import free_ports, wait_until
from snapshot_storage.s3.config import S3Config

BUCKET = "snapshots-of-tests"
ACCESS_KEY_ID = "postdate-test"
SECRET_ACCESS_KEY = "postdate-test-secret"
KMS_KEY_ID = "postdate-test-key"
BINARIES = Path(__file__).parents[3] / "build" / "s3-servers"

_START_S_MAX = 60.0


class S3Server(ABC):
    """A server with one bucket."""

    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def config(self, prefix: str, **changes: Any) -> S3Config:
        """Return how to use the server."""
        settings: dict[str, Any] = {
            "bucket": BUCKET,
            "prefix": prefix,
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "is_path_style": True,
            "access_key_id": ACCESS_KEY_ID,
            "secret_access_key": SECRET_ACCESS_KEY,
            "abandoned_upload_age_s_min": 0,
        }
        return S3Config(**(settings | changes))

    @cached_property
    def client(self) -> Any:
        """A plain boto3 client, for probes."""
        return boto3.session.Session(
            aws_access_key_id=ACCESS_KEY_ID, aws_secret_access_key=SECRET_ACCESS_KEY, region_name="us-east-1"
        ).client("s3", endpoint_url=self.endpoint, config=Config(s3={"addressing_style": "path"}))

    @abstractmethod
    def stop(self) -> None:
        """End it."""


class MotoServer(S3Server):
    """A mock that speaks real HTTP, in threads of this process."""

    def __init__(self) -> None:
        # Here, as half a second of each worker that makes none is too much.
        from moto.moto_server.threaded_moto_server import ThreadedMotoServer

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        _, self.port = self._server.get_host_and_port()
        self.client.create_bucket(Bucket=BUCKET)

    def stop(self) -> None:
        self._server.stop()


class RealServer(S3Server):
    """A server process over a folder, which can be killed and started again."""

    binary: str

    def __init__(self, folder: Path) -> None:
        program = BINARIES / self.binary
        if not program.exists():
            reason = f"{program} is missing: make s3-servers builds it"
            if os.environ.get("CI"):
                pytest.fail(f"{reason}, which CI must have done")
            pytest.skip(reason)
        self._program = program
        self._folder = folder
        (self.port,) = free_ports(1)
        self.start()
        self.client.create_bucket(Bucket=BUCKET)

    def start(self) -> None:
        """Start the process and wait until it answers."""
        (self._folder / "data").mkdir(parents=True, exist_ok=True)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, *self._arguments()],
                env={"PATH": os.environ["PATH"], "HOME": str(self._folder)} | self._environment(),
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers, timeout_s=_START_S_MAX)

    def _answers(self) -> bool:
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                pass
            self.client.list_buckets()
        except (OSError, BotoCoreError, ClientError):
            return False
        return True

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let it take connections and answer nothing."""
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it as a loss of power would, but for the disk's cache."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()

    def _environment(self) -> dict[str, str]:
        return {}

    @abstractmethod
    def _arguments(self) -> list[str]: ...


class VersityServer(RealServer):
    """versitygw: each object is a file."""

    binary = "versitygw"

    def file_of(self, key: str) -> Path:
        """Return the file that has an object of the bucket."""
        return self._folder / "data" / BUCKET / key

    def _environment(self) -> dict[str, str]:
        return {"ROOT_ACCESS_KEY": ACCESS_KEY_ID, "ROOT_SECRET_KEY": SECRET_ACCESS_KEY}

    def _arguments(self) -> list[str]:
        address = f"127.0.0.1:{self.port}"
        return ["--port", address, "--quiet", "--keep-alive", "posix", str(self._folder / "data")]


class MinioServer(RealServer):
    """MinIO on one disk."""

    binary = "minio"

    def _environment(self) -> dict[str, str]:
        return {
            "MINIO_ROOT_USER": ACCESS_KEY_ID,
            "MINIO_ROOT_PASSWORD": SECRET_ACCESS_KEY,
            "MINIO_BROWSER": "off",
            # With which it encrypts what is to be encrypted.
            "MINIO_KMS_SECRET_KEY": f"{KMS_KEY_ID}:{base64.b64encode(bytes(32)).decode()}",
        }

    def files_of(self, key: str) -> list[Path]:
        """Return the files that have an object of the bucket; first that with its name, and with its bytes if few."""
        return sorted((self._folder / "data" / BUCKET / key).rglob("*.*"), key=lambda file: file.name != "xl.meta")

    def rot(self, key: str, *, from_end: int = 20) -> None:
        """Flip a bit in the bytes of an object on the disk."""
        file = self.files_of(key)[-1]
        data = bytearray(file.read_bytes())
        data[-from_end] ^= 1
        file.write_bytes(data)

    def _arguments(self) -> list[str]:
        return ["server", "--quiet", "--address", f"127.0.0.1:{self.port}", str(self._folder / "data")]


REAL_SERVERS = [
    pytest.param(server, marks=pytest.mark.s3_server, id=server.__name__) for server in (VersityServer, MinioServer)
]


def settings_of(server: S3Server, prefix: str) -> dict[str, str]:
    """Return the keys of `broker.conf` for snapshots in the bucket of a server."""
    return {
        "bucketSnapshotS3Endpoint": server.endpoint,
        "bucketSnapshotS3PathStyle": "true",
        "bucketSnapshotS3Region": "us-east-1",
        "bucketSnapshotS3Bucket": BUCKET,
        "bucketSnapshotS3Prefix": prefix,
    }


def keys_under(server: S3Server, prefix: str) -> list[str]:
    """Return the keys of all objects under a prefix."""
    page = server.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/")
    return [found["Key"] for found in page.get("Contents", [])]
