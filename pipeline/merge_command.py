"""The command `postdate pipeline merge`; what it does is `merge`'s."""

from typing import TYPE_CHECKING

import click

from pipeline.commands import Steps, examples, new_session, refusing

if TYPE_CHECKING:
    from pipeline.merge import MergeReport

UNREADABLE_SHOWN = 10


@click.command(
    epilog=examples(
        "postdate pipeline merge data --buckets 100",
        "postdate pipeline merge data --buckets 100 --dry-run",
        "postdate pipeline merge data --buckets 20 --topic persistent://public/default/orders",
        "postdate pipeline merge data --buckets 100 --index 's3://bucket/postdate/snapshots?region=eu-west-1'",
        'spark-submit --master spark://host:7077 "$(python -m pipeline)" merge /shared/data --buckets 100',
    )
)
@click.argument("data")
@click.option(
    "--buckets", "bucket_count_max", type=click.IntRange(min=1), required=True, help="Most buckets of a subscription."
)
@click.option(
    "--index",
    metavar="INDEX",
    help="Snapshots are here: a folder, s3://BUCKET/PREFIX or file:///FOLDER. Default: in DATA.",
)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; repeatable.")
@click.option("--cursor", "cursors", multiple=True, metavar="NAME", help="Only subscriptions of this name; repeatable.")
@click.option("--segment-seconds", type=int, default=300, show_default=True, help="Longest time span of a segment.")
@click.option("--segment-indexes", type=int, default=5_000, show_default=True, help="Most indexes of a segment, or -1.")
@click.option("--dry-run", is_flag=True, help="Only count; change nothing.")
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs; spark-submit's own wins.")
@refusing
def merge(
    data: str,
    bucket_count_max: int,
    index: str | None,
    topics: tuple[str, ...],
    cursors: tuple[str, ...],
    segment_seconds: int,
    segment_indexes: int,
    dry_run: bool,
    master: str,
) -> None:
    """Merge adjacent buckets until no subscription has more than a limit, each row read and written once.

    DATA is a service's data directory; the service must be stopped. The old buckets are the index until the new ones
    take their place in one step at the end, and are deleted after it. Which buckets go together is decided as by a
    service with delayedDeliveryMaxNumBuckets. A second run changes nothing.
    """
    from pipeline.index_place import cursor_folder
    from pipeline.merge import merge as merge_buckets
    from pipeline.rules import RebuildRules

    # Before Spark takes its seconds to start.
    cursor_folder(data, None)
    rules = RebuildRules(now_ms=0, step_ms=segment_seconds * 1_000, rows_max=segment_indexes)
    spark = new_session(master)
    with Steps().shown() as steps:
        report = merge_buckets(
            spark,
            data,
            index,
            bucket_count_max=bucket_count_max,
            rules=rules,
            topics=topics or None,
            cursors=cursors or None,
            is_dry_run=dry_run,
            on_stage=steps.begin,
            on_step=steps.advance,
        )
    spark.stop()
    _tell_merged(report, bucket_count_max, is_dry_run=dry_run)


def _tell_merged(report: "MergeReport", bucket_count_max: int, *, is_dry_run: bool) -> None:
    click.echo(f"{report.subscriptions} subscriptions have more than {bucket_count_max} buckets")
    if report.subscriptions:
        click.echo(
            f"{report.buckets_before:,} buckets {'would become' if is_dry_run else 'became'} {report.buckets_after:,}, "
            f"with {report.rows:,} rows in new ones"
        )
    for cursor, bucket in report.unreadable[:UNREADABLE_SHOWN]:
        click.echo(f"{bucket.bucket_id} of {cursor} was left as it is: {bucket.error}", err=True)
