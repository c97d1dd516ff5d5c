"""The command `postdate pipeline merge`; `jobs.merge` does the work."""

import sys
from typing import TYPE_CHECKING, Any

import click

from postdate.command_line.endings import EXIT_CODE_WRONG, help_end
from postdate.command_line.output import print_json
from postdate.command_line.progress import Steps
from postdate.pipeline.cli.common import (
    INT_MAX,
    job_options,
    new_session,
    segment_options,
)

if TYPE_CHECKING:
    from postdate.pipeline.jobs.merge import MergeReport

UNREADABLE_SHOWN = 10


@click.command(
    epilog=help_end(
        "postdate pipeline merge data --buckets 100",
        "postdate pipeline merge data --buckets 100 --dry-run",
        "postdate pipeline merge data --buckets 20 --topic persistent://public/default/orders",
        "postdate pipeline merge data --buckets 100 --index 's3://bucket/postdate/snapshots?region=eu-west-1'",
        'spark-submit --master spark://host:7077 "$(python -m postdate.pipeline)" merge /shared/data --buckets 100',
        wrong="buckets cannot be read, and were left as they are",
    )
)
@click.option(
    "--buckets",
    "bucket_count_max",
    type=click.IntRange(1, INT_MAX),
    required=True,
    help="Most buckets of a subscription.",
)
@segment_options
@job_options(has_dry_run=True)
def merge(
    data: str,
    bucket_count_max: int,
    index: str | None,
    topics: tuple[str, ...],
    cursors: tuple[str, ...],
    segment_seconds: int,
    segment_indexes: int,
    is_dry_run: bool,
    master: str,
    is_json: bool,
) -> None:
    """Merge adjacent buckets until no subscription has more than a limit, each row read and written once.

    DATA is a service's data directory; the service must be stopped. The old buckets are the index until the new ones
    take their place in one step at the end, and are deleted after it. Which buckets go together is decided as by a
    service with delayedDeliveryMaxNumBuckets. A second run changes nothing.
    """
    from postdate.pipeline.jobs.merge import merge as merge_buckets
    from postdate.pipeline.planning.rules import RebuildRules
    from postdate.pipeline.spark.open_index import check_index, cursor_folder

    # Before Spark takes its seconds to start.
    check_index(index or data, cursor_folder(data, None), topics, cursors)
    rules = RebuildRules(now_ms=0, step_ms=segment_seconds * 1_000, rows_max=segment_indexes)
    with new_session(master) as spark, Steps().shown() as steps:
        report = merge_buckets(
            spark,
            data,
            index,
            bucket_count_max=bucket_count_max,
            rules=rules,
            topics=topics or None,
            cursors=cursors or None,
            is_dry_run=is_dry_run,
            on_stage=steps.begin,
            on_step=steps.advance,
        )
    if is_json:
        print_json(merge_json(report, is_dry_run=is_dry_run))
    else:
        _tell_merged(report, bucket_count_max, is_dry_run=is_dry_run)
    if report.unreadable:
        sys.exit(EXIT_CODE_WRONG)


def merge_json(report: "MergeReport", *, is_dry_run: bool) -> dict[str, Any]:
    """Return the findings, and the result."""
    return {
        "is_dry_run": is_dry_run,
        "subscriptions": report.subscriptions,
        "buckets_before": report.buckets_before,
        "buckets_after": report.buckets_after,
        "rows": report.rows,
        "unreadable": [
            {"topic": cursor.topic, "cursor": cursor.subscription, "bucket_id": one.bucket_id, "reason": one.error}
            for cursor, one in report.unreadable
        ],
    }


def _tell_merged(report: "MergeReport", bucket_count_max: int, *, is_dry_run: bool) -> None:
    click.echo(f"{report.subscriptions} subscriptions have more than {bucket_count_max} buckets")
    if report.subscriptions:
        click.echo(
            f"{report.buckets_before:,} buckets {'would become' if is_dry_run else 'became'} {report.buckets_after:,}, "
            f"with {report.rows:,} rows in new ones"
        )
    for cursor, bucket in report.unreadable[:UNREADABLE_SHOWN]:
        click.echo(f"{bucket.bucket_id} of {cursor} was left as it is: {bucket.error}", err=True)
