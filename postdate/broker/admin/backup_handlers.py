"""The handler that makes a backup."""

from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from postdate.broker.admin.endpoint import Call
from postdate.broker.admin.refusal import RefusalError
from postdate.broker.admin.scheduled_handlers import OPERATION_ID
from postdate.broker.admin.scheduled_requests import BackupRequest
from postdate.broker.admin.web_service import Served
from postdate.broker.ownership.owners import Addresses
from postdate.broker.scheduled.answers import Answer, Count, TimeMs, TimeText, both
from snapshot_storage.errors import SnapshotStorageError

_ADVICE = "The backup of before is valid. Correct the target or its rights, and repeat it"


class BackupAnswer(Answer, kw_only=True):
    """A backup that was made."""

    target: str
    made_ms: TimeMs
    made: TimeText
    files: Annotated[Count, Meta(description="Tables and write-ahead logs")]
    bytes: Annotated[Count, Meta(description="Their size")]
    new_files: Annotated[Count, Meta(description="Of these, what the backup of before did not have")]
    new_bytes: Count
    missing: Annotated[
        list[str], Meta(description="Bundles that no service had at that moment: what is there of them is older")
    ]


async def make_backup(served: Served, call: Call[BackupRequest]) -> BackupAnswer:
    """Make a backup of the log: messages, cursors, policies and grants, as of one moment after the request came."""
    target = call.asked.target
    _check_reach(served, target)
    with served.begin(call.request.headers.get(OPERATION_ID), "backup", None) as progress:

        def on_bytes(done: int, matched: int) -> None:
            progress.done, progress.matched = done, matched

        progress.searching = False
        try:
            made = await served.service.backups.make(target, on_bytes, replaces_other=call.asked.replace)
        except (OSError, SnapshotStorageError) as error:
            raise RefusalError(503, f"The backup was not made: {error}", field="target", advice=_ADVICE) from error
    return BackupAnswer(
        target=target,
        **both("made", made.made_at_ms),
        files=made.files,
        bytes=made.size_bytes,
        new_files=made.new_files,
        new_bytes=made.new_bytes,
        missing=[str(one) for one in made.missing],
    )


def _check_reach(served: Served, target: str) -> None:
    """Refuse a folder for the bundles of several machines: each would have a part, and none a backup."""
    hosts = sorted({_host_of(one.addresses) for one in served.service.owners.services()})
    if len(hosts) > 1 and not target.startswith("s3://"):
        error = f"The services are on {' and '.join(hosts)}, where {target} is a folder of each"
        raise RefusalError(400, error, field="target", advice="Name a place on S3: s3://BUCKET/PREFIX")


def _host_of(addresses: Addresses) -> str:
    urls = (addresses.service_url, addresses.service_url_tls, addresses.web_url, addresses.web_url_tls)
    return next((urlsplit(url).hostname or url for url in urls if url), "")
