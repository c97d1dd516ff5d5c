"""The commands `postdate ledger` and `postdate pipeline`: bulk jobs from a terminal or through `spark-submit`.

    spark-submit --master spark://host:7077 "$(python -m pipeline)" rebuild DATA     the same job on a cluster

Everything that goes wrong at start is one line on stderr and exit code 2. What a job needs (pyarrow, PySpark, Java) is
imported when it runs, so `--help` works without.
"""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from pipeline.audit_command import audit
from pipeline.cancel_command import cancel
from pipeline.commands import Steps, examples, refusing
from pipeline.commands import new_session as _session
from pipeline.ingest_command import ingest
from pipeline.ledger_command import repair, verify
from pipeline.merge_command import merge
from pipeline.migrate_command import migrate

if TYPE_CHECKING:
    from pipeline.forecast import Ahead
    from pipeline.log_rebuild import RebuildReport

BAD_ROWS_SHOWN = 10
AHEAD_SHOWN = 10


@click.group(epilog=examples("postdate ledger export data /backup/log", "postdate ledger export --help"))
def ledger() -> None:
    """Work with the log of a service."""


@ledger.command(
    epilog=examples(
        "postdate ledger export data /backup/log",
        "postdate ledger export --closed-only data s3://bucket/log",
        "postdate ledger export --topic persistent://public/default/orders data /tmp/orders",
    )
)
@click.argument("log")
@click.argument("target")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; repeatable.")
@click.option("--closed-only", is_flag=True, help="Only ledgers that are closed: an offload, to be repeated.")
@refusing
def export(log: str, target: str, topics: tuple[str, ...], closed_only: bool) -> None:
    """Write the headers of all messages to Parquet files, without payloads.

    LOG is a service's data directory (the service may run) and TARGET a folder or a URI such as s3://bucket/folder.
    Ledgers that are in TARGET already are not written again.
    """
    from pipeline.open_logs import open_log
    from pipeline.parquet_log import export_ledgers

    source = open_log(log)
    with Steps().shown() as steps:
        steps.begin("export", len(source.ledgers(topics or None)))
        written = export_ledgers(
            source, target, topics=topics or None, with_open=not closed_only, on_ledger=lambda *_: steps.advance(1)
        )
    source.close()
    click.echo(f"{len(written)} ledgers with {sum(one.entries for one in written):,} messages written to {target}")


@click.group(epilog=examples("postdate pipeline rebuild data", "postdate pipeline rebuild --help"))
def pipeline() -> None:
    """Make, move and check the delayed index in bulk, on Spark."""


@pipeline.command(
    epilog=examples(
        "postdate pipeline rebuild data",
        "postdate pipeline rebuild --master 'local[8]' --topic persistent://public/default/orders data",
        "postdate pipeline rebuild --log s3://bucket/log data",
        'spark-submit --master spark://host:7077 "$(python -m pipeline)" rebuild /shared/data',
    )
)
@click.argument("data")
@click.option("--log", metavar="LOG", help="Read headers from here: a log's folder or an export. Default: DATA.")
@click.option(
    "--index",
    metavar="INDEX",
    help="Snapshots are here: a folder, s3://BUCKET/PREFIX or file:///FOLDER. Default: in DATA.",
)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; repeatable.")
@click.option("--cursor", "cursors", multiple=True, metavar="NAME", help="Only subscriptions of this name; repeatable.")
@click.option("--now-ms", type=int, help="What is due at this time is left out. Default: now.")
@click.option("--segment-seconds", type=int, default=300, show_default=True, help="Longest time span of a segment.")
@click.option("--segment-indexes", type=int, default=5_000, show_default=True, help="Most indexes of a segment, or -1.")
@click.option("--bucket-indexes", type=int, default=50_000, show_default=True, help="Fewest indexes of a bucket.")
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs; spark-submit's own wins.")
@click.option("--rejects", metavar="FILE", help="Write rows that no index can hold to this Parquet file.")
@refusing
def rebuild(
    data: str,
    log: str | None,
    index: str | None,
    topics: tuple[str, ...],
    cursors: tuple[str, ...],
    now_ms: int | None,
    segment_seconds: int,
    segment_indexes: int,
    bucket_indexes: int,
    master: str,
    rejects: str | None,
) -> None:
    """Make the delayed index anew from the log, for all subscriptions.

    DATA is a service's data directory; the service must be stopped. The old index is valid until the new one takes its
    place in one step at the end. What is the same already stays, so a second run changes nothing.
    """
    from pipeline.index_place import cursor_folder
    from pipeline.log_rebuild import rebuild_log
    from pipeline.rules import RebuildRules

    # Before Spark takes its seconds to start.
    cursor_folder(data, None)
    rules = RebuildRules(
        now_ms=time.time_ns() // 1_000_000 if now_ms is None else now_ms,
        step_ms=segment_seconds * 1_000,
        rows_max=segment_indexes,
        rows_per_bucket_min=bucket_indexes,
    )
    spark = _session(master)
    with Steps().shown() as steps:
        report = rebuild_log(
            spark,
            log or data,
            index or data,
            rules=rules,
            cursor_log=data,
            topics=topics or None,
            cursors=cursors or None,
            on_stage=steps.begin,
            on_step=steps.advance,
        )
    _tell(report, rejects)
    spark.stop()


