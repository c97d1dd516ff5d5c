"""The command `postdate pipeline ingest`; `jobs.ingest` does the work."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from postdate.command_line.endings import EXIT_CODE_WRONG, help_end
from postdate.command_line.output import iso, print_json
from postdate.command_line.progress import Steps
from postdate.pipeline.cli.common import INT_MAX, cause_of, job_options, new_session, wall_clock_ms

if TYPE_CHECKING:
    from postdate.pipeline.jobs.ingest import IngestedBatch
    from postdate.pipeline.tasks.row_checks import BadRow


@click.command(
    epilog=help_end(
        "postdate pipeline ingest data /incoming --subscription billing --checkpoint /state",
        "postdate pipeline ingest data /incoming --format csv --subscription billing --checkpoint /state --follow",
        "postdate pipeline ingest data /incoming --subscription billing --checkpoint /state --rejects /rejects",
        'spark-submit "$(python -m postdate.pipeline)" ingest data s3a://bucket/in --subscription c --checkpoint /cp',
        wrong="rows that no index can hold, or that the log has otherwise, were left out",
    )
)
@click.option("--checkpoint", required=True, metavar="FOLDER", help="Spark's record of the stream's position.")
@click.option("--format", "file_format", type=click.Choice(["parquet", "csv", "json"]), default="parquet")
@click.option(
    "--files-per-batch", type=click.IntRange(1, INT_MAX), default=1_000, show_default=True, help="Most files at once."
)
@click.option("--follow", is_flag=True, help="Go on with new files until Ctrl-C; otherwise end after the present ones.")
@click.option("--rejects", metavar="FOLDER", help="Write the rows that are refused to Parquet files below it.")
@job_options(has_index=False, has_topics=False, needs_cursors=True, json="one object a line for each batch")
@click.argument("source")
def ingest(
    data: str,
    source: str,
    cursors: tuple[str, ...],
    checkpoint: str,
    file_format: str,
    files_per_batch: int,
    follow: bool,
    rejects: str | None,
    master: str,
    is_json: bool,
) -> None:
    """Add a stream of scheduled messages to the delayed index, each once, also when processes are killed and restarted.

    DATA is a service's data directory; the service must be stopped. SOURCE is a folder to which files are added, with
    the columns topic, ledger_id, entry_id and deliver_at_ms (milliseconds); CSV with a header. Keep the checkpoint:
    with a new one the stream begins anew.

    Each row is compared with the log. One whose message the log does not have, or has with another time, is refused
    and counted by its reason; the service finds its message in the log all the same, at the log's time.

    Other sources, such as Kafka: `postdate.pipeline.jobs.ingest.ingest` in a program.
    """
    from pyspark.errors import StreamingQueryException

    from postdate.pipeline.jobs.find_messages import CSV_OPTIONS
    from postdate.pipeline.jobs.ingest import STREAM_SCHEMA
    from postdate.pipeline.jobs.ingest import ingest as start_ingest
    from postdate.pipeline.spark.open_index import check_index, cursor_folder

    # Before Spark takes its seconds to start.
    check_index(None, cursor_folder(data, None), (), cursors)
    if "://" not in source and not Path(source).is_dir():
        raise ValueError(f"there is no folder {source} to which files are added")
    bad_rows = 0
    with new_session(master) as spark, Steps().shown() as steps:
        steps.begin("ingest", None)
        stream = spark.readStream.schema(STREAM_SCHEMA).format(file_format)
        if file_format == "csv":
            stream = stream.options(**CSV_OPTIONS)

        def on_batch(batch: "IngestedBatch") -> None:
            nonlocal bad_rows
            bad_rows += batch.bad_rows
            if is_json:
                print_json(batch_json(batch), is_line=True)
            else:
                _tell_batch(batch)
            steps.advance(batch.messages)

        query = start_ingest(
            stream.option("maxFilesPerTrigger", files_per_batch).load(source),
            data,
            cursors=cursors,
            checkpoint=checkpoint,
            now_ms=wall_clock_ms,
            is_endless=follow,
            rejects=rejects,
            on_batch=on_batch,
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            cause = cause_of(str(error))
            raise RuntimeError(f"the stream stopped, and goes on where it was when started again: {cause}") from error
        except KeyboardInterrupt:
            query.stop()
            if not follow:
                raise
    if bad_rows:
        sys.exit(EXIT_CODE_WRONG)


def batch_json(batch: "IngestedBatch") -> dict[str, Any]:
    """Return what became of a batch."""
    return batch._asdict() | {
        "bad_examples": [row._asdict() for row in batch.bad_examples],
        "bad_by_reason": dict(batch.bad_by_reason),
    }


def _tell_batch(batch: "IngestedBatch") -> None:
    bad = f", of which {batch.bad_rows:,} are refused:" if batch.bad_rows else ""
    click.echo(f"batch {batch.batch_id}: {batch.messages:,} messages{bad}")
    for reason, count in batch.bad_by_reason.items():
        click.echo(f"  {count:,}: {reason}")
    if batch.bad_examples:
        click.echo("such as", err=True)
    for row in batch.bad_examples:
        click.echo(f"  {shown_row(row)}", err=True)


def shown_row(row: "BadRow") -> str:
    """Write a row that no index can hold, whose values may be missing or make no sense, and why."""
    time_ms = row.deliver_at_ms
    time = "no time" if time_ms is None else str(time_ms) if time_ms < 0 else iso(time_ms)
    return f"{row.topic} {row.ledger_id}:{row.entry_id} at {time}: {row.reason}"
