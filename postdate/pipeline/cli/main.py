"""The commands `postdate ledger` and `postdate pipeline`: bulk jobs from a terminal or through `spark-submit`.

    spark-submit --master spark://host:7077 "$(python -m postdate.pipeline)" rebuild DATA     the same job on a cluster

Each error at start is one line on stderr and exit code 2. Libraries of a job (pyarrow, PySpark, Java) are loaded when
it runs, so `--help` works without them.
"""

import sys
from contextlib import closing
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import click

from postdate.command_line.endings import EXIT_CODE_WRONG, help_end, say
from postdate.command_line.extras import install_advice
from postdate.command_line.output import counted, iso, iso_or_none, json_option, print_json
from postdate.command_line.progress import Steps
from postdate.command_line.times import TIME_MS_MAX
from postdate.index.bundle_choice import bundle_option
from postdate.pipeline.cli.cancel import cancel
from postdate.pipeline.cli.common import (
    INT_MAX,
    job_options,
    new_session,
    of_bundle,
    refusing,
    segment_options,
    topics_option,
)
from postdate.pipeline.cli.ingest import ingest, shown_row
from postdate.pipeline.cli.ledger import repair
from postdate.pipeline.cli.ledger_copy import copy
from postdate.pipeline.cli.merge import merge
from snapshot_storage.s3.location import is_s3

if TYPE_CHECKING:
    from pathlib import Path

    from postdate.pipeline.jobs.forecast import Ahead, Forecast
    from postdate.pipeline.jobs.log_rebuild import RebuildReport

BAD_ROWS_SHOWN = 10
AHEAD_SHOWN = 10


@click.group(epilog=help_end("postdate ledger export data /backup/log", "postdate ledger export --help"))
def ledger() -> None:
    """Work with the log of a service."""


@ledger.command(
    epilog=help_end(
        "postdate ledger export data /backup/log",
        "postdate ledger export --closed-only data s3://bucket/log",
        "postdate ledger export --topic persistent://public/default/orders data /tmp/orders",
    )
)
@click.argument("data", metavar="LOG")
@click.argument("target")
@topics_option
@bundle_option
@click.option("--closed-only", is_flag=True, help="Only ledgers that are closed: an offload, to be repeated.")
@json_option()
@refusing
@of_bundle
def export(
    data: str, bundle: str | None, target: str, topics: tuple[str, ...], closed_only: bool, is_json: bool
) -> None:
    """Write the headers of all messages to Parquet files, without payloads.

    LOG is a service's data directory, also one on S3 (the service may run), and TARGET a folder or a URI such as
    s3://bucket/folder. Ledgers that are in TARGET already are not written again.
    """
    from managed_ledger.names import find_topic
    from postdate.pipeline.logs.open_logs import open_log
    from postdate.pipeline.logs.parquet_log import export_ledgers, make_export
    from postdate.pipeline.logs.read_out_logs import local_log

    with local_log(data, bundle, topics) as place, closing(open_log(place)) as source:
        wanted = {find_topic(topic, source.topics()) for topic in topics} or None
        make_export(target)
        with Steps().shown() as steps:
            steps.begin("export", len(source.ledgers(wanted)))
            written = export_ledgers(
                source, target, topics=wanted, with_open=not closed_only, on_ledger=lambda *_: steps.advance(1)
            )
    messages = sum(one.entries for one in written)
    if is_json:
        print_json({"target": target, "ledgers": len(written), "messages": messages})
    else:
        click.echo(f"{counted(len(written), 'ledger')} with {counted(messages, 'message')} written to {target}")


@click.group(epilog=help_end("postdate pipeline rebuild data", "postdate pipeline rebuild --help"))
def pipeline() -> None:
    """Make and change the delayed index in bulk, on Spark. `postdate check` says whether it is whole."""


