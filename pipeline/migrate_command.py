"""The command `postdate pipeline migrate`; what it does is `migrate`'s."""

import sys

import click

from pipeline.commands import Steps, examples, new_session, refusing

EXIT_CODE_FAILED = 1
FAILED_SHOWN = 10


@click.command(
    epilog=examples(
        "postdate pipeline migrate data --to s3://bucket/postdate/snapshots",
        "postdate pipeline migrate data --to 's3://bucket/index?endpoint=http://127.0.0.1:9000&path_style=true'",
        "postdate pipeline migrate data --from s3://bucket/postdate/snapshots --to data --delete-source",
        'spark-submit "$(python -m pipeline)" migrate /shared/data --to s3://bucket/postdate/snapshots',
    )
)
@click.argument("data")
@click.option("--from", "source", metavar="INDEX", help="Snapshots are here. Default: in DATA.")
@click.option(
    "--to", "target", metavar="INDEX", required=True, help="Where to: s3://BUCKET/PREFIX, file:///FOLDER or a folder."
)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; repeatable.")
@click.option("--cursor", "cursors", multiple=True, metavar="NAME", help="Only subscriptions of this name; repeatable.")
@click.option("--delete-source", is_flag=True, help="Delete the old snapshots in the end.")
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs; spark-submit's own wins.")
@refusing
def migrate(
    data: str,
    source: str | None,
    target: str,
    topics: tuple[str, ...],
    cursors: tuple[str, ...],
    delete_source: bool,
    master: str,
) -> None:
    """Move the delayed index from RocksDB to S3 or back; the cursors name the copies in one step at the end.

    DATA is a service's data directory; the service must be stopped, and bucketSnapshotStorage must say the new place
    before it starts again. Every copy is read again and compared. An interrupted run is resumed by the next one. An S3
    location may have the options endpoint, region and path_style; credentials are found as by AWS's own tools.
    """
    from pipeline.index_place import cursor_folder
    from pipeline.migrate import migrate as move

    # Before Spark takes its seconds to start.
    cursor_folder(data, None)
    spark = new_session(master)
    with Steps().shown() as steps:
        report = move(
            spark,
            data,
            data if source is None else source,
            target,
            topics=topics or None,
            cursors=cursors or None,
            deletes_source=delete_source,
            on_stage=steps.begin,
            on_step=steps.advance,
        )
    spark.stop()
    click.echo(
        f"{report.snapshots:,} snapshots of {report.length_bytes:,} bytes to move, {report.there_already:,} are there "
        f"already; {report.written:,} copied now, {report.cursors_updated} cursors changed, {report.deleted:,} deleted"
    )
    for bucket_id, why in list(report.failed.items())[:FAILED_SHOWN]:
        click.echo(f"{bucket_id}: {why}", err=True)
    if report.failed:
        click.echo(f"{len(report.failed)} snapshots cannot be moved, so no cursor was changed: audit first", err=True)
        sys.exit(EXIT_CODE_FAILED)
