"""`postdate snapshots take-over`: who gets a prefix on S3 whose owner is gone, and who is refused."""

import asyncio
import json
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broker.cli.service_commands import postdate as main
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.ledger_store import LedgerStore
from snapshot_storage.errors import OwnerCorruptedError, StorageAccessError
from snapshot_storage.s3.config import OWNER_FILE_NAME
from snapshot_storage.s3.snapshots import S3BucketSnapshotStorage
from snapshot_tools import takeover as snapshots_takeover
from tests.helpers.storages.s3_servers import ACCESS_KEY_ID, BUCKET, SECRET_ACCESS_KEY, MotoServer

pytestmark = pytest.mark.usefixtures("restored_logging")


@pytest.fixture(scope="module")
def server() -> Iterator[MotoServer]:
    running = MotoServer()
    yield running
    running.stop()


@dataclass
class Prefix:
    """A prefix with one snapshot of a service `old`, and folders that may want it."""

    server: MotoServer
    name: str
    folder: Path

    def make_folder(self, name: str) -> None:
        asyncio.run(self._make_log(name))

    async def _make_log(self, name: str) -> None:
        await (await self.open_log(name)).close()

    async def open_log(self, name: str) -> LedgerStore:
        folder = self.folder / name / "ledgers"
        return await LedgerStore.open(folder, ManagedLedgerConfig(), now_ms=lambda: 1)

    def start(self, name: str) -> int:
        """Do what the service of a folder does at its start, and store a snapshot."""

        async def once() -> int:
            config = self.server.config(self.name)
            async with S3BucketSnapshotStorage(config, owner_file=self.folder / name / OWNER_FILE_NAME) as storage:
                return await storage.create_bucket_snapshot(
                    b"m", [b"s"], bucket_key="k", topic_name="t", cursor_name="c"
                )

        return asyncio.run(once())

    def take_over(self, name: str, *words: str, typed: str = "", storage: str = "s3") -> Result:
        settings = {
            "bucketSnapshotStorage": storage,
            "bucketSnapshotS3Endpoint": self.server.endpoint,
            "bucketSnapshotS3PathStyle": "true",
            "bucketSnapshotS3Region": "us-east-1",
            "bucketSnapshotS3Bucket": BUCKET,
            "bucketSnapshotS3Prefix": self.name,
        }
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        command = ["snapshots", "take-over", "--data", str(self.folder / name), *sets, *words]
        return CliRunner().invoke(main, command, input=typed, catch_exceptions=False)

    def owner(self) -> dict[str, str]:
        data = self.server.client.get_object(Bucket=BUCKET, Key=f"{self.name}/owner")["Body"].read()
        fields: dict[str, str] = json.loads(data)
        return fields

    def move_owner_elsewhere(self) -> None:
        fields = self.owner() | {"host": "another-machine"}
        # As an older program wrote it.
        del fields["crc32c"]
        body = json.dumps(fields)
        self.server.client.put_object(Bucket=BUCKET, Key=f"{self.name}/owner", Body=body.encode())