@pipeline.command(
    epilog=help_end(
        "postdate pipeline rebuild data",
        "postdate pipeline rebuild --master 'local[8]' --topic persistent://public/default/orders data",
        "postdate pipeline rebuild --log s3://bucket/log data",
        "postdate pipeline rebuild s3://bucket/postdate  # the dataDirectory of services that are stopped",
        'spark-submit --master spark://host:7077 "$(python -m postdate.pipeline)" rebuild /shared/data',
        wrong="rows that no index can hold were left out",
    )
)
@click.option("--log", metavar="LOG", help="Read headers from here: a log's folder or an export. Default: DATA.")
@segment_options
@click.option(
    "--bucket-indexes",
    type=click.IntRange(1, INT_MAX),
    default=50_000,
    show_default=True,
    help="Fewest indexes of a bucket.",
)
@click.option("--rejects", metavar="FILE", help="Write rows that no index can hold to this Parquet file.")
@job_options(now="Messages due at this time are left out.")
def rebuild(
    data: str,
    bundle: str | None,
    log: str | None,
    index: str | None,
    topics: tuple[str, ...],
    cursors: tuple[str, ...],
    now_ms: int,
    segment_seconds: int,
    segment_indexes: int,
    bucket_indexes: int,
    master: str,
    rejects: str | None,
    is_json: bool,
) -> None:
    """Make the delayed index anew from the log, for all subscriptions.

    DATA is a service's data directory; the service must be stopped. The old index is valid until the new one takes its
    place in one step at the end. Snapshots that are the same already stay, so a second run changes nothing. On S3 all
    services of DATA must be stopped, its bundles are done one after the other, and their logs are in TMPDIR meanwhile.
    """
    from postdate.index.location import location_at
    from postdate.pipeline.jobs.log_rebuild import rebuild_log
    from postdate.pipeline.jobs.prefix_rebuild import check_prefix, rebuild_prefix
    from postdate.pipeline.logs.open_logs import open_log
    from postdate.pipeline.planning.rules import ROWS_PER_BUCKET_MAX, RebuildRules
    from postdate.pipeline.spark.open_index import check_index, cursor_folder

    # Before Spark takes its seconds to start.
    location_at(index or data)
    if is_s3(data):
        check_prefix(data, index, bundle, topics)
    else:
        check_index(None, cursor_folder(data, None), topics, cursors)
    if log is not None:
        open_log(log).close()
    rules = RebuildRules(
        now_ms=now_ms,
        step_ms=segment_seconds * 1_000,
        rows_max=segment_indexes,
        rows_per_bucket_min=bucket_indexes,
        rows_per_bucket_max=max(bucket_indexes, ROWS_PER_BUCKET_MAX),
    )
    with new_session(master) as spark, Steps().shown() as steps:
        if is_s3(data):
            rebuild_here = partial(rebuild_prefix, spark, data, index, log=log, bundle=bundle)
        else:
            rebuild_here = partial(rebuild_log, spark, log or data, index or data, cursor_log=data)
        report = rebuild_here(
            rules=rules,
            topics=topics or None,
            cursors=cursors or None,
            on_stage=steps.begin,
            on_step=steps.advance,
        )
    if is_json:
        print_json(rebuild_json(report))
    _tell(report, rejects, is_quiet=is_json)
    if report.bad_rows:
        sys.exit(EXIT_CODE_WRONG)


@pipeline.command(
    epilog=help_end(
        "postdate pipeline forecast data",
        "postdate pipeline forecast --of index --out /tmp/ahead data",
        "postdate pipeline forecast --topic persistent://public/default/orders s3://bucket/log",
    )
)
@click.option(
    "--of",
    "source",
    type=click.Choice(["log", "index"]),
    default="log",
    show_default=True,
    help="Count each message of the log once, or each index of every subscription.",
)
@click.option("--out", metavar="FOLDER", default="forecast", show_default=True, help="Where the files go.")
@job_options(
    has_index=False,
    has_cursors=False,
    now="Messages due at this time are left out.",
    json="the figures of every topic",
)
def forecast(
    data: str,
    bundle: str | None,
    source: str,
    out: str,
    topics: tuple[str, ...],
    now_ms: int,
    master: str,
    is_json: bool,
) -> None:
    """Foresee deliveries by minute and topic, how far ahead they are, and the peak.

    DATA is a service's data directory, also one on S3 (the service may run), an export, or an index, if --of says so.
    Writes minutes.parquet and topics.parquet, and with the extra `charts` deliveries.png and ahead.png. A log also
    counts what was acknowledged before its time; an index lacks messages that are not sealed yet.
    """
    from pathlib import Path

    from managed_ledger.names import find_topic
    from postdate.pipeline.jobs.forecast import forecast as foresee
    from postdate.pipeline.jobs.forecast import write_forecast
    from postdate.pipeline.logs.open_logs import topics_of_log
    from postdate.pipeline.logs.read_out_logs import local_index, local_log
    from postdate.pipeline.spark.open_index import topics_of_index

    # Before Spark takes its seconds to start.
    with (local_log if source == "log" else local_index)(data, bundle, topics) as place:
        known = topics_of_log(place) if source == "log" else topics_of_index(place)
        wanted = sorted({find_topic(topic, known) for topic in topics})
        with new_session(master) as spark, Steps().shown() as steps:
            name = {"log": "postdate_ledger", "index": "postdate_index"}[source]
            reader = spark.read.format(name).option("deliver_at_ms_min", min(now_ms + 1, TIME_MS_MAX))
            # The option of the source, as a filter of the query would read every topic.
            tables = [reader.option("topic", topic).load(place) for topic in wanted] or [reader.load(place)]
            rows = reduce(lambda one, other: one.unionAll(other), tables)
            found = foresee(rows, now_ms=now_ms, on_stage=steps.begin, on_step=steps.advance)
    write_forecast(found, out)
    files = _draw_if_installed(found, Path(out))
    if is_json:
        print_json({"files": [str(path) for path in files], "ahead": [ahead_json(one) for one in found.summaries()]})
        return
    _tell_ahead(found.summaries())
    for path in files:
        click.echo(f"see {path}")


