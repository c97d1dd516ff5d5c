"""The command `postdate pipeline cancel`; what it does is `cancel`'s."""

from typing import TYPE_CHECKING

import click

from pipeline.commands import Steps, examples, new_session, refusing

if TYPE_CHECKING:
    from pipeline.cancel import CancelReport

BAD_ROWS_SHOWN = 10


@click.command(
    epilog=examples(
        "postdate pipeline cancel data --cursor billing --positions positions.parquet",
        "postdate pipeline cancel data --cursor billing --key order-17 --dry-run",
        "postdate pipeline cancel data --cursor billing --property campaign=spring --property country=fi",
        "postdate pipeline cancel data --cursor billing --cursor audit --deliver-from-ms 1767225600000",
        'spark-submit "$(python -m pipeline)" cancel /shared/data --cursor billing --positions s3a://bucket/gone.csv',
    )
)
@click.argument("data")
@click.option("--cursor", "cursors", multiple=True, required=True, metavar="NAME", help="Subscription; repeatable.")
@click.option(
    "--index",
    metavar="INDEX",
    help="Snapshots are here: a folder, s3://BUCKET/PREFIX or file:///FOLDER. Default: in DATA.",
)
@click.option("--positions", metavar="FILE", help="Parquet or .csv with a header: topic, ledger_id, entry_id.")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; repeatable.")
@click.option("--key", "message_keys", multiple=True, metavar="KEY", help="Only messages of this key; repeatable.")
@click.option(
    "--property", "properties", multiple=True, metavar="NAME=VALUE", help="Only messages with all of these; repeatable."
)
@click.option("--deliver-from-ms", type=int, help="Only what is to be delivered at this time or later.")
@click.option("--deliver-before-ms", type=int, help="Only what is to be delivered before this time.")
@click.option("--publish-from-ms", type=int, help="Only what was published at this time or later.")
@click.option("--publish-before-ms", type=int, help="Only what was published before this time.")
@click.option("--dry-run", is_flag=True, help="Only count; change nothing.")
@click.option("--acknowledge-only", is_flag=True, help="Leave the index alone, as when it is not in DATA.")
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs; spark-submit's own wins.")
@refusing
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
    dry_run: bool,
    acknowledge_only: bool,
    master: str,
) -> None:
    """Cancel scheduled messages: they are acknowledged for the subscriptions named and never delivered.

    DATA is a service's data directory; the service must be stopped. Cancelled are the positions of a file, or all
    messages with a delay for which every option holds. Keys and properties are read from the metadata of messages,
    which takes longer than times alone. A second run cancels nothing.
    """
    from pipeline.cancel import cancel as cancel_positions
    from pipeline.find_messages import find_messages, read_positions
    from pipeline.index_place import cursor_folder

    deliver, publish = (deliver_from_ms, deliver_before_ms), (publish_from_ms, publish_before_ms)
    is_limited = bool(topics or message_keys or properties) or any(limit is not None for limit in (*deliver, *publish))
    if is_limited == (positions is not None):
        raise ValueError("say what to cancel: either --positions, or options for topic, key, property or times")
    wanted = [_property(text) for text in properties]
    # Before Spark takes its seconds to start.
    cursor_folder(data, None)
    spark = new_session(master)
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
    with Steps().shown() as steps:
        report = cancel_positions(
            found,
            index or data,
            cursors=cursors,
            cursor_log=data,
            is_dry_run=dry_run,
            has_index=not acknowledge_only,
            on_stage=steps.begin,
            on_step=steps.advance,
        )
    _tell_cancelled(report, is_dry_run=dry_run)
    spark.stop()


def _property(text: str) -> tuple[bytes, bytes]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise ValueError(f"--property must be NAME=VALUE, but is {text}")
    return name.encode(), value.encode()


def _tell_cancelled(report: "CancelReport", *, is_dry_run: bool) -> None:
    for name, cancelled in sorted(report.cancelled.items()):
        click.echo(f"{cancelled:,} messages {'would be ' if is_dry_run else ''}cancelled for {name}")
    click.echo(f"{report.asked:,} positions asked for, of which the log does not have {report.unknown:,}")
    if not is_dry_run:
        click.echo(
            f"{report.index_rows:,} rows left the index: {report.buckets_shrunk} buckets shrunk, "
            f"{report.buckets_removed} removed"
        )
    for bucket in report.buckets_unreadable[:BAD_ROWS_SHOWN]:
        click.echo(f"{bucket.bucket_key} of {bucket.cursor} was left as it is: {bucket.error}", err=True)
    if report.bad_rows:
        click.echo(f"{len(report.bad_rows):,} rows are no positions and were left out, such as", err=True)
    for row in report.bad_rows[:BAD_ROWS_SHOWN]:
        click.echo(f"  {row.topic} {row.ledger_id}:{row.entry_id}", err=True)
