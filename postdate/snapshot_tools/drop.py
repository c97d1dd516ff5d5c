"""`postdate snapshots drop`: give up an unreadable snapshot, so that its messages are read from the log again.

Without a running service, the cursor properties that name the snapshot are removed first, in one durable write, and
then the snapshot, as far as the storage can delete it. Beside a service with snapshots on S3 the snapshot alone is
deleted: the service notices at its next try. The caller is asked before a snapshot is given up that can be read, or
that the storage does not answer for, as in an outage; a damaged one is given up without a question.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass

import click

from managed_ledger.cursors.cursor_properties import CursorName
from managed_ledger.errors import StoreLockedError
from postdate.broker.configuration.config import BrokerConfig
from postdate.broker.service.snapshot_storages import patient_storage_of
from postdate.command_line.endings import help_end
from postdate.command_line.options import yes_option
from postdate.command_line.output import json_option, print_json
from postdate.snapshot_tools.options import on_config
from postdate.snapshot_tools.place import Filter, SnapshotPlace, open_place, readable_segments
from snapshot_storage.encoding.codec import decode_metadata, decode_segment
from snapshot_storage.errors import (
    BucketNotFoundError,
    SnapshotCorruptedError,
    SnapshotStorageError,
    SnapshotUnreadableError,
)
from snapshot_storage.storage import BucketSnapshotStorage


@dataclass(slots=True)
class Dropped:
    """The result of a drop."""

    cursors_updated: int = 0
    is_beside_service: bool = False
    """Whether a service runs, which notices by itself."""
    left: str | None = None
    """Why the storage could not delete it, if so: it takes space, and no property names it."""


async def drop_snapshot(
    config: BrokerConfig, bucket_id: int, *, on_doubt: Callable[[str], None] = lambda _doubt: None
) -> Dropped:
    """Give a snapshot up.

    Args:
        config: The configuration.
        bucket_id: Its id.
        on_doubt: Called, with the reason, before a snapshot is given up that may not be lost; an error leaves it as it
            is.

    Raises:
        BucketNotFoundError: There is none of this id, and no cursor names one.
        StoreLockedError: A service is running, and has the storage to itself.
        LedgerError: The log cannot be opened or written.
        SnapshotStorageError: The storage cannot be opened, or cannot delete what a running service reads.
    """
    try:
        async with open_place(config, is_read_only=False) as place:
            await _tell_doubt(place.storage, bucket_id, on_doubt)
            dropped = Dropped(await _forget(place, bucket_id))
            if not dropped.cursors_updated:
                await _check_there(place.storage, bucket_id)
            try:
                await place.storage.delete_bucket_snapshot(bucket_id)
            except SnapshotStorageError as error:
                dropped.left = str(error)
            return dropped
    except StoreLockedError:
        if config.bucket_snapshot_storage != "s3":
            raise
    async with patient_storage_of(config) as storage:
        await _check_there(storage, bucket_id)
        await _tell_doubt(storage, bucket_id, on_doubt)
        await storage.delete_bucket_snapshot(bucket_id)
    return Dropped(is_beside_service=True)


async def _forget(place: SnapshotPlace, bucket_id: int) -> int:
    """Remove the properties that name it, and return of how many cursors."""
    now = await place.cursor_properties()
    changed: dict[CursorName, dict[str, str]] = {}
    for one in await place.properties(Filter()):
        if one.bucket_id == bucket_id:
            name = CursorName(one.topic_name, one.cursor_name)
            del changed.setdefault(name, dict(now[name]))[one.key]
    if changed:
        await place.put_properties(changed)
    return len(changed)


async def _check_there(storage: BucketSnapshotStorage, bucket_id: int) -> None:
    """Refuse an id without a snapshot; an unreadable snapshot counts as present.

    Raises:
        BucketNotFoundError: There is none.
    """
    with suppress(SnapshotUnreadableError):
        await storage.get_bucket_snapshot_length(bucket_id)


async def _tell_doubt(storage: BucketSnapshotStorage, bucket_id: int, on_doubt: Callable[[str], None]) -> None:
    """Say why a snapshot may not be lost; of one that is damaged or missing there is nothing to say."""
    try:
        head = await storage.get_bucket_snapshot_head(bucket_id)
        decode_metadata(head.metadata)
        async for number, data in readable_segments(storage, head.info):
            if isinstance(data, SnapshotUnreadableError):
                raise data
            decode_segment(data, entry=number)
    except (SnapshotCorruptedError, BucketNotFoundError):
        return
    except SnapshotStorageError as error:
        on_doubt(f"It may only be an outage: {error}.")
    else:
        on_doubt(f"All of the snapshot {bucket_id} can be read.")


@click.command(
    short_help="Give up a snapshot that cannot be read.",
    epilog=help_end(
        "postdate snapshots drop 1312740393216",
        "postdate snapshots drop 1312740393216 --data /var/lib/postdate --json",
        "postdate snapshots drop 1312740393216 --yes",
    ),
)
@click.argument("bucket_id", metavar="ID", type=click.IntRange(0, 2**63 - 1))
@on_config
@yes_option("Do not ask before a snapshot is given up that can be read, or that may be in an outage.")
@json_option("one object")
def drop(config: BrokerConfig, *, bucket_id: int, is_sure: bool, is_json: bool) -> None:
    """Give up a snapshot that cannot be read: its messages are read from the log again.

    `/health` names such snapshots. Asks first, unless the snapshot is damaged for certain. Works beside a running
    service where the snapshots are on S3; an object that the server cannot even delete is forgotten with the service
    stopped. A RocksDB folder is opened as by a start of the service, which puts a damaged one aside.
    """

    def ask(doubt: str) -> None:
        if not is_sure:
            click.confirm(f"{doubt} Give it up?", abort=True, err=True)

    dropped = asyncio.run(drop_snapshot(config, bucket_id, on_doubt=ask))
    if is_json:
        print_json({"bucket_id": bucket_id, **asdict(dropped)})
        return
    if dropped.is_beside_service:
        click.echo("Deleted: the service finds out at its next try, and reads the messages from the log.")
        return
    if dropped.cursors_updated:
        click.echo("No cursor names it any more: the next start of the service reads its messages from the log.")
    else:
        click.echo("No cursor named it.")
    if dropped.left is not None:
        click.echo(f"Its remains stay in the storage, as they cannot be deleted: {dropped.left}")