def _draw_if_installed(found: "Forecast", folder: "Path") -> "list[Path]":
    """Draw the charts of a forecast and return their files; without matplotlib say which extra brings it."""
    try:
        from postdate.pipeline.jobs.forecast_charts import draw_forecast
    except ModuleNotFoundError as error:
        advice = install_advice(error.name, ["forecast"])
        if advice is None:
            raise
        say(f"no charts were drawn, as {advice}")
        return []
    return draw_forecast(found, folder)


def ahead_json(ahead: "Ahead") -> dict[str, Any]:
    """Return the forecast of a topic; the topic is null for all together."""
    return ahead._asdict() | {"peak": iso_or_none(ahead.peak_ms)}


def _tell_ahead(summaries: "list[Ahead]") -> None:
    if not summaries:
        click.echo("nothing is ahead")
    for ahead in summaries[:AHEAD_SHOWN]:
        p50, p90, p99 = (f"{ms / 60_000:,.0f}" for ms in ahead[2:5])
        peak = iso(ahead.peak_ms)
        click.echo(
            f"{ahead.topic or 'all topics'}: {ahead.deliveries:,} deliveries, p50/p90/p99 {p50}/{p90}/{p99} minutes "
            f"ahead, peak {ahead.peak_deliveries:,} a minute at {peak}"
        )


def rebuild_json(report: "RebuildReport") -> dict[str, Any]:
    """Return the figures of a rebuild."""
    published = report.published
    return {
        "messages": report.entries_read,
        "ledgers": report.ledgers,
        "rows": report.rows,
        "buckets": len(published.buckets),
        "created": published.created_count,
        "removed": len(published.removed_ids),
        "bad_rows": len(report.bad_rows),
        "bad_examples": [row._asdict() for row in report.bad_rows[:BAD_ROWS_SHOWN]],
    }


def _tell(report: "RebuildReport", rejects: str | None, *, is_quiet: bool) -> None:
    published = report.published
    if not is_quiet:
        click.echo(
            f"{report.entries_read:,} messages of {report.ledgers} ledgers read, {report.rows:,} indexed in "
            f"{len(published.buckets)} buckets: {published.created_count} new, "
            f"{len(published.buckets) - published.created_count} as before, {len(published.removed_ids)} removed"
        )
    if not report.bad_rows:
        return
    click.echo(f"{len(report.bad_rows):,} rows cannot be indexed and were left out, such as", err=True)
    for row in report.bad_rows[:BAD_ROWS_SHOWN]:
        click.echo(f"  {shown_row(row)}", err=True)
    if rejects is not None:
        from postdate.pipeline.tasks.reject_file import write_rejects

        write_rejects(report.bad_rows, rejects)
        click.echo(f"all of them are in {rejects}", err=True)


ledger.add_command(copy)
ledger.add_command(repair)
pipeline.add_command(cancel)
pipeline.add_command(ingest)
pipeline.add_command(merge)

if __name__ == "__main__":
    pipeline()
