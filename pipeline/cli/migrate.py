"""The command `postdate pipeline migrate`; `jobs.migrate` does the work."""

import sys
from typing import TYPE_CHECKING, Any

import click

from command_line.endings import EXIT_CODE_WRONG, help_end
from command_line.output import print_json
from command_line.progress import Steps
from pipeline.cli.common import job_options, new_session

if TYPE_CHECKING:
    from pipeline.jobs.migrate import MigrateReport

FAILED_SHOWN = 10


@click.command(
    epilog=help_end(
        "postdate pipeline migrate data --to s3://bucket/postdate/snapshots",
        "postdate pipeline migrate data --to 's3://bucket/index?endpoint=http://127.0.0.1:9000&path_style=true'",
        "postdate pipeline migrate data --from s3://bucket/postdate/snapshots --to data --delete-source",
        'spark-submit "$(python -m pipeline)" migrate /shared/data --to s3://bucket/postdate/snapshots',
        wrong="snapshots are damaged or missing: no cursor was changed, and nothing deleted",
    )
)
@click.option("--from", "source", metavar="INDEX", help="Snapshots are here. Default: in DATA.")
@click.option(
    "--to", "target", metavar="INDEX", required=True, help="Where to: s3://BUCKET/PREFIX, file:///FOLDER or a folder."
)
@click.option("--delete-source", is_flag=True, help="Delete the old snapshots in the end.")
@job_options(has_index=False)
def migrate(
    data: str,
    source: str | None,
    target: str,
    topics: tuple[str, ...],
    cursors: tuple[str, ...],
    delete_source: bool,
    master: str,
    is_json: bool,
) -> None:
    """Move the delayed index from RocksDB to S3 or back; the cursors name the copies in one step at the end.

    The same as `postdate snapshots copy --update-cursors --workers spark`, for `spark-submit` and any locations.

    DATA is a service's data directory; the service must be stopped, and bucketSnapshotStorage must say the new place
    before it starts again. Every copy is read again and compared. An interrupted run is resumed by the next one. An S3
    location may have the options endpoint, region and path_style; credentials are found as by AWS's own tools.
    """
    move_index(
        data,
        source,
        target,
        topics=topics,
        cursors=cursors,
        deletes_source=delete_source,
        master=master,
        is_json=is_json,
    )


def move_index(
    data: str,
    source: str | None,
    target: str,
    *,
    topics: tuple[str, ...] = (),
    cursors: tuple[str, ...] = (),
    deletes_source: bool,
    master: str,
    is_json: bool,
) -> None:
    """Do what the command does, and end the process with its exit code where not all is there."""
    from pipeline.index.place import check_index, cursor_folder
    from pipeline.jobs.migrate import migrate as move

    # Before Spark takes its seconds to start.
    check_index(source or data, cursor_folder(data, None), topics, cursors)
    with new_session(master) as spark, Steps().shown() as steps:
        report = move(
            spark,
            data,
            data if source is None else source,
            target,
            topics=topics or None,
            cursors=cursors or None,
            deletes_source=deletes_source,
            on_stage=steps.begin,
            on_step=steps.advance,
        )
    if is_json:
        print_json(migrate_json(report))
    else:
        _tell_moved(report)
    if report.failed:
        sys.exit(EXIT_CODE_WRONG)


def migrate_json(report: "MigrateReport") -> dict[str, Any]:
    """Return what was found, and what was done."""
    return {
        "snapshots": report.snapshots,
        "bytes": report.length_bytes,
        "there_already": report.there_already,
        "written": report.written,
        "cursors_updated": report.cursors_updated,
        "deleted": report.deleted,
        "failed": [{"bucket_id": bucket_id, "reason": why} for bucket_id, why in report.failed.items()],
    }


def _tell_moved(report: "MigrateReport") -> None:
    click.echo(
        f"{report.snapshots:,} snapshots of {report.length_bytes:,} bytes to move, {report.there_already:,} are there "
        f"already; {report.written:,} copied now, {report.cursors_updated} cursors changed, {report.deleted:,} deleted"
    )
    for bucket_id, why in list(report.failed.items())[:FAILED_SHOWN]:
        click.echo(f"{bucket_id}: {why}", err=True)
    if report.failed:
        click.echo(f"{len(report.failed)} snapshots cannot be moved, so no cursor was changed: audit first", err=True)
