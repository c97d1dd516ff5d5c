"""The command `postdate pipeline cancel`; `jobs.cancel` does the work."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from postdate.command_line.endings import EXIT_CODE_WRONG, help_end
from postdate.command_line.output import counted, print_json
from postdate.command_line.progress import Steps
from postdate.command_line.times import TIME
from postdate.pipeline.cli.common import job_options, new_session

if TYPE_CHECKING:
    from postdate.pipeline.jobs.cancel import CancelReport

BAD_ROWS_SHOWN = 10


@click.command(
    epilog=help_end(
        "postdate pipeline cancel data --subscription billing --positions positions.parquet",
        "postdate pipeline cancel data --subscription billing --key order-17 --dry-run",
        "postdate pipeline cancel data --subscription billing --property campaign=spring --property country=fi",
        "postdate pipeline cancel data --subscription billing --subscription audit --from 2026-12-24T00:00:00Z",
        'spark-submit "$(python -m postdate.pipeline)" cancel /shared/data --subscription billing --positions s3a://bucket/gone.csv',
        wrong="no message is found, or not all is cancelled: a position is not in the log or is none, or a bucket "
        "cannot be read",
    )
)
@click.option("--positions", metavar="FILE", help="Parquet or .csv with a header: topic, ledger_id, entry_id.")
@click.option("--key", "message_keys", multiple=True, metavar="KEY", help="Only messages of this key; repeatable.")
@click.option(
    "--property", "properties", multiple=True, metavar="NAME=VALUE", help="Only messages with all of these; repeatable."
)
@click.option("--from", "deliver_from_ms", type=TIME, help="Only messages due at this time or later.")
@click.option("--until", "deliver_before_ms", type=TIME, help="Only messages due before this time.")
@click.option("--publish-from", "publish_from_ms", type=TIME, help="Only messages published at this time or later.")
@click.option("--publish-before", "publish_before_ms", type=TIME, help="Only messages published before this time.")
@click.option("--acknowledge-only", is_flag=True, help="Leave the index alone, as when it is not in DATA.")
@job_options(needs_cursors=True, has_dry_run=True)
def cancel(
    data: str,
    cursors: tuple[str, ...],
    index: str | None,
    positions: str | None,
    topics: tuple[str, ...],
    message_keys: tuple[str, ...],
    properties: tuple[str, ...],
    deliver_from_ms: int | None,
    deliver_before_ms: int | None,
    publish_from_ms: int | None,
    publish_before_ms: int | None,
    is_dry_run: bool,
    acknowledge_only: bool,
    master: str,
    is_json: bool,
) -> None:
    """Cancel scheduled messages: they are acknowledged for the subscriptions named and never delivered.

    DATA is a service's data directory; the service must be stopped. Cancelled are the positions of a file, or all
    messages with a delay for which every option holds. Keys and properties are read from the metadata of messages,
    which takes longer than times alone. A batch counts if all of its messages have them; `postdate scheduled cancel`
    cancels a part of a batch, in a running service. A second run cancels nothing. Times are ISO 8601, or milliseconds
    since 1970.
    """
    from postdate.pipeline.jobs.cancel import cancel as cancel_positions
    from postdate.pipeline.jobs.find_messages import find_messages, read_positions
    from postdate.pipeline.spark.open_index import check_index, cursor_folder

    deliver, publish = (deliver_from_ms, deliver_before_ms), (publish_from_ms, publish_before_ms)
    is_limited = bool(topics or message_keys or properties) or any(limit is not None for limit in (*deliver, *publish))
    if is_limited == (positions is not None):
        raise ValueError("say what to cancel: either --positions, or options for topic, key, property or times")
    wanted = [_property(text) for text in properties]
    # Before Spark takes its seconds to start.
    check_index(None if acknowledge_only else index or data, cursor_folder(data, None), topics, cursors)
    if positions is not None and "://" not in positions and not Path(positions).exists():
        raise ValueError(f"there is no file {positions} of positions")
    with new_session(master) as spark, Steps().shown() as steps:
        if positions is not None:
            found = read_positions(spark, positions)
        else:
            found = find_messages(
                spark,
                data,
                topics=topics or None,
                deliver_at_ms=deliver,
                publish_time_ms=publish,
                keys=[key.encode() for key in message_keys],
                properties=wanted,
            )
        report = cancel_positions(
            found,
            index or data,
            cursors=cursors,
            cursor_log=data,
            is_dry_run=is_dry_run,
            has_index=not acknowledge_only,
            on_stage=steps.begin,
            on_step=steps.advance,
        )
    # Positions that a search finds in topics without such a subscription were not asked for.
    left_out = report.unsubscribed if positions is not None else 0
    if is_json:
        print_json(cancel_json(report, is_dry_run=is_dry_run))
    else:
        _tell_cancelled(report, left_out, is_dry_run=is_dry_run)
    finds_nothing = positions is None and not report.asked
    if finds_nothing or left_out or report.unknown or report.bad_rows or report.buckets_unreadable:
        sys.exit(EXIT_CODE_WRONG)


def cancel_json(report: "CancelReport", *, is_dry_run: bool) -> dict[str, Any]:
    """Return the request, and the result."""
    return {
        "is_dry_run": is_dry_run,
        "cancelled": [
            {"topic": name.topic, "cursor": name.subscription, "messages": count}
            for name, count in sorted(report.cancelled.items())
        ],
        "asked": report.asked,
        "unknown": report.unknown,
        "unsubscribed": report.unsubscribed,
        "bad_rows": len(report.bad_rows),
        "bad_examples": [row._asdict() for row in report.bad_rows[:BAD_ROWS_SHOWN]],
        "index_rows": report.index_rows,
        "buckets_shrunk": report.buckets_shrunk,
        "buckets_removed": report.buckets_removed,
        "buckets_unreadable": [
            {
                "topic": one.cursor.topic,
                "cursor": one.cursor.subscription,
                "bucket_key": one.bucket_key,
                "reason": one.error,
            }
            for one in report.buckets_unreadable
        ],
    }


def _property(text: str) -> tuple[bytes, bytes]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise ValueError(f"--property must be NAME=VALUE, but is {text}")
    return name.encode(), value.encode()


def _tell_cancelled(report: "CancelReport", left_out: int, *, is_dry_run: bool) -> None:
    if not report.asked and not report.bad_rows:
        click.echo("Nothing matches")
        return
    for name, cancelled in sorted(report.cancelled.items()):
        click.echo(f"{cancelled:,} messages {'would be ' if is_dry_run else ''}cancelled for {name}")
    click.echo(f"{report.asked:,} positions asked for, of which the log does not have {report.unknown:,}")
    if left_out:
        click.echo(f"{left_out:,} positions are of topics that have none of these subscriptions", err=True)
    if not is_dry_run:
        click.echo(
            f"{report.index_rows:,} rows left the index: {counted(report.buckets_shrunk, 'bucket')} shrunk, "
            f"{report.buckets_removed:,} removed"
        )
    for bucket in report.buckets_unreadable[:BAD_ROWS_SHOWN]:
        click.echo(f"{bucket.bucket_key} of {bucket.cursor} was left as it is: {bucket.error}", err=True)
    if report.bad_rows:
        click.echo(f"{len(report.bad_rows):,} rows are no positions and were left out, such as", err=True)
    for row in report.bad_rows[:BAD_ROWS_SHOWN]:
        click.echo(f"  {row.topic} {row.ledger_id}:{row.entry_id}", err=True)
