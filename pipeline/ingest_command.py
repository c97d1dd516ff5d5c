"""The command `postdate pipeline ingest`; what it does is `ingest`'s."""

import re
import time
from typing import TYPE_CHECKING

import click

from pipeline.commands import Steps, examples, new_session, refusing

if TYPE_CHECKING:
    from pipeline.ingest import IngestedBatch


@click.command(
    epilog=examples(
        "postdate pipeline ingest data /incoming --cursor billing --checkpoint /state/incoming",
        "postdate pipeline ingest data /incoming --format csv --cursor billing --checkpoint /state/incoming --follow",
        'spark-submit "$(python -m pipeline)" ingest /shared/data s3a://bucket/in --cursor c --checkpoint s3a://bucket/cp',
    )
)
@click.argument("data")
@click.argument("source")
@click.option("--cursor", "cursors", multiple=True, required=True, metavar="NAME", help="Subscription; repeatable.")
@click.option("--checkpoint", required=True, metavar="FOLDER", help="Where Spark keeps how far the stream is.")
@click.option("--format", "file_format", type=click.Choice(["parquet", "csv", "json"]), default="parquet")
@click.option("--files-per-batch", type=click.IntRange(1), default=1_000, show_default=True, help="Most files at once.")
@click.option("--follow", is_flag=True, help="Go on with what comes, until Ctrl-C; else end when all is read.")
@click.option("--rejects", metavar="FOLDER", help="Write rows that no index can hold to Parquet files below it.")
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs; spark-submit's own wins.")
@refusing
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
) -> None:
    """Add a stream of scheduled messages to the delayed index, each once, whatever is killed and restarted.

    DATA is a service's data directory; the service must be stopped. SOURCE is a folder to which files are added, with
    the columns topic, ledger_id, entry_id and deliver_at_ms; CSV with a header. Keep the checkpoint: with a new one the
    stream begins anew. Other sources, such as Kafka: `pipeline.ingest.ingest` in a program.
    """
    from pyspark.errors import StreamingQueryException

    from pipeline.index_place import cursor_folder
    from pipeline.ingest import STREAM_SCHEMA
    from pipeline.ingest import ingest as start_ingest

    # Before Spark takes its seconds to start.
    cursor_folder(data, None)
    spark = new_session(master)
    stream = spark.readStream.schema(STREAM_SCHEMA).option("header", "true").format(file_format)
    with Steps().shown() as steps:
        steps.begin("ingest", None)

        def on_batch(batch: "IngestedBatch") -> None:
            _tell_batch(batch)
            steps.advance(batch.messages)

        query = start_ingest(
            stream.option("maxFilesPerTrigger", files_per_batch).load(source),
            data,
            cursors=cursors,
            checkpoint=checkpoint,
            now_ms=lambda: time.time_ns() // 1_000_000,
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
    spark.stop()


def cause_of(text: str) -> str:
    r"""Return what one of our own errors says in the text of a query that failed, or else its first line.

    >>> cause_of("[STREAM_FAILED] Failed\nmanaged_ledger.errors.StoreLockedError: it is in use\n\tat x")
    'it is in use'
    >>> cause_of("[STREAM_FAILED] Query failed\nat x")
    '[STREAM_FAILED] Query failed'
    """
    ours = re.search(r"(?:managed_ledger|snapshot_storage)\.errors\.\w+: (.+)", text)
    return ours.group(1) if ours else text.partition("\n")[0]


def _tell_batch(batch: "IngestedBatch") -> None:
    bad = f", of which {batch.bad_rows:,} cannot be indexed and were left out, such as" if batch.bad_rows else ""
    click.echo(f"batch {batch.batch_id}: {batch.messages:,} messages{bad}")
    for row in batch.bad_examples:
        click.echo(f"  {row.topic} {row.ledger_id}:{row.entry_id} at {row.deliver_at_ms}: {row.reason}", err=True)
