"""The command `postdate pipeline audit`."""

import sys
import time
from typing import TYPE_CHECKING

import click

from pipeline.commands import Steps, examples, new_session, refusing

if TYPE_CHECKING:
    from pipeline.audit import AuditReport

EXIT_CODE_FINDINGS = 1


@click.command(
    epilog=examples(
        "postdate pipeline audit data",
        "postdate pipeline audit --positions /tmp/findings.parquet --cursor worker data",
        "postdate pipeline audit --repair data",
    )
)
@click.argument("data")
@click.option(
    "--index",
    metavar="INDEX",
    help="Snapshots are here: a folder, s3://BUCKET/PREFIX or file:///FOLDER. Default: in DATA.",
)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; repeatable.")
@click.option("--cursor", "cursors", multiple=True, metavar="NAME", help="Only subscriptions of this name; repeatable.")
@click.option("--now-ms", type=int, help="What is due at this time need not be in the index. Default: now.")
@click.option("--positions", metavar="FILE", help="Write what is wrong with positions to this Parquet file.")
@click.option("--repair", "is_repairing", is_flag=True, help="Rebuild what is wrong; the service must be stopped.")
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs; spark-submit's own wins.")
@refusing
def audit(
    data: str,
    index: str | None,
    topics: tuple[str, ...],
    cursors: tuple[str, ...],
    now_ms: int | None,
    positions: str | None,
    is_repairing: bool,
    master: str,
) -> None:
    """Compare the delayed index with the log and the cursors; exit code 1 if anything is wrong.

    DATA is a service's data directory. The service may run, but not with --repair; what it seals or merges just then
    may look wrong once. Repairing makes the index of every subscription with a finding anew, with default limits of
    segments and buckets, and deletes snapshots that no property names. Then the exit code is 0.
    """
    from pipeline.audit import audit as compare
    from pipeline.audit import repair, write_positions
    from pipeline.index_place import cursor_folder
    from pipeline.rules import RebuildRules

    cursor_folder(data, None)
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    spark = new_session(master)
    with Steps().shown() as steps:
        report = compare(
            spark,
            data,
            index,
            now_ms=now_ms,
            topics=topics or None,
            cursors=cursors or None,
            on_stage=steps.begin,
            on_step=steps.advance,
        )
        _tell_findings(report)
        if positions is not None:
            click.echo(f"{write_positions(report, positions):,} positions written to {positions}")
        if is_repairing and not report.is_clean:
            deleted = repair(
                spark,
                data,
                report,
                index,
                rules=RebuildRules(now_ms=now_ms),
                on_stage=steps.begin,
                on_step=steps.advance,
            )
            click.echo(
                f"{len(report.affected())} subscriptions rebuilt, {deleted} snapshots without a property deleted"
            )
    spark.stop()
    if not (report.is_clean or is_repairing):
        sys.exit(EXIT_CODE_FINDINGS)


def _tell_findings(report: "AuditReport") -> None:
    click.echo(f"{report.index_rows:,} indexes compared with {report.log_rows:,} delayed messages")
    for cursor, counts in report.counts.items():
        found = ", ".join(f"{count:,} {finding.value}" for finding, count in counts.items() if count)
        if found:
            click.echo(f"{cursor}: {found}")
    for bucket_id, (cursor, why) in report.corrupt.items():
        click.echo(f"{cursor}: snapshot {bucket_id} is corrupt: {why}")
    for problem in report.ownership:
        kind = "dangling" if problem.kind == "missing" else problem.kind
        owner = f"{problem.cursor_name} of {problem.topic_name}" if problem.topic_name else "nobody knows whose"
        click.echo(f"{owner}: {kind}: {problem.bucket_id}, {problem.what}")
    click.echo("nothing is wrong" if report.is_clean else "the index is not as it should be")