@pipeline.command(
    epilog=examples(
        "postdate pipeline forecast data",
        "postdate pipeline forecast --of index --out /tmp/ahead data",
        "postdate pipeline forecast --topic persistent://public/default/orders s3://bucket/log",
    )
)
@click.argument("data")
@click.option(
    "--of",
    "source",
    type=click.Choice(["log", "index"]),
    default="log",
    show_default=True,
    help="Count each message of the log once, or each index of every subscription.",
)
@click.option("--out", metavar="FOLDER", default="forecast", show_default=True, help="Where the files go.")
@click.option("--topic", metavar="TOPIC", help="Only this topic.")
@click.option("--now-ms", type=int, help="What is due at this time is left out. Default: now.")
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs; spark-submit's own wins.")
@refusing
def forecast(data: str, source: str, out: str, topic: str | None, now_ms: int | None, master: str) -> None:
    """Foresee deliveries by minute and topic, how far ahead they are, and the peak.

    DATA is a service's data directory (the service may run); also an export or a folder of snapshots, if --of says so.
    Writes minutes.parquet, topics.parquet, deliveries.png and ahead.png. A log also counts what was acknowledged before
    its time; an index lacks what is not sealed yet.
    """
    from pathlib import Path

    from pipeline.forecast import forecast as foresee
    from pipeline.forecast import write_forecast
    from pipeline.forecast_charts import draw_forecast
    from pipeline.index_place import open_index
    from pipeline.open_logs import open_log

    # Before Spark takes its seconds to start.
    if source == "log":
        open_log(data).close()
    else:
        open_index(data, is_read_only=True)
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    spark = _session(master)
    name = {"log": "postdate_ledger", "index": "postdate_index"}[source]
    rows = spark.read.format(name).option("deliver_at_ms_min", now_ms + 1)
    if topic is not None:
        rows = rows.option("topic", topic)
    with Steps().shown() as steps:
        found = foresee(rows.load(data), now_ms=now_ms, on_stage=steps.begin, on_step=steps.advance)
    spark.stop()
    write_forecast(found, out)
    _tell_ahead(found.summaries())
    for path in draw_forecast(found, Path(out)):
        click.echo(f"see {path}")


def _time_text(time_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(time_ms / 1_000, UTC):%Y-%m-%d %H:%M} UTC"
    except (ValueError, OverflowError):
        # After the year 9999.
        return f"{time_ms} ms"


def _tell_ahead(summaries: "list[Ahead]") -> None:
    if not summaries:
        click.echo("nothing is ahead")
    for ahead in summaries[:AHEAD_SHOWN]:
        p50, p90, p99 = (f"{ms / 60_000:,.0f}" for ms in ahead[2:5])
        peak = _time_text(ahead.peak_ms)
        click.echo(
            f"{ahead.topic or 'all topics'}: {ahead.deliveries:,} deliveries, p50/p90/p99 {p50}/{p90}/{p99} minutes "
            f"ahead, peak {ahead.peak_deliveries:,} a minute at {peak}"
        )


def _tell(report: "RebuildReport", rejects: str | None) -> None:
    published = report.published
    click.echo(
        f"{report.entries_read:,} messages of {report.ledgers} ledgers read, {report.rows:,} indexed in "
        f"{len(published.buckets)} buckets: {published.created_count} new, "
        f"{len(published.buckets) - published.created_count} as before, {len(published.removed_ids)} removed"
    )
    if not report.bad_rows:
        return
    click.echo(f"{len(report.bad_rows):,} rows cannot be indexed and were left out, such as", err=True)
    for row in report.bad_rows[:BAD_ROWS_SHOWN]:
        click.echo(f"  {row.topic} {row.ledger_id}:{row.entry_id} at {row.deliver_at_ms}: {row.reason}", err=True)
    if rejects is not None:
        from pipeline.reject_file import write_rejects

        write_rejects(report.bad_rows, rejects)
        click.echo(f"all of them are in {rejects}", err=True)


ledger.add_command(repair)
ledger.add_command(verify)
pipeline.add_command(audit)
pipeline.add_command(cancel)
pipeline.add_command(ingest)
pipeline.add_command(merge)
pipeline.add_command(migrate)

if __name__ == "__main__":
    pipeline()