@pytest.fixture
def prefix(server: MotoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prefix:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
    made = Prefix(server, f"takeover/{uuid.uuid4().hex}", tmp_path)
    for name in ("old", "new"):
        made.make_folder(name)
    made.start("old")
    return made


def test_another_folder_takes_the_prefix_of_a_stopped_service_and_that_one_is_refused(prefix: Prefix) -> None:
    with pytest.raises(StorageAccessError, match="take-over"):
        prefix.start("new")

    taken = prefix.take_over("new", typed="y\n")

    assert taken.exit_code == 0, taken.output
    assert f"owner      {prefix.folder / 'old'} on " in taken.stdout
    assert "snapshots  1, of which this folder's cursors name 0" in taken.stdout
    assert "Warning: what no cursor here names is garbage" in taken.stdout
    prefix.start("new")
    with pytest.raises(StorageAccessError, match=r"by the folder .*new"):
        prefix.start("old")


def test_a_copy_that_was_restored_takes_it_back(prefix: Prefix) -> None:
    """Its file knows no token of what came after the copy was made."""
    shutil.copytree(prefix.folder / "old", prefix.folder / "copy")
    prefix.start("old")
    shutil.rmtree(prefix.folder / "old")

    refused = prefix.take_over("copy", "--yes")
    taken = prefix.take_over("copy", "--yes", "--owner-is-dead")

    # The folder is gone, so whether its service runs elsewhere cannot be seen.
    assert (refused.exit_code, taken.exit_code) == (2, 0), taken.output
    prefix.start("copy")


def test_nothing_changes_without_a_clear_yes(prefix: Prefix) -> None:
    before = prefix.owner()

    assert prefix.take_over("new", typed="\n").exit_code == 2
    assert prefix.owner() == before
    prefix.start("old")


def test_an_owner_that_runs_on_this_machine_is_left_alone(prefix: Prefix) -> None:
    """Whatever the operator says."""
    before = prefix.owner()

    async def beside_the_owner() -> Result:
        store = await prefix.open_log("old")
        try:
            return await asyncio.to_thread(prefix.take_over, "new", "--yes", "--owner-is-dead")
        finally:
            await store.close()

    result = asyncio.run(beside_the_owner())

    assert result.exit_code == 2
    assert f"the service of {prefix.folder / 'old'} is running" in result.stderr
    assert prefix.owner() == before


def test_an_owner_elsewhere_may_run_while_something_was_written_a_short_while_ago(
    prefix: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix.move_owner_elsewhere()

    recent = prefix.take_over("new", "--yes")
    monkeypatch.setattr(snapshots_takeover, "QUIET_S_MIN", 0.0)
    quiet = prefix.take_over("new", "--yes")

    assert recent.exit_code == 2
    assert "on another-machine may be running" in recent.stderr
    assert quiet.exit_code == 0
    assert prefix.owner()["folder"] == str(prefix.folder / "new")


def test_there_may_be_nothing_to_take(prefix: Prefix) -> None:
    """The folder's own prefix, one of nobody, and snapshots that are not on S3."""
    assert "nothing to take over" in prefix.take_over("old").stdout
    prefix.server.client.delete_object(Bucket=BUCKET, Key=f"{prefix.name}/owner")
    assert "nothing to take over" in prefix.take_over("new").stdout
    refused = prefix.take_over("new", storage="rocksdb")
    assert refused.exit_code == 2
    assert "only a prefix on S3 belongs to a data folder" in refused.stderr


def test_who_takes_it_between_the_look_and_the_answer_keeps_it(prefix: Prefix, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old owner starts while the question is on the screen."""

    def confirmed(*_arguments: object, **_options: object) -> bool:
        prefix.start("old")
        return True

    monkeypatch.setattr("click.confirm", confirmed)

    result = prefix.take_over("new")

    assert result.exit_code == 2
    assert "was taken a moment ago" in result.stderr
    prefix.start("old")


@pytest.mark.parametrize("what", ["file", "object", "both"])
def test_its_own_folder_takes_a_prefix_whose_proof_is_damaged(prefix: Prefix, what: str) -> None:
    """One bit of it is told as damage with what to do; then file and object are whole again."""
    file = prefix.folder / "old" / OWNER_FILE_NAME
    if what != "object":
        data = bytearray(file.read_bytes())
        data[data.index(b"[") + 3] ^= 1
        file.write_bytes(data)
    if what != "file":
        body = json.dumps(prefix.owner() | {"folder": "/elsewhere"}).encode()
        prefix.server.client.put_object(Bucket=BUCKET, Key=f"{prefix.name}/owner", Body=body)

    with pytest.raises(OwnerCorruptedError, match=r"is damaged: its checksum is wrong.*snapshots take-over"):
        prefix.start("old")
    refused = prefix.take_over("old", "--yes")
    taken = prefix.take_over("old", "--yes", "--owner-is-dead")

    # Whose it was can be read where only the file is damaged: its service is seen not to run.
    assert refused.exit_code == (0 if what == "file" else 2), refused.output
    assert taken.exit_code == 0, taken.output
    prefix.start("old")
