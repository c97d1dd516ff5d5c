"""The command `postdate pipeline migrate`, an older name of a move by `postdate snapshots copy --workers spark`."""

import sys
from typing import TYPE_CHECKING, Any

import click

from command_line.endings import EXIT_CODE_WRONG, help_end
from command_line.options import move_options
from command_line.output import print_json
from command_line.progress import bytes_bar
from pipeline.cli.common import job_options, new_session

if TYPE_CHECKING:
    from pipeline.index.index_copy import Copied

FAILED_SHOWN = 10


@click.command(
    epilog=help_end(
        "postdate pipeline migrate data --to s3://bucket/postdate/snapshots",
        "postdate pipeline migrate data --to 's3://bucket/index?endpoint=http://127.0.0.1:9000&path_style=true'",
        "postdate pipeline migrate data --index s3://bucket/postdate/snapshots --to data --delete-source",
        'spark-submit "$(python -m pipeline)" migrate /shared/data --to s3://bucket/postdate/snapshots',
        wrong="snapshots are damaged or missing: no cursor was changed, and nothing deleted",
    )
)
@move_options(
    target="Where to: s3://BUCKET/PREFIX, file:///FOLDER or a folder.",
    metavar="INDEX",
    delete_source="Delete the old snapshots in the end.",
)
@job_options(older_index_name="--from", has_topics=False, has_cursors=False)
def migrate(
    data: str,
    index: str | None,
    target: str,
    delete_source: bool,
    master: str,
    is_json: bool,
) -> None:
    """Move the delayed index from RocksDB to S3 or back; the cursors name the copies in one step at the end.

    The older name of `postdate snapshots copy --update-cursors --workers spark`, with the same plan and rules: all of
    the index moves. It is kept for `spark-submit`, and for places that no configuration names.

    DATA is a service's data directory; the service must be stopped, and bucketSnapshotStorage must say the new place
    before it starts again. Every copy is read again and compared. An interrupted run is resumed by the next one. An S3
    location may have the options endpoint, region and path_style; credentials are found as by AWS's own tools.
    """
    from pipeline.index.place import check_index, check_location, cursor_folder, is_uri
    from pipeline.jobs.migrate import migrate as move

    # Before Spark takes its seconds to start.
    source = index or data
    check_index(source, cursor_folder(data, None), (), ())
    check_location(target)
    if is_uri(source) == is_uri(target):
        raise ValueError(
            "one place must be a folder, the other a URI: `postdate snapshots copy` copies between folders"
        )
    with new_session(master) as spark, bytes_bar("copied") as advance:
        copied = move(
            spark,
            data,
            source,
            target,
            deletes_source=delete_source,
            advance=advance,
        )
    if is_json:
        print_json(migrate_json(copied))
    else:
        _tell_moved(copied)
    if copied.failed:
        sys.exit(EXIT_CODE_WRONG)


def migrate_json(copied: "Copied") -> dict[str, Any]:
    """Return the findings, and the result."""
    return {
        "snapshots": len(copied.infos),
        "bytes": sum(info.length_bytes for info in copied.infos),
        "there_already": copied.moved_before,
        "written": copied.written,
        "cursors_updated": copied.cursors_updated,
        "deleted": copied.deleted,
        "failed": [{"bucket_id": bucket_id, "reason": why} for bucket_id, why in copied.failed.items()],
    }


def _tell_moved(copied: "Copied") -> None:
    length_bytes = sum(info.length_bytes for info in copied.infos)
    click.echo(
        f"{len(copied.infos):,} snapshots of {length_bytes:,} bytes to move, {copied.moved_before:,} are there "
        f"already; {copied.written:,} copied now, {copied.cursors_updated} cursors changed, {copied.deleted:,} deleted"
    )
    for bucket_id, why in list(copied.failed.items())[:FAILED_SHOWN]:
        click.echo(f"{bucket_id}: {why}", err=True)
    if copied.failed:
        click.echo(f"{len(copied.failed)} snapshots cannot be moved, so no cursor was changed: audit first", err=True)
